"""One connection of the load generator, and that of AMQP 1.0.

`Connection` owns a socket and the bytes on their way in and out, whatever they mean; the peers of both
protocols and the floor's own connections are made of it. `Peer` speaks AMQP 1.0: it never sends a transfer
without credit and an open window, and it ends the run if the broker does: a figure reached by breaking the
protocol is no figure. `handshake` is what every connection begins with, also those that carry no load.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.connection import HEARTBEAT
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
from amqp10broker.protocols.connection import AMQP_10_HEADER
from benchmarks import spec, wire
from benchmarks.errors import PeerError, WireError
from benchmarks.scan import Run, Scanner
from benchmarks.session import PeerSession, Receiver, Sender
from benchmarks.stream import Stream

OUT_BYTES_MAX: Final = 256 * 1024
"""Transfers are made until so many bytes wait for the socket; more would only add to latency."""
READ_BYTES: Final = 2 * spec.MAX_FRAME_SIZE_BYTES
"""One read takes at most so much; it must hold the largest frame we allow the broker to send."""
HANDSHAKE_TIMEOUT_S: Final = 20.0


_Socket = socket.socket


class Connection:
    """A socket, what has been read from it and not yet understood, and what waits to be written."""

    socket: _Socket
    streams: list[Stream]
    out_bytes_max: ClassVar[int] = OUT_BYTES_MAX

    def __init__(self) -> None:
        """Make the buffers; the socket comes when there is one."""
        self.out = bytearray()
        self.data = bytearray(READ_BYTES)
        self._view = memoryview(self.data)
        self._filled = 0

    def receive(self, scan: Callable[[bytearray, int, int], int]) -> bool:
        """Read once and scan; return False when the other side has closed.

        Args:
            scan: given the buffer and both ends of what is in it, returns where it has stopped.
        """
        try:
            count = self.socket.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return True
        end = self._filled + count
        position = scan(self.data, 0, end) if count else 0
        self._filled = end - position
        if position and self._filled:
            self._view[: self._filled] = bytes(self._view[position:end])
        return count > 0

    def send(self) -> bool:
        """Write as much as the socket takes; return whether bytes are left."""
        if self.out:
            try:
                del self.out[: self.socket.send(self.out)]
            except BlockingIOError:
                return True
        return bool(self.out)


class LoadPeer(Connection):
    """What the peers of both protocols have in common: beginning, ending, heartbeats."""

    heartbeat: ClassVar[bytes] = HEARTBEAT
    last_words: ClassVar[bytes] = wire.frame(performatives.Close())
    """What closes the connection in order."""

    def __init__(self, endpoint: spec.Endpoint, streams: list[Stream]) -> None:
        """Remember whom to load; opening connects."""
        super().__init__()
        self.endpoint = endpoint
        self.streams = streams
        self._now_ns = 0
        self._sent_ns = 0
        self._heartbeat_ns = 0
        """Silence for so long is broken by a heartbeat; 0: never."""
        self._waiting_for = 0
        self._closing = False
        self._closed = False

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Act on every whole frame; return where the first that is not whole begins."""
        raise NotImplementedError

    def after_read(self) -> None:
        """Settle and grant, once for one socket read."""
        raise NotImplementedError

    def connected(self, stream: _Socket, heartbeat_ns: int) -> None:
        """Take over the socket of a handshake."""
        self.socket = stream
        self._heartbeat_ns = heartbeat_ns
        self._sent_ns = time.monotonic_ns()

    def exchange(self, frames: bytes | bytearray, answers: int) -> None:
        """Send, blocking, and read until so many answers have come."""
        self._waiting_for += answers
        self.socket.settimeout(HANDSHAKE_TIMEOUT_S)
        self.socket.sendall(frames)
        while self._waiting_for > 0:
            self.read()

    def close(self) -> None:
        """Close the connection in order, waiting a little for the broker's answer."""
        self._closing = True
        try:
            self.socket.settimeout(2.0)
            self.socket.sendall(self.out + self.last_words)
            while not self._closed:
                self.read()
        except (OSError, PeerError, WireError):
            # The run's figures are already taken; a broker that is slow to say goodbye keeps them.
            pass
        finally:
            self.socket.close()

    def read(self) -> None:
        """Read once from the socket and act on every whole frame.

        Raises:
            PeerError: the broker closed the connection or broke a rule.
        """
        if not self.receive(self._scan_now):
            if not self._closing:
                raise PeerError("the broker closed the socket")
            self._closed = True
        elif not self._closing:
            self.after_read()

    def _scan_now(self, data: bytearray, position: int, end: int) -> int:
        self._now_ns = time.monotonic_ns()
        return self.scan(data, position, end)

    def flush(self, now_ns: int) -> bool:
        """Write as much as the socket takes, a heartbeat if there is nothing else and it is time for one.

        Returns:
            Whether bytes are left.
        """
        if self._heartbeat_ns and not self.out and now_ns - self._sent_ns > self._heartbeat_ns:
            self.out += self.heartbeat
        if self.out:
            self._sent_ns = now_ns
        return self.send()


