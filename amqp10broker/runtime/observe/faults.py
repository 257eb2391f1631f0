"""Faults that a broker in test mode injects on request, in sessions and channels (`observe.faults`) and
streams. A stream is wrapped between the connection and its socket, also under TLS, but not if it is a
WebSocket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from amqp10broker.metadata.queue import Owner
from amqp10broker.observe.faults import Fault, Faults, FaultyChannel, FaultySession
from amqp10broker.operations.running import FaultKind
from amqp10broker.protocols.connection import HEADER_BYTES, WireProtocol
from amqp10broker.runtime.connections.connections import ClientsContext
from amqp10broker.runtime.connections.sockets import SocketTransport, Stream
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession

RESET: Final = "reset by a fault on request"

_HEADER: Final = b"AMQP"


def faulty(
    node_context: ClientsContext,
) -> tuple[Faults, Callable[..., BrokerSession], Callable[..., BrokerChannel], Callable[..., Stream]]:
    """Return the faults of a broker in test mode, and the makers of its sessions, channels and streams."""

    def client_of(owner: object) -> str:
        assert isinstance(owner, Owner)
        return node_context.connections[owner.connection].client_name

    def whose(connection: int) -> tuple[str, str]:
        found = node_context.connections.get(connection)
        return ("", "") if found is None else (found.vhost, found.client_name)

    # The registry of reply addresses exists when the broker runs.
    faults = Faults(lambda effects: node_context.reply_registry.post(effects), client_of)
    notifications = News()
    faults.changed = notifications.tell

    def stream_of(stream: Stream, protocol: WireProtocol, connection: int) -> Stream:
        return FaultyStream(stream, protocol, connection, faults, notifications, partial(whose, connection))

    return faults, partial(FaultySession, faults), partial(FaultyChannel, faults), stream_of


class News:
    """The report that a fault was injected or lifted."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class FaultyStream:
    """A connection's stream, which injects the faults that are below sessions and channels."""

    def __init__(
        self,
        stream: Stream,
        protocol: WireProtocol,
        number: int,
        faults: Faults,
        notifications: News,
        whose: Callable[[], tuple[str, str]],
    ) -> None:
        """Wrap a stream. `whose`: returns the virtual host of the connection and its client's name; empty
        before the open.
        """
        self._stream = stream
        self._is_10 = protocol is WireProtocol.AMQP_10
        self._number = number
        self._faults = faults
        self._notifications = notifications
        self._whose = whose

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = bytes(await self._stream.receive_some(max_bytes))
        await self._hold(len(data))
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._hold(len(data))
        if not self._on(FaultKind.RESET_AFTER):
            await self._stream.send_all(data)
            return
        for frame in self._frames(bytes(data)):
            await self._stream.send_all(frame)
            for fault in self._on(FaultKind.RESET_AFTER):
                sent = fault.frames[self._number] = fault.frames.get(self._number, 0) + 1
                if sent >= (fault.most or 1):
                    fault.hits += 1
                    await self._reset()

    async def aclose(self) -> None:
        self._faults.end(self._number)
        await self._stream.aclose()

    def _on(self, kind: FaultKind) -> list[Fault]:
        return self._faults.on(frozenset({kind}), *self._whose()) if self._faults.any else []

    async def _hold(self, size: int) -> None:
        held = self._on(FaultKind.HOLD_BYTES)
        for fault in held:
            fault.hits += 1
            fault.bytes += size
        try:
            while self._on(FaultKind.HOLD_BYTES):
                await self._notifications.wait()
        finally:
            for fault in held:
                fault.bytes -= size

    async def _reset(self) -> None:
        if isinstance(self._stream, SocketTransport):
            self._stream.reset_at_close()
        with trio.CancelScope() as at_once:
            at_once.cancel()
            await self._stream.aclose()
        raise trio.BrokenResourceError(RESET)

    def _frames(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            if data.startswith(_HEADER, at):
                size = HEADER_BYTES
            elif self._is_10:
                size = int.from_bytes(data[at : at + 4], "big")
            else:
                size = 7 + int.from_bytes(data[at + 3 : at + 7], "big") + 1
            yield data[at : at + size]
            at += size
