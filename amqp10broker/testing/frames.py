"""Frames of a test's clients: the last ones for its report, all of them for lint and upgrade checks."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from datetime import datetime
from itertools import repeat
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import Upgrade
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.records import Record, RecordedFrame, first_line, read_lines
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp10.performatives import Open
from amqp10broker.runtime.observe.trace_sinks import FILE_BYTES_MAX
from amqp10broker.tools.lint import RULES, Finding, Lint
from amqp10broker.tools.upgrade import RecordedUses

# Connections with stored frames; the oldest are dropped.
CONNECTIONS_MAX: Final = 100
LINE_CHARACTERS_MAX: Final = 400
# The part of the file with frames that a report reads.
TAIL_BYTES: Final = 4 * 1024 * 1024
# Frames kept for the lint of a broker in a thread, some hundred bytes each; the oldest are dropped.
LINES_MAX: Final = 50_000
# More than a broker writes at one time: a file with less space left may have ended before the test.
_LINES_BYTES: Final = 1024 * 1024
# Prefix of container ids of the fixtures' own connections, which are omitted.
OWN: Final = "amqp10broker-testing"
NOT_KEPT: Final = "frames are not kept: set amqp_broker_frames to more than 0 in the configuration of pytest"
_ENDS: Final = ("CLOSE", "END", "DETACH", "connection.close", "channel.close", "basic.cancel")


@dataclass(slots=True)
class ConnectionFrames:
    """The stored frames of one connection. `lines`: time in nanoseconds since 1970, and a frame as text, the
    last ones.
    """

    peer: str
    lines: deque[tuple[int, str]]
    waited: list[dict[str, Any]] = field(default_factory=list)
    own: bool = False
    total: int = 0


class RecordedFrames:
    """The frames of a broker in this process: a `Sink` of traces, and of recordings.

    A client that fails closes its connection before the test's report is made, and by then nothing waits any
    more. So waits are read when a frame arrives that ends something, before the broker processes it.
    """

    ended: str | None = None

    def __init__(self, most: int, waiting: Callable[[int], list[dict[str, Any]]]) -> None:
        self._most = most
        self._waiting = waiting
        self._kept: OrderedDict[int, ConnectionFrames] = OrderedDict()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = ConnectionFrames(peer, deque(maxlen=self._most))
            if len(self._kept) > CONNECTIONS_MAX:
                self._kept.popitem(last=False)
        now_ns = time.time_ns()
        for line in lines:
            if line.startswith("<-"):
                kept.own = kept.own or f"OPEN container-id={OWN}" in line
                if ends_something(line) and (waiting := self._waiting(number)):
                    kept.waited = waiting
            kept.lines.append((now_ns, line[:LINE_CHARACTERS_MAX]))
        kept.total += len(lines)

    def put(self, lines: Sequence[str]) -> None:
        self._lines.extend(lines)

    def close(self, reason: str) -> None:
        pass

    def recording(self) -> list[str]:
        """Return the lines of the recording; call it in the thread that calls `put`."""
        return list(self._lines)

    def since(self, began_ns: int) -> dict[int, ConnectionFrames]:
        """Return clients' connections with a frame since then, by number."""
        return {
            number: kept
            for number, kept in self._kept.items()
            if not kept.own and kept.lines and kept.lines[-1][0] >= began_ns
        }


def ends_something(line: str) -> bool:
    """Return whether a line of a trace is a frame that ends a link, a session, a channel or a connection."""
    words = line.split(" ", 4)
    return len(words) > 3 and words[3] in _ENDS


def frames_in(file: str, most: int, began_ns: int) -> dict[int, ConnectionFrames]:
    """Read the end of a trace's file, for connections with a frame since `began_ns`, by number.

    A line is ``2026-11-23T15:04:05.678901Z connection 3 <- ch 0 OPEN ...``.
    """
    kept: dict[int, ConnectionFrames] = {}
    if not file or not os.path.exists(file):
        return kept
    with open(file, "rb") as lines:
        size = lines.seek(0, os.SEEK_END)
        lines.seek(max(0, size - TAIL_BYTES))
        if size > TAIL_BYTES:
            lines.readline()  # an incomplete line
        for line in lines:
            when, _, number, text = line.decode(errors="replace").rstrip("\n").split(" ", 3)
            found = kept.setdefault(int(number), ConnectionFrames("", deque(maxlen=most)))
            found.total += 1
            found.own = found.own or f"OPEN container-id={OWN}" in text
            found.lines.append((_nanoseconds(when), text[:LINE_CHARACTERS_MAX]))
    return {number: each for number, each in kept.items() if not each.own and each.lines[-1][0] >= began_ns}


