"""The sockets of a running broker, which can be shut and opened again: for a node in maintenance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import trio

from amqp10broker.auth.login import Peer
from amqp10broker.config import Config
from amqp10broker.runtime.connections.listener import Listener
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.sockets import BoundSockets, addresses_of


class Listeners:
    def __init__(self, listener: Listener, sockets: BoundSockets, connections: trio.Nursery) -> None:
        self._listener = listener
        self._sockets = sockets
        self._ports = [
            [address[1] for address in addresses_of(each)] for each in (sockets.plain, sockets.encrypted)
        ]
        self._connections = connections
        self._accepting: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def open(self) -> bool:
        return self._accepting is not None

    def has_room_for(self, peer: str, turn: str) -> bool:
        """Whether a client may come in that was accepted elsewhere (see `Listener.has_room_for`)."""
        return self.open and self._listener.has_room_for(peer, turn)

    def take(self, stream: Stream, peer: str, origin: Peer) -> None:
        """Serve a client that was accepted elsewhere."""
        self._connections.start_soon(self._listener.serve_stream, stream, peer, origin)

    def listen(self, nursery: trio.Nursery) -> None:
        """Accept clients of the bound sockets, in this nursery, from now on."""
        self._sockets.listen()
        self._nursery = nursery
        self._accepting = trio.CancelScope()
        nursery.start_soon(self._accept, self._accepting)

    async def _accept(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as accepting:
                self._listener.listen(self._sockets, accepting, self._connections)

    def shut(self) -> None:
        """Stop accepting: the kernel refuses new connections."""
        if self._accepting is None:
            return
        self._accepting.cancel()
        self._accepting = None
        self._sockets.close()

    async def reopen(self, config: Config) -> None:
        """Accept clients again, at the same addresses. Raises `OSError` or `ConfigError` if an address was
        taken by another program.
        """
        if self._accepting is not None or self._nursery is None:
            return
        # Where the configuration names no port the kernel has chosen one, which clients know by now.
        kept: dict[str, Any] = {
            name: ports[0] for name, ports in zip(("port", "tls_port"), self._ports, strict=True) if ports
        }
        await self._sockets.bind(replace(config, **kept))
        self.listen(self._nursery)
