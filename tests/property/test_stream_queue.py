"""The stream against a list: whatever is asked, every consumer gets what it wants from its position on,
each message once, in order, within its credit; and what is confirmed is kept until retention takes it.

The model plays the sessions: what a stream gave them is seen late, sent to the client or given back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.amqp10 import decode_head, make_head
from amqp10broker.message.convert import data_section
from amqp10broker.message.filters.filter_set import Filters, from_amqp10
from amqp10broker.message.filters.stream_filters import AtTime, BloomFilter, Offset, OffsetSpec, OffsetWord
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.protocols.serial import MASK, add, diff
from amqp10broker.queues import commands
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.queues.stream import queue as stream_module
from amqp10broker.queues.stream.log import MemoryShelf, Shelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from tests.support.disks import SimDisk
from tests.support.examples import tried
from tests.support.inventories import ShelfAlone
from tests.support.reply_addresses import new_reply_to
from tests.support.streams import Bench

VALUES = ("eu", "us", None)
WRAPS = (0, 1, 2**31 - 3, MASK - 2, MASK)


def message(number: int, value: str | None) -> Message:
    annotations = {} if value is None else {Symbol("x-stream-filter-value"): value}
    application = encode(Described(ULong(0x74), {"n": number}))
    return make_head(None, annotations, "", "s"), application + data_section(b"%d" % number)


def sql(expression: str) -> Filters:
    return from_amqp10({Symbol("sql-filter"): Described(Symbol("amqp:sql-filter"), expression)}).filters


FILTERS: dict[str, Filters | None] = {
    "all": None,
    "third": sql("n % 3 = 0"),
    # A step finds several wanted messages, so that a grant may end between them.
    "two thirds": sql("n % 3 <> 0"),
    "none": sql("FALSE"),
    "eu": Filters(bloom=BloomFilter(("eu",))),
    "eu or unfiltered": Filters(bloom=BloomFilter(("eu",), True)),
}


class Held:
    """One consumer, as its session knows it, and what the model expects of it."""

    def __init__(
        self,
        ref: commands.ConsumerRef,
        wants: str,
        start: int,
        end: int | None,
        *,
        settled: bool,
        timed: bool,
        delivery_count: int,
    ) -> None:
        self.ref = ref
        self.timed = timed
        self.wants = wants
        self.start = start
        self.end = end
        self.settled = settled
        self.delivery_count = delivery_count
        self.seen = 0
        self.epoch = 0
        self.coming: list[int] = []
        self.unsent: list[int] = []
        self.sent: list[int] = []
        self.limit = delivery_count
        self.drains = 0

    @property
    def last(self) -> int:
        """Return the last offset, on its way or not; if there is none, one below its start."""
        return max([*self.coming[-1:], *self.unsent[-1:], *self.sent[-1:]], default=self.start - 1)


class StreamMachine(RuleBasedStateMachine):
    """Random commands; the disk commits when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.log = StreamLog(self.shelf())
        for _ in self.log.recover():
            raise AssertionError("a new stream is empty")
        self.queue = StreamQueue("s", self.log)
        self.reply_to = new_reply_to("somebody")
        self.publisher = self.reply_to.publisher()
        self.now_ms = 1000
        self.values: list[str | None] = []
        self.times: list[int] = []
        self.chunks: dict[int, int] = {}
        self.confirmed = 0
        self.writing: int | None = None
        self.consumers: list[Held] = []
        self.kept_from = 0

    def shelf(self) -> Shelf:
        return MemoryShelf()

    @initialize(segment=st.sampled_from([1, 300, 1000, 10**9]))
    def configure(self, segment: int) -> None:
        self.segment_bytes = segment
        self.queue.apply(commands.Configure(QueueSettings(segment_bytes=segment)), self.now_ms)

    # --- what the task does -------------------------------------------------------------------------

    def _wake(self, *, commit: bool = True) -> None:
        while True:
            # What was answered before the disk is done has to fit what was committed then.
            self._take_effects()
            if self.queue.waiting and self.writing is None:
                before = self.log.next_offset
                if self.log.prepare_room():
                    self.log.commit(before)
                self.queue.write(self.now_ms)
                self.chunks[before] = self.now_ms
                self.writing = self.log.write()
            if commit and self.writing is not None:
                self._commit()
            self._take_effects()
            if self.queue.deadline() != 0:
                break
            self.queue.apply(commands.TICK, self.now_ms)
        self.kept_from = self.log.first_offset

    def _commit(self) -> None:
        writing, self.writing = self.writing, None
        self.log.commit(writing)
        self.queue.commit(self.now_ms)

    @rule()
    def disk_is_done(self) -> None:
        if self.writing is not None:
            self._commit()
        self._wake()

    @rule(ms=st.integers(1, 100))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    # --- publishing and retention -------------------------------------------------------------------

    @rule(values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=30), commit=st.booleans())
    def publish(self, values: list[str | None], commit: bool) -> None:
        first = len(self.values)
        self.values += values
        self.times += [self.now_ms] * len(values)
        messages = [message(first + place, value) for place, value in enumerate(values)]
        ids = range(first, first + len(values))
        self.queue.apply(commands.Publish(self.publisher, ids, messages, False), self.now_ms)
        self._wake(commit=commit)

    @rule(
        bytes_max=st.one_of(st.none(), st.integers(0, 3000)), age_ms=st.one_of(st.none(), st.integers(0, 200))
    )
    def retain(self, bytes_max: int | None, age_ms: int | None) -> None:
        now = QueueSettings(segment_bytes=self.segment_bytes, max_length_bytes=bytes_max, max_age_ms=age_ms)
        self.queue.apply(commands.Configure(now), self.now_ms)
        self._wake()
        self.queue.apply(commands.Configure(QueueSettings(segment_bytes=self.segment_bytes)), self.now_ms)

    # --- consumers ----------------------------------------------------------------------------------

    @rule(
        position=st.one_of(
            st.sampled_from([None, OffsetWord.FIRST, OffsetWord.LAST, OffsetWord.NEXT]),
            st.builds(Offset, st.integers(0, 300)),
            st.builds(AtTime, st.integers(900, 3000)),
        ),
        wants=st.sampled_from(sorted(FILTERS)),
        end=st.one_of(st.none(), st.integers(0, 300)),
        settled=st.booleans(),
        timed=st.booleans(),
        delivery_count=st.sampled_from(WRAPS),
    )
    def subscribe(
        self,
        position: OffsetSpec | None,
        wants: str,
        end: int | None,
        settled: bool,
        timed: bool,
        delivery_count: int,
    ) -> None:
        if len(self.consumers) >= 5:
            return
        ref = self.reply_to.consumer()
        start = self._start(position)
        filters = FILTERS[wants]
        if end is not None:
            filters = replace(filters or Filters(), end=end)
        command = commands.Subscribe(ref, settled, position=position, filters=filters, enqueued_time=timed)
        self.queue.apply(command, self.now_ms)
        self.queue._consumers[ref].delivery_count = delivery_count
        self.consumers.append(
            Held(ref, wants, start, end, settled=settled, timed=timed, delivery_count=delivery_count)
        )

    def _start(self, position: OffsetSpec | None) -> int:
        first, end = self.log.first_offset, self.log.committed
        there = [offset for offset in self.chunks if first <= offset < end]
        match position:
            case OffsetWord.FIRST:
                return first
            case OffsetWord.LAST:
                return max(there, default=end)
            case Offset(number):
                return min(max(number, first), end)
            case AtTime(time_ms):
                return min((offset for offset in there if self.chunks[offset] >= time_ms), default=end)
            case _:
                return end

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.integers(0, 60), drain=st.booleans())
    def grant(self, data: st.DataObject, credit: int, drain: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        if consumer.drains:
            return
        consumer.limit = add(consumer.delivery_count, credit)
        consumer.drains = 1 if drain else 0
        command = commands.Credit(consumer.ref, consumer.delivery_count, credit, drain, consumer.seen)
        self.queue.apply(command, self.now_ms)
        self._wake()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        """Some chunks on their way reach the session, and some of those the client."""
        consumer = data.draw(st.sampled_from(self.consumers))
        count = data.draw(st.integers(0, len(consumer.coming)))
        self._see(consumer, count)
        sent = data.draw(st.integers(0, len(consumer.unsent)))
        consumer.sent += consumer.unsent[:sent]
        del consumer.unsent[:sent]
        if consumer.sent and not consumer.settled and data.draw(st.booleans()):
            delivery_outcome = data.draw(st.sampled_from(commands.DeliveryOutcome))
            self.queue.apply(commands.Settle(consumer.ref, consumer.sent[-3:], delivery_outcome), self.now_ms)

    def _see(self, consumer: Held, count: int) -> None:
        consumer.unsent += consumer.coming[:count]
        del consumer.coming[:count]
        consumer.seen += count
        consumer.delivery_count = add(consumer.delivery_count, count)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        count = data.draw(st.integers(0, len(consumer.unsent)))
        back = consumer.unsent[len(consumer.unsent) - count :]
        del consumer.unsent[len(consumer.unsent) - count :]
        consumer.coming.clear()
        consumer.delivery_count = add(consumer.delivery_count, -count)
        consumer.limit = consumer.delivery_count
        consumer.epoch += 1
        empty = [(b"", b"")] * count
        command = commands.GiveBack(
            consumer.ref, back, empty, consumer.delivery_count, consumer.seen, consumer.epoch
        )
        self.queue.apply(command, self.now_ms)
        self._wake()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), cancel=st.booleans())
    def leave(self, data: st.DataObject, cancel: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        ref = consumer.ref
        unsubscribe = commands.Unsubscribe(
            ref, consumer.unsent, [], consumer.seen, commands.DeliveryOutcome.REQUEUE
        )
        self.queue.apply(commands.Cancel(ref) if cancel else unsubscribe, self.now_ms)
        self._wake()

    # --- what comes back ----------------------------------------------------------------------------

    def _take_effects(self) -> None:
        for effect in self.queue.take_effects().get(self.reply_to.id, ()):
            if isinstance(effect, commands.Confirmed):
                assert list(effect.ids) == list(range(self.confirmed, self.confirmed + len(effect.ids)))
                self.confirmed += len(effect.ids)
                assert self.confirmed <= self.log.committed
                continue
            assert isinstance(effect, commands.Deliver | commands.CreditReply)
            found = [each for each in self.consumers if each.ref == effect.consumer]
            if not found or effect.epoch != found[0].epoch:
                if found and isinstance(effect, commands.CreditReply) and effect.drain:
                    found[0].drains = 0
                continue
            if isinstance(effect, commands.Deliver):
                self._check_delivery(found[0], effect)
            else:
                self._check_reply(found[0], effect)

    def _check_delivery(self, consumer: Held, effect: commands.Deliver) -> None:
        assert effect.keys
        expected = consumer.last + 1
        for key, (head, bare) in zip(effect.keys, effect.messages, strict=True):
            assert key >= expected
            # Nothing that it wants was left out, except what retention has taken meanwhile.
            skipped = range(max(expected, self.log.first_offset), key)
            assert not any(self._must_have(consumer, offset) for offset in skipped)
            assert key < self.log.committed
            assert int.from_bytes(head[-8:], "big") == key
            chunk_ms = self.chunks[max(first for first in self.chunks if first <= key)]
            told = decode_head(head)[1].get(Symbol("x-opt-enqueued-time"))
            assert told == (chunk_ms if consumer.timed else None)
            assert bare == message(key, self.values[key])[1]
            assert self._may_have(consumer, key)
            consumer.coming.append(key)
            expected = key + 1
        on_its_way = add(consumer.delivery_count, len(consumer.coming))
        assert diff(consumer.limit, on_its_way) >= 0

    def _check_reply(self, consumer: Held, reply: commands.CreditReply) -> None:
        handed_out = add(consumer.delivery_count, len(consumer.coming))
        if reply.drain:
            assert consumer.drains == 1
            consumer.drains = 0
            # A grant that is smaller than what is on its way gives nothing, and takes nothing back.
            if diff(consumer.limit, handed_out) < 0:
                consumer.limit = handed_out
            assert (reply.delivery_count, reply.credit) == (consumer.limit, 0)
            if handed_out != consumer.limit:
                left = range(max(consumer.last + 1, self.log.first_offset), self.log.committed)
                assert not any(self._must_have(consumer, offset) for offset in left)
            consumer.delivery_count = add(consumer.limit, -len(consumer.coming))
        else:
            assert reply.delivery_count == handed_out
            assert reply.credit == max(0, diff(consumer.limit, handed_out))
        assert 0 <= reply.available <= self.log.committed - self.log.first_offset

    def _may_have(self, consumer: Held, offset: int) -> bool:
        if consumer.end is not None and offset >= consumer.end:
            return False
        match consumer.wants:
            case "third":
                return offset % 3 == 0
            case "two thirds":
                return offset % 3 != 0
            case "none":
                return False
            case _:
                return True  # chunks are wanted or not, and their neighbours come along

    def _must_have(self, consumer: Held, offset: int) -> bool:
        if consumer.end is not None and offset >= consumer.end:
            return False
        match consumer.wants:
            case "all":
                return True
            case "third":
                return offset % 3 == 0
            case "two thirds":
                return offset % 3 != 0
            case "none":
                return False
            case "eu":
                return self.values[offset] == "eu"
            case _:
                return self.values[offset] in ("eu", None)

    # --- always -------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.ready == self.log.committed - self.log.first_offset
        assert self.log.first_offset <= self.log.committed <= self.log.next_offset <= len(self.values)
        assert self.queue.consumers == len(self.consumers)
        assert self.confirmed == self.log.committed or self.writing is not None or self.queue.waiting

    @invariant()
    def no_consumer_with_credit_waits_for_what_is_there(self) -> None:
        for consumer in self.consumers:
            handed_out = add(consumer.delivery_count, len(consumer.coming))
            if diff(consumer.limit, handed_out) > 0 and not consumer.drains:
                left = range(max(consumer.last + 1, self.kept_from), self.log.committed)
                assert not any(self._must_have(consumer, offset) for offset in left)

    def teardown(self) -> None:
        self._wake()
        while self.writing is not None or self.queue.waiting:
            self._wake()
        assert self.confirmed == len(self.values)
        for consumer in self.consumers:
            consumer.drains = 0
            self._see(consumer, len(consumer.coming))
            consumer.limit = add(consumer.delivery_count, 10_000)
            command = commands.Credit(consumer.ref, consumer.delivery_count, 10_000, False, consumer.seen)
            self.queue.apply(command, self.now_ms)
            self._wake()
            left = range(max(consumer.last + 1, self.log.first_offset), len(self.values))
            assert not any(self._must_have(consumer, offset) for offset in left)


class StreamOnDiskMachine(StreamMachine):
    def shelf(self) -> Shelf:
        disk = SimDisk()
        disk.make_folder("/streams")
        return ShelfAlone(disk, "/streams", 1)


@pytest.fixture(autouse=True)
def small_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "WORK_MAX", 24)
    monkeypatch.setattr(stream_module, "_TURN_MAX", 8)
    monkeypatch.setattr(stream_module, "FILTER_WORK", 2)
    monkeypatch.setattr(stream_module, "_RECENT_BYTES_MAX", 400)
    monkeypatch.setattr("amqp10broker.queues.stream.log.READ_BYTES", 300)
    monkeypatch.setattr("amqp10broker.queues.stream.log.INDEX_BYTES", 200)