class Peer(LoadPeer):
    """One AMQP 1.0 connection to the broker under test."""

    def __init__(self, endpoint: spec.Endpoint, sessions: Sequence[spec.Session], streams: list[Stream]):
        """Remember what to do; `open` connects."""
        super().__init__(endpoint, streams)
        stamped = any(consume.stamp for session in sessions for consume in session.consume)
        self.scan = Scanner(self, alike_in_size=stamped).scan  # type: ignore[method-assign]
        self.sessions = [PeerSession(self, channel, what) for channel, what in enumerate(sessions)]
        self._by_channel: dict[int, PeerSession] = {}
        self._by_name: dict[str, tuple[PeerSession, Sender | Receiver, int]] = {}

    @property
    def producers(self) -> list[Sender]:
        """Every group of sending links."""
        return [sender for session in self.sessions for sender in session.senders]

    def open(self) -> None:
        """Connect, log in, begin every session, attach every link; then switch to non-blocking.

        Raises:
            PeerError: the broker refused one of these.
            OSError: no connection.
        """
        stream, max_frame_size_bytes, idle_timeout_ms = handshake(self.endpoint)
        # Half the broker's idle time-out.
        self.connected(stream, idle_timeout_ms * 500_000)
        handle_max = spec.LINKS_PER_SESSION_MAX - 1
        begins = [wire.frame(one.begin(handle_max), channel=one.channel) for one in self.sessions]
        self.exchange(b"".join(begins), len(begins))
        for session in self.sessions:
            frames: list[bytes] = []
            for sender in session.senders:
                sender.cut(max_frame_size_bytes)
                frames += self._attaches(session, sender, sender.what.settled)
            for receiver in session.receivers:
                presettled = receiver.what.settle is spec.Settle.PRESETTLED
                frames += self._attaches(session, receiver, presettled, receiver.what.offset)
            self.exchange(b"".join(frames), len(frames))
        self.socket.setblocking(False)

    def _attaches(
        self, session: PeerSession, group: Sender | Receiver, presettled: bool, offset: str = ""
    ) -> list[bytes]:
        frames = []
        for index, address in enumerate(group.what.addresses):
            handle = group.first_handle + index
            name = f"bench-{id(self):x}-{session.channel}-{handle}"
            self._by_name[name] = (session, group, index)
            receiver = isinstance(group, Receiver)
            link = {"name": name, "receiver": receiver, "address": address, "offset": offset}
            frames.append(wire.attach_frame(session.channel, handle, presettled=presettled, **link))  # type: ignore[arg-type]
        return frames

    def start(self) -> None:
        """Grant the first credit on every receiving link."""
        for session in self.sessions:
            for receiver in session.receivers:
                receiver.start()
            session.after_read()

    def after_read(self) -> None:
        """Settle what was read, grant credit, open windows."""
        for session in self.sessions:
            session.after_read()

    # --- what the scanner reports ---

    def on_transfers(self, run: Run) -> None:
        """Count deliveries."""
        if not self._closing:
            self._by_channel[run.channel].transfers(run, self._now_ns)

    def on_disposition(
        self, channel: int, receiver: bool, first: int, last: int, settled: bool, accepted: bool
    ) -> None:
        """Count confirms; a state told without settling is settled by us (§2.6.12)."""
        if not receiver or self._closing:
            return
        session = self._by_channel[channel]
        session.confirm(first, last, accepted=accepted, now_ns=self._now_ns)
        if not settled:
            self.out += wire.disposition_frame(session.channel, receiver=False, first=first, last=last)

    def on_performative(self, channel: int, performative: performatives.Composite) -> None:
        """Take begin, attach, windows and credit; any ending by the broker ends the run."""
        match performative:
            case performatives.Begin(remote_channel=int(ours)):
                session = self._by_channel[channel] = self.sessions[ours]
                session.next_incoming_id = performative.next_outgoing_id
                session.remote_window = performative.incoming_window
                self._waiting_for -= 1
            case performatives.Attach():
                session, group, index = self._by_name[performative.name]
                if isinstance(group, Sender):
                    session.sending[performative.handle] = (group, index)
                else:
                    session.receiving[performative.handle] = (group, index)
                    group.delivery_count[index] = performative.initial_delivery_count or 0
                self._waiting_for -= 1
            case performatives.Flow():
                if not self._closing:
                    self._by_channel[channel].flow(performative)
            case performatives.Close() | performatives.End() | performatives.Detach():
                self._closed = self._closed or isinstance(performative, performatives.Close)
                if not self._closing:
                    why = wire.describe_error(performative.error)
                    raise PeerError(f"the broker {_ENDINGS[type(performative)]}: {why}")
            case _:
                return  # nothing follows from an open, and logging in is over


