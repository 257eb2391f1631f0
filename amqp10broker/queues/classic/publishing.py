"""How messages enter a classic queue: sorted into levels, given to the store, confirmed when safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.message.amqp10 import HEAD_BYTES_MAX
from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.classic.ready import Level, Ready
from amqp10broker.queues.classic.store import Store
from amqp10broker.queues.commands import PublisherRef
from amqp10broker.queues.effects import Confirmed, Unconfirmed
from amqp10broker.queues.limits import expiries_of
from amqp10broker.queues.outbox import Outbox

PLAIN_HEADS_MAX: Final = 256
"""Heads that a queue remembers to need nothing."""

_HEAD: Final = itemgetter(0)


class Intake:
    """See the module.

    Attributes:
        keeps: messages that must survive a restart are given to the store.
        store_failed: it cannot keep them any more.
    """

    __slots__ = ("_outbox", "_plain", "_queue", "_store", "_unsafe", "_waiting", "keeps", "store_failed")

    def __init__(self, queue: str, waiting: Ready, store: Store, outbox: Outbox, *, keeps: bool) -> None:
        self._queue = queue
        self._waiting = waiting
        self._store = store
        self._outbox = outbox
        self._unsafe: deque[tuple[int, PublisherRef, Sequence[int], bool, int]] = deque()
        self.keeps = keeps
        self.store_failed = False
        # Heads of messages that are transient and have neither priority nor time to live of their own.
        self._plain: set[bytes] = set()

    @property
    def first_ticket(self) -> int | None:
        """The ticket of the first publish that waits to be safe; None: nothing waits."""
        return self._unsafe[0][0] if self._unsafe else None

    @property
    def unsafe(self) -> tuple[int, int | None]:
        """How many messages wait to be safe, and since when the first of them does, in ms."""
        if not self._unsafe:
            return 0, None
        return sum(len(ids) for _, _, ids, _, _ in self._unsafe), self._unsafe[0][4]

    def take_in(
        self,
        publisher: PublisherRef,
        ids: Sequence[int],
        messages: Sequence[Message],
        settled: bool,
        queue_ttl_ms: int | None,
        now_ms: int,
    ) -> None:
        """Enqueue published messages, and confirm them as soon as they are safe.

        Args:
            publisher: as in `Publish`.
            ids: as in `Publish`.
            messages: as in `Publish`.
            settled: as in `Publish`.
            queue_ttl_ms: the queue's time to live of messages.
            now_ms: when they came.
        """
        if not messages:
            return
        waiting = self._waiting
        if queue_ttl_ms is None and self.are_plain(messages):
            waiting.add(waiting.levels[-1], messages, None)
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))
            return
        expiries = expiries_of(messages, queue_ttl_ms, now_ms)
        ticket = 0
        for level, indexes in waiting.by_level(messages):
            part, times = messages, expiries
            if indexes is not None:
                part = [messages[index] for index in indexes]
                times = None if expiries is None else [expiries[index] for index in indexes]
            if self.keeps:
                ticket = max(ticket, self._keep(level, part, times))
            waiting.add(level, part, times)
        if ticket:
            self._unsafe.append((ticket, publisher, ids, settled, now_ms))
            if self.store_failed:
                self.refuse_unsafe(failed=True)
        else:
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))

    def are_plain(self, messages: Sequence[Message]) -> bool:
        """Whether all are transient (or nothing is kept), with neither priority nor time to live."""
        heads = set(map(_HEAD, messages))
        plain = self._plain
        if heads <= plain:
            return True
        for head in heads - plain:
            traits = traits_of(head)
            if traits.ttl_ms is not None or traits.priority or (self.keeps and traits.durable):
                return False
        if len(plain) + len(heads) > PLAIN_HEADS_MAX:
            plain.clear()
        plain |= {head for head in heads if len(head) <= HEAD_BYTES_MAX}
        return True

    def _keep(self, level: Level, messages: Sequence[Message], expiries: Sequence[int] | None) -> int:
        """Give the store what must survive a restart; 0 if nothing must."""
        durable = {head: traits_of(head).durable for head in {head for head, _ in messages}}
        first = level.backlog.next
        if all(durable.values()):
            return self._store.keep(level.number, first, messages, expiries)
        if not any(durable.values()):
            return 0
        ticket = start = 0
        for index in range(len(messages) + 1):
            if index < len(messages) and durable[messages[index][0]]:
                continue
            if start < index:
                times = None if expiries is None else expiries[start:index]
                ticket = self._store.keep(level.number, first + start, messages[start:index], times)
            start = index + 1
        return ticket

    def safe_up_to(self, ticket: int) -> None:
        """The store has everything safe up to this ticket: confirm it."""
        unsafe = self._unsafe
        while unsafe and unsafe[0][0] <= ticket:
            _, publisher, ids, settled, _ = unsafe.popleft()
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))

    def refuse_unsafe(self, *, failed: bool) -> None:
        """What is not safe yet will not be any more.

        Args:
            failed: the queue broke down, or its store did; otherwise it was deleted.
        """
        while self._unsafe:
            _, publisher, ids, settled, _ = self._unsafe.popleft()
            self._outbox.tell(publisher.reply_to, Unconfirmed(publisher, ids, settled, failed, self._queue))
