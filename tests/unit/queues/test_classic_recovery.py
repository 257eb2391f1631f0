"""What queues keep on disk and out of memory, and what a start finds of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues import journal as spool_module
from amqp10broker.queues.classic.backlog import (
    HEAD_MESSAGES_MAX,
    HEADS_IN_MEMORY,
    PAGE_MESSAGES_MAX,
    Backlog,
    Handle,
    Store,
)
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.classic.ready import SOON_BYTES_MAX, SOON_MESSAGES_MAX, DelayedMessages
from amqp10broker.queues.commands import (
    TICK,
    ConsumerRef,
    Credit,
    Deliver,
    DeliveryOutcome,
    Publish,
    Purge,
    Settle,
    Subscribe,
)
from amqp10broker.queues.journal import Extents, Page, Spool
from amqp10broker.queues.quorum.bodies import OPEN_PAGES_MAX, JournalBodies, PagedBodies
from amqp10broker.queues.quorum.log_store import EntryIndex
from amqp10broker.raft.messages import Kind
from amqp10broker.storage.record import Record
from tests.support.memory_journal import MemoryJournal, MemoryScratch
from tests.support.reply_addresses import new_reply_to

GROUP = 7
SAFE = make_head(Header(durable=True), None, "", "q")
HERE = new_reply_to("1.1")
PUBLISHER = HERE.publisher()


def opened(log: MemoryJournal) -> tuple[ClassicQueue, ClassicStore]:
    store = ClassicStore(GROUP, log, Spool(MemoryScratch))
    store.restore(log.records)
    queue = ClassicQueue("q", durable=True, store=store)
    queue.recover(store.backlogs())
    return queue, store


def later(body: bytes, due_ms: int) -> Message:
    return make_head(Header(durable=True), {X_OPT_DELIVERY_TIME: Long(due_ms)}, "", "q"), body


def publish(queue: ClassicQueue, *bodies: bytes) -> None:
    queue.apply(Publish(PUBLISHER, range(len(bodies)), [(SAFE, body) for body in bodies], False), 0)


def consumer_of(queue: ClassicQueue) -> ConsumerRef:
    consumer = HERE.consumer()
    queue.apply(Subscribe(consumer, False), 0)
    return consumer


def get(queue: ClassicQueue, consumer: ConsumerRef, had: int, count: int) -> dict[bytes, int]:
    queue.take_effects()
    queue.apply(Credit(consumer, had, count, False, had), 0)
    return {
        message[1]: key
        for effects in queue.take_effects().values()
        for effect in effects
        if isinstance(effect, Deliver)
        for key, message in zip(effect.keys, effect.messages, strict=True)
    }


def bodies_in(queue: ClassicQueue) -> list[bytes]:
    return list(get(queue, consumer_of(queue), 0, 100))


def test_what_is_published_behind_a_hole_is_forgotten_under_its_own_position() -> None:
    log = MemoryJournal(records_max=8)
    queue, store = opened(log)
    publish(queue, b"0", b"1", b"2")
    consumer = consumer_of(queue)
    keys = get(queue, consumer, 0, 3)
    queue.apply(Settle(consumer, [keys[b"2"]], DeliveryOutcome.ACCEPT), 0)
    store.flush()

    log = log.again()
    queue, store = opened(log)
    consumer = consumer_of(queue)
    # The page with 0 and 1 is the head now; position 2 was taken and is gone.
    get(queue, consumer, 0, 1)
    publish(queue, b"3", b"4")
    keys = get(queue, consumer, 1, 3)
    queue.apply(Settle(consumer, [keys[b"4"]], DeliveryOutcome.ACCEPT), 0)
    store.flush()

    queue, _ = opened(log.again())

    assert bodies_in(queue) == [b"0", b"1", b"3"]


def test_what_has_many_holes_is_read_once_at_start_once_when_consumed_and_once_when_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each hole makes a page of its own; reading the whole extent for each took minutes."""
    log = MemoryJournal(records_max=8)
    queue, store = opened(log)
    publish(queue, *[b"%d" % number for number in range(100)])
    consumer = consumer_of(queue)
    keys = get(queue, consumer, 0, 100)
    queue.apply(
        Settle(consumer, [keys[b"%d" % number] for number in range(0, 100, 2)], DeliveryOutcome.ACCEPT), 0
    )
    store.flush()

    reads, sound = [], MemoryJournal.read_run

    def read_run(log: MemoryJournal, *place: int) -> Sequence[Record]:
        reads.append(place)
        return sound(log, *place)

    monkeypatch.setattr(MemoryJournal, "read_run", read_run)
    queue, store = opened(log.again())
    assert len(reads) == 1
    assert bodies_in(queue) == [b"%d" % number for number in range(1, 100, 2)]
    assert len(reads) == 2
    list(store.relocate(1))
    assert len(reads) == 3


