"""Consuming on one channel: consumers, basic.get, acknowledgements, prefetch, and writing deliveries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.message.convert import all_to_amqp091
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp091.deliver import DeliverEncoder
from amqp10broker.protocols.amqp091.delivery_tags import Taken, Unacked
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import ConsumerRef, DeliveryOutcome, Subscribe
from amqp10broker.queues.effects import CreditReply, Deliver
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer, ConsumerTerms
from amqp10broker.sessions.amqp091.consumer_arguments import ConsumerOptions
from amqp10broker.sessions.context import ChannelContext, ToQueue
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.queue_credit import Mode, QueueCredit


class ChannelTap(Protocol):
    """Called for frames in the order in which they take effect; must not raise."""

    def received(self, item: object) -> None:
        """Handle an item of the frame reader, before the channel does."""

    def sent(self, method: Method) -> None:
        """Handle a written method after its effect; for confirms, that of all written together."""

    def sent_content(self, frames: bytes) -> None:
        """Handle a method that was written with its content. Its effect is complete."""

    def delivered(self, consumer: ChannelConsumer, first_tag: int, deliveries: int) -> None:
        """Handle deliveries of a consumer before they are written, with tags that follow the first."""


OVERHEAD_BYTES: Final = 64
"""The frames of a delivery without its content, in bytes, for the writer's budget."""

Held = Taken[ChannelConsumer, int]
"""Deliveries that the client held: their consumer, and the queue's keys for them."""


