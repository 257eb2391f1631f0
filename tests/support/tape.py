"""Frames of a connection as `lint` is given them, written by a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amqp10broker.observe.frames import records
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.lint import Finding, Lint

SECOND_NS = 1_000_000_000


class Tape:
    """One connection, from its first byte on unless told otherwise.

    Attributes:
        now_s: the time of what comes next.
    """

    def __init__(
        self,
        protocol: WireProtocol = WireProtocol.AMQP_10,
        number: int = 1,
        *,
        known: Sequence[records.KnownLink] | None = None,
        now_s: float = 0.0,
    ) -> None:
        self.now_s = now_s
        self._number = number
        self._readers: dict[records.Direction, records.FrameSplitter] = {
            "in": records.FrameSplitter(protocol),
            "out": records.FrameSplitter(protocol),
        }
        begins = known is None
        listening = records.Listening(self._now_ns, number, f"127.0.0.1:{4000 + number}", protocol, begins)
        self.records: list[records.Record] = [listening, *(known or ())]

    @property
    def _now_ns(self) -> int:
        return round(self.now_s * SECOND_NS)

    def came(self, *data: bytes) -> None:
        self._add("in", b"".join(data))

    def went(self, *data: bytes) -> None:
        self._add("out", b"".join(data))

    def later(self, seconds: float) -> None:
        self.now_s += seconds

    def ended(self) -> None:
        self.records.append(records.Ended(self._now_ns, self._number, "closed by the client"))

    def _add(self, direction: records.Direction, data: bytes) -> None:
        frames = self._readers[direction].feed(data)
        self.records += [
            records.RecordedFrame(self._now_ns, self._number, direction, frame) for frame in frames
        ]

    def findings(self) -> list[Finding]:
        """Return what a lint reports, at its time."""
        return findings(self)

    def rules(self) -> set[str]:
        return {finding.rule.id for finding in self.findings()}


def findings(*tapes: Tape) -> list[Finding]:
    lint = Lint()
    for record in sorted((each for tape in tapes for each in tape.records), key=lambda each: each.at_ns):
        lint.take(record)
    return lint.finish(max(tape._now_ns for tape in tapes))


def write_tape(path: Path, *tapes: Tape) -> None:
    """Write a file of recorded frames, as `serve --record-frames` does."""
    lines = [records.first_line()]
    for record in (each for tape in tapes for each in tape.records):
        match record:
            case records.Listening():
                lines.append(records.listening_line(record))
            case records.KnownLink():
                lines.append(records.known_line(record))
            case records.RecordedFrame():
                lines.append(
                    records.frame_line(record.connection, record.at_ns, record.direction, record.frame)
                )
            case records.Ended():
                lines.append(records.ended_line(record))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