def test_nothing_is_appended_again_of_a_queue_that_is_deleted_while_it_is_cleaned() -> None:
    log = MemoryJournal(records_max=8)
    queue, store = opened(log)
    for number in range(3):
        publish(queue, b"%d" % number)
        log.append(1, 1, 0, [b"of another queue" * 100])
    cleaning = store.relocate(1)
    next(cleaning)
    store.delete()
    assert list(cleaning) == []
    assert not any(log.live.values())


def test_a_delayed_message_comes_back_delayed_and_one_whose_time_has_come_in_its_level() -> None:
    log = MemoryJournal(records_max=8)
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(3), [later(b"a", 20), later(b"b", 10), (SAFE, b"c")], False), 0)
    assert not store.flush()
    queue.apply(TICK, 10)
    assert store.flush(), "that it is ready now was appended, and nobody waits for it: it is written soon"
    assert not store.flush()

    log = log.again()
    queue, store = opened(log)
    assert (queue.ready, queue.delayed.count, queue.deadline(), store.live) == (2, 1, 10, 3)
    queue.apply(TICK, 10)
    assert (queue.ready, queue.deadline()) == (2, 20), "of a record the first one's time is remembered"
    queue.apply(TICK, 20)
    assert bodies_in(queue) == [b"c", b"b", b"a"]


def test_what_is_cleaned_of_delayed_messages_stays_delayed() -> None:
    log = MemoryJournal(records_max=2)
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(3), [later(b"%d" % due, due) for due in (10, 20, 30)], False), 0)
    publish(queue, b"x")
    queue.apply(TICK, 10)
    list(store.relocate(1))
    log.drop_oldest()
    queue, store = opened(log.again())
    assert (queue.ready, queue.delayed.count) == (2, 2)
    queue.apply(TICK, 25)
    queue.apply(TICK, 40)
    assert bodies_in(queue) == [b"x", b"10", b"20", b"30"]


def test_purged_delayed_messages_do_not_come_back() -> None:
    log = MemoryJournal(records_max=8)
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(2), [later(b"a", 20), (SAFE, b"c")], False), 0)
    queue.apply(Purge(HERE.request()), 0)
    store.flush()
    queue, store = opened(log.again())
    assert (queue.ready, queue.delayed.count, store.live) == (0, 0, 0)


HEAD = make_head(None, None, "", "q")


class _CountedPacks(Spool):
    def __init__(self) -> None:
        super().__init__()
        self.read_packs = 0

    def read(self, page: Page) -> bytes:
        self.read_packs += 1
        return super().read(page)


