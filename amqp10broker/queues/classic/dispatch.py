"""How ready messages of a classic queue get to consumers: in turns, as far as their credit goes."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.amqp10.serial import MASK
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.consumers import Consumer, Consumers
from amqp10broker.queues.classic.ready import EXPIRED_MAX, Ready
from amqp10broker.queues.classic.removal import Disposal
from amqp10broker.queues.classic.store import Store
from amqp10broker.queues.outbox import Outbox
from amqp10broker.queues.turns import turn_of


class Serving:
    """See the module.

    Attributes:
        keeps: the store is told what has been delivered.
        delivered_ms: when messages were handed out last.
    """

    __slots__ = (
        "_consumers",
        "_disposal",
        "_outbox",
        "_store",
        "_waiting",
        "delivered_ms",
        "keeps",
    )

    def __init__(
        self, waiting: Ready, consumers: Consumers, disposal: Disposal, outbox: Outbox, store: Store
    ) -> None:
        self._waiting = waiting
        self._consumers = consumers
        self._disposal = disposal
        self._outbox = outbox
        self._store = store
        self.keeps = disposal.keeps
        self.delivered_ms: int | None = None

    def serve(self, now_ms: int, *, to_the_end: bool = False) -> None:
        """Hand out ready messages while any consumer has credit.

        Args:
            now_ms: the time.
            to_the_end: the credit left will be forfeited. Otherwise this ends when many messages have
                expired and more have to: `Ready.next_expiry` is due then, and whoever waits for that
                lets others run and serves again.
        """
        waiting, consumers = self._waiting, self._consumers
        expired = 0
        while waiting.count and consumers.waiting:
            ring = consumers.top_ring()
            to_come = len(ring)  # consumers whose turn in this round is still to come
            while waiting.count and ring:
                consumer = ring.first
                expired += self._hand_out(consumer, turn_of(consumer, ring, waiting.count, to_come), now_ms)
                consumers.had_turn(consumer)
                to_come = to_come - 1 or len(ring)
                if expired >= EXPIRED_MAX and not to_the_end:
                    due_ms = waiting.next_expiry()
                    if due_ms is not None and due_ms <= now_ms:
                        return

    def _hand_out(self, consumer: Consumer, count: int, now_ms: int) -> int:
        """Give a consumer its turn; how many messages had expired instead."""
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
        self, consumer: Consumer, keys: Sequence[int], messages: Sequence[Message], size: int, now_ms: int
    ) -> None:
        """Deliver messages to a consumer that has credit for them.

        Args:
            consumer: has room for all but the last of them.
            keys: of the messages.
            messages: as many.
            size: bytes of their contents.
            now_ms: the time.
        """
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
