"""The sockets on which a broker listens, and a connection's transport: a socket, or a WebSocket over one.

In a prototype `trio.SocketStream` took 5 us more for each call than the socket itself, twice per message of a
synchronous publisher. So the connection uses the non-blocking socket and trio's readiness calls. Any other
`trio.abc.Stream` (TLS, memory streams in tests) works as well, without `try_send`.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from amqp10broker import portable
from amqp10broker.auth.login import Peer
from amqp10broker.auth.tls import server_context
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError
from amqp10broker.portable import send_pieces
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.runtime.log import Log

if TYPE_CHECKING:
    from amqp10broker.protocols.websocket import WebSocketLayer


BACKLOG: Final = 1024
OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
OUT_OF_FILES_PAUSE_S: Final = 0.1
FREE_PORT_ATTEMPTS: Final = 20
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_IPV6_PREFIX_BITS: Final = 64
"""The part of an IPv6 address that is fixed for one client, which can vary the rest."""

Address: TypeAlias = tuple[str, int]


class BoundSockets:
    """The sockets of one broker, bound first, so that a wrong port is reported at once. `tls`: their
    context.
    """

    def __init__(self) -> None:
        self.plain: list[socket.socket] = []
        self.encrypted: list[socket.socket] = []
        self.tls: ssl.SSLContext | None = None

    async def bind(self, config: Config) -> None:
        """Bind to the addresses of the configuration; the kernel refuses clients until `listen`. Raises
        `OSError` if one cannot be used, and `ConfigError` for TLS or one of its files.
        """
        self.tls = server_context(config)
        self.plain = await open_sockets(config.host, config.port)
        if self.tls is None:
            return
        try:
            self.encrypted = await open_sockets(config.host, config.tls_port)
        except OSError as error:
            raise ConfigError(
                "tls_port",
                f"{config.tls_port} on {config.host} cannot be used: {error.strerror or error}",
                "choose another, 0 for any free one",
            ) from error

    def listen(self) -> None:
        """Accept clients. Raises `ConfigError` as `listen`."""
        for setting, sockets in (("port", self.plain), ("tls_port", self.encrypted)):
            for sock in sockets:
                listen(sock, setting)

    def close(self) -> None:
        for sock in (*self.plain, *self.encrypted):
            sock.close()


async def accept_forever(
    listener: socket.socket,
    taken: Callable[[socket.socket, Address], None],
    on_out_of_files: Callable[[OSError], None],
) -> None:
    """Accept connections until cancelled, or until the socket is closed. `on_out_of_files`: called each time
    that a connection could not be accepted for lack of files or memory.
    """
    while listener.fileno() >= 0:  # the stop of the broker closes it, perhaps before this has begun
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
            on_out_of_files(error)
            await trio.sleep(OUT_OF_FILES_PAUSE_S)
            continue
        taken(sock, address)


def addresses_of(sockets: list[socket.socket]) -> list[Address]:
    return [sock.getsockname()[:2] for sock in sockets]


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind to every address that the host name has, IPv4 first; the kernel refuses clients until the caller
    listens. ``localhost`` is ``127.0.0.1`` and ``::1`` (RFC 6761), whatever the file of hosts contains. Of
    several addresses those that this machine does not have are left out. Raises `OSError` if an address
    cannot be used, or there is none.
    """
    addresses: list[tuple[int, tuple[Any, ...]]]
    if host == "localhost":
        addresses = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port, 0, 0))]
    else:
        infos = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in sorted(infos)))
    attempts = FREE_PORT_ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _bound(addresses)
        except OSError as error:
            # A port that is free at the first address may be in use at another.
            if not attempts or error.errno != errno.EADDRINUSE:
                raise


