"""Accepting connections, and keeping one connection's failure from the others."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Final

import trio

from amqp10broker.greeting import HEADER_BYTES, Protocol, answer
from amqp10broker.security.login import Peer
from amqp10broker.security.tls import CertificateUser, certificate_user
from amqp10broker.security.turns import turn_address
from amqp10broker.tasks.connection091 import Connection091
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.connection_log import host_of
from amqp10broker.tasks.lifeline import READ_BYTES
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.stream import SocketTransport, Stream

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

_log = Log("amqp10broker.listener")

SHUTTING_DOWN: Final = "the broker is shutting down"
BACKLOG: Final = 1024
OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
OUT_OF_FILES_PAUSE_S: Final = 0.1


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind to every address that the host name has; the kernel refuses clients until the caller listens.

    Raises:
        OSError: an address cannot be used.
    """
    sockets: list[socket.socket] = []
    try:
        infos = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in infos:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and len(sockets) > 1:  # one number for all addresses
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sock.bind(address)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def accept_forever(
    broker: Broker,
    listener: socket.socket,
    connections: trio.Nursery,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Accept until cancelled; each connection runs in the nursery given.

    Args:
        broker: whose connections they are.
        listener: a socket that listens.
        connections: where they run.
        tls: speak TLS on them.
    """
    while listener.fileno() >= 0:  # it is closed when the broker stops, perhaps before this has begun
        try:
            await trio.lowlevel.wait_readable(listener)
            if listener.fileno() < 0:
                return
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            # Nothing is lost: the connection waits in the backlog until a file is free.
            _log.error("cannot accept a connection", reason=str(error))
            await trio.sleep(OUT_OF_FILES_PAUSE_S)
            continue
        if len(broker.connections) + len(broker.greetings) >= broker.config.connection_max:
            peer = peer_text(address)
            maximum = broker.config.connection_max
            _warn(broker, "connection refused: connection_max is reached", peer, connection_max=maximum)
            sock.close()
            continue
        if broker.logins.turns_away(turn_address(address[0])):
            sock.close()
            continue
        connections.start_soon(serve_socket, broker, sock, address, tls)


async def serve_socket(
    broker: Broker, sock: socket.socket, address: tuple[str, int], tls: ssl.SSLContext | None
) -> None:
    """One accepted connection from beginning to end."""
    peer = peer_text(address)
    loopback = is_loopback(address[0])
    turn = turn_address(address[0])
    try:
        transport = SocketTransport(sock)
    except OSError as error:  # the client has gone already
        _log.debug("connection lost before it began", peer=peer, reason=str(error))
        sock.close()
        return
    if tls is None:
        await serve_stream(broker, transport, peer, Peer(loopback, turn))
        return
    encrypted = await _encrypt(broker, sock, tls, peer)
    if encrypted is None:
        return
    user = certificate_user(encrypted.getpeercert(), CertificateUser(broker.config.tls_user_from))
    origin = Peer(loopback, turn, tls=True, certificate_user=user)
    await serve_stream(broker, encrypted, peer, origin)


async def _encrypt(
    broker: Broker, sock: socket.socket, tls: ssl.SSLContext, peer: str
) -> trio.SSLStream[trio.SocketStream] | None:
    """Do the TLS handshake; None, and the socket closed, when it fails."""
    stream = trio.SSLStream(
        trio.SocketStream(trio.socket.from_stdlib_socket(sock)), tls, server_side=True, https_compatible=True
    )
    reason = "handshake timed out"
    with trio.CancelScope() as scope:
        # It counts as a connection from here on, and stopping does not wait for it.
        broker.greetings.add(scope)
        if broker.stopping:  # accepted a moment before the end
            scope.cancel()
        try:
            with trio.move_on_after(broker.config.handshake_timeout_ms / 1000):
                await stream.do_handshake()
                return stream
        except trio.BrokenResourceError as error:
            reason = str(error.__cause__ or error)
        finally:
            broker.greetings.discard(scope)
    if not scope.cancelled_caught:
        _warn(broker, "TLS handshake failed", peer, reason=reason)
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)
    return None


async def serve_stream(broker: Broker, stream: Stream, peer: str, origin: Peer) -> None:
    """Serve any stream as a client's connection; a fault in it ends only it.

    Args:
        broker: whose connection it is.
        stream: the transport.
        peer: the client's address as text.
        origin: what is known of the client before it logs in.
    """
    number = broker.next_number()
    try:
        greeted = await _greet(broker, stream, number, peer)
        if greeted is None:
            with trio.CancelScope(shield=True):
                await stream.aclose()
            return
        protocol, first_bytes = greeted
        kind = Connection10 if protocol is Protocol.AMQP_10 else Connection091
        connection = kind(broker, stream, number, peer, origin=origin, first_bytes=first_bytes)
        broker.connections[number] = connection
        broker.tracing.join(connection, begins=True)
        broker.watch.wake()
        if broker.stopping:  # accepted a moment before the end
            connection.close(SHUTTING_DOWN)
        try:
            await connection.run()
        finally:
            del broker.connections[number]
            broker.ended(connection)
            broker.tracing.leave(connection)
            if connection.user:
                connection.log.info("connection closed", reason=connection.end)
            connection.release()
    except Exception as error:
        _log_fault(number, peer, error)
    except BaseExceptionGroup as group:
        # `except* Exception` by hand: PyPy 8.0 raises AssertionError in place of what that does not take.
        faults, rest = group.split(Exception)
        if faults is None or rest is None:  # a group of Exceptions alone is an Exception
            raise
        _log_fault(number, peer, faults)
        raise rest from None


def _log_fault(number: int, peer: str, error: Exception) -> None:
    _log.error("connection failed by a fault in the broker", connection=number, peer=peer, exc_info=error)


async def _greet(broker: Broker, stream: Stream, number: int, peer: str) -> tuple[Protocol, bytes] | None:
    """Read the protocol header and answer one that we do not speak.

    Returns:
        What the client speaks, and the bytes for that protocol's engine; None if there is nothing to
        serve, and the stream is to be closed.
    """
    with trio.CancelScope() as scope:
        if broker.stopping:  # accepted a moment before the end
            return None
        broker.greetings.add(scope)
        try:
            with trio.move_on_after(broker.config.handshake_timeout_ms / 1000) as limit:
                return await _read_header(broker, stream, number, peer)
            if limit.cancelled_caught:
                _warn(
                    broker,
                    "handshake timed out",
                    peer,
                    connection=number,
                    state="START",
                    timeout_ms=broker.config.handshake_timeout_ms,
                )
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("connection lost before its protocol header", peer=peer, reason=str(error))
        finally:
            broker.greetings.discard(scope)
    return None


async def _read_header(
    broker: Broker, stream: Stream, number: int, peer: str
) -> tuple[Protocol, bytes] | None:
    data = b""
    while True:
        received = await stream.receive_some(READ_BYTES)
        if not received:
            return None
        data += received
        greeting = answer(data)
        if greeting is None:
            continue
        if greeting.protocol is None:
            broker.tracing.greeting(number, peer, data, greeting.reply)
            await stream.send_all(greeting.reply)
            return None
        # AMQP 1.0's engine reads the header itself, for it has more than one.
        at = 0 if greeting.protocol is Protocol.AMQP_10 else HEADER_BYTES
        return greeting.protocol, data[at:]


def _warn(broker: Broker, event: str, peer: str, **details: object) -> None:
    """Warn of a connection that has not said what it speaks; limited as `ConnectionLog` is before login."""
    host = host_of(peer)
    key = ("warnings", host)
    broker.log_limits.write(_log.warning, key, event, about={"peer": host}, peer=peer, **details)


def peer_text(address: tuple[str, int]) -> str:
    """An address as logs and status show it."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a client's address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
