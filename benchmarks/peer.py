"""One connection of the load generator.

`Peer` owns a socket and the bytes on their way in and out. It never sends a transfer without credit and
an open window, and it ends the run if the broker does: a figure reached by breaking the protocol is no
figure. `handshake` is what every connection begins with, also those that carry no load.
"""

from __future__ import annotations

import socket
import time
from typing import Final, NamedTuple

from benchmarks import spec, wire
from benchmarks.errors import PeerError, WireError
from benchmarks.receiver import Receiver
from benchmarks.scan import FlowState, Run, Scanner
from benchmarks.sender import Sender
from benchmarks.session import PeerSession
from benchmarks.stream import Stream

OUT_BYTES_MAX: Final = 256 * 1024
"""Transfers are made until so many bytes wait for the socket; more would only add to latency."""
READ_BYTES: Final = 2 * spec.MAX_FRAME_SIZE_BYTES
"""One read takes at most so much; it must hold the largest frame we allow the broker to send."""
HANDSHAKE_TIMEOUT_S: Final = 20.0


class Peer:
    """One AMQP 1.0 connection to the broker under test."""

    out_bytes_max: Final = OUT_BYTES_MAX

    def __init__(self, endpoint: spec.Endpoint, sessions: tuple[spec.Session, ...], streams: list[Stream]):
        """Remember what to do; `open` connects."""
        self.endpoint = endpoint
        self.streams = streams
        self.out = bytearray()
        self.data = bytearray(READ_BYTES)
        self._view = memoryview(self.data)
        self._filled = 0
        stamped = any(consume.stamp for session in sessions for consume in session.consume)
        self._scanner = Scanner(self, alike_in_size=stamped)
        self._now_ns = 0
        self._waiting_for = 0
        self._closing = False
        self._closed = False
        self.peer_max_frame_size_bytes = 0
        self._heartbeat_ns = 0
        """Half the broker's idle time-out; silence for so long is broken by an empty frame."""
        self._sent_ns = 0
        self.socket = socket.socket()
        self.sessions = [PeerSession(self, channel, what) for channel, what in enumerate(sessions)]
        self._by_channel: dict[int, PeerSession] = {}
        self._by_name: dict[str, tuple[PeerSession, Sender | Receiver, int]] = {}

    @property
    def producers(self) -> list[Sender]:
        """Every group of sending links."""
        return [sender for session in self.sessions for sender in session.senders]

    # --- set-up and ending, blocking ---

    def open(self) -> None:
        """Connect, log in, begin every session, attach every link; then switch to non-blocking.

        Raises:
            PeerError: the broker refused one of these.
            OSError: no connection.
        """
        self.socket, self.peer_max_frame_size_bytes, idle_timeout_ms = handshake(self.endpoint)
        self._heartbeat_ns = idle_timeout_ms * 500_000
        self._sent_ns = time.monotonic_ns()
        for session in self.sessions:
            self.out += wire.begin_frame(
                session.channel,
                incoming_window=session.what.incoming_window,
                handle_max=spec.LINKS_PER_SESSION_MAX - 1,
            )
        self._exchange(len(self.sessions))
        for session in self.sessions:
            for sender in session.senders:
                sender.cut(self.peer_max_frame_size_bytes)
                self._attach(session, sender, sender.what.settled)
            for receiver in session.receivers:
                presettled = receiver.what.settle is spec.Settle.PRESETTLED
                self._attach(session, receiver, presettled, receiver.what.offset)
            self._exchange(session.link_count)
        self.socket.setblocking(False)

    def _attach(
        self, session: PeerSession, group: Sender | Receiver, presettled: bool, offset: str = ""
    ) -> None:
        for index, address in enumerate(group.what.addresses):
            handle = group.first_handle + index
            name = f"bench-{id(self):x}-{session.channel}-{handle}"
            self._by_name[name] = (session, group, index)
            self.out += wire.attach_frame(
                session.channel,
                handle,
                name=name,
                receiver=isinstance(group, Receiver),
                address=address,
                presettled=presettled,
                offset=offset,
            )

    def _exchange(self, answers: int) -> None:
        """Send what is ready and read until so many begin or attach frames have come."""
        self._waiting_for += answers
        self.socket.settimeout(HANDSHAKE_TIMEOUT_S)
        self.socket.sendall(self.out)
        self.out.clear()
        while self._waiting_for > 0:
            self.read()

    def close(self) -> None:
        """Close the connection in order, waiting a little for the broker's close."""
        self._closing = True
        try:
            self.socket.settimeout(2.0)
            self.socket.sendall(self.out + wire.close_frame())
            while not self._closed:
                self.read()
        except (OSError, PeerError, WireError):
            # The run's figures are already taken; a broker that is slow to say goodbye keeps them.
            pass
        finally:
            self.socket.close()

    # --- the running connection ---

    def start(self) -> None:
        """Grant the first credit on every receiving link."""
        for session in self.sessions:
            for receiver in session.receivers:
                receiver.start()
            session.after_read()

    def read(self) -> None:
        """Read once from the socket and act on every whole frame.

        Raises:
            PeerError: the broker closed the connection or broke a rule.
        """
        try:
            count = self.socket.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return
        if count == 0:
            if self._closing:
                self._closed = True
                return
            raise PeerError("the broker closed the socket")
        end = self._filled + count
        self._now_ns = time.monotonic_ns()
        position = self._scanner.scan(self.data, 0, end)
        self._filled = end - position
        if position and self._filled:
            self._view[: self._filled] = bytes(self._view[position:end])
        if not self._closing:
            for session in self.sessions:
                session.after_read()

    def flush(self, now_ns: int) -> bool:
        """Write as much as the socket takes, a heartbeat if there is nothing else and it is time for one.

        Returns:
            Whether bytes are left.
        """
        if self._heartbeat_ns and not self.out and now_ns - self._sent_ns > self._heartbeat_ns:
            self.out += wire.HEARTBEAT
        if self.out:
            self._sent_ns = now_ns
            try:
                count = self.socket.send(self.out)
            except BlockingIOError:
                return True
            del self.out[:count]
        return bool(self.out)

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

    def on_flow(self, channel: int, flow: FlowState) -> None:
        """Take windows and credit."""
        if not self._closing:
            self._by_channel[channel].flow(flow)

    def on_performative(self, channel: int, frame_type: int, performative: wire.Performative) -> None:
        """Take begin and attach; any ending by the broker ends the run."""
        field = performative.field
        code = performative.code
        if code == wire.BEGIN:
            session = self.sessions[field(0)]
            session.next_incoming_id = field(1)
            session.remote_window = field(2)
            self._by_channel[channel] = session
            self._waiting_for -= 1
        elif code == wire.ATTACH:
            session, group, index = self._by_name[field(0)]
            if isinstance(group, Sender):
                session.sending[field(1)] = (group, index)
            else:
                session.receiving[field(1)] = (group, index)
                group.delivery_count[index] = field(9) or 0
            self._waiting_for -= 1
        elif code == wire.CLOSE:
            self._closed = True
            if not self._closing:
                raise PeerError(f"the broker closed the connection: {wire.describe_error(field(0))}")
        elif code == wire.END and not self._closing:
            raise PeerError(f"the broker ended a session: {wire.describe_error(field(0))}")
        elif code == wire.DETACH and not self._closing:
            raise PeerError(f"the broker detached a link: {wire.describe_error(field(2))}")


