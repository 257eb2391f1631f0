"""One connection to another node: the socket, with TLS with certificates both ways, the greeting, the end."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

import trio

from amqp10broker.auth.tls import MutualTls
from amqp10broker.cluster.hello import MESSAGE_BYTES_MAX, Hello, HelloRefused, PeerGreeting
from amqp10broker.cluster.wire import (
    BODY_BYTES_MAX,
    ConnectionPurpose,
    Decoder,
    Document,
    FrameKind,
    PeerFrame,
    encode,
    encode_joined,
)
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.runtime.connections.sockets import (
    Address,
    SocketTransport,
    Stream,
    accept_forever,
    is_loopback,
    listen,
    open_sockets,
    peer_text,
    tls_stream,
)
from amqp10broker.runtime.log import Log

CONNECT_S: Final = 2.0
"""The time limit for making a connection, including TLS. The kernel would retry after ever longer times."""
GREETING_S: Final = 5.0
# A connection on which nothing is acknowledged for so long is lost, in ms; the kernel checks it.
_UNACKNOWLEDGED_MS: Final = 10_000
_KEEPALIVE_S: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 5))

PLAIN: Final = (
    "is not on this machine, and without TLS all between the nodes can be read on the way: give "
    "cluster_tls_cert_file, cluster_tls_key_file and cluster_tls_ca_file, or say cluster_plaintext = true"
)


class Transport(NamedTuple):
    """A stream to another node before the greeting."""

    stream: Stream
    binding: bytes
    host: str


Dial = Callable[[Address], Awaitable[Transport]]
"""Connects to an address; raises OSError, trio.BrokenResourceError or Refused."""


class Wires:
    """The connections between this node and others. `tls`: None: plain, on this machine or if `plaintext`."""

    def __init__(self, tls: MutualTls | None = None, *, plaintext: bool = False) -> None:
        self._tls = tls
        self._plaintext = plaintext

    async def dial(self, address: Address) -> Transport:
        """Connect. Raises `OSError`, and as `wrap`."""
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
                if own:  # a free port may be connected to itself, and is then in use
                    sock.close()
                    error = ConnectionRefusedError("nobody listens there")
                    continue
                return await self.wrap(socket.socket(fileno=sock.detach()), (found[0], port), dials=True)
        raise error or OSError(f"no answer within {CONNECT_S:g} s")

    async def wrap(self, sock: socket.socket, address: tuple[str, int], *, dials: bool) -> Transport:
        """Return the transport of a connected socket; the socket is closed on errors. Raises `OSError` or
        `trio.BrokenResourceError` if it is lost, or TLS fails, and `HelloRefused` if it would be plain to
        another machine.
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
        context = self._tls.client if dials else self._tls.server
        stream = tls_stream(sock, context, server_side=not dials)
        try:
            with trio.move_on_after(GREETING_S):
                await stream.do_handshake()
                theirs = stream.getpeercert(binary_form=True)
                assert theirs is not None  # both contexts require a certificate
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
    Raises `HelloRefused`, which was sent to the other side, and `OSError`, `trio.BrokenResourceError` or
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
    """Return the text of a connection's error."""
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
"""The number of remembered reasons. Beyond it nothing more is logged until some of them are older."""


class Complaints:
    """Log entries about nodes that cannot connect: each once a minute, and few about one address, so that no
    host can fill the log.
    """

    def __init__(self) -> None:
        # For each address, since when, and which reasons were logged from then on.
        self._said: dict[str, tuple[float, set[str]]] = {}

    def warn(self, event: str, peer_name: str, reason: str, **details: object) -> None:
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
        self._said.pop(peer_name, None)


PORT_ABOVE: Final = 20_000
"""The distance of the cluster's port from that of AMQP, unless it is configured."""
STRANGERS_MAX: Final = 256
STRANGERS_OF_ONE_MAX: Final = 64
"""The most connections that have not proved the secret: in all, and for one address."""


