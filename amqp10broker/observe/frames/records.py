"""Recordings of frames (`docs/frames.md`), and the reader of frames that makes them.

The first line identifies the format. Each further line, a JSON document, is about one connection: recording
begins; a link or consumer that existed by then; a frame; or its end. Contents of messages and all secrets are
omitted. The bytes of one direction are parsed a second time, so that the connection's engine has no cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Literal

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.link_state import Direction, ObservedLink
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import FRAME_OVERHEAD, HEADER, method_frame
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
    Method,
    decode_method,
)
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.protocols.amqp10.connection import FRAME_HEADER, TYPE_SASL
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
from amqp10broker.protocols.amqp10.performatives import (
    Composite,
    ReceiverSettleMode,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
    SenderSettleMode,
    decode_composite,
)
from amqp10broker.protocols.connection import AMQP_10_HEADER, WireProtocol, answer

# Fields with numbers that have names.
_CHOICES: Final[dict[str, dict[Any, str]]] = {
    "role": {False: "sender", True: "receiver"},
    "snd_settle_mode": {mode.value: mode.name.lower() for mode in SenderSettleMode},
    "rcv_settle_mode": {mode.value: mode.name.lower() for mode in ReceiverSettleMode},
    "code": {code.value: code.name.lower() for code in SaslCode},
}
_SECRETS_10: Final = {
    (SaslInit, "initial_response"),
    (SaslResponse, "response"),
    # The challenge of SCRAM: with the response it allows guessing of the password offline.
    (SaslChallenge, "challenge"),
    (SaslOutcome, "additional_data"),
}


def header_text(header: bytes) -> str:
    """Return a protocol header as text: ``AMQP 0 1 0 0``."""
    return f"AMQP {' '.join(str(number) for number in header[4:8])}"


def describe_performative(performative: Any) -> str:
    """Return a performative with the fields that are set, by the specification's names."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(performative).__name__).upper()
    return f"{name} {' '.join(_fields_10(performative))}".rstrip()


def _fields_10(composite: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(composite):
        content = getattr(composite, field.name)
        if content is None or (content is False and field.default is False):
            continue
        name = field.name.replace("_", "-")
        if (type(composite), field.name) in _SECRETS_10:
            text = "(hidden)"
        elif field.name in _CHOICES:
            text = _CHOICES[field.name].get(content, str(content))
        else:
            text = show(content)
        shown.append(f"{name}={text}")
    return shown


def show(value: Any) -> str:
    if is_dataclass(value) and hasattr(value, "DESCRIPTOR"):
        inside = " ".join(_fields_10(value))
        return f"{type(value).__name__.lower()}({inside})" if inside else type(value).__name__.lower()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)


_PROPERTIES_AT: Final = 12
SECRETS: Final = {
    (ConnectionStartOk, "response"),
    (ConnectionSecure, "challenge"),
    (ConnectionSecureOk, "response"),
    (ConnectionUpdateSecret, "new_secret"),
}
# Methods with secrets.
SECRET: Final = frozenset(kind for kind, _ in SECRETS)


def describe_header(content_header: bytes) -> str:
    """Return the payload of a content header frame as text. Raises `AmqpHardError`."""
    body_size = int.from_bytes(content_header[4:_PROPERTIES_AT], "big")
    properties = _fields(decode_properties(content_header[_PROPERTIES_AT:]))
    return f"header body-size={body_size} {' '.join(properties)}".rstrip()


def describe_method(method: Method) -> str:
    """Return a method, as `describe_performative`."""
    return f"{method.NAME} {' '.join(_fields(method))}".rstrip()


def without_secrets(method: Method) -> Method:
    given: dict[str, Any] = {name: b"" for kind, name in SECRETS if kind is type(method)}
    return replace(method, **given)


def _fields(record: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(record):
        content = getattr(record, field.name)
        if content is None or content is False or content in ({}, "", b""):
            continue
        name = field.name.rstrip("_").replace("_", "-")
        text = "(hidden)" if (type(record), field.name) in SECRETS else _show(content)
        shown.append(f"{name}={text}")
    return shown


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
    if isinstance(value, list):
        return f"[{', '.join(_show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_show(item)}" for key, item in value.items()) + "}"
    return str(value)


