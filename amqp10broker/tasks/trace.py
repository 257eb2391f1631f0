"""``--trace-frames``: every frame of both directions as one readable log line.

A stream around the real one, so that a broker that does not trace pays nothing. It reads the bytes a
second time, with a reader of its own.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

from amqp10broker.amqp10.errors import DecodeError
from amqp10broker.amqp10.frames import FRAME_HEADER, FRAME_HEADER_BYTES
from amqp10broker.amqp10.performatives import decode_composite
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.stream import Stream

_log = Log("amqp10broker.trace")

PAYLOAD_SHOWN_BYTES: Final = 32


class FrameTracer:
    """Turns one direction's bytes into lines."""

    def __init__(self, arrow: str, peer: str) -> None:
        self._arrow = arrow
        self._peer = peer
        self._rest = b""
        self._lost = False

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
                pos += 8
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
    text = f"ch {channel} {show(performative)}"
    payload = body[end:]
    if payload:
        shown = payload[:PAYLOAD_SHOWN_BYTES].hex()
        text += f" payload({len(payload)} bytes)={shown}{'...' if len(payload) > PAYLOAD_SHOWN_BYTES else ''}"
    return text


def show(value: Any) -> str:
    """A performative with the fields that are set, or any value inside one."""
    if is_dataclass(value) and hasattr(value, "DESCRIPTOR"):
        shown = []
        for field in fields(value):
            content = getattr(value, field.name)
            if content is None or (content == field.default and not isinstance(content, (int, str))):
                continue
            if content is False and field.default is False:
                continue
            if type(value).__name__ == "SaslInit" and field.name == "initial_response":
                shown.append("initial-response=(hidden)")
                continue
            shown.append(f"{field.name.replace('_', '-')}={show(content)}")
        return f"{type(value).__name__.upper()} {' '.join(shown)}".rstrip()
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
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream inside."""
        self._out.feed(bytes(data))
        await self._stream.send_all(data)

    async def aclose(self) -> None:
        """As the stream inside."""
        await self._stream.aclose()
