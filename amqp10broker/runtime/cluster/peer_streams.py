"""Transports between nodes: sockets, TLS with certificates both ways, and the greeting on them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Final, NamedTuple

import trio

from amqp10broker.auth.tls import MutualTls
from amqp10broker.cluster.hello import MESSAGE_BYTES_MAX, HelloRefused, PeerGreeting
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.runtime.connections.socket_transport import SocketTransport, Stream
from amqp10broker.runtime.connections.sockets import (
    Address,
    accept_forever,
    is_loopback,
    listen,
    open_sockets,
    peer_text,
)
from amqp10broker.runtime.log import Log

CONNECT_S: Final = 2.0
"""How long a connection may take to be made, TLS included. The kernel would try again after longer and longer
times; a new attempt finds a mended network sooner."""
GREETING_S: Final = 5.0
# A connection over which nothing is acknowledged for so long is lost, in ms; the kernel sees to it.
_UNACKNOWLEDGED_MS: Final = 10_000
_KEEPALIVE_S: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 5))

PLAIN: Final = (
    "is not on this machine, and without TLS all between the nodes can be read on the way: give "
    "cluster_tls_cert_file, cluster_tls_key_file and cluster_tls_ca_file, or say cluster_plaintext = true"
)


class Transport(NamedTuple):
    """A stream to another node, not greeted yet."""

    stream: Stream
    binding: bytes
    host: str


Dial = Callable[[Address], Awaitable[Transport]]
"""Connects to an address; raises OSError, trio.BrokenResourceError or Refused."""


class Wires:
    """How this node reaches others, and is reached: with which TLS, or plain. `tls`: None: plain, on this
    machine or if `plaintext`.
    """

    def __init__(self, tls: MutualTls | None = None, *, plaintext: bool = False) -> None:
        self._tls = tls
        self._plaintext = plaintext

    async def dial(self, address: Address) -> Transport:
        """Connect. Raises `OSError` if it cannot be reached, and as `wrap`."""
        host, port = address
        error: OSError | None = None
        with trio.move_on_after(CONNECT_S):
            infos = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, found in infos:
                assert isinstance(found[0], str)
                sock = trio.socket.socket(family, kind, protocol)
                try:
                    await sock.connect(found)
                    own = sock.getsockname() == found
                except OSError as failed:
                    sock.close()
                    error = failed
                    continue
                except BaseException:
                    sock.close()
                    raise
                if own:  # a free port of this machine may be connected to itself, and is then in use
                    sock.close()
                    error = ConnectionRefusedError("nobody listens there")
                    continue
                return await self.wrap(socket.socket(fileno=sock.detach()), (found[0], port), dials=True)
        raise error or OSError(f"no answer within {CONNECT_S:g} s")

    async def wrap(self, sock: socket.socket, address: tuple[str, int], *, dials: bool) -> Transport:
        """A transport of a connected socket, with TLS if that is spoken; the socket is closed on errors.
        Raises `OSError` or `trio.BrokenResourceError` if it is lost, or TLS fails, and `HelloRefused` if it
        would be plain to another machine.
        """
        host = address[0]
        try:
            _watch(sock)
            if self._tls is None:
                if not (self._plaintext or is_loopback(host)):
                    raise HelloRefused(f"{peer_text(address)} {PLAIN}")
                return Transport(SocketTransport(sock), b"", host)
        except BaseException:
            sock.close()
            raise
        stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            self._tls.client if dials else self._tls.server,
            server_side=not dials,
            https_compatible=True,
        )
        try:
            with trio.move_on_after(GREETING_S):
                await stream.do_handshake()
                theirs = stream.getpeercert(binary_form=True)
                assert theirs is not None  # both contexts demand one
                return Transport(stream, _binding(self._tls.certificate, theirs, dials=dials), host)
            raise OSError("the TLS handshake timed out")
        except trio.BrokenResourceError as error:
            await close(stream)
            raise OSError(f"TLS: {_reason(error)}") from error
        except BaseException:
            await close(stream)
            raise


async def greet(transport: Transport, greeting: PeerGreeting) -> None:
    """Authenticate both sides; afterwards `greeting.peer` is authentic. The stream is closed on errors.
    Raises `HelloRefused`, of which the other side was told, and `OSError`, `trio.BrokenResourceError` or
    `trio.ClosedResourceError` if the connection is lost, or too slow.
    """
    stream = transport.stream
    try:
        with trio.move_on_after(GREETING_S):
            if opening := greeting.begin():
                await stream.send_all(opening)
            while not greeting.done:
                data = bytes(await stream.receive_some(MESSAGE_BYTES_MAX))
                if not data:
                    raise OSError("closed by the other side before it has said hello")
                answer, refused = greeting.received(data)
                if answer:
                    await stream.send_all(answer)
                if refused is not None:
                    raise refused
            return
        raise OSError(f"it does not say hello within {GREETING_S:g} s")
    except BaseException:
        await close(stream)
        raise


async def close(stream: Stream) -> None:
    """Close at once, also while cancelled."""
    with trio.CancelScope(shield=True), trio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


def why(error: BaseException) -> str:
    """An error of a connection, for people."""
    if isinstance(error, BrokerError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return _reason(error)


def _reason(error: BaseException) -> str:
    return str(error.__cause__ or error)


def _binding(own: bytes, theirs: bytes, *, dials: bool) -> bytes:
    client, server = (own, theirs) if dials else (theirs, own)
    return sha256(server).digest() + sha256(client).digest()


def _watch(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE_S:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


_log = Log("amqp10broker.peers")

AGAIN_S: Final = 60.0
REASONS_MAX: Final = 10
KEPT_MAX: Final = 1_000
"""So many are remembered; there are no entries about others until some of these are older."""


class Complaints:
    """Log entries about nodes that cannot connect: each once a minute, and few about one address. Otherwise
    any host with access to the cluster port could fill the log.
    """

    def __init__(self) -> None:
        # By whom, since when, and which reasons were written from then on.
        self._said: dict[str, tuple[float, set[str]]] = {}

    def warn(self, event: str, peer_name: str, reason: str, **details: object) -> None:
        """Write an entry, unless the same, or too much, was written within a minute."""
        now = trio.current_time()
        if peer_name not in self._said and len(self._said) >= KEPT_MAX:
            self._said = {each: it for each, it in self._said.items() if now < it[0] + AGAIN_S}
            if len(self._said) >= KEPT_MAX:
                return
        since, reasons = self._said.get(peer_name, (now, set()))
        if now >= since + AGAIN_S:
            since, reasons = now, set()
        self._said[peer_name] = since, reasons
        if reason in reasons or len(reasons) >= REASONS_MAX:
            return
        reasons.add(reason)
        _log.warning(event, peer=peer_name, reason=reason, **details)

    def forget(self, peer_name: str) -> None:
        """It goes well with this one: what comes next is news."""
        self._said.pop(peer_name, None)


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


@dataclass(eq=False)
class ClusterListener:
    """Accepts connections of other nodes. `serve`: called with each connection, until it is over; it calls
    `proved` once the other side is authenticated.
    """

    _sockets: Sequence[socket.socket]
    _wires: Wires
    _complaints: Complaints
    _serve: Callable[[Transport, Callable[[], None]], Awaitable[None]]
    _strangers: Counter[str] = field(default_factory=Counter, init=False)

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
