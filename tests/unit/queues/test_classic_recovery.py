"""A durable classic queue that comes back with holes in its positions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqp10broker.amqp10.performatives import Header
from amqp10broker.message.message import make_head
from amqp10broker.persistence.classic_store import ClassicStore
from amqp10broker.persistence.spool import Spool
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    ConsumerRef,
    Credit,
    Publish,
    Settle,
    Subscribe,
    Verdict,
)
from amqp10broker.queues.effects import Deliver
from tests.support.askers import new_asker
from tests.support.fake_log import RECORD_BYTES, FakeLog, FakeRecord, MemoryScratch

GROUP = 7
SAFE = make_head(Header(durable=True), None, "", "q")
HERE = new_asker("1.1")
PUBLISHER = HERE.publisher()


def opened(log: FakeLog) -> tuple[ClassicQueue, ClassicStore]:
    store = ClassicStore(GROUP, log, Spool(MemoryScratch), RECORD_BYTES)
    store.restore(log.records())
    queue = ClassicQueue("q", durable=True, store=store)
    queue.recover(store.backlogs())
    return queue, store


def publish(queue: ClassicQueue, *bodies: bytes) -> None:
    queue.apply(Publish(PUBLISHER, range(len(bodies)), [(SAFE, body) for body in bodies], False), 0)


def consumer_of(queue: ClassicQueue) -> ConsumerRef:
    consumer = HERE.consumer()
    queue.apply(Subscribe(consumer, False), 0)
    return consumer


def get(queue: ClassicQueue, consumer: ConsumerRef, had: int, count: int) -> dict[bytes, int]:
    """Deliver `count` more messages: key by body."""
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
    queue.apply(Settle(consumer, [keys[b"2"]], Verdict.ACCEPT), 0)
    store.flush()

    log = log.reopened()
    queue, store = opened(log)
    consumer = consumer_of(queue)
    # The page with 0 and 1 is the head now; position 2 was taken and is gone.
    get(queue, consumer, 0, 1)
    publish(queue, b"3", b"4")
    keys = get(queue, consumer, 1, 3)
    queue.apply(Settle(consumer, [keys[b"4"]], Verdict.ACCEPT), 0)
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
    queue.apply(Settle(consumer, [keys[b"%d" % number] for number in range(0, 100, 2)], Verdict.ACCEPT), 0)
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
