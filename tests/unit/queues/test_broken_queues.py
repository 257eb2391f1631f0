"""Queues that break down while they serve a consumer: the same fault must not end the broker."""

from __future__ import annotations

import pytest

from amqp10broker.message.filters.stream import First
from amqp10broker.message.message import make_head
from amqp10broker.queues.classic.dispatch import Serving
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    Command,
    Credit,
    Publish,
    QueueDeleted,
    Subscribe,
    Unconfirmed,
)
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamConsumer, StreamQueue
from tests.support.askers import new_asker

NOW_MS = 1000
HERE = new_asker("1.1")
MESSAGE = (make_head(None, None, "", "q"), b"a")


def broken(*given: object, **options: object) -> None:
    raise RuntimeError("out of order")


def classic(monkeypatch: pytest.MonkeyPatch) -> ClassicQueue:
    queue = ClassicQueue("q", durable=True)
    queue.apply(Publish(HERE.publisher(), [0, 1], [MESSAGE, MESSAGE], False), NOW_MS)
    monkeypatch.setattr(Serving, "serve", broken)
    return queue


def quorum(monkeypatch: pytest.MonkeyPatch) -> QuorumQueue:
    queue = QuorumQueue("q", now_ms=NOW_MS)
    queue.apply(Publish(HERE.publisher(), [0, 1], [MESSAGE, MESSAGE], False), NOW_MS)
    monkeypatch.setattr(Messages, "read", broken)
    return queue


def stream(monkeypatch: pytest.MonkeyPatch) -> StreamQueue:
    log = StreamLog(MemoryShelf())
    queue = StreamQueue("q", log)
    queue.apply(Publish(HERE.publisher(), [0, 1], [MESSAGE, MESSAGE], False), NOW_MS)
    queue.write(NOW_MS)
    log.commit(log.write())
    queue.commit(NOW_MS)
    monkeypatch.setattr(StreamConsumer, "take", broken)
    return queue


@pytest.mark.parametrize("make", [classic, quorum, stream])
def test_who_was_served_hears_that_the_queue_is_gone_and_who_publishes_that_it_failed(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    queue = make(monkeypatch)
    publisher = HERE.publisher()
    consumers = [HERE.consumer(), HERE.consumer()]
    for consumer in consumers:
        queue.apply(Subscribe(consumer, False, position=First()), NOW_MS)
    at_work: list[Command] = [Credit(consumer, 0, 1, False, 0) for consumer in consumers]
    at_work.append(Publish(publisher, [7], [MESSAGE], False))
    with pytest.raises(RuntimeError):
        queue.apply(at_work[0], NOW_MS)

    queue.break_down(at_work)

    effects = queue.take_effects()[HERE.id]
    assert [each.ids for each in effects if isinstance(each, Unconfirmed) and each.failed] == [[7]]
    assert [each.ref for each in effects if isinstance(each, QueueDeleted)] == consumers
