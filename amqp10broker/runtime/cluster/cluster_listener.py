"""The cluster port: handshakes, with a bound on simultaneous unauthenticated connections."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from amqp10broker.cluster.hello import HelloRefused
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError
from amqp10broker.runtime.cluster.peer_complaints import Complaints
from amqp10broker.runtime.cluster.peer_streams import PLAIN, Transport, Wires, why
from amqp10broker.runtime.connections.sockets import (
    Address,
    accept_forever,
    is_loopback,
    listen,
    open_sockets,
)
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

PORT_ABOVE: Final = 20_000
"""By how much the cluster's port is above that of AMQP unless it is given."""
STRANGERS_MAX: Final = 256
STRANGERS_OF_ONE_MAX: Final = 64
"""Connections that have not proved the secret: in all, and of one address."""


async def bind_cluster(config: Config, port: int) -> list[socket.socket]:
    """Bind to the cluster port; the kernel refuses nodes until it is listened to. Raises `ConfigError` if it
    cannot be used, or would be plain to other machines.
    """
    wanted = config.cluster_port or port + PORT_ABOVE
    if wanted > 65_535:
        raise ConfigError(
            "cluster_port", f"would be {wanted}, {PORT_ABOVE} above port {port}", "give one from 1 to 65535"
        )
    try:
        sockets = await open_sockets(config.host, wanted)
    except OSError as error:
        raise ConfigError(
            "cluster_port",
            f"{wanted} on {config.host} cannot be used: {error.strerror or error}",
            "choose another, or end what listens there",
        ) from error
    secured = config.cluster_tls_cert_file is not None or config.cluster_plaintext
    if not secured and not all(is_loopback(sock.getsockname()[0]) for sock in sockets):
        for sock in sockets:
            sock.close()
        raise ConfigError(
            "cluster_port", f"on {config.host} {PLAIN.partition(':')[0]}", PLAIN.partition(": ")[2]
        )
    return sockets


class ClusterListener:
    """Accepts connections of other nodes. `serve`: called with each connection, until it is over; it calls
    `proved` once the other side is authenticated.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        wires: Wires,
        complaints: Complaints,
        serve: Callable[[Transport, Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._sockets = sockets
        self._wires = wires
        self._complaints = complaints
        self._serve = serve
        self._strangers: Counter[str] = Counter()

    def start(self, nursery: trio.Nursery) -> None:
        """Let nodes come, until the nursery is cancelled; the sockets are closed then. Raises `ConfigError`
        as `listen`.
        """
        for sock in self._sockets:
            listen(sock, "cluster_port")
            nursery.start_soon(self._accept_forever, sock, nursery)

    async def _accept_forever(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        def taken(sock: socket.socket, address: Address) -> None:
            host = address[0]
            full = self._strangers.total() >= STRANGERS_MAX
            if full or self._strangers[host] >= STRANGERS_OF_ONE_MAX:
                sock.close()
                return
            self._strangers[host] += 1
            nursery.start_soon(self._serve_socket, sock, address)

        try:
            await accept_forever(
                listener,
                taken,
                lambda error: _log.error("cannot accept a connection of a node", reason=str(error)),
            )
        finally:
            trio.lowlevel.notify_closing(listener)
            listener.close()

    async def _serve_socket(self, sock: socket.socket, address: Address) -> None:
        host = address[0]
        stranger = True

        def proved() -> None:
            nonlocal stranger
            if stranger:
                stranger = False
                self._strangers[host] -= 1
                if not self._strangers[host]:
                    del self._strangers[host]

        try:
            transport = await self._wires.wrap(sock, address, dials=False)
            await self._serve(transport, proved)
        except (OSError, trio.BrokenResourceError, HelloRefused) as error:
            self._complaints.warn("connection of a node refused", host, why(error))
        finally:
            proved()