class Accounts:
    """Bytes that are needed, by file."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}

    def add_live(self, file: int, length: int) -> None:
        self.live[file] = self.live.get(file, 0) + length

    def add_dead(self, file: int, length: int) -> None:
        self.live[file] -= length
        assert self.live[file] >= 0


def bodies_of(packs: _CountedPacks, indexes: range) -> JournalBodies:
    bodies = JournalBodies(Accounts(), packs)
    bodies.recovering = True
    messages: Sequence[Message] = [(HEAD, b"%d" % index) for index in indexes]
    bodies.put(indexes[0], messages)
    packs.read_packs = 0
    return bodies


def test_a_start_reads_no_message_again_to_know_that_it_is_there() -> None:
    packs, indexes = _CountedPacks(), range(20 * 4096)
    bodies = bodies_of(packs, indexes)
    assert bodies.keep_only(indexes) == []
    assert (packs.read_packs, len(bodies)) == (0, len(indexes))


def test_what_nobody_needs_goes_and_what_is_missing_is_told() -> None:
    bodies = bodies_of(_CountedPacks(), range(10, 20))
    assert bodies.keep_only([15, 11, 30, 25, 15]) == [25, 30]
    assert len(bodies) == 2
    assert [body for _, body in bodies.fetch([11, 15])] == [b"11", b"15"]


def test_a_marker_or_a_few_records_of_others_between_do_not_matter() -> None:
    """Otherwise each message of a publisher that waits for every confirm would be an extent."""
    accounts = Accounts()
    extents = Extents(accounts)
    for number in range(1000):
        extents.add(number, 1, 1, 100 + 166 * number, 129, 100)
    assert len(list(extents)) == 1
    assert accounts.live == {1: 129 * 1000}
    extents.remove(0, 1000)
    assert accounts.live == {1: 0}


@given(st.data())
def test_as_a_set_of_positions(data: st.DataObject) -> None:
    """After any additions, copies and removals the live positions and the files needed equal a set's."""
    accounts = Accounts()
    extents = Extents(accounts)
    live: dict[int, int] = {}
    at = 0
    for file in range(1, data.draw(st.integers(1, 4)) + 1):
        offset = 32
        for _ in range(data.draw(st.integers(0, 6))):
            count = data.draw(st.integers(1, 9))
            kind = data.draw(st.sampled_from(["add", "skip", "remove", "copy"]))
            start = data.draw(st.integers(0, at))
            stop = min(at, start + count)
            if kind == "add":
                extents.add(at, count, file, offset, 100 * count, 0)
                live.update(dict.fromkeys(range(at, at + count), file))
                at += count
                offset += 100 * count
            elif kind == "skip":
                at += count
            elif kind == "remove":
                gone = extents.remove(start, stop)
                assert gone == sum(position in live for position in range(start, stop))
                for position in range(start, stop):
                    live.pop(position, None)
            elif stop > start and all(position in live for position in range(start, stop)):
                extents.add(start, stop - start, file, offset, 100 * (stop - start), 0)
                live.update(dict.fromkeys(range(start, stop), file))
                offset += 100 * (stop - start)
    found = {position: each.file for each in extents for run in each.live_runs() for position in run}
    assert found == live
    for file, needed in accounts.live.items():
        assert (needed > 0) == (file in live.values())
        assert (file in extents.files) == (file in live.values())
    for position, file in live.items():
        assert [each.file for each in extents.overlapping(position, position + 1)] == [file]


