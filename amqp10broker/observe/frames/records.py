"""Recordings of frames: one JSON document per line, as described in `docs/frames.md`.

The first line identifies the format. Each further line is about one connection: recording begins; a link or
consumer that existed by then; a frame; or its end. Contents of messages and all secrets are omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.link_state import Direction, ObservedLink
from amqp10broker.observe.frames.reader import FrameSplitter, TracedFrame
from amqp10broker.protocols.amqp091.methods import FRAME_BODY, FRAME_END
from amqp10broker.protocols.preface import Protocol

FORMAT: Final = "amqp10broker frames"
VERSION: Final = 1

Role = Literal["sender", "receiver"]
ARROWS: Final[dict[Direction, str]] = {"in": "<-", "out": "->"}


class NoFrames(BrokerError):
    """The text is not a recording of frames."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} of the recording of frames: {reason}")


@dataclass(frozen=True, slots=True)
class Listening:
    """The recording of a connection begins. `begins`: no byte has been received so far; otherwise the state
    before is unknown.
    """

    at_ns: int
    connection: int
    peer: str
    protocol: Protocol
    begins: bool
    tls: bool = False
    transport: str = "tcp"


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A link, or a consumer of AMQP 0-9-1, that existed when the recording began. `handle`: the broker's;
    None in AMQP 0-9-1.
    """

    at_ns: int
    connection: int
    channel: int
    role: Role
    name: str
    address: str | None
    handle: int | None = None
    remote_handle: int | None = None

    def observed(self) -> ObservedLink:
        """Return a link of AMQP 1.0 whose frames follow."""
        link = ObservedLink(self.name, "in" if self.role == "sender" else "out", address=self.address or "")
        link.attached, link.recorded = True, False
        if self.handle is not None:
            link.handles["out"] = self.handle
        if self.remote_handle is not None:
            link.handles["in"] = self.remote_handle
        return link


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A recorded frame, without the content of messages.

    `at_ns` is in nanoseconds since 1970: when its last byte was read, or when it was passed to the writer.
    """

    at_ns: int
    connection: int
    direction: Direction
    frame: TracedFrame

    @property
    def text(self) -> str:
        return f"{ARROWS[self.direction]} {self.frame.text}"


_NAMES: Final = {Protocol.AMQP_10: "AMQP 1.0", Protocol.AMQP_091: "AMQP 0-9-1"}
_PROTOCOLS: Final = {name: protocol for protocol, name in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a connection; `reason` is as in the log."""

    at_ns: int
    connection: int
    reason: str


Record = Listening | KnownLink | RecordedFrame | Ended


def first_line() -> str:
    return json.dumps({"format": FORMAT, "version": VERSION})


def listening_line(record: Listening) -> str:
    return _line(
        record.connection,
        record.at_ns,
        peer=record.peer,
        protocol=_NAMES[record.protocol],
        begins=record.begins,
        tls=record.tls,
        transport=record.transport,
    )


def known_line(record: KnownLink) -> str:
    return _line(
        record.connection,
        record.at_ns,
        channel=record.channel,
        role=record.role,
        name=record.name,
        address=record.address,
        handle=record.handle,
        remote_handle=record.remote_handle,
    )


def ended_line(record: Ended) -> str:
    return _line(record.connection, record.at_ns, ended=record.reason)


def frame_line(connection: int, at_ns: int, direction: Direction, frame: TracedFrame) -> str:
    fields: dict[str, Any] = {"direction": direction}
    if frame.data:
        fields["frame"] = frame.data.hex()
    if frame.payload_bytes:
        fields["payload"] = frame.payload_bytes
    if frame.said is not None:
        fields |= {"channel": frame.channel, "said": frame.said}
    return _line(connection, at_ns, **fields)


def _line(connection: int, at_ns: int, **fields: Any) -> str:
    return json.dumps({"connection": connection, "at_ns": at_ns, **fields})


def read_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a recording, in order.

    An incomplete last line is ignored: the broker ended while it wrote. Raises `NoFrames` if the lines are
    not a recording, or of another version, or one is damaged.
    """
    reading = _RecordReader()
    broken: NoFrames | None = None
    for number, line in enumerate(lines, 1):
        if broken is not None:
            raise broken
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("no object")
        except ValueError as error:
            broken = NoFrames(number, f"no JSON object: {error}")
            if number == 1:
                raise broken from None
            continue
        if number == 1:
            _check_first(fields)
            continue
        try:
            yield reading.record(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise NoFrames(number, f"{type(error).__name__}: {error}") from error


def _check_first(fields: dict[str, Any]) -> None:
    if fields.get("format") != FORMAT:
        raise NoFrames(
            1, "it does not begin as one: make it with 'amqp10broker frames trace WHAT on --frames FILE'"
        )
    if fields.get("version") != VERSION:
        raise NoFrames(1, f"version {fields.get('version')!r}, and version {VERSION} is known here")


class _RecordReader:
    def __init__(self) -> None:
        self._readers: dict[tuple[int, str], FrameSplitter] = {}

    def record(self, fields: dict[str, Any]) -> Record:
        connection, at_ns = int(fields["connection"]), int(fields["at_ns"])
        if "direction" in fields:
            direction: Direction = "in" if fields["direction"] == "in" else "out"
            return RecordedFrame(at_ns, connection, direction, self._frame(connection, direction, fields))
        if "ended" in fields:
            return Ended(at_ns, connection, str(fields["ended"]))
        if "peer" in fields:
            protocol = _PROTOCOLS[fields["protocol"]]
            for direction in ("in", "out"):
                self._readers[connection, direction] = FrameSplitter(protocol, logged_in=True)
            return Listening(
                at_ns,
                connection,
                str(fields["peer"]),
                protocol,
                bool(fields["begins"]),
                bool(fields["tls"]),
                str(fields["transport"]),
            )
        return KnownLink(
            at_ns,
            connection,
            int(fields["channel"]),
            "sender" if fields["role"] == "sender" else "receiver",
            str(fields["name"]),
            fields["address"],
            fields["handle"],
            fields["remote_handle"],
        )

    def _frame(self, connection: int, direction: str, fields: dict[str, Any]) -> TracedFrame:
        if "frame" not in fields:
            return TracedFrame(int(fields["channel"]), said=str(fields["said"]))
        reader = self._readers[connection, direction]
        data = bytes.fromhex(fields["frame"])
        size = int(fields.get("payload", 0))
        if reader.protocol is Protocol.AMQP_091 and data[:1] == bytes((FRAME_BODY,)):
            whole = data + bytes(size) + bytes((FRAME_END,))
        else:
            whole = data + bytes(size)
        (frame,) = reader.feed(whole)
        return replace(frame, payload=b"", said=fields.get("said"))
