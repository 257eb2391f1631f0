"""The consumers of one channel: arguments of basic.consume, prefetch, credit, basic.get, acknowledgements,
and the writing of deliveries.

The queue may deliver as much as the prefetch leaves, and never more than `UNSENT_MAX` beyond what has been
written to the socket, so that the messages of a client that does not read stay in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field
from operator import attrgetter
from typing import Any, Final, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PreconditionFailed
from amqp10broker.message.convert import all_to_amqp091
from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.filter_set import Filters
from amqp10broker.message.filters.stream_filters import BloomFilter, OffsetSpec, from_amqp091
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.protocols.amqp091.content import DeliverEncoder
from amqp10broker.protocols.amqp091.delivery_tags import Taken, Unacked
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import ConsumerRef, CreditReply, Deliver, DeliveryOutcome, Settle, Subscribe
from amqp10broker.routing.exchange import type_name
from amqp10broker.sessions.context import ChannelContext, ToQueue
from amqp10broker.sessions.counters import ClientCounters, Moment
from amqp10broker.sessions.credit import Mode, QueueCredit

_PRIORITY: Final = "x-priority"
_CANCEL_ON_FAILOVER: Final = "x-cancel-on-ha-failover"
_TIMEOUT: Final = "x-consumer-timeout"
X_STREAM_OFFSET: Final = "x-stream-offset"
X_STREAM_FILTER: Final = "x-stream-filter"
X_STREAM_MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
_STREAM: Final = frozenset({X_STREAM_OFFSET, X_STREAM_FILTER, X_STREAM_MATCH_UNFILTERED})


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer at its queue. `timeout_ms`: how long it may hold a delivery."""

    priority: int = 0
    timeout_ms: int | None = None
    filters: Filters | None = None
    given: Mapping[str, Any] = field(default_factory=dict, hash=False)


DEFAULT_OPTIONS: Final = ConsumerOptions()


def check_stream_consumer(queue: DeclaredQueue, *, no_ack: bool, prefetch: int) -> None:
    """Refuse a consumer of a stream without prefetch or acknowledgements: nothing else limits it."""
    resource = f"queue '{queue.name}'"
    stream = f"stream '{queue.name}' in vhost '{queue.vhost}'"
    if no_ack:
        raise NotSupported(resource, f"automatic acknowledgement not supported by {stream}")
    if not prefetch:
        raise PreconditionFailed(resource, f"consumer prefetch count is not set for {stream}")


def read_consumer_arguments(queue: DeclaredQueue, arguments: Mapping[str, Any]) -> ConsumerOptions:
    """Check the arguments of basic.consume. Raises `PreconditionFailed`."""
    known = {_PRIORITY}
    if queue.type != QueueType.STREAM:
        known.add(_CANCEL_ON_FAILOVER)
    if queue.type == QueueType.QUORUM:
        known.add(_TIMEOUT)
    for name, value in arguments.items():
        if queue.type == QueueType.STREAM and name in _STREAM:
            continue
        if name in known:
            fault = _fault_of(name, value)
        else:
            fault = _unknown(queue, known) if name.startswith("x-") else None
        if fault is not None:
            resource = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise PreconditionFailed(resource, f"invalid arg '{name}' for {resource}: {fault}")
    filters = None
    if queue.type == QueueType.STREAM:
        filters = from_amqp091_arguments(arguments, stream=queue.name, vhost=queue.vhost)
    elif not arguments:
        return DEFAULT_OPTIONS
    timeout_ms = arguments.get(_TIMEOUT)
    return ConsumerOptions(
        priority=int(arguments.get(_PRIORITY, 0)),
        timeout_ms=None if timeout_ms is None else int(timeout_ms),
        filters=filters,
        given=arguments,
    )


def _fault_of(name: str, value: Any) -> str | None:
    wanted = bool if name == _CANCEL_ON_FAILOVER else int
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return f"must be {'true or false' if wanted is bool else 'an integer'}, not {type_name(value)}"
    if name == _TIMEOUT and value < 0:
        return f"must be 0 or more, not {value}"
    return None


def _unknown(queue: DeclaredQueue, known: Set[str]) -> str:
    names = sorted(known | _STREAM if queue.type == QueueType.STREAM else known)
    return f"consumers of a queue of type {queue.type} may give {', '.join(names)} only"


