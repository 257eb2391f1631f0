"""The lint of a test's clients: frames that were recorded since it began in, what it says of them out."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from amqp10broker.amqp10.performatives import Open
from amqp10broker.errors import BrokerError
from amqp10broker.frames.records import Record, Recorded, first_line, read_lines
from amqp10broker.lint import rules
from amqp10broker.lint.findings import Finding, Rule
from amqp10broker.lint.lint import Lint
from amqp10broker.tasks.trace_sinks import FILE_BYTES_MAX
from amqp10broker.testing.frames import OWN

LINES_MAX: Final = 50_000
"""Frames of a broker in a thread that are kept for a lint, some hundred bytes each; the oldest go."""
_LINES_BYTES: Final = 1024 * 1024
"""More than a broker writes at one time: a file that has no room for them may have ended before the test."""
_RULES: Final = {each.id: each for each in vars(rules).values() if isinstance(each, Rule)}


class Lines:
    """A recording of frames in memory: the sink of a trace (see `management.node.Sink`).

    Attributes:
        ended: see `Sink`.
    """

    ended: str | None = None

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """See `Sink`: a recording has no such lines."""

    def put(self, lines: Sequence[str]) -> None:
        """See `Sink`."""
        self._lines.extend(lines)

    def close(self, reason: str) -> None:
        """See `Sink`."""

    def all(self) -> list[str]:
        """Those that are kept; to be asked by the thread that puts them."""
        return list(self._lines)


def lines_since(kept: Sequence[str], began_ns: int) -> list[str]:
    """A recording that begins then, of lines that were kept in memory.

    Raises:
        AssertionError: there were more than are kept.
    """
    assert len(kept) < LINES_MAX or _time_of(kept[0]) < began_ns, (
        f"the test has more than {LINES_MAX} frames, so nobody can say; make it shorter"
    )
    return [first_line(), *_known_since(kept, began_ns)]


def lines_in(folder: str, began_ns: int) -> Iterator[list[str]]:
    """The same of the recordings in a folder, one for each life of a broker.

    Raises:
        AssertionError: one is full.
    """
    for path in sorted(map(os.path.join, repeat(folder), os.listdir(folder)), key=os.path.getmtime):
        assert os.path.getsize(path) < FILE_BYTES_MAX - _LINES_BYTES, (
            f"{path} is full, so nobody can say; run fewer tests together"
        )
        with open(path) as lines:
            yield [first_line(), *_known_since(lines, began_ns)]


def _known_since(lines: Iterable[str], began_ns: int) -> Iterator[str]:
    """Lines of connections that have begun since then: of others, a lint must not guess what was before."""
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
    """Nanoseconds since 1970; 0: it is the first line."""
    return int(line.partition('"at_ns": ')[2].partition(",")[0].rstrip("}") or 0)


def findings(
    recordings: Iterable[Iterable[str]], among: Collection[int] | None, ignore: Collection[str]
) -> list[Finding]:
    """What is found in the frames of a test's clients.

    Args:
        recordings: their lines.
        among: connections that are the test's; None: all are.
        ignore: rules that do not count.

    Raises:
        BrokerError: there is no such rule; says which there are.
    """
    unknown = set(ignore) - set(_RULES)
    if unknown:
        raise BrokerError(
            f"no rule of the lint is called {', '.join(unknown)}; there are {', '.join(_RULES)}"
        )
    lint = Lint()
    for recording in recordings:
        records = list(read_lines(recording))
        own = {each.connection for each in records if _is_own(each)}
        for record in records:
            if record.connection not in own and (among is None or record.connection in among):
                lint.take(record)
    return [each for each in lint.finish(time.time_ns()) if each.rule.id not in ignore]


def _is_own(record: Record) -> bool:
    """Whether a connection says here that it is the fixture's own."""
    opened = record.frame.body if isinstance(record, Recorded) and record.direction == "in" else None
    return isinstance(opened, Open) and opened.container_id.startswith(OWN)


def finding_text(finding: Finding, began_ns: int) -> str:
    """A finding, for people: which rule, whose, why it hurts, what to do, and the frames that show it."""
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
