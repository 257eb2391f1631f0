"""The listener: it accepts connections, and isolates the failure of one from the others."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import trio

from amqp10broker.auth.login import Peer
from amqp10broker.auth.tls import CertificateUser, certificate_user
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.connection import HEADER_BYTES, WireProtocol, answer
from amqp10broker.runtime.connections.connection091 import ChannelsContext, ConnectionTask091
from amqp10broker.runtime.connections.connection10 import Connection10, SessionsContext
from amqp10broker.runtime.connections.connections import ClientsContext, Connection
from amqp10broker.runtime.connections.sockets import (
    READ_BYTES,
    Address,
    BoundSockets,
    SocketTransport,
    Stream,
    WebSocketTransport,
    accept_forever,
    addresses_of,
    origin_of,
    peer_text,
    tls_stream,
    turn_address,
)
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.listener")

SHUTTING_DOWN: Final = "the broker is shutting down"
HTTP_BEGINS: Final = b"GET "


@dataclass(frozen=True, slots=True)
class Greeted:
    """A client after its protocol header. `stream`: the accepted stream, or a WebSocket over it."""

    protocol: WireProtocol
    first_bytes: bytes
    stream: Stream
    origin: Peer


class ListenerContext(SessionsContext, ChannelsContext, ClientsContext):
    """The context of code that accepts connections.

    Attributes:
        faulty_stream: wraps a stream, for a connection's number, in one that injects faults; None: no faults.
        connected: called with a connection before it runs.
        disconnected: called with one that is over.
        not_greeted: called with the number, the peer, the header and the answer for a client whose protocol
            header is not supported.
    """

    faulty_stream: Callable[..., Stream] | None
    connected: Callable[[Connection], None]
    disconnected: Callable[[Connection], None]
    not_greeted: Callable[[int, str, bytes, bytes], None]


class Listener:
    """Listens at the addresses of one broker, and makes connections of accepted sockets."""

    _sockets: BoundSockets
    _ports: list[list[int]]

    def __init__(self, node_context: ListenerContext) -> None:
        self._node_context = node_context
        self._connections = node_context.connections
        self._serving: trio.Nursery | None = None
        self._accepting: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None

    # --- addresses --------------------------------------------------------------------------------

    def begin(self, sockets: BoundSockets, serving: trio.Nursery) -> None:
        """Serve these sockets from now on. `serving`: runs connections."""
        if self._node_context.config.websocket_on_port:
            # It is imported now: at the first such client the limit of open files may be reached.
            import_module("amqp10broker.runtime.http.http_connection")
        self._sockets = sockets
        self._ports = [
            [address[1] for address in addresses_of(each)] for each in (sockets.plain, sockets.encrypted)
        ]
        self._serving = serving

    def listen(self, nursery: trio.Nursery) -> None:
        self._sockets.listen()
        self._nursery = nursery
        self._accepting = trio.CancelScope()
        nursery.start_soon(self._accept_all, self._accepting)

    async def _accept_all(self, scope: trio.CancelScope) -> None:
        assert self._serving is not None, "it has begun"
        with scope:
            async with trio.open_nursery() as accepting:
                for sock in self._sockets.plain:
                    accepting.start_soon(self._accept, sock, self._serving)
                for sock in self._sockets.encrypted:
                    accepting.start_soon(self._accept, sock, self._serving, self._sockets.tls)

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
        # Where the configuration has no port, the kernel has chosen one, which clients use by now.
        kept: dict[str, Any] = {
            name: ports[0] for name, ports in zip(("port", "tls_port"), self._ports, strict=True) if ports
        }
        await self._sockets.bind(replace(config, **kept))
        self.listen(self._nursery)

    async def _accept(
        self, listener: socket.socket, serving: trio.Nursery, tls: ssl.SSLContext | None = None
    ) -> None:
        def taken(sock: socket.socket, address: Address) -> None:
            if self.has_room_for(peer_text(address), turn_address(address[0])):
                serving.start_soon(self.serve_socket, sock, address, tls)
            else:
                sock.close()

        await accept_forever(
            listener, taken, lambda error: _log.error("cannot accept a connection", reason=str(error))
        )

    # --- clients ----------------------------------------------------------------------------------

    def has_room_for(self, peer: str, turn: str) -> bool:
        """Whether a client may connect, as far as that depends on other clients; logs a warning if not."""
        if self._accepting is None:
            return False
        maximum = self._node_context.config.connection_max
        if not self._connections.has_room(maximum):
            self._warn("connection refused: connection_max is reached", peer, connection_max=maximum)
            return False
        return not self._node_context.logins.turns_away(turn)

    def take(self, stream: Stream, peer: str, origin: Peer) -> None:
        """Serve a stream that was accepted elsewhere."""
        assert self._serving is not None, "the broker is not running"
        self._serving.start_soon(self.serve_stream, stream, peer, origin)

    async def serve_socket(self, sock: socket.socket, address: Address, tls: ssl.SSLContext | None) -> None:
        peer = peer_text(address)
        try:
            transport = SocketTransport(sock)
            origin = origin_of(sock, address)
        except OSError as error:  # the client has disconnected already
            _log.debug("connection lost before it began", peer=peer, reason=str(error))
            sock.close()
            return
        if tls is None:
            await self.serve_stream(transport, peer, origin)
            return
        encrypted = await self._encrypt(sock, tls, peer)
        if encrypted is None:
            return
        user_from = CertificateUser(self._node_context.config.tls_user_from)
        user = certificate_user(encrypted.getpeercert(), user_from)
        origin = replace(origin, tls=True, certificate_user=user, transport="tls")
        await self.serve_stream(encrypted, peer, origin)

    async def _encrypt(
        self, sock: socket.socket, tls: ssl.SSLContext, peer: str
    ) -> trio.SSLStream[trio.SocketStream] | None:
        stream = tls_stream(sock, tls)
        reason = "handshake timed out"
        with trio.CancelScope() as scope:
            # It counts as a connection from here on, and a stop does not wait for it.
            self._connections.greetings.add(scope)
            if self._connections.stopping:  # accepted a moment before the end
                scope.cancel()
            try:
                with trio.move_on_after(self._node_context.config.handshake_timeout_ms / 1000):
                    await stream.do_handshake()
                    return stream
            except trio.BrokenResourceError as error:
                reason = str(error.__cause__ or error)
            finally:
                self._connections.greetings.discard(scope)
        if not scope.cancelled_caught:
            self._warn("TLS handshake failed", peer, reason=reason)
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
        return None

    async def serve_stream(self, stream: Stream, peer: str, origin: Peer) -> None:
        """Serve any stream as a client's connection; a fault in it ends only it."""
        number = next(self._connections.numbers)  # unique while this broker runs
        try:
            greeted = await self._greet(stream, number, peer, origin)
            if greeted is not None:
                stream = self._stream_of(greeted, number)
                linger_s = await self._serve(greeted, stream, number, peer)
                await self._connections.linger(stream, linger_s)
        except Exception as error:
            _log_fault(number, peer, error)
        except BaseExceptionGroup as group:
            # This is `except* Exception` by hand: PyPy 8.0 raises AssertionError in place of the exceptions
            # that it does not match.
            faults, rest = group.split(Exception)
            if faults is None or rest is None:  # a group of Exceptions alone is an Exception
                raise
            _log_fault(number, peer, faults)
            raise rest from None
        finally:
            # A socket left open would be a leak; aclose never blocks long.
            with trio.CancelScope(shield=True):
                await stream.aclose()

    def _stream_of(self, greeted: Greeted, number: int) -> Stream:
        stream = greeted.stream
        if isinstance(stream, WebSocketTransport):
            stream.speaks(greeted.protocol)
        elif self._node_context.faulty_stream is not None:
            return self._node_context.faulty_stream(stream, greeted.protocol, number)
        return stream

    async def _serve(self, greeted: Greeted, stream: Stream, number: int, peer: str) -> float:
        # Serve a client until its connection is over; return for how many seconds its socket lingers.
        kind = Connection10 if greeted.protocol is WireProtocol.AMQP_10 else ConnectionTask091
        connection = kind(
            *(self._node_context, stream, number, peer),
            origin=greeted.origin,
            first_bytes=greeted.first_bytes,
        )
        self._connections[number] = connection
        self._node_context.connected(connection)
        if self._connections.stopping:  # accepted a moment before the end
            connection.close(SHUTTING_DOWN, node_stops=True)
        try:
            await connection.run()
            return connection.linger_s
        finally:
            self._connections.ended(number)
            self._node_context.disconnected(connection)
            if connection.user:
                connection.log.info("connection closed", reason=connection.end)
            connection.release()

    async def _greet(self, stream: Stream, number: int, peer: str, origin: Peer) -> Greeted | None:
        with trio.CancelScope() as scope:
            if self._connections.stopping:  # accepted a moment before the end
                return None
            self._connections.greetings.add(scope)
            try:
                with trio.move_on_after(self._node_context.config.handshake_timeout_ms / 1000) as limit:
                    return await self._read_header(stream, number, peer, origin)
                if limit.cancelled_caught:
                    self._warn(
                        "handshake timed out",
                        peer,
                        connection=number,
                        state="START",
                        timeout_ms=self._node_context.config.handshake_timeout_ms,
                    )
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                _log.debug("connection lost before its protocol header", peer=peer, reason=str(error))
            finally:
                self._connections.greetings.discard(scope)
        return None

    async def _read_header(self, stream: Stream, number: int, peer: str, origin: Peer) -> Greeted | None:
        on_port = origin.transport != "websocket"
        data = b""
        while True:
            received = await stream.receive_some(READ_BYTES)
            if not received:
                return None
            data += received
            if on_port and self._node_context.config.websocket_on_port:
                if data.startswith(HTTP_BEGINS):
                    return await self._go_over(stream, number, peer, origin, data)
                if HTTP_BEGINS.startswith(data):
                    continue
            greeting = answer(data)
            if greeting is None:
                continue
            if greeting.protocol is None:
                self._node_context.not_greeted(number, peer, data, greeting.reply)
                await stream.send_all(greeting.reply)
                return None
            # AMQP 1.0's engine reads the header itself, because it has more than one.
            at = 0 if greeting.protocol is WireProtocol.AMQP_10 else HEADER_BYTES
            return Greeted(greeting.protocol, data[at:], stream, origin)

    async def _go_over(
        self, stream: Stream, number: int, peer: str, origin: Peer, data: bytes
    ) -> Greeted | None:
        # This imports h11: see `begin`. A broker without WebSocket at this port does not need it.
        from amqp10broker.runtime.http.http_connection import only_websocket, serve_until_websocket

        # It got its room when it was accepted.
        config = self._node_context.config
        came = await serve_until_websocket(
            *(config, lambda: True, stream, peer, origin), run=only_websocket, first_bytes=data
        )
        if came is None:
            return None
        websocket, origin = came
        greeted = None
        try:
            greeted = await self._read_header(websocket, number, peer, origin)
        finally:
            if greeted is None:
                with trio.CancelScope(shield=True):
                    await websocket.aclose()
        return greeted

    def _warn(self, event: str, peer: str, **details: object) -> None:
        self._node_context.log_limits.warn(_log, event, peer, **details)


def _log_fault(number: int, peer: str, error: Exception) -> None:
    _log.error("connection failed by a fault in the broker", connection=number, peer=peer, exc_info=error)
