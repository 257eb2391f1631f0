"""The distribution of a classic queue's ready messages to consumers, in rotation, within their credit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.message.message import Message
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.classic.consumers import ClassicConsumer, Consumers, Search, has_more
from amqp10broker.queues.classic.ready import EXPIRED_MAX, ReadyMessages
from amqp10broker.queues.classic.removal import Disposal
from amqp10broker.queues.classic.store import Store
from amqp10broker.queues.machine import Outbox
from amqp10broker.queues.round_robin import SCAN_MAX, next_takers, turn_of


class Serving:
    def __init__(
        self,
        waiting: ReadyMessages,
        consumers: Consumers,
        disposal: Disposal,
        outbox: Outbox,
        store: Store,
        looked: Callable[[], None],
        scan_max: int = SCAN_MAX,
    ) -> None:
        self.scan_max = scan_max
        self.unfinished = False
        self._looked = looked
        self._left = 0  # messages that may be looked at in this step
        self._waiting = waiting
        self._consumers = consumers
        self._disposal = disposal
        self._outbox = outbox
        self._store = store
        self.keeps = disposal.keeps
        self.delivered_ms: int | None = None

    def serve(self, now_ms: int, *, to_the_end: bool = False) -> None:
        """Hand out ready messages while any consumer has credit. `to_the_end`: do not stop early, since
        remaining credit will be forfeited. Otherwise this ends when many messages have expired and more have
        to: `ReadyMessages.next_expiry` is due then, so that other tasks run before the next call.
        """
        waiting, consumers = self._waiting, self._consumers
        if consumers.looking:
            self._serve_all(now_ms, to_the_end=to_the_end)
            return
        expired = 0
        while waiting.count and consumers.waiting:
            expired += self._rotate(now_ms)
            if expired >= EXPIRED_MAX and not to_the_end:
                due_ms = waiting.next_expiry()
                if due_ms is not None and due_ms <= now_ms:
                    return

    def _rotate(self, now_ms: int) -> int:
        # Returns how many messages had expired instead. Messages are taken together, and each consumer gets a
        # slice of them, so that no message costs an iteration of its own.
        consumers = self._consumers
        again = self._waiting.again
        takers, count, room = next_takers(consumers.top_ring(), self._waiting.count)
        keys, messages, expired, size = self._waiting.take(count, now_ms, room)
        if expired:
            self._disposal.remove_expired(expired, now_ms)
        if keys:
            if self.keeps:
                self._mark_delivered(keys)
            step = len(takers)
            for place, taker in enumerate(takers[: len(keys)]):
                if step == 1:
                    self.give(taker, keys, messages, size, now_ms)
                else:
                    part = messages[place::step]
                    self.give(taker, keys[place::step], part, content_bytes(part), now_ms)
                if again:
                    self._outbox.deliver_again(taker)
            consumers.had_turns(takers, len(keys))
        return len(expired)

    def _serve_all(self, now_ms: int, *, to_the_end: bool) -> None:
        # Selecting consumers take turns with the others. One that has looked through everything rests; one
        # that has not, when `scan_max` messages were looked at, goes on in the next step, and those of lower
        # priority wait for it.
        waiting, consumers = self._waiting, self._consumers
        consumers.wake(waiting)
        self._left = self.scan_max
        aside: list[ClassicConsumer] = []
        expired = 0
        while waiting.count and consumers.waiting and not aside:
            ring = consumers.top_ring()
            to_come = len(ring)
            while waiting.count and ring:
                consumer = ring.first
                count = turn_of(consumer, ring, waiting.count, to_come)
                to_come = to_come - 1 or len(ring)
                if consumer.cursor is None:
                    expired += self._hand_out(consumer, count, now_ms)
                    consumers.had_turn(consumer)
                elif self._left <= 0:
                    consumers.leave_ring(consumer)
                    aside.append(consumer)
                else:
                    had = self._select(consumer, count, now_ms)
                    if consumer.credit and not has_more(waiting, consumer.cursor):
                        consumers.rest(consumer, in_vain=not had)
                    else:
                        consumers.had_turn(consumer)
                if expired >= EXPIRED_MAX and not to_the_end:
                    due_ms = waiting.next_expiry()
                    if due_ms is not None and due_ms <= now_ms:
                        break
            else:
                continue
            break
        for consumer in aside:
            consumers.join_ring(consumer)
        self.unfinished = bool(aside)
        for consumer in consumers.browsers():
            if consumer.credit:
                self._browse(consumer, now_ms)
        self._looked()

    def _select(self, consumer: ClassicConsumer, count: int, now_ms: int) -> int:
        assert consumer.cursor is not None
        found = Search(self._waiting, consumer.cursor, count, consumer.room, self._left, now_ms)
        self._left -= found.looked_at
        if found.expired:
            self._disposal.remove_expired(found.expired, now_ms)
        if found.keys:
            if self.keeps:
                self._mark_delivered(found.keys)
            self.give(consumer, found.keys, found.messages, found.size, now_ms)
            if found.again:
                self._outbox.deliver_again(consumer)
        return len(found.keys)

    def _browse(self, consumer: ClassicConsumer, now_ms: int) -> None:
        cursor = consumer.cursor
        assert cursor is not None
        if self._left > 0 and has_more(self._waiting, cursor):
            found = Search(self._waiting, cursor, consumer.credit, consumer.room, self._left, now_ms)
            self._left -= found.looked_at
            if found.keys:
                self.give(consumer, found.keys, found.messages, found.size, now_ms)
                if found.again:
                    self._outbox.deliver_again(consumer)
        if consumer.credit and has_more(self._waiting, cursor):
            self.unfinished = True

    def _hand_out(self, consumer: ClassicConsumer, count: int, now_ms: int) -> int:
        # Returns how many messages had expired instead.
        again = self._waiting.again
        keys, messages, expired, size = self._waiting.take(count, now_ms, consumer.room)
        if expired:
            self._disposal.remove_expired(expired, now_ms)
        if keys:
            if self.keeps:
                self._mark_delivered(keys)
            self.give(consumer, keys, messages, size, now_ms)
            if again:
                self._outbox.deliver_again(consumer)
        return len(expired)

    def give(
        self,
        consumer: ClassicConsumer,
        keys: Sequence[int],
        messages: Sequence[Message],
        size: int,
        now_ms: int,
    ) -> None:
        count = len(keys)
        self._outbox.deliver(consumer, keys, messages)
        self.delivered_ms = now_ms
        if not consumer.unsettled:
            consumer.held_ms = now_ms
        consumer.room -= size
        consumer.credit = consumer.credit - count if consumer.room > 0 else 0
        consumer.handed_out += count
        consumer.delivery_count = (consumer.delivery_count + count) & MASK
        consumer.unsettled.update(zip(keys, messages, strict=True))

    def _mark_delivered(self, keys: Sequence[int]) -> None:
        width = self._waiting.width
        if width == 1:
            self._store.delivered(0, keys[-1])
            return
        last: dict[int, int] = {key % width: key // width for key in keys}
        for level, position in last.items():
            self._store.delivered(level, position)