async def bind_cluster(config: Config, port: int) -> list[socket.socket]:
    """Bind to the cluster port; the kernel refuses nodes until it listens. Raises `ConfigError` if the port
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
    """Accepts connections of other nodes. `serve`: called with each, until it is over; it calls `proved` when
    the other side is authenticated.
    """

    _sockets: Sequence[socket.socket]
    _wires: Wires
    _complaints: Complaints
    _serve: Callable[[Transport, Callable[[], None]], Awaitable[None]]
    _strangers: Counter[str] = field(default_factory=Counter, init=False)

    def start(self, nursery: trio.Nursery) -> None:
        """Accept nodes until the nursery is cancelled. Raises `ConfigError` as `listen`."""
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


READ_BYTES: Final = 65_536

FRAMES_A_TURN: Final = 256
"""The number of frames of one read that are handled before other tasks run: ten milliseconds."""

JOIN_S: Final = 0.0005
"""A frame within this time after one that was sent at once is joined with all others of the same iteration of
the loop: messages of several hundred groups become one frame.
"""


class PeerLink:
    """An authenticated connection to another node. `read_at`: when the last whole frame came, by Trio's
    clock: bytes may be the garbled end of a stream.
    """

    def __init__(
        self,
        stream: Stream,
        peer: Hello,
        rest: bytes,
        on_frames: Callable[[PeerLink, Sequence[PeerFrame]], None],
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """Create the link. `rest`: bytes that came after the greeting. `on_frames`: called with the frames of
        each read; a `BrokerError` that it raises ends the connection: a frame was invalid.
        """
        self.peer = peer
        self.backlog_bytes = 0
        # It is called twice a message: `trio.current_time` would double the number of calls.
        self._now = trio.lowlevel.current_clock().current_time
        self.read_at = self._now()
        self.facts_told = (0, 0)
        self.clock_heard: list[int] = []
        self.end = "closed by the other node"
        self._stream = stream
        self._direct = stream if isinstance(stream, SocketTransport) else None
        self._rest = rest
        self._on_frames = on_frames
        self._decoder = Decoder(body_bytes_max)
        self._first: list[bytes] = []
        self._queue: list[bytes] = []
        self._messages: list[tuple[int, bytes]] = []
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._over = False
        self._direct_at = -JOIN_S
        """When a frame was last sent at once, by Trio's clock."""

    def put(self, pieces: Sequence[bytes], *, first: bool = False) -> None:
        """Send a frame without waiting, as `Writer` does: at once if nothing waits before it. Of many at a
        time only the first is sent alone: a system call takes longer than its contents.
        """
        if self._goes_at_once():
            self._send_directly(pieces)
        else:
            (self._first if first else self._queue).extend(pieces)
            self.backlog_bytes += sum(map(len, pieces))
            self._wake.set()

    def put_message(self, group: int, message: bytes) -> None:
        """Send a message of a group, as `put`. Messages that are not sent at once are joined."""
        if self._goes_at_once():
            self._send_directly(encode(FrameKind.RAFT, group, [message]))
        else:
            self._messages.append((group, message))
            self.backlog_bytes += len(message)
            self._wake.set()

    def _goes_at_once(self) -> bool:
        if self._direct is None or self.backlog_bytes or (now := self._now()) - self._direct_at < JOIN_S:
            return False
        self._direct_at = now
        return True

    def _send_directly(self, pieces: Sequence[bytes]) -> None:
        assert self._direct is not None
        data = b"".join(pieces)
        try:
            sent = self._direct.try_send(data)
        except trio.BrokenResourceError:
            sent = 0  # the task will get the error and end the connection
        if sent < len(data):
            # The rest of a partly sent frame is sent before any other frame.
            self._first.append(data[sent:])
            self.backlog_bytes = len(data) - sent
            self._wake.set()

    def close(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self.end = reason
            self._scope.cancel()

    async def run(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                    self.close(self.end)
        finally:
            self.close("the node stops")
            await close(self._stream)

    async def _read(self) -> None:
        data = self._rest
        self._rest = b""
        try:
            while True:
                if data:
                    frames = self._decoder.feed(data)
                    for at in range(0, len(frames), FRAMES_A_TURN):
                        if at:
                            await trio.lowlevel.checkpoint()
                        self._take(frames[at : at + FRAMES_A_TURN])
                data = bytes(await self._stream.receive_some(READ_BYTES))
                if not data:
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.close(f"lost: {error}")
        except BrokerError as error:
            _log.error(
                "node sent what this version does not understand", peer=self.peer.name, reason=str(error)
            )
            self.close(str(error))

    def _take(self, frames: Sequence[PeerFrame]) -> None:
        self.read_at = self._now()
        if self._over:  # the end was already reported
            return
        try:
            self._on_frames(self, frames)
        except BrokerError:  # the error describes the invalid bytes
            raise
        except Exception as error:
            # It must not end the other connections. Lost messages are requested again on the next connection.
            _log.error(
                "frames of a node failed by a fault in the broker", node=self.peer.name, exc_info=error
            )
            self.close("a fault in the broker")

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                data = b"".join(self._first + self._queue + encode_joined(self._messages))
                taken = self.backlog_bytes
                for each in (self._first, self._queue, self._messages):
                    each.clear()
                await self._stream.send_all(data)
                self.backlog_bytes -= taken
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.close(f"lost: {error}")


class PeerEvents(Protocol):
    """Receives the events of `Peers`, in its tasks. Only `asked` may wait; all may send."""

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        """Handle the frames of one read, without heartbeats, requests and answers."""

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        """Note a new connection. After a restart of the node, all older ones were reported as lost."""

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        """Note the loss of a connection, with its unsent frames. Another one may be reported at once."""

    def suspected(self, node: int) -> None:
        """Note that a node is not alive: when it becomes known, and whenever it stops being alive."""

    def heard(self, node: int, incarnation: int) -> None:
        """Note that a node is alive from now on, and receives this node's heartbeats."""

    async def asked(self, node: int, question: Document) -> Document:
        """Answer a request of a node; cancelled if its connection is lost. `node`: 0: it is not a member yet.
        Raises `BrokerError` if it is refused; a `RefusedError` is raised as such at the requesting node.
        """

    def heartbeat(self) -> Document:
        """Return small facts for every other node, which are sent when they differ from the last ones."""

    def told(self, node: int, facts: Document) -> None:
        """Handle another node's facts, when they have changed or its connection is new."""

    def clock_ms(self) -> int:
        """Return this node's time in ms since 1970."""

    def clock_compared(self, node: int, ahead_ms: int, within_ms: int) -> None:
        """Handle a measurement: another node's clock is `ahead_ms` ahead, give or take `within_ms`."""

    def unsynced_ms(self) -> int:
        """Return for how long the oldest append here has not been synced; 0: none waits."""

    def hand_over(self) -> None:
        """Let others lead: the disk is slow (`liveness.HAND_OVER_MS`). Called once until it recovers."""
