"""How ready messages of a classic queue get to consumers: in turns, as far as their credit goes."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.amqp10.serial import MASK
from amqp10broker.message.message import Message
from amqp10broker.queues.consumers import Consumer, Consumers, turn_of
from amqp10broker.queues.disposal import Disposal
from amqp10broker.queues.effects import Reason
from amqp10broker.queues.outbox import Outbox
from amqp10broker.queues.ready import Ready
from amqp10broker.queues.store import Store


class Serving:
    """See the module.

    Attributes:
        keeps: the store is told what has been delivered.
        stopped: nothing is handed out any more, because of a fault.
    """

    __slots__ = ("_consumers", "_disposal", "_outbox", "_store", "_waiting", "keeps", "stopped")

    def __init__(
        self, waiting: Ready, consumers: Consumers, disposal: Disposal, outbox: Outbox, store: Store
    ) -> None:
        self._waiting = waiting
        self._consumers = consumers
        self._disposal = disposal
        self._outbox = outbox
        self._store = store
        self.keeps = disposal.keeps
        self.stopped = False

    def serve(self, now_ms: int) -> None:
        """Hand out ready messages while any consumer has credit."""
        waiting, consumers = self._waiting, self._consumers
        while waiting.count and consumers.waiting and not self.stopped:
            ring = consumers.top_ring()
            to_come = len(ring)  # consumers whose turn in this round is still to come
            while waiting.count and ring:
                consumer = ring[0]
                self._hand_out(consumer, turn_of(consumer, ring, waiting.count, to_come), now_ms)
                consumers.had_turn(consumer)
                to_come = to_come - 1 or len(ring)

    def _hand_out(self, consumer: Consumer, count: int, now_ms: int) -> None:
        keys, messages, expired = self._waiting.take(count, now_ms)
        if expired:
            self._disposal.remove(Reason.EXPIRED, expired)
        if not keys:
            return
        if self.keeps:
            self._mark_delivered(keys)
        self.give(consumer, keys, messages)

    def give(self, consumer: Consumer, keys: Sequence[int], messages: Sequence[Message]) -> None:
        """Deliver messages to a consumer that has credit for them."""
        count = len(keys)
        self._outbox.deliver(consumer, keys, messages)
        consumer.credit -= count
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