def check(index: EntryIndex, model: dict[int, tuple[int, Kind, int, int]]) -> None:
    if not model:
        return
    first, last = min(model), max(model)
    assert list(index.places(first, last)) == [(at, *model[at][2:]) for at in range(first, last + 1)]
    assert [index.kind(at) for at in model] == [each[:2] for each in model.values()]
    for behind in (first - 1, (first + last) // 2, last - 1):
        told = {}
        stretches = list(index.terms(behind))
        for (start, term, kind), end in zip(
            stretches, [*(each[0] for each in stretches[1:]), last + 1], strict=True
        ):
            told.update(dict.fromkeys(range(start, end), (term, kind)))
        assert told == {at: each[:2] for at, each in model.items() if at > behind}
    for file in {each[2] for each in model.values()}:
        assert index.last_in(file) == max(at for at, each in model.items() if each[2] <= file)


@pytest.mark.parametrize("seed", range(20))
def test_each_entry_is_where_it_was_put_last(seed: int) -> None:
    dice = Random(seed)
    index, model = EntryIndex(), {}
    first, term, file, offset = dice.randrange(1, 5), 1, 1, 0
    for _ in range(300):
        last = max(model, default=first - 1)
        offset += dice.randrange(30, 90)
        if dice.random() < 0.1:
            file, offset = file + 1, 32
        deed = dice.random()
        if deed < 0.7:
            term += dice.random() < 0.1
            kind = Kind.EMPTY if dice.random() < 0.1 else Kind.COMMAND
            index.add(last + 1, term, kind, file, offset)
            model[last + 1] = term, kind, file, offset
        elif deed < 0.75 and model:
            cut = dice.randrange(max(min(model), last - 5), last + 1)
            index.truncate(cut)
            model = {at: each for at, each in model.items() if at < cut}
            first = cut
        elif deed < 0.85 and model:
            # Appended again, from one on to the end, as far as power lasts.
            for at in range(dice.randrange(max(min(model), last - 5), last + 1), last + dice.randrange(2)):
                offset += 40
                index.move(at, file, offset)
                model[at] = (*model[at][:2], file, offset)
        elif deed < 0.88 and model:
            until = dice.randrange(min(model), last + 1)
            index.forget_until(until)
            model = {at: each for at, each in model.items() if at > until}
            first = last + 1
        check(index, model)
    assert index.last_in(0) is None


MANY = 100_000
BATCH = 1000
MOST = HEAD_MESSAGES_MAX + PAGE_MESSAGES_MAX + BATCH
"""A batch that meets a head with room goes there as a whole."""


class CountingStore(Store):
    """Counts the messages that are in pages, as if they were elsewhere."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.paged = 0
        self.looks = 0

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        self.looks += 1
        return super().look(handle, ranks)

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        self.paged += len(messages)
        return super().pack(level, messages, expiries)

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        messages, expiries = super().page_in(handle)
        self.paged -= len(messages)
        return messages, expiries


def filled() -> tuple[CountingStore, Backlog]:
    store = CountingStore()
    backlog = Backlog(0, store)
    for first in range(0, MANY, BATCH):
        backlog.extend([(HEAD, b"%d" % number) for number in range(first, first + BATCH)], None)
        assert backlog.count - store.paged <= MOST
    return store, backlog


def test_what_is_far_from_the_head_is_in_pages() -> None:
    """Only the head and a page of messages are in memory, however long the backlog is."""
    store, backlog = filled()
    assert backlog.count == MANY
    assert store.paged >= MANY - MOST


def test_pages_come_back_in_order_and_one_at_a_time() -> None:
    """A consumer of a long backlog gets it in order, and the rest stays on disk."""
    store, backlog = filled()
    taken: list[bytes] = []
    while len(taken) < MANY:
        _, messages, _, _ = backlog.take(3000)
        assert messages
        taken += [content for _, content in messages]
        assert MANY - len(taken) - store.paged <= MOST
    assert taken == [b"%d" % number for number in range(MANY)]
    assert store.paged == 0


def test_a_page_is_read_once_while_it_is_looked_through() -> None:
    """A search goes through windows; a page stays on disk and is unpacked once."""
    store, backlog = filled()
    position = seen = 0
    while (window := backlog.window(position, 100)) is not None:
        assert window.positions == range(position, position + len(window.messages))
        position += len(window.messages)
        seen += len(window.messages)
    assert seen == MANY
    assert store.looks == len(backlog._pages) > 0
    assert backlog.count == MANY


def test_what_is_taken_from_the_middle_leaves_room() -> None:
    """A page with few messages left is packed again, and those messages stay in order."""
    _, backlog = filled()
    kept = range(0, MANY, 50)
    position = 0
    while (window := backlog.window(position, 100)) is not None:
        position = window.positions[-1] + 1
        backlog.take_out(window, [at for at, each in enumerate(window.positions) if each % 50])
    assert backlog.count == len(kept)
    stored = [page.stored for page in backlog._pages]
    assert max(stored) <= 4 * PAGE_MESSAGES_MAX // 50
    taken: list[int] = []
    while backlog.count:
        positions, messages, _, _ = backlog.take(1_000)
        assert [content for _, content in messages] == [b"%d" % each for each in positions]
        taken += positions
    assert taken == list(kept)


def test_where_pages_are_in_memory_too_a_backlog_is_longer_before_it_is_packed() -> None:
    store = CountingStore()
    store.in_memory = True
    backlog = Backlog(0, store)
    batch = [(HEAD, b"x")] * 16_384
    while not store.paged:
        backlog.extend(batch, None)
    most = HEADS_IN_MEMORY * HEAD_MESSAGES_MAX
    assert most < backlog.count <= most + 2 * len(batch)


class FullScratch(MemoryScratch):
    def write(self, pieces: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_file_goes_with_its_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "FILE_BYTES_MAX", 10)
    made: list[MemoryScratch] = []

    def make() -> MemoryScratch:
        made.append(MemoryScratch())
        return made[-1]

    spool = Spool(make)
    places = [spool.keep([b"12345", b"6789"]) for _ in range(5)]
    assert spool.bytes_used == 45
    assert [spool.read(place) for place in places] == [b"123456789"] * 5
    spool.drop(places[0])
    spool.drop(places[1])
    assert [each.closed for each in made] == [True, False, False]
    for place in places[2:]:
        spool.drop(place)
    assert [each.closed for each in made] == [True, True, False], "the one that is filled stays"
    assert spool.bytes_used == 0


def test_a_long_backlog_of_a_quorum_queue_is_out_of_memory_and_comes_back() -> None:
    spool = Spool(MemoryScratch)
    bodies = PagedBodies(spool)
    count = 4096 * (OPEN_PAGES_MAX + 4)
    bodies.put(0, [(HEAD, b"%d" % number) for number in range(count)])
    assert spool.bytes_used > 4 * 4096 * 4
    assert bodies.fetch([5, 4096, 9000]) == [(HEAD, b"5"), (HEAD, b"4096"), (HEAD, b"9000")]
    assert bodies.fetch(range(100, 200)) == [(HEAD, b"%d" % number) for number in range(100, 200)]
    bodies.drop(range(0, count, 2))
    assert [body for _, body in bodies.fetch([4097, 12289])] == [b"4097", b"12289"]
    bodies.drop(range(1, count, 2))
    assert (len(bodies), spool.bytes_used) == (0, 0)


def test_without_room_they_stay_in_memory() -> None:
    bodies = PagedBodies(Spool(FullScratch))
    bodies.put(0, [(HEAD, b"%d" % number) for number in range(4096 * (OPEN_PAGES_MAX + 2))])
    assert bodies.fetch([7]) == [(HEAD, b"7")]


@pytest.mark.parametrize("step", [7919, 1, 0, -1], ids=["at random", "growing", "all at once", "falling"])
def test_memory_holds_some_thousands_of_them_in_whatever_order_they_come(step: int) -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    count = 3 * SOON_MESSAGES_MAX
    times = [number * step % 10_007 + 1 for number in range(count)]
    for start in range(0, count, 64):
        part = range(start, start + 64)
        line.add([(b"h", b"%d" % number) for number in part], times[start : start + 64], None)
        assert line.count - store.paged <= SOON_MESSAGES_MAX
    found = []
    while line.count:
        found += [(each.when_ms, int(each.message[1])) for each in line.take_due(10**9, 100)]
        assert line.count - store.paged <= SOON_MESSAGES_MAX
    assert found == sorted((when, number) for number, when in enumerate(times))


def test_memory_holds_so_many_bytes_of_them_and_one_message() -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    large = bytes(SOON_BYTES_MAX // 3)
    for number in range(20):
        line.add([(b"h", large)], [100 - number], None)
        assert line.count - store.paged <= 4
    line.add([(b"h", bytes(2 * SOON_BYTES_MAX))], [1], None)
    assert line.count - store.paged <= 4
    assert line.size == 20 * len(large) + 2 * SOON_BYTES_MAX
    assert [each.when_ms for each in line.take_due(200, 50)] == [1, *range(81, 101)]
    assert (line.size, line.count, store.paged) == (0, 0, 0)
