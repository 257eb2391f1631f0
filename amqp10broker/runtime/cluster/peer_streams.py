"""Transports between nodes: sockets, TLS with certificates both ways, and the greeting on them."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final, NamedTuple

import trio

from amqp10broker.auth.tls import MutualTls
from amqp10broker.cluster.hello import MESSAGE_BYTES_MAX, HelloRefused, PeerGreeting
from amqp10broker.errors import BrokerError
from amqp10broker.runtime.connections.socket_transport import SocketTransport, Stream
from amqp10broker.runtime.connections.sockets import Address, is_loopback, peer_text

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
        """Connect.

        Raises:
            OSError, trio.BrokenResourceError: it cannot be reached, or TLS fails.
            Refused: it is this node's own end, or would be plain to another machine.
        """
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

        Raises:
            OSError, trio.BrokenResourceError: it is lost, or TLS fails.
            Refused: it would be plain to another machine.
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
    """Authenticate both sides; afterwards `greeting.peer` is authentic.

    Raises:
        Refused: they do not go on; what the other side has to know of it was sent.
        OSError, trio.BrokenResourceError, trio.ClosedResourceError: the connection is lost, or too slow.
    """
    stream = transport.stream
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