def from_amqp091_arguments(arguments: Mapping[str, Any], *, stream: str, vhost: str) -> Filters:
    """Read the filters of a consumer. x-stream-match-unfiltered alone has no effect."""
    resource = f"queue '{stream}' in vhost '{vhost}'"
    offset: OffsetSpec | None = None
    if X_STREAM_OFFSET in arguments:
        try:
            offset = from_amqp091(arguments[X_STREAM_OFFSET], type_name)
        except FilterError as error:
            text = f"failed consuming from stream '{stream}' in vhost '{vhost}': {error.reason}"
            raise PreconditionFailed(resource, text) from error
    match_unfiltered = arguments.get(X_STREAM_MATCH_UNFILTERED, False)
    if type(match_unfiltered) is not bool:
        raise _refused(resource, X_STREAM_MATCH_UNFILTERED, "true or false", match_unfiltered)
    if X_STREAM_FILTER not in arguments:
        return Filters(offset)
    given = arguments[X_STREAM_FILTER]
    values = given if isinstance(given, list) else [given]
    for value in values:
        if type(value) is not str:
            raise _refused(resource, X_STREAM_FILTER, "a string or an array of strings", value)
    if not values:
        raise PreconditionFailed(
            resource, f"invalid arg '{X_STREAM_FILTER}' for {resource}: the array is empty; give a value"
        )
    return Filters(offset, BloomFilter(tuple(dict.fromkeys(values)), match_unfiltered))


def _refused(resource: str, name: str, wanted: str, value: Any) -> PreconditionFailed:
    return PreconditionFailed(
        resource, f"invalid arg '{name}' for {resource}: must be {wanted}, not {type_name(value)}"
    )


UNSENT_MAX: Final = 200
"""The most deliveries of one consumer that the channel has not written (RabbitMQ's unsent limit)."""


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """The parameters of a consumer, or of a fetcher, which has no `tag` and `number`. `number`: its place in
    the order in which the channel's consumers subscribed. `prefetch`: 0: no limit, or that of the queue's
    kind.
    """

    no_ack: bool
    tag: str = ""
    number: int = 0
    prefetch: int = 0
    timeout_ms: int | None = None
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


