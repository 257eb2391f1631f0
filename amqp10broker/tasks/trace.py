"""``--trace-frames``: every frame of both directions as one readable log line.

A stream around the real one, so that a broker that does not trace pays nothing. It reads the bytes a
second time, with a reader of its own.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, Final

from amqp10broker.amqp10.errors import DecodeError
from amqp10broker.amqp10.frames import FRAME_HEADER, FRAME_HEADER_BYTES
from amqp10broker.amqp10.performatives import (
    ReceiverSettleMode,
    SaslCode,
    SaslInit,
    SaslResponse,
    SenderSettleMode,
    decode_composite,
)
from amqp10broker.greeting import Protocol, answer
from amqp10broker.tasks import trace091
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.stream import Stream

_log = Log("amqp10broker.trace")

PAYLOAD_SHOWN_BYTES: Final = 32

_CHOICES: Final[dict[str, dict[Any, str]]] = {
    "role": {False: "sender", True: "receiver"},
    "snd_settle_mode": {mode.value: mode.name.lower() for mode in SenderSettleMode},
    "rcv_settle_mode": {mode.value: mode.name.lower() for mode in ReceiverSettleMode},
    "code": {code.value: code.name.lower() for code in SaslCode},
}
"""Fields whose numbers have names."""

_SECRETS: Final = {(SaslInit, "initial_response"), (SaslResponse, "response")}


class FrameTracer:
    """Turns one direction's bytes into lines."""

    def __init__(self, arrow: str, peer: str) -> None:
        self._arrow = arrow
        self._peer = peer
        self._rest = b""
        self._lost = False
        self.protocol = Protocol.AMQP_10

    def feed(self, data: bytes) -> None:
        """Log the frames that are now whole."""
        if self._lost:
            return
        self._rest += data
        for line in self._lines():
            _log.info(f"{self._arrow} {line}", peer=self._peer)

    def _lines(self) -> list[str]:
        lines: list[str] = []
        buf = self._rest
        pos = 0
        while len(buf) - pos >= FRAME_HEADER_BYTES:
            if buf[pos : pos + 4] == b"AMQP":
                lines.append(f"AMQP {' '.join(str(number) for number in buf[pos + 4 : pos + 8])}")
                greeting = answer(buf[pos : pos + 8])
                if greeting is not None and greeting.protocol is not None:
                    self.protocol = greeting.protocol
                pos += 8
                continue
            if self.protocol is Protocol.AMQP_091:
                try:
                    found = trace091.next_frame(buf, pos)
                except ValueError as error:
                    lines.append(f"not a frame ({error}): {buf[pos : pos + 16].hex(' ')}")
                    self._lost = True
                    break
                if found is None:
                    break
                line, pos = found
                lines.append(line)
                continue
            size, doff, _, channel = FRAME_HEADER.unpack_from(buf, pos)
            if size < FRAME_HEADER_BYTES or doff < 2 or doff * 4 > size:
                lines.append(f"not a frame: {buf[pos : pos + 16].hex(' ')}")
                self._lost = True
                break
            if len(buf) - pos < size:
                break
            lines.append(_describe(buf[pos + doff * 4 : pos + size], channel))
            pos += size
        self._rest = buf[pos:]
        return lines


def _describe(body: bytes, channel: int) -> str:
    if not body:
        return f"ch {channel} (empty frame)"
    try:
        performative, end = decode_composite(body)
    except DecodeError as error:
        return f"ch {channel} undecodable: {error.description}"
    text = f"ch {channel} {describe(performative)}"
    payload = body[end:]
    if payload:
        shown = payload[:PAYLOAD_SHOWN_BYTES].hex()
        text += f" payload({len(payload)} bytes)={shown}{'...' if len(payload) > PAYLOAD_SHOWN_BYTES else ''}"
    return text


def describe(performative: Any) -> str:
    """A performative with the fields that are set, by the specification's names."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(performative).__name__).upper()
    return f"{name} {' '.join(_fields(performative))}".rstrip()


def _fields(composite: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(composite):
        content = getattr(composite, field.name)
        if content is None or (content is False and field.default is False):
            continue
        name = field.name.replace("_", "-")
        if (type(composite), field.name) in _SECRETS:
            text = "(hidden)"
        elif field.name in _CHOICES:
            text = _CHOICES[field.name].get(content, str(content))
        else:
            text = show(content)
        shown.append(f"{name}={text}")
    return shown


def show(value: Any) -> str:
    """Any value inside a performative."""
    if is_dataclass(value) and hasattr(value, "DESCRIPTOR"):
        inside = " ".join(_fields(value))
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


class TracingStream:
    """A stream that logs what passes."""

    def __init__(self, stream: Stream, peer: str) -> None:
        self._stream = stream
        self._in = FrameTracer("<-", peer)
        self._out = FrameTracer("->", peer)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As the stream inside."""
        data = bytes(await self._stream.receive_some(max_bytes))
        self._in.feed(data)
        # What the client greets with is what both sides speak.
        self._out.protocol = self._in.protocol
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream inside."""
        self._out.feed(bytes(data))
        await self._stream.send_all(data)

    async def aclose(self) -> None:
        """As the stream inside."""
        await self._stream.aclose()
