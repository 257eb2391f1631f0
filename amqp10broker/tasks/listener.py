"""Accepting connections, and keeping one connection's failure from the others."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

import trio

from amqp10broker.tasks.connection import ConnectionTask, shutting_down
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.stream import SocketTransport, Stream

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

_log = Log("amqp10broker.listener")

BACKLOG: Final = 1024
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S: Final = 0.1


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind and listen on every address that the host name has.

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
            sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def accept_forever(broker: Broker, listener: socket.socket, connections: trio.Nursery) -> None:
    """Accept until cancelled; each connection runs in the nursery given."""
    while True:
        try:
            await trio.lowlevel.wait_readable(listener)
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
            # Nothing is lost: the connection waits in the backlog until a file is free.
            _log.error("cannot accept a connection", reason=str(error))
            await trio.sleep(_PAUSE_S)
            continue
        if len(broker.connections) >= broker.config.connection_max:
            _log.warning("connection refused: connection_max is reached", peer=peer_text(address))
            sock.close()
            continue
        connections.start_soon(serve_socket, broker, sock, address)


async def serve_socket(broker: Broker, sock: socket.socket, address: tuple[str, int]) -> None:
    """One accepted connection from beginning to end."""
    peer = peer_text(address)
    try:
        stream = SocketTransport(sock)
    except OSError as error:  # the client has gone already
        _log.debug("connection lost before it began", peer=peer, reason=str(error))
        sock.close()
        return
    await serve_stream(broker, broker.traced(stream, peer), peer, loopback=is_loopback(address[0]))


async def serve_stream(broker: Broker, stream: Stream, peer: str, *, loopback: bool) -> None:
    """Serve any stream as a client's connection; a fault in it ends only it."""
    connection = ConnectionTask(broker, stream, broker.next_number(), peer, loopback=loopback)
    broker.connections[connection.number] = connection
    if broker.stopping:  # accepted a moment before the end
        connection.shut_down(shutting_down())
    try:
        await connection.run()
    except* Exception as group:
        _log.error(
            "connection failed by a fault in the broker",
            connection=connection.number,
            peer=peer,
            exc_info=group,
        )
    finally:
        del broker.connections[connection.number]
        if connection.user:
            _log.info("connection closed", connection=connection.number, peer=peer, reason=connection.end)


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