def _nanoseconds(when: str) -> int:
    return round(datetime.fromisoformat(when).timestamp() * 1_000_000) * 1_000


def lines_since(kept: Sequence[str], began_ns: int) -> list[str]:
    """Return a recording of lines in memory that begins at this time. Raises `AssertionError` if there were
    more than are kept.
    """
    assert len(kept) < LINES_MAX or _time_of(kept[0]) < began_ns, (
        f"the test has more than {LINES_MAX} frames, so nobody can say; make it shorter"
    )
    return [first_line(), *_known_since(kept, began_ns)]


def lines_in(folder: str, began_ns: int) -> Iterator[list[str]]:
    """Yield the recordings in a folder from this time on, one for each start of a broker. Raises
    `AssertionError` if one is full, `BrokerError` if there is no folder (``""``).
    """
    if not folder:
        raise BrokerError(NOT_KEPT)
    for path in sorted(map(os.path.join, repeat(folder), os.listdir(folder)), key=os.path.getmtime):
        assert os.path.getsize(path) < FILE_BYTES_MAX - _LINES_BYTES, (
            f"{path} is full, so nobody can say; run fewer tests together"
        )
        with open(path) as lines:
            yield [first_line(), *_known_since(lines, began_ns)]


def _known_since(lines: Iterable[str], began_ns: int) -> Iterator[str]:
    # Only connections that have begun since then: of others the lint lacks the earlier state.
    known: set[int] = set()
    for line in lines:
        if line.endswith("\n"):
            line = line[:-1]
        if not line.endswith("}") or _time_of(line) < began_ns:
            continue
        fields: dict[str, Any] = json.loads(line)
        if "peer" in fields and fields["begins"]:
            known.add(fields["connection"])
        if fields.get("connection") in known:
            yield line


def _time_of(line: str) -> int:
    return int(line.partition('"at_ns": ')[2].partition(",")[0].rstrip("}") or 0)


def findings(
    recordings: Iterable[Iterable[str]], among: Collection[int] | None, ignore: Collection[str]
) -> list[Finding]:
    """Return the findings in the recordings of a test's clients. `among`: connections that are the test's;
    None: all are.
    """
    unknown = set(ignore) - set(RULES)
    if unknown:
        raise BrokerError(f"no rule of the lint is called {', '.join(unknown)}; there are {', '.join(RULES)}")
    lint = Lint()
    for record in _of_clients(recordings, among):
        lint.take(record)
    return [each for each in lint.finish(time.time_ns()) if each.rule.id not in ignore]


def upgrade_findings(
    to: str,
    recordings: Iterable[Iterable[str]],
    among: Collection[int] | None,
    quorum_queues: Collection[str],
) -> list[dict[str, Any]]:
    """Return what an upgrade changes for a test's clients, as documents of `UpgradeFinding`."""
    upgrade = Upgrade(to)
    uses = RecordedUses(upgrade, quorum_queues)
    for record in _of_clients(recordings, among):
        uses.take(record)
    return [document(each) for each in upgrade.findings()]


def _of_clients(recordings: Iterable[Iterable[str]], among: Collection[int] | None) -> Iterator[Record]:
    for recording in recordings:
        records = list(read_lines(recording))
        own = {each.connection for each in records if _is_own(each)}
        for record in records:
            if record.connection not in own and (among is None or record.connection in among):
                yield record


def _is_own(record: Record) -> bool:
    opened = record.frame.body if isinstance(record, RecordedFrame) and record.direction == "in" else None
    return isinstance(opened, Open) and opened.container_id.startswith(OWN)


def finding_text(finding: Finding, began_ns: int) -> str:
    rule = finding.rule
    whose = f"connection {finding.connection}" if finding.connection else ""
    where = ", ".join(each for each in (whose, finding.where) if each)
    return "\n".join(
        [
            f"  {rule.id} ({rule.sort.value}): {where}: {finding.said}",
            f"    why: {rule.why}",
            f"    to do: {rule.to_do}",
            *(f"    at {(each.at_ns - began_ns) / 1e9:.3f} s by {each.text}" for each in finding.evidence),
        ]
    )