_ENDINGS: Final[dict[type[performatives.Composite], str]] = {
    performatives.Close: "closed the connection",
    performatives.End: "ended a session",
    performatives.Detach: "detached a link",
}


# --- connecting ---------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A connection after both sides' open frames."""

    socket: socket.socket
    """Still blocking."""
    max_frame_size_bytes: int
    """Largest frame the broker takes."""
    idle_timeout_ms: int
    """The broker gives up a silent peer after so long (or twice that); 0 if it does not."""


def connect(endpoint: spec.Endpoint, timeout_s: float) -> socket.socket:
    """Connect and send small segments at once.

    Raises:
        OSError: nobody listens, or no answer came in time.
    """
    stream = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def handshake(endpoint: spec.Endpoint, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Opened:
    """Connect, log in and exchange open frames, one step after the other as a client library does.

    Raises:
        PeerError: the broker refused the login or the connection.
        OSError: nobody listens, or no answer came in time.
    """
    stream = connect(endpoint, timeout_s)
    try:
        stream.sendall(wire.SASL_HEADER)
        if read_exactly(stream, 8) != wire.SASL_HEADER:
            raise PeerError("the peer does not speak AMQP 1.0 with SASL")
        read_frame(stream)
        stream.sendall(wire.sasl_init(endpoint.user, endpoint.password))
        outcome = read_frame(stream)
        if not isinstance(outcome, performatives.SaslOutcome) or outcome.code != 0:
            raise PeerError(f"the broker refused the login: {outcome}")
        stream.sendall(AMQP_10_HEADER)
        if read_exactly(stream, 8) != AMQP_10_HEADER:
            raise PeerError("the broker refused the AMQP header after SASL")
        mine = performatives.Open(
            container_id="benchmark",
            hostname=endpoint.hostname,
            max_frame_size=spec.MAX_FRAME_SIZE_BYTES,
            channel_max=spec.SESSIONS_PER_CONNECTION_MAX - 1,
        )
        stream.sendall(wire.frame(mine))
        opened = read_frame(stream)
        if not isinstance(opened, performatives.Open):
            why = opened.error if isinstance(opened, performatives.Close) else None
            raise PeerError(f"the broker refused the connection: {wire.describe_error(why)}")
        return Opened(stream, opened.max_frame_size, opened.idle_time_out or 0)
    except BaseException:
        stream.close()
        raise


def read_exactly(stream: socket.socket, count: int) -> bytes:
    """Read so many bytes from a blocking socket; only set-up uses this."""
    data = b""
    while len(data) < count:
        some = stream.recv(count - len(data))
        if not some:
            raise PeerError("the broker closed the socket during the handshake")
        data += some
    return data


def read_frame(stream: socket.socket) -> performatives.Composite:
    """Read one frame from a blocking socket, passing over heartbeats; only set-up uses this."""
    while True:
        header = read_exactly(stream, FRAME_HEADER_BYTES)
        body = read_exactly(stream, int.from_bytes(header[:4], "big") - FRAME_HEADER_BYTES)
        if body:
            return wire.decode_performative(body, header[4] * 4 - FRAME_HEADER_BYTES)[0]