@given(
    published=st.lists(st.integers(1, 20), max_size=12),
    start=st.integers(0, 200),
    end=st.integers(0, 200),
    wants=st.sampled_from(sorted(FILTERS)),
    credits=st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
@example(published=[20], start=0, end=20, wants="all", credits=[1])
@example(published=[20], start=0, end=20, wants="two thirds", credits=[1])
def test_with_an_end_exactly_what_matches_below_it_comes(
    published: list[int], start: int, end: int, wants: str, credits: list[int]
) -> None:
    """This holds for any size of chunks and grants; a drain that finds no more is answered at once."""
    bench = Bench()
    count = 0
    for size in published:
        values = [VALUES[(count + place) // 7 % 3] for place in range(size)]
        bench.publish(size, [message(count + place, value) for place, value in enumerate(values)])
        count += size
    whole = bench.reader(Offset(start), FILTERS[wants]).read(10_000, drain=True)
    expected = [offset for offset in whole if start <= offset < end]
    reader = bench.reader(Offset(start), replace(FILTERS[wants] or Filters(), end=end))
    found: list[int] = []
    turn = 0
    while True:
        wanted = credits[turn % len(credits)]
        some = reader.read(wanted, drain=True)
        assert len(some) <= wanted
        found += some
        turn += 1
        if len(some) < wanted:
            break
    # A position behind the stream's end is its end.
    assert found == (expected if start <= count else [])
    assert reader.replies[-1].available == 0
    bench.publish(3, [message(count + place, "eu") for place in range(3)])
    later = reader.read(100, drain=True)
    assert all(count <= offset < end for offset in later)


TestStreamInMemory = StreamMachine.TestCase
TestStreamInMemory.settings = settings(max_examples=tried(60), stateful_step_count=60, deadline=None)
TestStreamOnDisk = StreamOnDiskMachine.TestCase
TestStreamOnDisk.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)
