"""The playable part of a recording of frames: connections with complete frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import Direction
from amqp10broker.observe.frames.reader import TracedFrame
from amqp10broker.observe.frames.records import Ended, KnownLink, Listening, Record, RecordedFrame
from amqp10broker.protocols.amqp091.methods import ConnectionOpen
from amqp10broker.protocols.amqp10.performatives import Open
from amqp10broker.protocols.preface import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """A frame of a recording, without the content of messages."""

    index: int
    at_ns: int
    sent: bool
    frame: TracedFrame

    @property
    def direction(self) -> Direction:
        return "in" if self.sent else "out"


@dataclass(slots=True)
class RecordedConnection:
    """One connection of a recording. `steps`: its frames in order, without protocol headers, SASL frames and
    heartbeats, which the player creates. `unreadable`: frames of the client that could not be decoded; they
    are not played.
    """

    number: int
    protocol: Protocol
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    unreadable: int = 0
    over: str = "TCP"


@dataclass(slots=True)
class Script:
    """The playable connections, in the order of their beginnings, and sentences on the others."""

    parts: list[RecordedConnection] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        return min((part.steps[0].at_ns for part in self.parts), default=0)

    @property
    def end_ns(self) -> int:
        return max((part.steps[-1].at_ns for part in self.parts), default=0)


def read_script(records: Iterable[Record], connection: int | None = None) -> Script:
    """Collect the playable connections of a recording. `connection`: this one alone; None for all. Raises
    `NoFrames` if it is not a recording.
    """
    parts: dict[int, RecordedConnection] = {}
    script = Script()
    for index, record in enumerate(records):
        if connection not in (None, record.connection):
            continue
        match record:
            case Listening():
                parts.pop(record.connection, None)
                if record.begins:
                    part = parts[record.connection] = RecordedConnection(record.connection, record.protocol)
                    part.over = _over(record)
                    script.parts.append(part)
                else:
                    script.left_out.append(
                        f"connection {record.connection} was there when the recording began: what its client "
                        "had done before is not known"
                    )
            case RecordedFrame():
                _take(parts.get(record.connection), index, record)
            case Ended():
                ended = parts.pop(record.connection, None)
                if ended is not None:
                    ended.ended = True
            case KnownLink():
                pass  # of a connection that is omitted
    script.left_out += [
        f"connection {part.number} did not come as far as open, or frames of one address alone were recorded"
        for part in script.parts
        if not _opens(part)
    ]
    script.parts = [part for part in script.parts if _opens(part)]
    return script


def _over(record: Listening) -> str:
    if record.transport == "websocket":
        return "WebSocket over TLS" if record.tls else "WebSocket"
    return "TLS" if record.tls else "TCP"


def _take(part: RecordedConnection | None, index: int, record: RecordedFrame) -> None:
    if part is None:
        return
    frame = record.frame
    if frame.data and frame.channel >= 0:
        # Else an empty frame or heartbeat; without a body it may also be a content header or body.
        silent = part.protocol is Protocol.AMQP_10 or frame.said == "heartbeat"
        if frame.body is not None or frame.payload_bytes or not silent:
            part.steps.append(Step(index, record.at_ns, record.direction == "in", frame))
    elif record.direction == "in" and " undecodable: " in (frame.said or ""):
        part.unreadable += 1


def _opens(part: RecordedConnection) -> bool:
    return any(step.sent and isinstance(step.frame.body, Open | ConnectionOpen) for step in part.steps)
