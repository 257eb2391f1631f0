"""One connection to another node, from the end of its greeting to its own end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from amqp10broker.cluster.hello import Hello
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
from amqp10broker.errors import BrokerError
from amqp10broker.runtime.cluster.peer_streams import close
from amqp10broker.runtime.connections.socket_transport import SocketTransport, Stream
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

READ_BYTES: Final = 65_536

FRAMES_A_TURN: Final = 256
"""Of one read so many are worked off before others have their turn: ten milliseconds for as many groups."""

JOIN_S: Final = 0.0005
"""What is put so soon behind a frame that went out at once goes with all that its turn of the loop brings:
messages of several hundred groups as one frame."""


class PeerLink:
    """An authenticated and accepted connection to another node. `read_at`: when a whole frame came last, by
    Trio's clock: bytes may be the garbled end of a stream.
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
        """Start.

        Args:
            rest: bytes that came behind the greeting.
            on_frames: called with the frames of each read. A `BrokerError` of it ends the connection: a frame
                was invalid.
        """
        self.peer = peer
        self.backlog_bytes = 0
        # Asked twice a message: by `trio.current_time` it takes as many calls again.
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
        """When a frame went out at once, by Trio's clock."""

    def put(self, pieces: Sequence[bytes], *, first: bool = False) -> None:
        """Send a frame, never waiting: from here when nothing is before it, as `writer.Writer` does.

        Of many at a time only the first goes alone: a call of the system costs more than what is in it.
        """
        if self._goes_at_once():
            self._send_directly(pieces)
        else:
            (self._first if first else self._queue).extend(pieces)
            self.backlog_bytes += sum(map(len, pieces))
            self._wake.set()

    def put_message(self, group: int, message: bytes) -> None:
        """Send a message of a group, as `put`; those that do not go at once are joined."""
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
            sent = 0  # the task will meet the error and end the connection
        if sent < len(data):
            # The rest of a frame of which a part is gone goes before any other.
            self._first.append(data[sent:])
            self.backlog_bytes = len(data) - sent
            self._wake.set()

    def close(self, reason: str) -> None:
        """End it, from any task."""
        if not self._over:
            self._over = True
            self.end = reason
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until it is over, for whatever reason; closes the stream."""
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
        if self._over:  # that was told already
            return
        try:
            self._on_frames(self, frames)
        except BrokerError:  # it says what is wrong with the bytes
            raise
        except Exception as error:
            # It must not end the other connections. What was lost with this one is asked for on the next.
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
    """The receiver of events of `Peers`, in its tasks. All methods but `asked` must not wait, and may
    send.
    """

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        """All frames of one read; heartbeats, questions and answers are taken out."""

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        """A connection exists. After a restart of the node, all older ones were reported as disconnected."""

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        """A connection is lost, with its unsent frames. Another one may be reported at once."""

    def suspected(self, node: int) -> None:
        """A node is not alive: called when the node becomes known, and whenever it ceases to be alive."""

    def heard(self, node: int, incarnation: int) -> None:
        """A node is alive from now on, and receives this one's heartbeats."""

    async def asked(self, node: int, question: Document) -> Document:
        """Answer a request of a node; cancelled if its connection is lost. `node`: its number; 0: it is not a
        member yet. Raises `BrokerError` if it is refused; a `RefusedError` is raised as such at the node that
        asks.
        """

    def heartbeat(self) -> Document:
        """Small facts that every other node should know; sent when they differ from the last ones."""

    def told(self, node: int, facts: Document) -> None:
        """Another node's facts, when they have changed or its connection is new."""

    def clock_ms(self) -> int:
        """This node's time, since 1970."""

    def clock_compared(self, node: int, ahead_ms: int, within_ms: int) -> None:
        """Another node's is so much ahead of it, give or take `within_ms`."""

    def unsynced_ms(self) -> int:
        """For how long the oldest append here has not been synced; 0: none waits."""

    def hand_over(self) -> None:
        """The disk is slow (`liveness.HAND_OVER_MS`): others should lead. Called once until it recovers."""