# --- connecting ---------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A connection after both sides' open frames."""

    socket: socket.socket
    """Still blocking."""
    max_frame_size_bytes: int
    """Largest frame the broker takes."""
    idle_timeout_ms: int
    """The broker gives up a silent peer after so long (or twice that); 0 if it does not."""


def handshake(endpoint: spec.Endpoint, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Opened:
    """Connect, log in and exchange open frames, one step after the other as a client library does.

    Raises:
        PeerError: the broker refused the login or the connection.
        OSError: nobody listens, or no answer came in time.
    """
    stream = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(wire.SASL_HEADER)
        if _read_exactly(stream, 8) != wire.SASL_HEADER:
            raise PeerError("the peer does not speak AMQP 1.0 with SASL")
        read_frame(stream)
        if endpoint.user is None:
            stream.sendall(wire.sasl_init_anonymous())
        else:
            stream.sendall(wire.sasl_init_plain(endpoint.user, endpoint.password))
        outcome = read_frame(stream)
        if outcome.code != wire.SASL_OUTCOME or outcome.field(0) != 0:
            raise PeerError(f"the broker refused the login (outcome {outcome.field(0)})")
        stream.sendall(wire.AMQP_HEADER)
        if _read_exactly(stream, 8) != wire.AMQP_HEADER:
            raise PeerError("the broker refused the AMQP header after SASL")
        stream.sendall(
            wire.open_frame(
                "benchmark",
                hostname=endpoint.hostname,
                max_frame_size_bytes=spec.MAX_FRAME_SIZE_BYTES,
                channel_max=spec.SESSIONS_PER_CONNECTION_MAX - 1,
            )
        )
        opened = read_frame(stream)
        if opened.code != wire.OPEN:
            raise PeerError(f"the broker refused the connection: {wire.describe_error(opened.field(0))}")
        return Opened(stream, opened.field(2) or 0xFFFFFFFF, opened.field(4) or 0)
    except BaseException:
        stream.close()
        raise


def _read_exactly(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = stream.recv(count - len(data))
        if not some:
            raise PeerError("the broker closed the socket during the handshake")
        data += some
    return data


def read_frame(stream: socket.socket) -> wire.Performative:
    """Read one frame from a blocking socket, passing over heartbeats; only set-up uses this."""
    while True:
        header = _read_exactly(stream, wire.FRAME_HEADER_BYTES)
        size = int.from_bytes(header[:4], "big")
        body = _read_exactly(stream, size - wire.FRAME_HEADER_BYTES)
        if body:
            return wire.decode_performative(body, header[4] * 4 - wire.FRAME_HEADER_BYTES)
