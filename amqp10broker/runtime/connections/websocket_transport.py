"""A WebSocket as the reader and the writer use it: like a socket, over the stream of another one.

Nothing is read beyond what the reader asks for: while it waits, TCP pushes the client back. What the layer
has to say by itself goes out with the writer's next send, for which it is woken; of several pongs that wait
the last one is left. So a client that sends and does not read uses no more memory than over TCP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from amqp10broker.protocols.preface import Protocol
from amqp10broker.runtime.connections.socket_transport import CLOSE_WAIT_S, READ_BYTES, Stream
from amqp10broker.runtime.log import Log

if TYPE_CHECKING:
    from amqp10broker.protocols.websocket import WebSocketLayer

_log = Log("amqp10broker.connection")

SLICE_BYTES: Final = 16_384
"""So much is parsed before others may have their turn."""
PIECES_AT_ONCE: Final = 250
"""With more messages in a slice others have it: a millisecond."""


class WebSocketTransport:
    def __init__(self, stream: Stream, layer: WebSocketLayer, first_bytes: bytes) -> None:
        self._stream = stream
        self._layer = layer
        self._unparsed = memoryview(first_bytes)
        self._ready = b""
        self._told = False
        self._closed = False
        self._on_output: Callable[[], None] | None = None

    def when_it_speaks(self, on_output: Callable[[], None]) -> None:
        """Set the function to call when the layer has own output."""
        self._on_output = on_output
        if self._layer.has_output:
            self._tell()

    def speaks(self, protocol: Protocol) -> None:
        """Set the name of the protocol inside."""
        self._layer.speaks(protocol)

    def take_at_most(self, frame_bytes: int) -> None:
        """Make no message that is larger than the largest AMQP frame that the client takes."""
        self._layer.message_bytes_max = min(self._layer.message_bytes_max, frame_bytes)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes of AMQP; empty when the WebSocket is closed, or its socket at its end.

        Raises:
            trio.BrokenResourceError: the client broke a rule, or reset the connection.
        """
        layer = self._layer
        if self._ready:
            await trio.lowlevel.checkpoint()
        while not self._ready:
            if not layer.open:
                await trio.lowlevel.checkpoint()
                if layer.fault:
                    raise trio.BrokenResourceError(f"WebSocket: {layer.fault}")
                return b""
            if not self._unparsed:
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    return b""
                self._unparsed = memoryview(data)
            self._ready = await self._parse()
        most = max_bytes or READ_BYTES
        data, self._ready = self._ready[:most], self._ready[most:]
        return data

    async def _parse(self) -> bytes:
        layer, data, self._unparsed = self._layer, self._unparsed, memoryview(b"")
        parts: list[bytes] = []
        for at in range(0, len(data), SLICE_BYTES):
            part = layer.receive(data[at : at + SLICE_BYTES])
            if part:
                parts.append(part)
            if layer.has_output:
                self._tell()
            if layer.pieces > PIECES_AT_ONCE:
                # Cancelled here the connection is over: what was read is not missed.
                await trio.lowlevel.checkpoint()
        return b"".join(parts)

    def _tell(self) -> None:
        if not self._told and self._on_output is not None:
            self._told = True
            self._on_output()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send whole AMQP frames, and the layer's own output.

        Raises:
            trio.BrokenResourceError: the WebSocket is closed, or the client reset the connection.
        """
        self._told = False
        layer = self._layer
        if data and not layer.open:
            raise trio.BrokenResourceError("sending: the WebSocket is closed")
        await self._stream.send_all(layer.wrap(data))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            with trio.move_on_after(CLOSE_WAIT_S):
                try:
                    await self._say_goodbye()
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    _log.debug("WebSocket lost while closing", reason=str(error))
        await self._stream.aclose()

    async def _say_goodbye(self) -> None:
        self._layer.close()
        await self._stream.send_all(self._layer.take_output())
        # Closed with something unread, the kernel would take our last words back.
        while not self._layer.closed_by_client:
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                return
            self._layer.receive(memoryview(data))