class ChannelConsumer:
    """A consumer of basic.consume, or a fetcher for basic.get. `asked_ms`: when it last sent a request to the
    queue; `moved_ms`: when its last delivery was written; `settled_ms`: when the client last decided.
    """

    __slots__ = (
        *("_moment", "_room_ms", "asked_ms", "credit", "keys", "messages", "moved_ms", "settled_ms"),
        *("terms", "unacked"),
    )

    def __init__(self, terms: ConsumerTerms, credit: QueueCredit, moment: Moment) -> None:
        self.terms = terms
        self.credit = credit
        self._moment = moment
        self._room_ms = self.moved_ms = self.asked_ms = moment.ms
        self.settled_ms: int | None = None
        self.unacked = 0
        self.keys: list[int] = []
        self.messages: list[Message] = []

    @property
    def queue(self) -> DeclaredQueue:
        return self.credit.queue

    @property
    def ref(self) -> ConsumerRef:
        return self.credit.ref

    @property
    def cancelled(self) -> bool:
        return self.credit.closed

    @property
    def unsent(self) -> int:
        return len(self.keys)

    @property
    def holds_max(self) -> int | None:
        """The most deliveries that the client may hold unacknowledged; None: no limit."""
        terms = self.terms
        if terms.no_ack:
            return None
        return terms.prefetch or self.credit.kind.held_max

    @property
    def full(self) -> bool:
        most = self.holds_max
        return most is not None and self.holds >= most

    @property
    def holds(self) -> int:
        """The number of deliveries that count against the prefetch."""
        return self.unacked + len(self.keys)

    @property
    def idle_ms(self) -> int:
        """The earliest time from which the consumer could have received its next delivery."""
        return max(self.moved_ms, self._room_ms)

    def request(self, limit: int | None = None) -> None:
        """Request more from the queue. `limit`: what the channel's own limit leaves."""
        wanted = MASK
        most = self.holds_max
        if most is not None:
            wanted = most - self.unacked
        if limit is not None:
            wanted = min(wanted, limit)
        # With a prefetch each acknowledgement makes room for a delivery, which must not wait for further
        # ones. Without a prefetch, a request when half of the last one is left is enough.
        limited = self.terms.prefetch or limit is not None
        if self.credit.top_up(wanted, UNSENT_MAX, renew_at=UNSENT_MAX if limited else UNSENT_MAX // 2):
            self.asked_ms = self._moment.ms

    def on_deliver(self, effect: Deliver) -> None:
        if self.credit.on_deliver(effect):
            self.keys.extend(effect.keys)
            self.messages.extend(effect.messages)

    def on_reply(self, reply: CreditReply) -> None:
        self.credit.on_reply(reply)
        self.credit.answered(reply)

    # --- settlement -------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[list[int], list[Message]]:
        keys, messages = self.keys, self.messages
        if count < len(keys):
            self.keys, self.messages = keys[count:], messages[count:]
            keys, messages = keys[:count], messages[:count]
        else:
            self.keys, self.messages = [], []
        self.credit.sent(len(keys))
        return keys, messages

    def settle(self, keys: Sequence[int], delivery_outcome: DeliveryOutcome) -> None:
        self.settled_ms = self._moment.ms
        if 0 < self.terms.prefetch <= self.holds:
            self._room_ms = self._moment.ms  # until now it held as many deliveries as it may
        self.unacked -= len(keys)
        self.credit.post(Settle(self.credit.ref, keys, delivery_outcome))

    def give_back(self) -> None:
        """Return waiting deliveries, and those on their way, to their places in the queue."""
        self.credit.give_back(*self._take_all())

    def forget(self) -> None:
        """Drop waiting deliveries: the queue was deleted, or did not accept the consumer."""
        self.credit.drop(len(self._take_all()[0]))
        self.credit.closed = True

    def cancel(self) -> None:
        self.give_back()
        self.credit.cancel()

    def leave(self) -> None:
        """Leave the queue when the channel ends: unacknowledged deliveries count as failed."""
        keys, messages = self._take_all()
        self.credit.drop(len(keys))
        self.credit.leave(keys, messages, DeliveryOutcome.REQUEUE_FAILED)

    def _take_all(self) -> tuple[list[int], list[Message]]:
        taken = self.keys, self.messages
        self.keys, self.messages = [], []
        return taken


class ChannelTap(Protocol):
    """Receives the frames of a channel in the order in which they take effect. Its methods must not raise."""

    def received(self, item: object) -> None:
        """Handle an item before the channel does."""

    def sent(self, method: Method) -> None:
        """Handle a written method after its effect; for confirms, that of all written together."""

    def sent_content(self, frames: bytes) -> None:
        """Handle a method that was written with its content, after its effect."""

    def delivered(self, consumer: ChannelConsumer, first_tag: int, deliveries: int) -> None:
        """Handle deliveries of a consumer before they are written."""


_NUMBER: Final = attrgetter("terms.number")

OVERHEAD_BYTES: Final = 64
"""The bytes of a delivery without its content, for the writer's budget."""

Held = Taken[ChannelConsumer, int]


@dataclass(eq=False)
class ChannelConsumers:
    """The consumers of a channel's client. `prefetch`: that of basic.qos for later consumers; 0: no limit."""

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
    # Deliveries in `held`, and those that a transaction has acknowledged and not committed.
    _unsettled: int = 0
    _turn: int = 0
    _next_tag: int = 1
    _made: int = 0
    # Few of thousands of consumers have anything to do in one step. These are the consumers that have changed
    # since they last requested more, and those with deliveries to write.
    stirred: dict[ChannelConsumer, None] = field(default_factory=dict)
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
        """Remove a consumer. Its deliveries may still be acknowledged."""
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
        """The consumers that have not been cancelled, with those that wait for the answer of their queue."""
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
        fetcher.credit.request(1, 1, drain=True)
        fetcher.asked_ms = self._context.moment.ms
        return fetcher

    def take_fetched(self, fetcher: ChannelConsumer) -> tuple[int, Message] | None:
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
            self.stirred[consumer] = None
            if consumer.keys and consumer.terms.tag:
                self._unsent[consumer] = None

    def on_reply(self, effect: CreditReply) -> ChannelConsumer | None:
        consumer = self._by_ref.get(effect.consumer)
        if consumer is not None:
            consumer.on_reply(effect)
            self.stirred[consumer] = None
        return consumer

    # --- prefetch ---------------------------------------------------------------------------------

    def set_global_prefetch(self, count: int) -> None:
        self.global_prefetch = count
        self.stirred.update(dict.fromkeys(self.consumers.values()))

    def _global_room(self) -> int | None:
        if not self.global_prefetch:
            return None
        return max(0, self.global_prefetch - self._unsettled)

    def top_up(self) -> None:
        stirred, self.stirred = self.stirred, {}
        room = self._global_room()
        # Room under the channel's own limit is available to all consumers, not only to the one that freed it.
        for consumer in stirred if room is None else self.consumers.values():
            if consumer.terms.tag:
                consumer.request(None if consumer.terms.no_ack else room)

    @property
    def full(self) -> bool:
        return bool(self.global_prefetch) and self._unsettled >= self.global_prefetch

    def _hold_to_global_limit(self) -> None:
        # Each consumer was granted all of the channel's room; the excess goes back.
        if self.global_prefetch and self._unsettled >= self.global_prefetch:
            for consumer in list(self._unsent):
                if consumer.unsent and not consumer.terms.no_ack:
                    consumer.give_back()
                    self.stirred[consumer] = None
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
            waiting.sort(key=_NUMBER)
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
        self.stirred[consumer] = None
        first = self._next_tag
        self._next_tag += len(keys)
        self.moved_ms = consumer.moved_ms = self._context.moment.ms
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
        self.stirred[consumer] = None
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
        self.stirred.clear()
        self._unsent.clear()
        self._fetchers.clear()
        self.held = Unacked()
        self._unsettled = 0

    def credits(self) -> Iterator[QueueCredit]:
        return (consumer.credit for consumer in self._by_ref.values())

    @property
    def unacked(self) -> int:
        return len(self.held)
