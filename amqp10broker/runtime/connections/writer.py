"""The writer of one connection: joins what waits into one send.

Sessions do not wait for it when they have answers to give; they stop making *transfers* while
`budget_bytes` of theirs are not sent (`OutputBuffer.room`), so that a 16 MiB message on one session is never
more than one frame ahead of another session's. Only a client that keeps asking and does not read
makes its sessions wait here, and through them its reader: its own TCP pushes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from amqp10broker.runtime.connections.socket_transport import SocketTransport, Stream, unsent
from amqp10broker.runtime.connections.websocket_transport import WebSocketTransport
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.mail import WRITER_READY, SessionLetter
from amqp10broker.sessions.session_step import LARGE_PIECE_BYTES

CONTROL_BYTES_MAX: Final = 262_144
"""Answers (flows, dispositions, attaches) that one session may have waiting before it stops
listening to its client."""


class Write:
    """Bytes for the socket, in pieces: a letter to the writer."""

    __slots__ = ("lane", "pieces", "transfer_bytes")

    def __init__(self, lane: OutputBuffer, pieces: Sequence[bytes | memoryview], transfer_bytes: int) -> None:
        self.lane = lane
        self.pieces = pieces
        self.transfer_bytes = transfer_bytes


class OutputBuffer:
    """One session's way to the writer (or the connection's own, for open and close)."""

    __slots__ = (
        "_abandoned",
        "_control_bytes",
        "_drained",
        "_inbox",
        "_wanted",
        "_writer",
        "budget_bytes",
        "waiting_bytes",
    )

    def __init__(self, writer: Writer, inbox: Mailbox[SessionLetter] | None, budget_bytes: int) -> None:
        self._writer = writer
        self._inbox = inbox
        self._wanted = False
        self._drained: trio.Event | None = None
        self._abandoned = False
        self._control_bytes = 0
        self.budget_bytes = budget_bytes
        self.waiting_bytes = 0

    @property
    def room(self) -> int:
        return self.budget_bytes - self.waiting_bytes

    @property
    def blocked(self) -> bool:
        """Whether transfers wait for the socket."""
        return self._wanted

    def want(self) -> None:
        self._wanted = True
        self._tell_if_wanted()

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """Give bytes to the writer, in order; sent at once when nothing is before them."""
        self._writer.put(Write(self, pieces, transfer_bytes))
        self._tell_if_wanted()

    def _tell_if_wanted(self) -> None:
        # By letter even when the bytes have gone out at once: the other tasks get their turn between.
        if self._wanted and self.room > 0 and self._inbox is not None:
            self._wanted = False
            self._inbox.put(WRITER_READY)

    def count(self, letter: Write, total_bytes: int) -> None:
        """The writer keeps a letter."""
        self.waiting_bytes += letter.transfer_bytes
        self._control_bytes += total_bytes - letter.transfer_bytes

    def written(self, letter: Write, total_bytes: int) -> None:
        """The writer has sent a letter it kept."""
        self.waiting_bytes -= letter.transfer_bytes
        self._control_bytes -= total_bytes - letter.transfer_bytes
        self._tell_if_wanted()
        if self._drained is not None and self._control_bytes <= CONTROL_BYTES_MAX:
            self._drained.set()
            self._drained = None

    @property
    def overfull(self) -> bool:
        """Whether the session must stop listening until the client has read its answers."""
        return self._control_bytes > CONTROL_BYTES_MAX

    async def wait_drained(self) -> None:
        """Wait until the lane is not overfull."""
        while self.overfull and not self._abandoned:
            self._drained = trio.Event()
            await self._drained.wait()

    def abandon(self) -> None:
        """The writer or session has ended: release all that wait."""
        self._abandoned = True
        if self._drained is not None:
            self._drained.set()
            self._drained = None


class Writer:
    """One connection's writer. `on_put`: called with whole frames when they are put; must not raise."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._direct = stream if isinstance(stream, SocketTransport) else None
        self._mailbox: Mailbox[tuple[Write, int]] = Mailbox()
        # Of which something waits here, as far as is known: that of a session that has ended must not stay.
        self._lanes: set[OutputBuffer] = set()
        self._idle = False
        self.bytes_sent = 0
        self.waiting_bytes = 0
        self._waits_at = 0.0
        self._blocked_at = 0.0
        self._blocked_s = 0.0
        self.broken = False
        self.on_put: Callable[[bytes | memoryview], None] | None = None
        if isinstance(stream, WebSocketTransport):
            stream.when_it_speaks(self._speak)

    @property
    def waiting_since(self) -> float:
        """When the socket took something last while bytes waited, by Trio's clock; if it never did, since
        when they wait. Under TLS only whole sends count."""
        return self._waits_at if self._direct is None else max(self._waits_at, self._direct.moved_at)

    @property
    def blocked_s(self) -> float:
        """For how long, in all, bytes have waited for the socket."""
        waits = self.waiting_bytes and not self.broken
        return self._blocked_s + (trio.current_time() - self._blocked_at if waits else 0.0)

    def put(self, letter: Write) -> None:
        """Take bytes to send.

        When nothing waits they are sent from here, without waking the writer's task: for a client
        with one message in flight that saves an eighth of the way.
        """
        if self.broken:
            return
        pieces = letter.pieces
        if self._direct is not None and len(pieces) * LARGE_PIECE_BYTES <= letter.transfer_bytes:
            self._put_large(self._direct, letter)
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.on_put is not None:
            self.on_put(data)
        if self._idle and self._direct is not None and self.waiting_bytes == 0:
            try:
                sent = self._direct.try_send(data)
            except trio.BrokenResourceError:
                sent = 0  # the task will meet the error and end the connection
            self.bytes_sent += sent
            if sent == len(data):
                return
            letter.transfer_bytes = min(letter.transfer_bytes, len(data) - sent)
            data = data[sent:]
        letter.pieces = [data]
        self._keep(letter, len(data))

    def _put_large(self, direct: SocketTransport, letter: Write) -> None:
        size = sum(map(len, letter.pieces))
        if self.on_put is not None:
            self.on_put(b"".join(letter.pieces))
        if self._idle and self.waiting_bytes == 0:
            try:
                sent = direct.try_send_pieces(letter.pieces)
            except trio.BrokenResourceError:
                sent = 0  # as in `put`
            self.bytes_sent += sent
            if sent == size:
                return
            size -= sent
            letter.transfer_bytes = min(letter.transfer_bytes, size)
            letter.pieces = unsent(letter.pieces, sent)
        self._keep(letter, size)

    def _keep(self, letter: Write, size: int) -> None:
        if not self.waiting_bytes:
            self._waits_at = self._blocked_at = trio.current_time()
        self.waiting_bytes += size
        self._lanes.add(letter.lane)
        letter.lane.count(letter, size)
        self._mailbox.put((letter, size))

    async def run(self) -> None:
        """Send until `finish`.

        Raises:
            trio.BrokenResourceError: the socket failed.
        """
        try:
            while True:
                self._idle = True
                letters = await self._mailbox.take_all()
                self._idle = False
                pieces = [piece for letter, _ in letters for piece in letter.pieces]
                if pieces:
                    size = sum([size for _, size in letters])
                    if self._direct is not None and len(pieces) * LARGE_PIECE_BYTES <= size:
                        await self._direct.send_pieces(pieces)
                    else:
                        await self._stream.send_all(b"".join(pieces))
                    self.bytes_sent += size
                    self.waiting_bytes -= size
                    self._waits_at = trio.current_time()
                    if not self.waiting_bytes:
                        self._blocked_s += self._waits_at - self._blocked_at
                finished = False
                for letter, size in letters:
                    if letter.pieces:
                        letter.lane.written(letter, size)
                    else:
                        finished = True
                if not self.waiting_bytes:
                    self._lanes.clear()
                if finished:
                    return
        finally:
            self.broken = True
            self._idle = False
            for lane in self._lanes:
                lane.abandon()

    def _speak(self) -> None:
        if not self.broken:
            self._mailbox.put((Write(OutputBuffer(self, None, 0), [b""], 0), 0))

    def finish(self, lane: OutputBuffer) -> None:
        """Let `run` return when everything put so far has been sent."""
        if not self.broken:
            self._mailbox.put((Write(lane, [], 0), 0))
