"""A stream without a task: commands in, effects out, its log written and committed as the task does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.convert import data_section
from amqp10broker.message.filters.filter_set import Filters
from amqp10broker.message.filters.stream_filters import OffsetSpec, OffsetWord
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    TICK,
    Command,
    Confirmed,
    Credit,
    CreditReply,
    Deliver,
    Effect,
    GiveBack,
    Publish,
    Subscribe,
)
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.log import MemoryShelf, Shelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from tests.support.reply_addresses import new_reply_to

NOW_MS = 1_000_000
FIRST = OffsetWord.FIRST
HEAD = make_head(None, None, "", "s")


def text(number: int) -> Message:
    return HEAD, data_section(b"%d" % number)


def number_of(message: Message) -> int:
    return int(message[1][5:])


def offset_of(message: Message) -> int:
    """Return a delivery's offset: the last eight bytes of its head."""
    return int.from_bytes(message[0][-8:], "big")


def make_room(log: StreamLog, sync: Callable[[int], None] = lambda fd: None) -> None:
    """Make room for a chunk; `sync` is called for the files that must be durable first."""
    fds = log.prepare_room()
    for fd in fds:
        sync(fd)
    if fds:
        log.commit(log.next_offset)
    log.make_room()


class Bench:
    """A stream and whoever uses it.

    Attributes:
        now_ms: the wall clock.
        slow: what is written is not committed before `commit` is called.
        effects: all since the last `take`, in order.
        wakes: turns that the task needed.
    """

    def __init__(self, settings: QueueSettings = DEFAULTS, *, shelf: Shelf | None = None) -> None:
        self.log = StreamLog(shelf or MemoryShelf())
        self.recovered = sum(self.log.recover())
        self.queue = StreamQueue("s", self.log, settings=settings)
        self.now_ms = NOW_MS
        self.slow = False
        self.reply_to = new_reply_to("somebody")
        self.publisher = self.reply_to.publisher()
        self.effects: list[Effect] = []
        self.wakes = 0
        self._published = 0
        self._writing: int | None = None

    def do(self, *commands: Command) -> list[Effect]:
        """Run commands in one wake, and the wakes that follow; return the effects."""
        for command in commands:
            self.queue.apply(command, self.now_ms)
        self._end_wake()
        while self.queue.deadline() == 0:
            self.queue.apply(TICK, self.now_ms)
            self._end_wake()
        return self.take()

    def _end_wake(self) -> None:
        self.wakes += 1
        if self.queue.waiting and self._writing is None:
            if self.log.prepare_room():
                self.log.commit(self.log.next_offset)
            self.queue.write(self.now_ms)
            self._writing = self.log.write()
        if self._writing is not None and not self.slow:
            self.commit()
        self.effects += chain.from_iterable(self.queue.take_effects().values())

    def commit(self) -> None:
        """Complete the disk operations that were requested."""
        writing, self._writing = self._writing, None
        self.log.commit(writing)
        self.queue.commit(self.now_ms)

    @property
    def counters(self) -> dict[str, int]:
        return {name: count for name, count in self.queue.counters.document().items() if count}

    def take(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # --- shorthands -------------------------------------------------------------------------------

    def publishing(self, count: int, messages: Iterable[Message] | None = None) -> Publish:
        """Return a publish of this many messages, numbered on from the last publish."""
        numbers = range(self._published, self._published + count)
        self._published += count
        return Publish(self.publisher, numbers, list(messages or map(text, numbers)), False)

    def publish(self, count: int, messages: Iterable[Message] | None = None) -> list[Effect]:
        return self.do(self.publishing(count, messages))

    def reader(
        self,
        position: OffsetSpec | None = FIRST,
        filters: Filters | None = None,
        *,
        settled: bool = False,
        enqueued_time: bool = False,
    ) -> Reader:
        return Reader(self, position, filters, settled=settled, enqueued_time=enqueued_time)


class Reader:
    """One consumer as its session knows it; what is delivered it has seen, unless `deaf`.

    Attributes:
        seen: deliveries it took, all of them.
        taken: their (offset, message), those given back left out.
        replies: answers to its `Credit`s.
    """

    def __init__(
        self,
        bench: Bench,
        position: OffsetSpec | None,
        filters: Filters | None,
        *,
        settled: bool,
        enqueued_time: bool,
    ) -> None:
        self.bench = bench
        self.ref = bench.reply_to.consumer()
        self.delivery_count = 0
        self.seen = 0
        self.epoch = 0
        self.taken: list[tuple[int, Message]] = []
        self.replies: list[CreditReply] = []
        command = Subscribe(
            self.ref, settled, position=position, filters=filters, enqueued_time=enqueued_time
        )
        self.listen(bench.do(command))

    def listen(self, effects: Iterable[Effect]) -> list[tuple[int, Message]]:
        """Handle this consumer's effects; return the deliveries."""
        fresh: list[tuple[int, Message]] = []
        for effect in effects:
            if isinstance(effect, Deliver) and effect.consumer == self.ref and effect.epoch == self.epoch:
                fresh += zip(effect.keys, effect.messages, strict=True)
            elif isinstance(effect, CreditReply) and effect.consumer == self.ref:
                self.replies.append(effect)
        self.seen += len(fresh)
        self.delivery_count += len(fresh)
        self.taken += fresh
        return fresh

    def read(self, credit: int, *, drain: bool = False) -> list[int]:
        effects = self.bench.do(Credit(self.ref, self.delivery_count, credit, drain, self.seen))
        fresh = self.listen(effects)
        if drain:
            self.delivery_count = self.replies[-1].delivery_count
        return [offset for offset, _ in fresh]

    def give_back(self, count: int) -> list[Effect]:
        """Return the last deliveries, which were not sent to the client."""
        kept = len(self.taken) - count
        back, self.taken = self.taken[kept:], self.taken[:kept]
        self.delivery_count -= count
        self.epoch += 1
        return self.bench.do(
            GiveBack(
                self.ref,
                [offset for offset, _ in back],
                [message for _, message in back],
                self.delivery_count,
                self.seen,
                self.epoch,
            )
        )


def confirmed_of(effects: Iterable[Effect]) -> list[int]:
    return [number for effect in effects if isinstance(effect, Confirmed) for number in effect.ids]