@dataclass(eq=False)
class ChannelConsumers:
    """The consumers of a channel's client. `prefetch`: basic.qos for consumers to come; 0: no limit."""

    _number: int
    _context: ChannelContext
    _to_queue: ToQueue
    _counters: ClientCounters
    prefetch: int = 0
    consumers: dict[str, ChannelConsumer] = field(default_factory=dict)
    moved_ms: int = field(init=False)
    taps: tuple[ChannelTap, ...] = ()
    held: Unacked[ChannelConsumer, int] = field(default_factory=Unacked)
    _by_ref: dict[ConsumerRef, ChannelConsumer] = field(default_factory=dict)
    _encoders: dict[ChannelConsumer, DeliverEncoder] = field(default_factory=dict)
    _fetchers: dict[tuple[DeclaredQueue, bool], ChannelConsumer] = field(default_factory=dict)
    # Deliveries with an outcome that no queue has: those in `held`, and those that a transaction has
    # acknowledged and not committed.
    _unsettled: int = 0
    _turn: int = 0
    _next_tag: int = 1
    _made: int = 0
    # Of thousands of consumers few have anything to do in one step: those that have changed since they
    # were last topped up, and those with deliveries to write.
    _stirred: dict[ChannelConsumer, None] = field(default_factory=dict)
    _unsent: dict[ChannelConsumer, None] = field(default_factory=dict)
    global_prefetch: int = 0

    def __post_init__(self) -> None:
        self.moved_ms = self._context.moment.ms

    # --- consumers --------------------------------------------------------------------------------

    def subscribe(
        self, tag: str, queue: DeclaredQueue, *, no_ack: bool, exclusive: bool, options: ConsumerOptions
    ) -> ChannelConsumer:
        reply_to = self._context.reply_to
        ref = reply_to.consumer()
        self._made += 1
        prefetch = 0 if no_ack else self.prefetch
        terms = ConsumerTerms(no_ack, tag, self._made, prefetch, options.timeout_ms, exclusive, options.given)
        mode = Mode.DELIVERED_SETTLED if no_ack else Mode.DELIVERED
        credit = QueueCredit(queue, ref, self._to_queue, mode)
        consumer = ChannelConsumer(terms, credit, self._context.moment)
        self._by_ref[ref] = consumer
        filters = options.filters
        subscribe = Subscribe(
            ref,
            no_ack,
            exclusive=exclusive,
            answer=True,
            priority=options.priority,
            timeout_ms=options.timeout_ms,
            position=None if filters is None else filters.offset,
            filters=filters,
            name=reply_to.name_of(f"consumer '{tag}'"),
        )
        self._to_queue((queue.handle, subscribe))
        return consumer

    def start(self, consumer: ChannelConsumer) -> None:
        self.consumers[consumer.terms.tag] = consumer
        self._encoders[consumer] = DeliverEncoder(self._number, consumer.terms.tag, self._context.frame_max)
        consumer.request(self._global_room())

    def cancel(self, tag: str) -> ChannelConsumer | None:
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumer.cancel()
            self._encoders.pop(consumer, None)
            self._unsent.pop(consumer, None)
            self._forget_if_idle(consumer)
        return consumer

    def forget(self, ref: ConsumerRef) -> ChannelConsumer | None:
        """Remove a consumer; acknowledgements of its deliveries are still accepted."""
        consumer = self._by_ref.pop(ref, None)
        if consumer is None:
            return None
        consumer.forget()
        consumer.credit.retire(self._counters)
        self._encoders.pop(consumer, None)
        self._unsent.pop(consumer, None)
        if self.consumers.get(consumer.terms.tag) is consumer:
            del self.consumers[consumer.terms.tag]
        key = (consumer.queue, consumer.terms.no_ack)
        if self._fetchers.get(key) is consumer:
            del self._fetchers[key]
        return consumer

    @property
    def lasting(self) -> list[ChannelConsumer]:
        """The consumers that have not been cancelled, including those that wait for their queue's answer."""
        return [each for each in self._by_ref.values() if each.terms.tag and not each.cancelled]

    def find(self, ref: ConsumerRef) -> ChannelConsumer | None:
        return self._by_ref.get(ref)

    def fetch(self, queue: DeclaredQueue, *, no_ack: bool) -> ChannelConsumer:
        fetcher = self._fetchers.get((queue, no_ack))
        if fetcher is None:
            reply_to = self._context.reply_to
            ref = reply_to.consumer()
            credit = QueueCredit(queue, ref, self._to_queue, Mode.GOT_SETTLED if no_ack else Mode.GOT)
            fetcher = ChannelConsumer(ConsumerTerms(no_ack), credit, self._context.moment)
            self._fetchers[queue, no_ack] = fetcher
            self._by_ref[ref] = fetcher
            name = reply_to.name_of("consumer (basic.get)")
            self._to_queue((queue.handle, Subscribe(ref, no_ack, counted=False, name=name)))
        fetcher.fetch()
        return fetcher

    def take_fetched(self, fetcher: ChannelConsumer) -> tuple[int, Message] | None:
        """Return the message of a fetch with its delivery tag; None if there was none."""
        keys, messages = fetcher.take(1)
        if not keys:
            return None
        tag = self._next_tag
        self._next_tag += 1
        if not fetcher.terms.no_ack:
            self.held.add(tag, fetcher, keys)
            fetcher.unacked += 1
            self._unsettled += 1
        return tag, messages[0]

    def _forget_if_idle(self, consumer: ChannelConsumer) -> None:
        if consumer.cancelled and not consumer.unacked:
            self._by_ref.pop(consumer.ref, None)
            consumer.credit.retire(self._counters)

    # --- from queues ------------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> None:
        consumer = self._by_ref.get(effect.consumer)
        if consumer is not None:
            consumer.on_deliver(effect)
            self._stirred[consumer] = None
            if consumer.keys and consumer.terms.tag:
                self._unsent[consumer] = None

    def on_reply(self, effect: CreditReply) -> ChannelConsumer | None:
        """Handle the answer of a queue to a request; return the consumer that made it."""
        consumer = self._by_ref.get(effect.consumer)
        if consumer is not None:
            consumer.on_reply(effect)
            self._stirred[consumer] = None
        return consumer

    # --- prefetch ---------------------------------------------------------------------------------

    def set_global_prefetch(self, count: int) -> None:
        self.global_prefetch = count
        self._stirred.update(dict.fromkeys(self.consumers.values()))

    def _global_room(self) -> int | None:
        if not self.global_prefetch:
            return None
        return max(0, self.global_prefetch - self._unsettled)

    def top_up(self) -> None:
        stirred, self._stirred = self._stirred, {}
        room = self._global_room()
        # Room under the channel's own limit is available to all consumers, not only to the one that freed it.
        for consumer in stirred if room is None else self.consumers.values():
            if consumer.terms.tag:
                consumer.request(None if consumer.terms.no_ack else room)

    @property
    def full(self) -> bool:
        """Whether the channel holds as many deliveries as its own limit allows."""
        return bool(self.global_prefetch) and self._unsettled >= self.global_prefetch

    def _hold_to_global_limit(self) -> None:
        # Each consumer was granted what the channel has left; the excess goes back.
        if self.global_prefetch and self._unsettled >= self.global_prefetch:
            for consumer in list(self._unsent):
                if consumer.unsent and not consumer.terms.no_ack:
                    consumer.give_back()
                    self._stirred[consumer] = None
                    self._unsent.pop(consumer, None)

    # --- deliveries -------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return any(consumer.keys for consumer in self._unsent)

    def write(self, budget_bytes: int, out: list[bytes | memoryview]) -> int:
        """Write deliveries of all consumers in rotation, at least one; return the bytes."""
        spent = 0
        waiting = [consumer for consumer in self._unsent if consumer.keys]
        if len(waiting) > 1:
            waiting.sort(key=_number)
            self._turn = (self._turn + 1) % len(waiting)
            waiting = waiting[self._turn :] + waiting[: self._turn]
        for consumer in waiting:
            if spent >= budget_bytes:
                break
            spent += self._write_of(consumer, budget_bytes - spent, out)
            if not consumer.keys:
                del self._unsent[consumer]
        self._hold_to_global_limit()
        return spent

    def _write_of(self, consumer: ChannelConsumer, budget_bytes: int, out: list[bytes | memoryview]) -> int:
        count = 0
        spent = 0
        for head, body in consumer.messages:
            if spent >= budget_bytes:
                break
            spent += len(head) + len(body) + OVERHEAD_BYTES
            count += 1
        if self.global_prefetch and not consumer.terms.no_ack:
            count = min(count, self.global_prefetch - self._unsettled)
            if count <= 0:
                return 0
        for tap in self.taps:
            tap.delivered(consumer, self._next_tag, count)
        keys, messages = consumer.take(count)
        self._stirred[consumer] = None
        first = self._next_tag
        self._next_tag += len(keys)
        self.moved_ms = self._context.moment.ms
        consumer.times.moved()
        if not consumer.terms.no_ack:
            self.held.add(first, consumer, keys)
            consumer.unacked += len(keys)
            self._unsettled += len(keys)
        self._encoders[consumer].encode(first, all_to_amqp091(messages), out)
        return spent

    # --- acknowledgements -------------------------------------------------------------------------

    def settle(self, held: Sequence[Held], delivery_outcome: DeliveryOutcome) -> None:
        if len(held) == 1:
            self._settle_one(held[0].consumer, held[0].keys, delivery_outcome)
            return
        by_consumer: dict[ChannelConsumer, list[int]] = {}
        for part in held:
            by_consumer.setdefault(part.consumer, []).extend(part.keys)
        for consumer, keys in by_consumer.items():
            self._settle_one(consumer, keys, delivery_outcome)

    def _settle_one(
        self, consumer: ChannelConsumer, keys: Sequence[int], delivery_outcome: DeliveryOutcome
    ) -> None:
        consumer.credit.counters.settled(delivery_outcome, len(keys))
        consumer.settle(keys, delivery_outcome)
        self._stirred[consumer] = None
        self._unsettled -= len(keys)
        if consumer.cancelled:
            self._forget_if_idle(consumer)

    def recover(self) -> None:
        self.settle(self.held.take_all(), DeliveryOutcome.REQUEUE)

    def close(self) -> None:
        for consumer in self._by_ref.values():
            consumer.leave()
            consumer.credit.retire(self._counters)
        self._by_ref.clear()
        self.consumers.clear()
        self._encoders.clear()
        self._stirred.clear()
        self._unsent.clear()
        self._fetchers.clear()
        self.held = Unacked()
        self._unsettled = 0

    def credits(self) -> Iterator[QueueCredit]:
        return (consumer.credit for consumer in self._by_ref.values())

    @property
    def unacked(self) -> int:
        return len(self.held)


def _number(consumer: ChannelConsumer) -> int:
    return consumer.terms.number
