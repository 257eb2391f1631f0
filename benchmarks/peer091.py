"""One AMQP 0-9-1 connection of the load generator.

`Peer091` publishes as fast as the socket takes it: the broker's push-back is TCP's, and it is respected by
never holding more than a little outside the socket. It ends the run if the broker does, or breaks a rule.
`handshake091` is what every connection begins with.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import HEADER, HEADER_BYTES, HEARTBEAT, method_frame
from amqp10broker.protocols.connection import AMQP_091_HEADER
from benchmarks import spec, wire091
from benchmarks.channel091 import PeerChannel
from benchmarks.errors import PeerError
from benchmarks.peer import HANDSHAKE_TIMEOUT_S, LoadPeer, connect, read_exactly
from benchmarks.scan091 import Contents, Scanner091
from benchmarks.stream import Stream

OUT_BYTES_MAX: Final = 64 * 1024
"""Publishes are made until so many bytes wait for the socket. An acknowledgement waits behind them, which
a client with a thread for each would not make it do: hence less than in `peer`."""
CHANNEL_MAX: Final = 2047
HEARTBEATS_PER_INTERVAL: Final = 2
_GUEST: Final = ("guest", "guest")
GOOD_BYE: Final = method_frame(0, methods.ConnectionClose(200, "done"))
_Answer = TypeVar("_Answer", bound=methods.Method)


class Peer091(LoadPeer):
    """One AMQP 0-9-1 connection to the broker under test."""

    out_bytes_max = OUT_BYTES_MAX
    heartbeat = HEARTBEAT
    last_words = GOOD_BYE

    def __init__(self, endpoint: spec.Endpoint, channels: Sequence[spec.Channel], streams: list[Stream]):
        """Remember what to do; `open` connects."""
        super().__init__(endpoint, streams)
        self.blocked = False
        """The broker has said connection.blocked."""
        self.channels = [PeerChannel(self, number, what) for number, what in enumerate(channels, 1)]
        stamped = any(consume.stamp for channel in channels for consume in channel.consume)
        self.scan = Scanner091(self, alike_in_size=stamped).scan  # type: ignore[method-assign]

    @property
    def producers(self) -> list[PeerChannel]:
        """Every channel that publishes."""
        return [channel for channel in self.channels if channel.publishers]

    def open(self) -> None:
        """Connect, log in, open every channel; then switch to non-blocking.

        Raises:
            PeerError: the broker refused one of these, or a queue is missing.
            OSError: no connection.
        """
        stream, frame_max, heartbeat_s = handshake091(self.endpoint)
        self.connected(stream, heartbeat_s * 1_000_000_000 // HEARTBEATS_PER_INTERVAL)
        for channel in self.channels:
            for publisher in channel.publishers:
                publisher.prepare(frame_max)
            self.exchange(*channel.opening())
        self.socket.setblocking(False)

    def start(self) -> None:
        """Start every consumer."""
        for channel in self.channels:
            for consumer in channel.consumers:
                consumer.start()

    def after_read(self) -> None:
        """Acknowledge what was read."""
        for channel in self.channels:
            channel.after_read()

    # --- what the scanner reports ---

    def on_contents(self, run: Contents) -> None:
        """Count deliveries; a message that comes back ends the run."""
        if self._closing:
            return
        if isinstance(run.method, methods.BasicReturn):
            back = run.method
            raise PeerError(
                f"the broker returned a message for {back.routing_key!r}: {back.reply_code} {back.reply_text}"
            )
        self._channel(run.channel).delivered(run, self.data, self._now_ns)

    def on_acks(self, channel: int, first: int, last: int, *, multiple: bool, accepted: bool) -> None:
        """Count confirms."""
        if not self._closing:
            self._channel(channel).confirmed(
                first, last, multiple=multiple, accepted=accepted, now_ns=self._now_ns
            )

    def on_method(self, channel: int, method: methods.Method) -> None:
        """Count the answers of the set-up; any ending by the broker ends the run."""
        match method:
            case methods.ChannelOpenOk() | methods.QueueDeclareOk() | methods.ConfirmSelectOk():
                self._waiting_for -= 1
            case methods.ConnectionCloseOk():
                self._closed = True
            case _ if self._closing:
                return
            case methods.ConnectionClose():
                raise PeerError(f"the broker closed the connection: {wire091.reason(method)}")
            case methods.ChannelClose():
                raise PeerError(f"the broker closed a channel: {wire091.reason(method)}")
            case methods.BasicCancel():
                raise PeerError(f"the broker cancelled consumer {method.consumer_tag!r}")
            case methods.ConnectionBlocked() | methods.ConnectionUnblocked():
                self.blocked = isinstance(method, methods.ConnectionBlocked)
            case methods.ChannelFlow():
                self._channel(channel).paused = not method.active
                self.out += method_frame(channel, methods.ChannelFlowOk(method.active))
            case methods.BasicQosOk() | methods.BasicConsumeOk():
                pass
            case _:
                raise PeerError(f"{method.NAME} was not asked for")

    def _channel(self, number: int) -> PeerChannel:
        if not 1 <= number <= len(self.channels):
            raise PeerError(f"a frame on channel {number}, which is not open")
        return self.channels[number - 1]


# --- connecting ---------------------------------------------------------------------------------------


class Opened091(NamedTuple):
    """A connection after connection.open-ok."""

    socket: socket.socket
    """Still blocking."""
    frame_max: int
    """Largest frame either side sends."""
    heartbeat_s: int
    """The broker gives up a peer that is silent for twice that long; 0 if it does not."""


def handshake091(endpoint: spec.Endpoint, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Opened091:
    """Connect, log in, tune and open, one step after the other as a client library does.

    Raises:
        PeerError: the broker refused the login or the connection, or speaks something else.
        OSError: nobody listens, or no answer came in time.
    """
    stream = connect(endpoint, timeout_s)
    try:
        stream.sendall(AMQP_091_HEADER)
        mechanisms = expect(stream, methods.ConnectionStart).mechanisms
        if b"PLAIN" not in mechanisms.split():
            raise PeerError(f"the broker does not offer PLAIN, only {mechanisms.decode()}")
        user, password = _GUEST if endpoint.user is None else (endpoint.user, endpoint.password)
        stream.sendall(method_frame(0, wire091.start_ok(user, password)))
        tune = expect(stream, methods.ConnectionTune)
        frame_max = min(tune.frame_max or spec.MAX_FRAME_SIZE_BYTES, spec.MAX_FRAME_SIZE_BYTES)
        tuned = methods.ConnectionTuneOk(
            min(tune.channel_max or CHANNEL_MAX, CHANNEL_MAX), frame_max, tune.heartbeat
        )
        stream.sendall(
            method_frame(0, tuned) + method_frame(0, methods.ConnectionOpen(endpoint.virtual_host))
        )
        expect(stream, methods.ConnectionOpenOk)
        return Opened091(stream, frame_max, tune.heartbeat)
    except BaseException:
        stream.close()
        raise


def expect(stream: socket.socket, wanted: type[_Answer]) -> _Answer:
    """Read one method from a blocking socket, passing over heartbeats; only set-up uses this.

    Raises:
        PeerError: another one came.
    """
    method = read_method(stream)
    if isinstance(method, methods.ConnectionClose):
        raise PeerError(f"the broker closed the connection: {wire091.reason(method)}")
    if not isinstance(method, wanted):
        raise PeerError(f"{method.NAME} came, {wanted.NAME} was due")
    return method


def read_method(stream: socket.socket) -> methods.Method:
    """Read one method from a blocking socket, passing over heartbeats.

    Raises:
        PeerError: the socket was closed, or the peer speaks another protocol.
    """
    while True:
        head = read_exactly(stream, HEADER_BYTES)
        if head[:4] == AMQP_091_HEADER[:4]:
            raise PeerError("the peer does not speak AMQP 0-9-1: it answered with a protocol header")
        kind, _, size = HEADER.unpack(head)
        payload = read_exactly(stream, size + 1)
        if kind == methods.FRAME_METHOD:
            return wire091.read_method(payload[:-1])
