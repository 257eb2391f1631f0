"""The tasks of AMQP 1.0 sessions and AMQP 0-9-1 channels, the budget of their connection's reader, and its
writer, which joins waiting output into one send. `sessions` has the meaning of messages.

Sessions do not wait for the writer when they have answers to give. They stop making *transfers* while
`writer_buffer_bytes` of theirs are not sent (`OutputBuffer.room`), so that a 16 MiB message on one session is
never more than one frame ahead of another session's. Only a client that sends requests and does not read
makes its sessions wait here, and through them its reader; TCP then slows the client down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import MethodFrame
from amqp10broker.protocols.amqp091.errors import Amqp091Error
from amqp10broker.protocols.amqp091.methods import ChannelClose, ChannelOpen
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.performatives import Attach, Detach, End
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.sockets import SocketTransport, Stream, WebSocketTransport, unsent
from amqp10broker.runtime.mailbox import Mailbox, UnsentCommands, begin_to_send, send_commands, send_more
from amqp10broker.sessions.context import LARGE_PIECE_BYTES, SessionEndpoint
from amqp10broker.sessions.messages import Frames, Notice, SessionMessage

CONTROL_BYTES_MAX: Final = 262_144
"""The bytes of answers (flows, dispositions, attaches) of one session that may wait before it stops handling
its client's frames.
"""


@dataclass(eq=False, slots=True)
class Write:
    output: OutputBuffer
    pieces: Sequence[bytes | memoryview]
    transfer_bytes: int
    size: int = 0


@dataclass(slots=True, eq=False)
class OutputBuffer:
    """The output of one session to the writer (or the connection's own, for open and close).

    Attributes:
        room: bytes of transfers that may be made now.
        waiting_bytes: bytes of transfers that are not sent.
        overfull: the session must stop handling frames until the client has read its answers.
    """

    _writer: Writer
    _inbox: Mailbox[SessionMessage] | None
    room: int
    _wanted: bool = False
    _drained: trio.Event | None = None
    _abandoned: bool = False
    _control_bytes: int = 0
    overfull: bool = False
    waiting_bytes: int = 0

    @property
    def blocked(self) -> bool:
        return self._wanted

    def want(self) -> None:
        self._wanted = True
        self._wake_session()

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """Give bytes to the writer, in order; they are sent at once when none wait before them."""
        self._writer.put(Write(self, pieces, transfer_bytes))
        if self._wanted:
            self._wake_session()

    def _wake_session(self) -> None:
        # The mailbox gets a message even when the bytes have been sent at once: other tasks run in between.
        if self.room > 0 and self._inbox is not None:
            self._wanted = False
            self._inbox.put(Notice.WRITER_READY)

    def written(self, write: Write) -> None:
        """Note that the writer has sent a waiting write."""
        self.count(write, -1)
        if self._wanted:
            self._wake_session()
        if self._drained is not None and not self.overfull:
            self._drained.set()
            self._drained = None

    def count(self, write: Write, sign: int = 1) -> None:
        """Count a write that waits; with -1, a write that has waited."""
        self.waiting_bytes += sign * write.transfer_bytes
        self.room -= sign * write.transfer_bytes
        self._control_bytes += sign * (write.size - write.transfer_bytes)
        self.overfull = self._control_bytes > CONTROL_BYTES_MAX

    async def wait_drained(self) -> None:
        while self.overfull and not self._abandoned:
            self._drained = trio.Event()
            await self._drained.wait()

    def abandon(self) -> None:
        """Release everything that waits, because the writer or session has ended."""
        self._abandoned = True
        if self._drained is not None:
            self._drained.set()
            self._drained = None


class Tap(NamedTuple):
    """The observer of a connection's bytes, see `tracing`. It must not raise. `sent`: takes whole frames."""

    received: Callable[[bytes], None]
    sent: Callable[[bytes | memoryview], None]


class Writer:
    """One connection's writer. `tap`: the observer of the connection's bytes, or None."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._direct = stream if isinstance(stream, SocketTransport) else None
        self._mailbox: Mailbox[Write] = Mailbox()
        # The outputs with waiting bytes. That of an ended session must not stay.
        self._outputs: set[OutputBuffer] = set()
        self._idle = False
        self.bytes_sent = 0
        self.waiting_bytes = 0
        self._waits_at = 0.0
        self._blocked_at = 0.0
        self._blocked_s = 0.0
        self.broken = False
        self.tap: Tap | None = None
        if isinstance(stream, WebSocketTransport):
            stream.when_it_speaks(self._speak)

    @property
    def waiting_since(self) -> float:
        """When the socket last took bytes while some waited, by Trio's clock, or since when they wait. Under
        TLS only whole sends count.
        """
        return self._waits_at if self._direct is None else max(self._waits_at, self._direct.moved_at)

    @property
    def blocked_s(self) -> float:
        waits = self.waiting_bytes and not self.broken
        return self._blocked_s + (trio.current_time() - self._blocked_at if waits else 0.0)

    def put(self, write: Write) -> None:
        """Take bytes to send. When none wait they are sent from here, without waking the writer's task: for a
        client with one message in flight that saves an eighth of the time.
        """
        if self.broken:
            return
        pieces = write.pieces
        if self._direct is not None and len(pieces) * LARGE_PIECE_BYTES <= write.transfer_bytes:
            self._put_large(self._direct, write)
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.tap is not None:
            self.tap.sent(data)
        if self._idle and self._direct is not None and self.waiting_bytes == 0:
            try:
                sent = self._direct.try_send(data)
            except trio.BrokenResourceError:
                sent = 0  # the task will get the error and end the connection
            self.bytes_sent += sent
            if sent == len(data):
                return
            write.transfer_bytes = min(write.transfer_bytes, len(data) - sent)
            data = data[sent:]
        write.pieces = [data]
        self._keep(write, len(data))

    def _put_large(self, direct: SocketTransport, write: Write) -> None:
        size = sum(map(len, write.pieces))
        if self.tap is not None:
            self.tap.sent(b"".join(write.pieces))
        if self._idle and self.waiting_bytes == 0:
            try:
                sent = direct.try_send_pieces(write.pieces)
            except trio.BrokenResourceError:
                sent = 0  # as in `put`
            self.bytes_sent += sent
            if sent == size:
                return
            size -= sent
            write.transfer_bytes = min(write.transfer_bytes, size)
            write.pieces = unsent(write.pieces, sent)
        self._keep(write, size)

    def _keep(self, write: Write, size: int) -> None:
        if not self.waiting_bytes:
            self._waits_at = self._blocked_at = trio.current_time()
        self.waiting_bytes += size
        self._outputs.add(write.output)
        write.size = size
        write.output.count(write)
        self._mailbox.put(write)

    async def run(self) -> None:
        """Send until `finish`. Raises `trio.BrokenResourceError` if the socket failed."""
        try:
            while True:
                self._idle = True
                writes = await self._mailbox.take_all()
                self._idle = False
                pieces = [piece for write in writes for piece in write.pieces]
                if pieces:
                    size = sum([write.size for write in writes])
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
                for write in writes:
                    if write.pieces:
                        write.output.written(write)
                    else:
                        finished = True
                if not self.waiting_bytes:
                    self._outputs.clear()
                if finished:
                    return
        finally:
            self.broken = True
            self._idle = False
            for output in self._outputs:
                output.abandon()

    def _speak(self) -> None:
        if not self.broken:
            self._mailbox.put(Write(OutputBuffer(self, None, 0), [b""], 0))

    def finish(self, output: OutputBuffer) -> None:
        if not self.broken:
            self._mailbox.put(Write(output, [], 0))


T = TypeVar("T")

READS_MAX: Final = 4
"""The socket reads (64 KiB each, or a share of `READ_BYTES_MAX`) with frames that may wait for one session
before the reader waits.
"""

PORTION: Final = 256
"""The work handed over before other tasks run, in units of the cheapest frame: some five milliseconds."""

HEAVY: Final = 16
"""A frame that begins or ends a session, a channel or a link: 16 of them in a portion."""

_METHOD: Final = 4
"""A method of AMQP 0-9-1 that declares, binds, consumes, ...: 64 of them in a portion."""

_HEAVY_ITEMS: Final = frozenset((Attach, Detach, End))
_HEAVY_METHODS: Final = frozenset((ChannelOpen, ChannelClose))
_NOT_LIGHT: Final = _HEAVY_ITEMS | {MethodFrame}


class ReadBudget:
    """How much a reader may hand over before other tasks run. `left`: of the present portion; at 0 or below
    the reader lets other tasks run, and sets it to `PORTION`.

    A read of 64 KiB may be two thousand frames, and each may make a task, a link, or a declaration. Between
    two portions every other task of the broker runs once, so that their delay does not depend on the size of
    a client's input. Runs (transfers, publishes, acknowledgements of one kind) are one item of any length, so
    normal traffic is one portion.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PORTION

    def portions(self, items: Sequence[T]) -> Iterable[Sequence[T]]:
        """Cut items of one session or channel into portions, between which other tasks run. Each is counted
        before it is yielded, so that the receiver can check `left` after it.
        """
        if len(items) * HEAVY <= self.left:
            self.left -= len(items) * HEAVY
            return (items,)
        return self._cut(items)

    def _cut(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        start = 0
        while start < len(items):
            stop = self._fill(items, start)
            yield items if stop - start == len(items) else items[start:stop]
            start = stop

    def _fill(self, items: Sequence[object], start: int) -> int:
        # Count items from `start` on, at least one, until the portion is full.
        count = len(items) - start
        if count * HEAVY <= self.left:
            self.left -= count * HEAVY
            return len(items)
        if _NOT_LIGHT.isdisjoint(map(type, items)):
            count = max(1, min(count, self.left))
            self.left -= count
            return start + count
        stop = start
        while stop < len(items) and (stop == start or self.left > 0):
            self.left -= _weight(items[stop])
            stop += 1
        return stop


def _weight(item: object) -> int:
    if type(item) is MethodFrame:
        return HEAVY if type(item.method) in _HEAVY_METHODS else _METHOD
    return HEAVY if type(item) in _HEAVY_ITEMS else 1


EndpointT = TypeVar("EndpointT", bound=SessionEndpoint)


@dataclass(eq=False, slots=True)
class Bound:
    """One sender's share of a mailbox. `full`: the next message has to wait until some are handled."""

    _limit: int
    outstanding: int = 0
    full: bool = False
    _freed: trio.Event | None = None

    async def wait(self) -> None:
        while self.full:
            self._freed = trio.Event()
            await self._freed.wait()

    def add(self) -> None:
        self.outstanding += 1
        self.full = self.outstanding >= self._limit

    def done(self) -> None:
        self.outstanding -= 1
        self.full = self.outstanding >= self._limit
        if self._freed is not None:
            self._freed.set()
            self._freed = None


class EndpointTask(Generic[EndpointT]):
    """A session or channel and its task. Callbacks of observers, which must not raise: `on_wake` and, for
    watchers of a link, `on_turn` are called at the end of each step; `on_end` when it is over, before its
    deliveries go back.
    """

    def __init__(
        self, service: EndpointT, inbox: Mailbox[SessionMessage], output: OutputBuffer, clock: WallClock
    ) -> None:
        self.service = service
        self.inbox = inbox
        self.reads = Bound(READS_MAX)
        self.output = output
        self.on_wake: Callable[[], None] | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._clock = clock
        self._fault: AmqpError | Amqp091Error | None = None
        self._held = 0
        self._unsent: UnsentCommands = []

    @property
    def over(self) -> bool:
        """Whether the task ends after this step."""
        return self.service.over

    def deliver(self, frames: Frames, *, inline: bool) -> None:
        """Put frames into the mailbox, if `reads` has room. `inline`: handle them now."""
        self.reads.add()
        if not (self.inbox.deliver if inline else self.inbox.put)(frames):
            self.reads.done()

    async def run(self) -> None:
        """Run steps until the session ends. Raises `AmqpError`, for a channel `Amqp091Error`, if the
        connection must be closed.
        """
        service, output = self.service, self.output
        try:
            pieces = service.take_output()
            if pieces:
                output.put(pieces)  # the broker's begin, which answers the client's
            while not self.over:
                messages = await self.inbox.take_all(self._run_inline)
                if messages:
                    self._step(messages)
                while self._unsent:
                    await trio.lowlevel.checkpoint()
                    self._unsent = send_more(self._unsent)
                if self._fault is not None:
                    raise self._fault
                if output.overfull:
                    await output.wait_drained()
        finally:
            # There is no await from here on: for any reason of the end, its deliveries go back now.
            while self._unsent:
                self._unsent = send_more(self._unsent)
            if self.on_end is not None:
                self.on_end()
            service.close()
            for message in self.inbox.close():
                if isinstance(message, Frames):
                    self.reads.done()
                else:
                    service.handle_undelivered(message)
            send_commands(service.take_commands())

    def _run_inline(self, messages: list[SessionMessage]) -> bool:
        self._step(messages)
        return not (self._fault or self._unsent or self.output.overfull or self.over)

    def _step(self, messages: list[SessionMessage]) -> None:
        service = self.service
        service.moment.ms = int((trio.current_time() + self._clock.offset_s) * 1000)
        try:
            for message in messages:
                self._held += type(message) is Frames
                service.handle(message)
            service.write_output(self.output)
        except (AmqpError, Amqp091Error) as fault:
            self._fault = fault
            self._on_fault()
            return
        if service.commands:
            self._unsent = begin_to_send(service.take_commands())
        self._release_reader()
        if self.on_wake is not None:
            self.on_wake()
        if self.on_turn is not None:
            self.on_turn()

    def _on_fault(self) -> None:
        pass

    def _release_reader(self) -> None:
        while self._held:
            self._held -= 1
            self.reads.done()
