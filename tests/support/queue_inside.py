"""Looks into a classic queue, for tests that compare it with a model."""

from __future__ import annotations

from itertools import chain

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.consumers import ClassicConsumer
from amqp10broker.queues.classic.queue import ClassicQueue


def returned_of(queue: ClassicQueue) -> list[tuple[int, Message]]:
    """(key, message) of ready messages that were handed out before, in order. The queue has one level."""
    return sorted(queue.waiting.levels[0].returned, key=lambda pair: pair[0])


def fresh_of(queue: ClassicQueue) -> list[Message]:
    """The ready messages that nobody has had, in order."""
    backlog = queue.waiting.levels[0].backlog
    pages = [queue._store.look(page.handle, page.ranks or range(page.count))[0] for page in backlog._pages]
    return list(chain(backlog._head, *pages, backlog._tail))


def consumers_of(queue: ClassicQueue) -> list[ClassicConsumer]:
    return list(queue._consumers)
