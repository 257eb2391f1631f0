"""A WebSocket's client for Trio tests: messages are cut as the test says, and kept as they came."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio
from trio.testing import memory_stream_pair
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side

from amqp10broker.runtime.broker import Broker
from tests.support.trioclient import Client, connect

Cut = Callable[[bytes], Iterable[bytes]]


def upgrade(protocols: str = "amqp", *, path: str = "/", **others: str | None) -> bytes:
    headers: dict[str, str | None] = {
        "host": "localhost",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_key": b64encode(os.urandom(16)).decode(),
        "sec_websocket_version": "13",
        "sec_websocket_protocol": protocols,
        **others,
    }
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def masked(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    sent: bytes = Frame(opcode, data, fin).serialize(mask=True)
    return sent


def binary(*parts: bytes) -> bytes:
    last = len(parts) - 1
    return b"".join(
        masked(Opcode.CONT if at else Opcode.BINARY, part, fin=at == last) for at, part in enumerate(parts)
    )


def whole(data: bytes) -> Sequence[bytes]:
    return [data]


class WebSocketStream:
    """The client's end of a WebSocket.

    Attributes:
        head: of the answer to the handshake.
        messages: that have come, as they were.
        pongs: likewise.
        closed: the broker's close; None before it.
        cut: what is sent, into messages.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._engine = Protocol(Side.CLIENT, max_size=None)
        self.head = b""
        self.messages: list[bytes] = []
        self.pongs: list[bytes] = []
        self.closed: Close | None = None
        self.cut: Cut = whole

    async def shake_hands(self, request: bytes) -> None:
        """Request the upgrade; the answer's head has arrived on return."""
        await self._stream.send_all(request)
        data = b""
        while b"\r\n\r\n" not in data:
            received = await self._stream.receive_some(65_536)
            assert received, data
            data += received
        self.head, _, rest = data.partition(b"\r\n\r\n")
        self._engine.receive_data(rest)

    async def send_all(self, data: bytes) -> None:
        await self.send_raw(b"".join(binary(part) for part in self.cut(bytes(data))))

    async def send_raw(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def close(self) -> None:
        self._engine.send_close(CloseCode.NORMAL_CLOSURE)
        await self.send_raw(b"".join(self._engine.data_to_send()))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the bytes of the next messages; empty at the end."""
        while True:
            data = b""
            for frame in self._engine.events_received():
                if frame.opcode is Opcode.BINARY:
                    self.messages.append(bytes(frame.data))
                    data += frame.data
                elif frame.opcode is Opcode.PONG:
                    self.pongs.append(bytes(frame.data))
                elif frame.opcode is Opcode.CLOSE:
                    self.closed = self._engine.close_rcvd
                else:
                    raise AssertionError(f"the broker sends {frame}")
            # It answers a close by itself.
            answers = [each for each in self._engine.data_to_send() if each]
            if answers:
                await self._stream.send_all(b"".join(answers))
            if data:
                return data
            received = await self._stream.receive_some(65_536)
            if not received:
                return b""
            self._engine.receive_data(received)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def over_websocket(
    broker: Broker, *, pair: Callable[[], tuple[Any, Any]] = memory_stream_pair, request: bytes | None = None
) -> Client:
    """Return a client over a WebSocket at the AMQP port; its stream is a `WebSocketStream`."""
    client = connect(broker, pair=pair)
    client.stream = WebSocketStream(client.stream)
    with trio.fail_after(60):
        await client.stream.shake_hands(upgrade() if request is None else request)
    return client