PAYLOAD_SHOWN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TracedFrame:
    """One frame, or a part of the stream that is not a frame.

    Attributes:
        channel: -1 if it is not a frame.
        body: the performative or method; None if it cannot be read.
        data: the bytes before the payload of a transfer or the content of a body frame, without secrets;
            empty for SASL frames, and for unreadable bytes, because any of them may be a password.
        said: text instead of the body, if there is no body or `data` is incomplete.
    """

    channel: int = -1
    body: Composite | Method | None = None
    data: bytes = b""
    payload: bytes = b""
    payload_bytes: int = 0
    said: str | None = None

    @property
    def text(self) -> str:
        """The frame as one readable line, without secrets."""
        if self.said is not None:
            return self.said
        if self.body is None:
            return f"ch {self.channel} body{self._payload_text}"
        if isinstance(self.body, Method):
            return f"ch {self.channel} {describe_method(self.body)}"
        text = f"ch {self.channel} {describe_performative(self.body)}"
        return f"{text} payload{self._payload_text}" if self.payload_bytes else text

    @property
    def _payload_text(self) -> str:
        shown = self.payload[:PAYLOAD_SHOWN_BYTES].hex()
        more = "..." if len(self.payload) > PAYLOAD_SHOWN_BYTES else ""
        length = f"({self.payload_bytes} bytes)"
        return f"{length}={shown}{more}" if self.payload or not self.payload_bytes else length


class FrameSplitter:
    """Finds the frames in one direction's bytes, from between two frames on. `rest`: bytes already received
    that belong to the first frame.
    """

    def __init__(
        self, protocol: WireProtocol = WireProtocol.AMQP_10, rest: bytes = b"", *, logged_in: bool = False
    ) -> None:
        self._rest = rest
        self._lost = False
        self._logged_in = logged_in
        self.protocol = protocol

    def feed(self, data: bytes) -> list[TracedFrame]:
        if self._lost:
            return []
        self._rest += data
        return self._frames()

    def _frames(self) -> list[TracedFrame]:
        frames: list[TracedFrame] = []
        buf = self._rest
        pos = 0
        while len(buf) - pos >= FRAME_HEADER_BYTES:
            if buf[pos : pos + 4] == b"AMQP":
                header = buf[pos : pos + 8]
                frames.append(TracedFrame(data=header, said=header_text(header)))
                self._logged_in = self._logged_in or header == AMQP_10_HEADER
                greeting = answer(header)
                if greeting is not None and greeting.protocol is not None:
                    self.protocol = greeting.protocol
                pos += 8
                continue
            if self.protocol is WireProtocol.AMQP_091:
                try:
                    end = _end091(buf, pos)
                except ValueError as error:
                    frames.append(self._lose(f"not a frame ({error})", buf[pos:]))
                    break
                if end is None:
                    break
                frames.append(_frame091(buf[pos:end]))
                pos = end
                continue
            size, doff, kind, channel = FRAME_HEADER.unpack_from(buf, pos)
            if size < FRAME_HEADER_BYTES or doff < 2 or doff * 4 > size:
                frames.append(self._lose("not a frame", buf[pos:]))
                break
            if len(buf) - pos < size:
                break
            frames.append(_frame(buf[pos : pos + size], doff * 4, channel, kind))
            pos += size
        self._rest = buf[pos:]
        return frames

    def _lose(self, why: str, rest: bytes) -> TracedFrame:
        # Boundaries of frames are unknown from here on, as is, before login, which bytes are a password.
        self._lost = True
        shown = rest[:FRAME_HEADER_BYTES].hex(" ") if self._logged_in else f"{len(rest)} bytes"
        return TracedFrame(said=f"{why}: {shown}; what follows is not shown")


