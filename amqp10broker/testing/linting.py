"""Applies the lint to the clients of a test, by the frames recorded since it began."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from amqp10broker.emulation import Upgrade
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.records import Record, RecordedFrame, first_line, read_lines
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp10.performatives import Open
from amqp10broker.runtime.observe.tracing import FILE_BYTES_MAX
from amqp10broker.testing.server import NOT_KEPT, OWN
from amqp10broker.tools.lint import RULES, Finding, Lint
from amqp10broker.tools.upgrade import RecordedUses

# Frames kept for the lint of a broker in a thread, some hundred bytes each; the oldest are dropped.
LINES_MAX: Final = 50_000
# More than a broker writes at one time: a file with less space left may have ended before the test.
_LINES_BYTES: Final = 1024 * 1024


class LintRecording:
    """A recording of frames in memory, a `operations.node.Sink`."""

    ended: str | None = None

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        # A recording contains no lines of text.
        pass

    def put(self, lines: Sequence[str]) -> None:
        self._lines.extend(lines)

    def close(self, reason: str) -> None:
        pass

    def all(self) -> list[str]:
        """Return the stored lines; call it in the thread that calls `put`."""
        return list(self._lines)


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
