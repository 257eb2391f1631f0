"""Reads the frames of one direction of a connection for observers: `trace`, recordings, lint.

It parses the bytes a second time, so that the engine of the connection has no cost.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.framing import FRAME_OVERHEAD, HEADER, method_frame
from amqp10broker.protocols.amqp091.methods import (
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
    Method,
    decode_method,
)
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.frames import FRAME_HEADER, FRAME_HEADER_BYTES, TYPE_SASL
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
from amqp10broker.protocols.preface import AMQP_10_HEADER, Protocol, answer

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
    # Of SCRAM: with the response it allows guessing of the password offline.
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
    """Return any value inside a performative as text."""
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
    """Return the payload of a content header frame as text. Raises `AmqpHardError` if it cannot be read."""
    body_size = int.from_bytes(content_header[4:_PROPERTIES_AT], "big")
    properties = _fields(decode_properties(content_header[_PROPERTIES_AT:]))
    return f"header body-size={body_size} {' '.join(properties)}".rstrip()


def describe_method(method: Method) -> str:
    """Return a method with the fields that are set, by the specification's names."""
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
        body: the performative or method; None if there is none, or none that can be read.
        data: the bytes up to the payload of a transfer or the content of a body frame, without secrets; empty
            for SASL frames, and for unreadable bytes, since any of them may be a password.
        said: text shown instead of the body, if there is none or `data` is incomplete.
    """

    channel: int = -1
    body: Composite | Method | None = None
    data: bytes = b""
    payload: bytes = b""
    payload_bytes: int = 0
    said: str | None = None

    @property
    def text(self) -> str:
        """Return the frame as one readable line, without secrets."""
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
    """Finds the frames in one direction's bytes, beginning between two frames. `rest`: bytes already received
    that belong to the first frame.
    """

    def __init__(
        self, protocol: Protocol = Protocol.AMQP_10, rest: bytes = b"", *, logged_in: bool = False
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
            if self.protocol is Protocol.AMQP_091:
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
        # The boundaries of frames are unknown from here on, and before login, which bytes are a password.
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
    # Where the frame that begins here ends; None if it is incomplete. Raises ValueError if it is none.
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