def _frame(frame: bytes, start: int, channel: int, kind: int) -> TracedFrame:
    if len(frame) == start:
        return TracedFrame(channel, data=frame, said=f"ch {channel} (empty frame)")
    try:
        performative, end = decode_composite(frame, start)
    except DecodeError as error:
        # The reason may repeat the bytes.
        size = len(frame) - start
        why = f"a SASL frame of {size} bytes" if kind == TYPE_SASL else error.description
        return TracedFrame(channel, said=f"ch {channel} undecodable: {why}")
    if kind == TYPE_SASL:
        return TracedFrame(channel, performative, said=f"ch {channel} {describe_performative(performative)}")
    return TracedFrame(channel, performative, frame[:end], frame[end:], len(frame) - end)


def _end091(buf: bytes, pos: int) -> int | None:
    # Return where this frame ends; None if it is incomplete. Raises ValueError if it is not a frame.
    kind, _, size = HEADER.unpack_from(buf, pos)
    if kind not in (methods.FRAME_METHOD, methods.FRAME_HEADER, methods.FRAME_BODY, methods.FRAME_HEARTBEAT):
        raise ValueError(f"no frame type {kind}")
    end: int = pos + FRAME_OVERHEAD + size
    if len(buf) < end:
        return None
    if buf[end - 1] != methods.FRAME_END:
        raise ValueError(f"frame ends with {buf[end - 1]}")
    return end


def _frame091(frame: bytes) -> TracedFrame:
    kind, channel, size = HEADER.unpack_from(frame)
    payload = frame[HEADER.size : -1]
    if kind == methods.FRAME_HEARTBEAT:
        return TracedFrame(channel, data=frame, said="heartbeat")
    if kind == methods.FRAME_BODY:
        return TracedFrame(channel, None, frame[: HEADER.size], payload, size)
    try:
        if kind == methods.FRAME_HEADER:
            return TracedFrame(channel, data=frame, said=f"ch {channel} {describe_header(payload)}")
        method = decode_method(payload)
    except AmqpHardError as error:
        # The reason may repeat the bytes, and before login they may be a password.
        why = error.text if channel or kind == methods.FRAME_HEADER else f"a method of {size} bytes"
        return TracedFrame(channel, said=f"ch {channel} undecodable: {why}")
    if type(method) not in SECRET:
        return TracedFrame(channel, method, frame)
    said, bare = f"ch {channel} {describe_method(method)}", without_secrets(method)
    return TracedFrame(channel, bare, method_frame(channel, bare), said=said)


FORMAT: Final = "amqp10broker frames"
VERSION: Final = 1

Role = Literal["sender", "receiver"]
ARROWS: Final[dict[Direction, str]] = {"in": "<-", "out": "->"}


class NoFrames(BrokerError):
    """The file is not a recording of frames."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} of the recording of frames: {reason}")


@dataclass(frozen=True, slots=True)
class Listening:
    """The recording of a connection begins. `begins`: no byte has been received so far; else the earlier
    state is unknown.
    """

    at_ns: int
    connection: int
    peer: str
    protocol: WireProtocol
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
        """Return a link of AMQP 1.0 with the frames that follow."""
        link = ObservedLink(self.name, "in" if self.role == "sender" else "out", address=self.address or "")
        link.attached, link.recorded = True, False
        if self.handle is not None:
            link.handles["out"] = self.handle
        if self.remote_handle is not None:
            link.handles["in"] = self.remote_handle
        return link


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A recorded frame, without the content of messages. `at_ns`: since 1970, when its last byte was read, or
    it was passed to the writer.
    """

    at_ns: int
    connection: int
    direction: Direction
    frame: TracedFrame

    @property
    def text(self) -> str:
        return f"{ARROWS[self.direction]} {self.frame.text}"


_NAMES: Final = {WireProtocol.AMQP_10: "AMQP 1.0", WireProtocol.AMQP_091: "AMQP 0-9-1"}
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

    An incomplete last line is ignored: the broker ended while it wrote. Raises `NoFrames` if it is not a
    recording, or of another version, or damaged.
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
        if reader.protocol is WireProtocol.AMQP_091 and data[:1] == bytes((FRAME_BODY,)):
            whole = data + bytes(size) + bytes((FRAME_END,))
        else:
            whole = data + bytes(size)
        (frame,) = reader.feed(whole)
        return replace(frame, payload=b"", said=fields.get("said"))
