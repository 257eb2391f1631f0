"""The intake of a classic queue: messages are sorted into levels, stored, and confirmed when safe.

Messages that request a delay wait until their time, and enter a level then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.message.amqp10 import HEAD_BYTES_MAX
from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.classic.delayed import Delayed, DelayedMessages
from amqp10broker.queues.classic.ready import ReadyMessages
from amqp10broker.queues.classic.removal import dues_of, expiries_of
from amqp10broker.queues.classic.store import DELAYED, Store, chosen
from amqp10broker.queues.commands import PublisherRef
from amqp10broker.queues.effects import Confirmed, Unconfirmed
from amqp10broker.queues.machine import Outbox

PLAIN_HEADS_MAX: Final = 256
"""Heads that a queue remembers as plain."""

_HEAD: Final = itemgetter(0)


class Intake:
    """The intake of one queue. `keeps`: messages that must survive a restart are given to the store."""

    def __init__(
        self,
        queue: str,
        waiting: ReadyMessages,
        delayed: DelayedMessages,
        store: Store,
        outbox: Outbox,
        *,
        keeps: bool,
    ) -> None:
        self._queue = queue
        self._waiting = waiting
        self._delayed = delayed
        self._store = store
        self._outbox = outbox
        self._unsafe: deque[tuple[int, PublisherRef, Sequence[int], bool, int]] = deque()
        self.keeps = keeps
        self.store_failed = False
        # Heads of transient messages without properties that matter here.
        self._plain: set[bytes] = set()

    @property
    def waits(self) -> bool:
        """Whether a publish waits to be safe."""
        return bool(self._unsafe)

    @property
    def unsafe(self) -> tuple[int, int | None]:
        """The number of messages that wait to be safe, and since when the first of them does, in ms."""
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
        """Enqueue published messages, and confirm them, persistent ones as soon as they are safe."""
        if not messages:
            return
        waiting = self._waiting
        if queue_ttl_ms is None and self.are_plain(messages):
            waiting.add(waiting.plain, messages, None)
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))
            return
        published = messages
        expiries, delays = expiries_of(messages, queue_ttl_ms, now_ms)
        ticket = 0
        if delays:
            ticket, messages, expiries = self._hold_back(messages, expiries, now_ms)
        if messages:
            ticket = max(ticket, self._line_up(messages, expiries, None))
        if ticket:
            durable = {head: traits_of(head).durable for head in set(map(_HEAD, published))}
            if not all(durable.values()):
                numbered = list(zip(ids, published, strict=True))
                at_once = [number for number, (head, _) in numbered if not durable[head]]
                self._outbox.tell(publisher.reply_to, Confirmed(publisher, at_once, settled))
                ids = [number for number, (head, _) in numbered if durable[head]]
            self._unsafe.append((ticket, publisher, ids, settled, now_ms))
            if self.store_failed:
                self.refuse_unsafe(failed=True)
        else:
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))

    def release(self, due: Sequence[Delayed]) -> None:
        expiries = [each.expiry for each in due]
        self._line_up(
            [each.message for each in due],
            expiries if any(expiries) else None,
            [each.position for each in due],
        )

    def _hold_back(
        self, messages: Sequence[Message], expiries: Sequence[int] | None, now_ms: int
    ) -> tuple[int, Sequence[Message], Sequence[int] | None]:
        # Returns the store's ticket, and the messages without a delay and their expiries.
        dues = dues_of(messages, now_ms)
        later = [index for index, due in enumerate(dues) if due > now_ms]
        if not later:
            return 0, messages, expiries
        others = [index for index, due in enumerate(dues) if due <= now_ms]
        held, times = chosen(messages, expiries, later)
        dues = [dues[index] for index in later]
        ticket = self._keep(DELAYED, self._delayed.next, held, times, dues=dues) if self.keeps else 0
        self._delayed.add(held, dues, times)
        return ticket, *chosen(messages, expiries, others)

    def _line_up(
        self, messages: Sequence[Message], expiries: Sequence[int] | None, moved: Sequence[int] | None
    ) -> int:
        # Returns the store's ticket, 0 if nothing was stored.
        waiting = self._waiting
        ticket = 0
        for level, indexes in waiting.by_level(messages):
            part, times, positions = messages, expiries, moved
            if indexes is not None:
                part, times = chosen(messages, expiries, indexes)
                positions = None if moved is None else [moved[index] for index in indexes]
            if self.keeps:
                kept = self._keep(level.number, level.backlog.next, part, times, moved=positions)
                ticket = max(ticket, kept)
            waiting.add(level, part, times)
        return ticket

    def are_plain(self, messages: Sequence[Message]) -> bool:
        """Return whether all are transient (or not to be stored) without time to live, delay or priority."""
        heads = set(map(_HEAD, messages))
        plain, default = self._plain, self._waiting.default
        if heads <= plain:
            return True
        for head in heads - plain:
            traits = traits_of(head)
            if traits.ttl_ms is not None or traits.priority not in (None, default):
                return False
            if traits.delay is not None or (self.keeps and traits.durable):
                return False
        if len(plain) + len(heads) > PLAIN_HEADS_MAX:
            plain.clear()
        plain |= {head for head in heads if len(head) <= HEAD_BYTES_MAX}
        return True

    def _keep(
        self,
        level: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        *,
        dues: Sequence[int] | None = None,
        moved: Sequence[int] | None = None,
    ) -> int:
        # Returns 0 if no message must survive a restart.
        durable = {head: traits_of(head).durable for head in {head for head, _ in messages}}
        if all(durable.values()):
            return self._store.keep(level, first, messages, expiries, dues=dues, moved=moved)
        if not any(durable.values()):
            return 0
        ticket = start = 0
        for index in range(len(messages) + 1):
            if index < len(messages) and durable[messages[index][0]]:
                continue
            if start < index:
                run = slice(start, index)
                times, their_dues, positions = (
                    None if each is None else each[run] for each in (expiries, dues, moved)
                )
                ticket = self._store.keep(
                    level, first + start, messages[run], times, dues=their_dues, moved=positions
                )
            start = index + 1
        return ticket

    def safe_up_to(self, ticket: int) -> int | None:
        """Confirm publishes up to a ticket, which the store has made safe; return the first unsafe one."""
        unsafe = self._unsafe
        while unsafe and unsafe[0][0] <= ticket:
            _, publisher, ids, settled, _ = unsafe.popleft()
            self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, settled))
        return unsafe[0][0] if unsafe else None

    def refuse_unsafe(self, *, failed: bool) -> None:
        while self._unsafe:
            _, publisher, ids, settled, _ = self._unsafe.popleft()
            self._outbox.tell(publisher.reply_to, Unconfirmed(publisher, ids, settled, failed, self._queue))
