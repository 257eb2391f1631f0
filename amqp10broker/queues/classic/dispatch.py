"""The delivery and removal of a classic queue's messages: handing out in rotation within the consumers'
credit, removal from queue and store, dead-lettering, and limits of length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.message.traits import acquired, traits_of
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.classic.backlog import DELAYED, Store, content_bytes
from amqp10broker.queues.classic.consumers import ClassicConsumer, Consumers, Search, has_more
from amqp10broker.queues.classic.ready import EXPIRED_MAX, Delayed, DelayedMessages, Keyed, ReadyMessages
from amqp10broker.queues.commands import DeadLetterReason, DeadLetters, DeliveryOutcome
from amqp10broker.queues.machine import SCAN_MAX, Outbox, next_takers, turn_of
from amqp10broker.queues.queue_status import AT_MOST_ONCE, DISABLED, QueueCounters
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings

DROPPED_MAX: Final = 4096
"""The number of messages that are dropped in one step when a limit was lowered."""


@dataclass(slots=True, eq=False)
class Disposal:
    _waiting: ReadyMessages
    _delayed: DelayedMessages
    _store: Store
    _counters: QueueCounters
    _dead_letters: list[DeadLetters]
    _outbox: Outbox
    keeps: bool
    settings: QueueSettings = DEFAULTS
    unfinished: bool = False
    expired_ms: int | None = None

    def forget(self, keys: Sequence[int]) -> None:
        waiting = self._waiting
        if waiting.expiries:
            for key in keys:
                waiting.expiries.pop(key, None)
        if not self.keeps or not keys:
            return
        width = waiting.width
        if width == 1:
            self._store.forget(0, keys)
            return
        by_level: dict[int, list[int]] = {}
        for key in keys:
            by_level.setdefault(key % width, []).append(key // width)
        for level, positions in by_level.items():
            self._store.forget(level, positions)

    def give_up(self, reason: DeadLetterReason, messages: list[Message]) -> None:
        exchange = self.settings.dead_letter_exchange
        strategy = DISABLED if exchange is None else AT_MOST_ONCE
        self._counters.given_up[reason, strategy] += len(messages)
        if exchange is None:
            return
        self._counters.dead_lettered[reason] += len(messages)
        routing_key = self.settings.dead_letter_routing_key
        last = self._dead_letters[-1] if self._dead_letters else None
        if last is not None and (last.reason, last.exchange, last.routing_key) == (
            reason,
            exchange,
            routing_key,
        ):
            assert isinstance(last.messages, list)
            last.messages.extend(messages)
        else:
            self._dead_letters.append(DeadLetters(reason, messages, exchange, routing_key))

    def remove(self, reason: DeadLetterReason, gone: Sequence[Keyed]) -> None:
        self._counters.lost[reason] += len(gone)
        self.give_up(reason, [message for _, message in gone])
        self.forget([key for key, _ in gone])

    def remove_expired(self, gone: Sequence[Keyed], now_ms: int) -> None:
        self.expired_ms = now_ms
        self.remove(DeadLetterReason.EXPIRED, gone)

    def remove_delayed(self, reason: DeadLetterReason, gone: Sequence[Delayed]) -> None:
        self._counters.lost[reason] += len(gone)
        self.give_up(reason, [each.message for each in gone])
        if self.keeps:
            self._store.forget(DELAYED, sorted(each.position for each in gone))

    def expire(self, now_ms: int) -> None:
        gone = self._waiting.take_expired(now_ms)
        if gone:
            self.remove_expired(gone, now_ms)

    @property
    def counted(self) -> tuple[int, int]:
        """Return messages that count against the limits of length, and their bytes if bytes are limited."""
        waiting, delayed = self._waiting, self._delayed
        return waiting.count + delayed.count, waiting.size + delayed.size

    def make_room(self) -> None:
        """Drop messages beyond the limits from the head; delayed messages count as behind all others."""
        settings, waiting = self.settings, self._waiting
        self.unfinished = False
        if settings.overflow is not Overflow.DROP_HEAD or not is_limited(settings):
            return
        gone: list[Keyed] = []
        later: list[Delayed] = []
        while is_over(settings, *self.counted):
            if len(gone) + len(later) == DROPPED_MAX:
                self.unfinished = True
                break
            if waiting.count:
                gone.append(waiting.drop_head())
            elif self._delayed.count:
                later.append(self._delayed.take_first())
            else:
                break
        if gone:
            self.remove(DeadLetterReason.MAXLEN, gone)
        if later:
            self.remove_delayed(DeadLetterReason.MAXLEN, later)

    def drop_all(self) -> None:
        for level, positions in self._waiting.clear():
            if self.keeps:
                self._store.forget(level.number, positions)
        for run in self._delayed.clear():
            if self.keeps:
                self._store.forget(DELAYED, run)

    def decide(self, held: Iterable[Keyed], delivery_outcome: DeliveryOutcome) -> None:
        match delivery_outcome:
            case DeliveryOutcome.ACCEPT:
                self.forget([key for key, _ in held])
            case DeliveryOutcome.DISCARD:
                self.remove(DeadLetterReason.REJECTED, list(held))
            case DeliveryOutcome.DISCARD_FAILED:
                self.remove(
                    DeadLetterReason.REJECTED,
                    [(key, acquired(message, failed=True)) for key, message in held],
                )
            case DeliveryOutcome.REQUEUE | DeliveryOutcome.REQUEUE_FAILED:
                failed = delivery_outcome is DeliveryOutcome.REQUEUE_FAILED
                for key, message in held:
                    self._waiting.put_back(key, acquired(message, failed=failed))
            case _:
                assert_never(delivery_outcome)

    def take_back(
        self, consumer: ClassicConsumer, keys: Sequence[int], messages: Sequence[Message], seen: int
    ) -> None:
        """Requeue deliveries that never reached the client, unchanged. A browser gets them again."""
        self._outbox.withdraw(consumer)
        if consumer.browses:
            self._show_again(consumer, keys, seen)
            return
        put_back = self._waiting.put_back
        unsettled = consumer.unsettled
        on_its_way = consumer.handed_out - seen
        if on_its_way:
            for key in list(unsettled)[-on_its_way:]:
                put_back(key, unsettled.pop(key))
        consumer.handed_out = seen
        for key, message in zip(keys, messages, strict=True):
            # The queue's own copy is preferred: the session's may be in the encoding of another protocol.
            held = unsettled.pop(key, None)
            if held is not None:
                put_back(key, held)
            elif consumer.settled:
                put_back(key, message)

    def _show_again(self, consumer: ClassicConsumer, keys: Sequence[int], seen: int) -> None:
        cursor = consumer.cursor
        assert cursor is not None
        on_its_way = consumer.handed_out - seen
        missed = [*keys, *list(consumer.unsettled)[len(consumer.unsettled) - on_its_way :]]
        consumer.unsettled.clear()
        consumer.handed_out = seen
        cursor.passed -= len(missed)
        width = self._waiting.width
        for key in missed:
            cursor.on_return(width - 1 - key % width, key // width)

    def trim(self, consumer: ClassicConsumer, seen: int) -> None:
        """Remove deliveries of a settled consumer that have reached the session."""
        if consumer.browses:
            on_its_way = consumer.handed_out - seen
            for key in list(consumer.unsettled)[: len(consumer.unsettled) - on_its_way]:
                del consumer.unsettled[key]
        elif consumer.settled:
            unsettled = consumer.unsettled
            on_its_way = consumer.handed_out - seen
            final = list(unsettled)[: len(unsettled) - on_its_way]
            for key in final:
                del unsettled[key]
            self.forget(final)


_HEAD: Final = itemgetter(0)


def expiries_of(
    messages: Sequence[Message], queue_ttl_ms: int | None, now_ms: int
) -> tuple[Sequence[int] | None, bool]:
    """Return the expiry of each newly published message in ms, 0: never; None: no message expires. The
    smaller of the queue's and the message's time to live counts. The second value is whether some message
    requests a delay.
    """
    ttls: dict[bytes, int | None] = {}
    delays = False
    for head in set(map(_HEAD, messages)):
        _, _, ttl, delay = traits_of(head)
        ttls[head] = min((each for each in (ttl, queue_ttl_ms) if each is not None), default=None)
        if delay is not None:
            delays = True
    if len(ttls) == 1:
        ttl = next(iter(ttls.values()))
        return (None if ttl is None else [now_ms + ttl] * len(messages)), delays
    if all(ttl is None for ttl in ttls.values()):
        return None, delays
    when = {head: 0 if ttl is None else now_ms + ttl for head, ttl in ttls.items()}
    return [when[head] for head, _ in messages], delays


def dues_of(messages: Sequence[Message], now_ms: int) -> list[int]:
    """Return the time in ms at which each newly published message may be delivered; 0: no delay requested."""
    delays = [traits_of(head).delay for head, _ in messages]
    return [0 if delay is None else delay.due_ms(now_ms) for delay in delays]


def rejects(settings: QueueSettings) -> bool:
    return settings.overflow is not Overflow.DROP_HEAD and is_limited(settings)


def is_limited(settings: QueueSettings) -> bool:
    return settings.max_length is not None or settings.max_length_bytes is not None


def is_over(settings: QueueSettings, count: int, size: int) -> bool:
    return (settings.max_length is not None and count > settings.max_length) or (
        settings.max_length_bytes is not None and size > settings.max_length_bytes
    )


@dataclass(slots=True, eq=False)
class Serving:
    _waiting: ReadyMessages
    _consumers: Consumers
    _disposal: Disposal
    _outbox: Outbox
    _store: Store
    _looked: Callable[[], None]
    _left: int = 0  # messages that may be looked at in this step
    scan_max: int = SCAN_MAX
    unfinished: bool = False
    delivered_ms: int | None = None

    def serve(self, now_ms: int, *, to_the_end: bool = False) -> None:
        """Hand out ready messages while any consumer has credit. `to_the_end`: remaining credit will be
        forfeited. Otherwise this ends when many messages have expired and more are left:
        `ReadyMessages.next_expiry` is then due at once, so that other tasks run before the next call.
        """
        waiting, consumers = self._waiting, self._consumers
        if consumers.looking:
            self._serve_all(now_ms, to_the_end=to_the_end)
            return
        expired = 0
        while waiting.count and consumers.rings:
            expired += self._rotate(now_ms)
            if expired >= EXPIRED_MAX and not to_the_end:
                due_ms = waiting.next_expiry()
                if due_ms is not None and due_ms <= now_ms:
                    return

    def _rotate(self, now_ms: int) -> int:
        # Return how many messages had expired instead. Messages are taken together, and each consumer gets a
        # slice of them, so that no message costs an iteration of its own.
        consumers = self._consumers
        again = self._waiting.again
        takers, count, room = next_takers(consumers.top, self._waiting.count)
        keys, messages, expired, size = self._waiting.take(count, now_ms, room)
        if expired:
            self._disposal.remove_expired(expired, now_ms)
        if keys:
            if self._disposal.keeps:
                self._mark_delivered(keys)
            step = len(takers)
            for place, taker in enumerate(takers[: len(keys)]):
                if step == 1:
                    self.give(taker, keys, messages, size, now_ms, again=again)
                else:
                    part = messages[place::step]
                    self.give(taker, keys[place::step], part, content_bytes(part), now_ms, again=again)
            consumers.had_turns(takers, len(keys))
        return len(expired)

    def _serve_all(self, now_ms: int, *, to_the_end: bool) -> None:
        # Selecting consumers take turns with the others. A consumer that has looked at everything is
        # suspended. One that has not, when `scan_max` messages were looked at, continues in the next step,
        # and those of lower priority wait for it.
        waiting, consumers = self._waiting, self._consumers
        consumers.wake(waiting)
        self._left = self.scan_max
        aside: list[ClassicConsumer] = []
        expired = 0
        while waiting.count and consumers.rings and not aside:
            ring = consumers.top
            to_come = len(ring)
            while waiting.count and ring:
                consumer = next(iter(ring))
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
            if self._disposal.keeps:
                self._mark_delivered(found.keys)
            self.give(consumer, found.keys, found.messages, found.size, now_ms, again=found.again)
        return len(found.keys)

    def _browse(self, consumer: ClassicConsumer, now_ms: int) -> None:
        cursor = consumer.cursor
        assert cursor is not None
        if self._left > 0 and has_more(self._waiting, cursor):
            found = Search(self._waiting, cursor, consumer.credit, consumer.room, self._left, now_ms)
            self._left -= found.looked_at
            if found.keys:
                self.give(consumer, found.keys, found.messages, found.size, now_ms, again=found.again)
        if consumer.credit and has_more(self._waiting, cursor):
            self.unfinished = True

    def _hand_out(self, consumer: ClassicConsumer, count: int, now_ms: int) -> int:
        # Return how many messages had expired instead.
        again = self._waiting.again
        keys, messages, expired, size = self._waiting.take(count, now_ms, consumer.room)
        if expired:
            self._disposal.remove_expired(expired, now_ms)
        if keys:
            if self._disposal.keeps:
                self._mark_delivered(keys)
            self.give(consumer, keys, messages, size, now_ms, again=again)
        return len(expired)

    def give(
        self,
        consumer: ClassicConsumer,
        keys: Sequence[int],
        messages: Sequence[Message],
        size: int,
        now_ms: int,
        *,
        again: bool = False,
    ) -> None:
        count = len(keys)
        self._outbox.deliver(consumer, keys, messages, again=again)
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