def _bound(addresses: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            if sockets:  # the same port for all addresses
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sockets.append(_bound_to(family, address))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
        if not sockets and missing is not None:
            raise missing
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound_to(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, portable.REUSE_ADDRESS, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def listen(sock: socket.socket, setting: str) -> None:
    """Accept clients at a bound socket. Raises `ConfigError` if another program listens there, because two
    programs may bind to one address.
    """
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        address = peer_text(sock.getsockname()[:2])
        raise ConfigError(
            setting,
            f"cannot be used at {address}: {error.strerror or error}",
            "choose another, 0 for any free one, or end what listens there",
        ) from error


def peer_text(address: tuple[str, int]) -> str:
    """Return an address as logs and status show it."""
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


def turn_address(host: str) -> str:
    """Return the key of a client's address: of IPv6 the network of 64 bits, or the IPv4 address in it.

    Any other text is its own key.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))


def origin_of(sock: socket.socket, address: Address, *, tls: bool = False) -> Peer:
    """Return the properties of the client of an accepted socket. Raises `OSError` if it has disconnected."""
    host, local = address[0], peer_text(sock.getsockname()[:2])
    return Peer(is_loopback(host), turn_address(host), tls=tls, local=local)


def tls_stream(
    sock: socket.socket, context: ssl.SSLContext, *, server_side: bool = True
) -> trio.SSLStream[trio.SocketStream]:
    """Return a stream with TLS over a connected socket, before its handshake."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    return trio.SSLStream(stream, context, server_side=server_side, https_compatible=True)


READ_BYTES: Final = 65_536

CLOSE_WAIT_S: Final = 2.0
"""How long a connection that the broker closed waits for the peer's close; likewise the socket of a
connection that was never open.
"""

LINGER_S: Final = 30.0
"""How long the socket of a connection that is over waits until its client closes it, as RabbitMQ's does."""

LINGER_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The most bytes that are read from a client meanwhile: two of the largest messages that may be allowed."""

UNSENT_BYTES: Final = 131_072
"""The unsent bytes that the kernel may hold. A frame waits behind no more than these; Linux would otherwise
let several megabytes accumulate.
"""

UNSENT_BYTES_MAX: Final = 1024 * 1024
"""The same for a peer that reads them fast."""

UNSENT_FAST_S: Final = 0.005
"""A full socket that takes bytes again within this time may have twice as many of them."""

UNSENT_SLOW_S: Final = 0.02
"""A full socket that takes longer than this may have half as many."""

PIECES_MAX: Final = 1024
"""The number of buffers in one call of the system (IOV_MAX)."""


class Stream(Protocol):
    """The transport of a connection."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for bytes; empty at the end."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...

    async def aclose(self) -> None: ...


class SocketTransport:
    """A connected TCP socket. `moved_at`: when it last took a part of the bytes for which `send_all` had to
    wait, by Trio's clock. `unsent_max`: the limit of unsent bytes in the kernel.
    """

    __slots__ = ("_closed", "_socket", "moved_at", "unsent_max")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._hold_unsent(UNSENT_BYTES)
        self.moved_at = 0.0
        self._closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; empty at the end. Raises `trio.BrokenResourceError`, as all methods here."""
        # It waits first, not after a failed attempt: the wait is the checkpoint that a task must make anyway,
        # and a fast peer's bytes are there when it returns.
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(max_bytes or READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"receiving: {error}") from error

    async def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send everything, without joining it."""
        left = pieces
        while left:
            sent = self.try_send_pieces(left)
            left = unsent(left, sent)
            if left:
                await self._wait_writable(moved=sent > 0)

    def try_send_pieces(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Send as `try_send`, from several buffers that are not joined; of very many only the first ones."""
        try:
            return send_pieces(self._socket, pieces[:PIECES_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"sending: {error}") from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            sent = self.try_send(view)
            view = view[sent:]
            if len(view):
                await self._wait_writable(moved=sent > 0)

    async def _wait_writable(self, *, moved: bool) -> None:
        began = trio.current_time()
        if moved:
            self.moved_at = began
        await trio.lowlevel.wait_writable(self._socket)
        took_s = trio.current_time() - began
        if took_s < UNSENT_FAST_S and self.unsent_max < UNSENT_BYTES_MAX:
            self._hold_unsent(2 * self.unsent_max)
        elif took_s > UNSENT_SLOW_S and self.unsent_max > UNSENT_BYTES:
            self._hold_unsent(self.unsent_max // 2)

    def _hold_unsent(self, most: int) -> None:
        self.unsent_max = most
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, most)

    def try_send(self, data: bytes | bytearray | memoryview) -> int:
        """Send the bytes that the socket takes without waiting; return their number."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"sending: {error}") from error

    def reset_at_close(self) -> None:
        """Make the close a reset: unsent bytes are dropped, and the peer gets no end of stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


def unsent(pieces: Sequence[bytes | memoryview], sent: int) -> Sequence[bytes | memoryview]:
    """Return the rest of some buffers after so many bytes of them were sent."""
    for at, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[at + 1 :]]
        sent -= len(piece)
    return []


_log = Log("amqp10broker.connection")

SLICE_BYTES: Final = 16_384
"""The bytes that are parsed at a time. Other tasks run when a slice had more than `PIECES_AT_ONCE` messages:
a millisecond.
"""
PIECES_AT_ONCE: Final = 250


class WebSocketTransport:
    """A WebSocket with the interface of a socket, over the stream of another transport.

    While it is not read TCP slows the client down. The layer's own output is sent with the writer's next
    send, for which the writer is woken; of several waiting pongs only the last remains. So a client that
    sends and does not read uses no more memory than over TCP.
    """

    def __init__(self, stream: Stream, layer: WebSocketLayer, first_bytes: bytes) -> None:
        self._stream = stream
        self._layer = layer
        self._unparsed = memoryview(first_bytes)
        self._ready = b""
        self._told = False
        self._closed = False
        self._on_output: Callable[[], None] | None = None

    def when_it_speaks(self, on_output: Callable[[], None]) -> None:
        self._on_output = on_output
        if self._layer.has_output:
            self._tell()

    def speaks(self, protocol: WireProtocol) -> None:
        self._layer.speaks(protocol)

    def take_at_most(self, frame_bytes: int) -> None:
        """Limit messages to the size of the largest AMQP frame that the client takes."""
        self._layer.message_bytes_max = min(self._layer.message_bytes_max, frame_bytes)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for AMQP bytes; empty when the WebSocket is closed, or its socket has ended. Raises
        `trio.BrokenResourceError` if the client broke a rule, or reset the connection.
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
                # If it is cancelled here, the connection is over: the bytes that were read are not needed.
                await trio.lowlevel.checkpoint()
        return b"".join(parts)

    def _tell(self) -> None:
        if not self._told and self._on_output is not None:
            self._told = True
            self._on_output()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send whole AMQP frames, and the layer's own output. Raises `trio.BrokenResourceError` if the
        WebSocket is closed, or the client reset the connection.
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
        # If the socket was closed with unread bytes, the kernel would drop the broker's last frames.
        while not self._layer.closed_by_client:
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                return
            self._layer.receive(memoryview(data))
