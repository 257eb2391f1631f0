"""A durable classic queue that comes back with holes in its positions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqp10broker.message.message import Message, make_head
from amqp10broker.message.traits import X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
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
from amqp10broker.queues.journal import Spool
from tests.support.askers import new_asker
from tests.support.fake_log import FakeLog, FakeRecord, MemoryScratch

GROUP = 7
SAFE = make_head(Header(durable=True), None, "", "q")
HERE = new_asker("1.1")
PUBLISHER = HERE.publisher()


def opened(log: FakeLog) -> tuple[ClassicQueue, ClassicStore]:
    store = ClassicStore(GROUP, log, Spool(MemoryScratch))
    store.restore(log.records())
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
    log = FakeLog()
    queue, store = opened(log)
    publish(queue, b"0", b"1", b"2")
    consumer = consumer_of(queue)
    keys = get(queue, consumer, 0, 3)
    queue.apply(Settle(consumer, [keys[b"2"]], DeliveryOutcome.ACCEPT), 0)
    store.flush()

    log = log.reopened()
    queue, store = opened(log)
    consumer = consumer_of(queue)
    # The page with 0 and 1 is the head now; position 2 was taken and is gone.
    get(queue, consumer, 0, 1)
    publish(queue, b"3", b"4")
    keys = get(queue, consumer, 1, 3)
    queue.apply(Settle(consumer, [keys[b"4"]], DeliveryOutcome.ACCEPT), 0)
    store.flush()

    queue, _ = opened(log.reopened())

    assert bodies_in(queue) == [b"0", b"1", b"3"]


class CountingLog:
    """Counts how often it is read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        sound = FakeLog.read_run

        def read_run(log: FakeLog, file: int, offset: int, length: int) -> Sequence[FakeRecord]:
            self.reads += 1
            return sound(log, file, offset, length)

        patch.setattr(FakeLog, "read_run", read_run)


def test_what_has_many_holes_is_read_once_at_start_once_when_consumed_and_once_when_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each hole makes a page of its own; reading the whole extent for each took minutes."""
    log = FakeLog()
    queue, store = opened(log)
    publish(queue, *[b"%d" % number for number in range(100)])
    consumer = consumer_of(queue)
    keys = get(queue, consumer, 0, 100)
    queue.apply(
        Settle(consumer, [keys[b"%d" % number] for number in range(0, 100, 2)], DeliveryOutcome.ACCEPT), 0
    )
    store.flush()

    counting = CountingLog(monkeypatch)
    log = log.reopened()
    queue, store = opened(log)
    assert counting.reads == 1
    assert bodies_in(queue) == [b"%d" % number for number in range(1, 100, 2)]
    assert counting.reads == 2
    for _ in store.relocate(1):
        pass
    assert counting.reads == 3


def test_nothing_is_appended_again_of_a_queue_that_is_deleted_while_it_is_cleaned() -> None:
    log = FakeLog()
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
    log = FakeLog()
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(3), [later(b"a", 20), later(b"b", 10), (SAFE, b"c")], False), 0)
    assert not store.flush()
    queue.apply(TICK, 10)
    assert store.flush(), "that it is ready now was appended, and nobody waits for it: it is written soon"
    assert not store.flush()

    log = log.reopened()
    queue, store = opened(log)
    assert (queue.ready, queue.delayed.count, queue.deadline(), store.live) == (2, 1, 10, 3)
    queue.apply(TICK, 10)
    assert (queue.ready, queue.deadline()) == (2, 20), "of a record the first one's time is remembered"
    queue.apply(TICK, 20)
    assert bodies_in(queue) == [b"c", b"b", b"a"]


def test_what_is_cleaned_of_delayed_messages_stays_delayed() -> None:
    """Of a record of which a part is gone, too."""
    log = FakeLog(records_max=2)
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(3), [later(b"%d" % due, due) for due in (10, 20, 30)], False), 0)
    publish(queue, b"x")
    queue.apply(TICK, 10)
    for _ in store.relocate(1):
        pass
    log.drop_oldest()
    queue, store = opened(log.reopened())
    assert (queue.ready, queue.delayed.count) == (2, 2)
    queue.apply(TICK, 25)
    queue.apply(TICK, 40)
    assert bodies_in(queue) == [b"x", b"10", b"20", b"30"]


def test_purged_delayed_messages_do_not_come_back() -> None:
    log = FakeLog()
    queue, store = opened(log)
    queue.apply(Publish(PUBLISHER, range(2), [later(b"a", 20), (SAFE, b"c")], False), 0)
    queue.apply(Purge(HERE.request()), 0)
    store.flush()
    queue, store = opened(log.reopened())
    assert (queue.ready, queue.delayed.count, store.live) == (0, 0, 0)
