"""The messages of a quorum queue: places, delivery counts, limits, and dead messages.

`consumers` has the deliveries that consumers hold; they are returned to this module when they are decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import Final

from amqp10broker.message.dead_letter_heads import delivery_time_ms, merged, redelivered
from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.commands import DeadLetterReason, DeadLetters, DeliveryOutcome
from amqp10broker.queues.machine import that_fill
from amqp10broker.queues.queue_status import AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED, QueueCounters
from amqp10broker.queues.quorum.bodies import PagedBodies
from amqp10broker.queues.quorum.ordered_entries import NEVER, DueMessage, size_of
from amqp10broker.queues.quorum.ready import Place, ReadyIndexes
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType

# At most once: dead messages leave the queue at once, as `DeadLetters`. At least once: they stay in the queue
# and count against its limits. An internal consumer takes them, `QuorumQueue.dead_letter_prefetch` at a time,
# until all target queues have confirmed them (tests/queue-features.md, section 6).

PREFETCH: Final = 32
"""The number of dead messages that the internal consumer holds at a time, as in RabbitMQ."""


def at_least_once(settings: QueueSettings) -> bool:
    """Return whether dead messages stay until they have arrived. With drop-head they do not."""
    return (
        settings.dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
        and settings.overflow is Overflow.REJECT_PUBLISH
        and settings.dead_letter_exchange is not None
    )


class PendingDeadLetters:
    __slots__ = ("_handed_out", "entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: dict[int, tuple[DeadLetterReason, int]] = {}
        self.size_bytes = 0
        # This is not part of the state: another member's internal consumer begins again.
        self._handed_out: set[int] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, index: int, reason: DeadLetterReason, size: int) -> None:
        self.entries[index] = reason, size
        self.size_bytes += size

    def next(self, prefetch: int) -> list[tuple[int, DeadLetterReason]]:
        room = prefetch - len(self._handed_out)
        if room <= 0 or len(self.entries) == len(self._handed_out):
            return []
        found: list[tuple[int, DeadLetterReason]] = []
        for index, (reason, _) in self.entries.items():
            if index not in self._handed_out:
                found.append((index, reason))
                if len(found) == room:
                    break
        self._handed_out.update(index for index, _ in found)
        return found

    def settle(self, index: int) -> bool:
        """Remove a message that has arrived or was given up; return False if it is not present."""
        entry = self.entries.pop(index, None)
        if entry is None:
            return False
        self.size_bytes -= entry[1]
        self._handed_out.discard(index)
        return True

    def begin_anew(self) -> None:
        self._handed_out.clear()

    def clear(self) -> list[int]:
        indexes = list(self.entries)
        self.entries.clear()
        self._handed_out.clear()
        self.size_bytes = 0
        return indexes


Counts = tuple[int, int, bytes]
"""For a returned message: the number of deliveries, of failed ones, and the annotations merged into it."""

RETRY_MS_MAX: Final = 315_360_000_000
"""The upper bound of the wait for the next delivery: ten years, as for times to live."""

DUE_MAX: Final = 1024
"""The number of messages that one command makes ready. The meaning of logs depends on it: another number
needs a new machine version.
"""

_NO_COUNTS: Final[Counts] = (0, 0, b"")
_SHARED_COUNTS_MAX: Final = 1024
_HEAD: Final = itemgetter(0)


class Messages:
    def __init__(self, settings: QueueSettings, bodies: PagedBodies, now_ms: int) -> None:
        self.settings = settings
        self.bodies = bodies
        self.replaying = False
        self.now_ms = now_ms
        self.expired_at = now_ms
        self.expired_ms: int | None = None
        self.next_index = 0
        self.ready = ReadyIndexes(settings.priority_levels)
        self.counts: dict[int, Counts] = {}
        self.pending = PendingDeadLetters()
        self.full = False
        self.dead_letters: list[DeadLetters] = []
        self.counters = QueueCounters()
        self._shared_counts: dict[Counts, Counts] = {}

    def clear(self) -> None:
        self.ready = ReadyIndexes(self.ready.levels)
        self.counts.clear()
        self.pending.clear()
        self.full = False
        self.bodies.clear()

    def add(self, first: int, messages: Sequence[Message], sizes: list[int]) -> None:
        """Add new messages to the end of their lines, or for later delivery."""
        self.bodies.put(first, messages)
        heads = dict.fromkeys(map(_HEAD, messages))
        queue_ttl = self.settings.message_ttl_ms
        kinds: dict[bytes, tuple[int, int, int]] = {}
        delayed = False
        for head in heads:
            _, priority, ttl, delay = traits_of(head)
            if ttl is None or (queue_ttl is not None and queue_ttl < ttl):
                ttl = queue_ttl
            # 0 is `NEVER`: without the maximum, a clock that stands at 1970 would make messages immortal.
            expiry = NEVER if ttl is None else max(1, self.now_ms + ttl)
            when = 0
            if delay is not None and (due := delay.due_ms(self.now_ms)) > self.now_ms:
                when, delayed = due, True
            kinds[head] = self.ready.line_of(priority), expiry, when
        different = dict.fromkeys(kinds.values())
        indexes = range(first, first + len(messages))
        if delayed:
            self._keep_for_later(indexes, messages, sizes, kinds)
        elif len(different) == 1:
            ((line, expiry, _),) = different
            self.ready.add(line, indexes, sizes, [expiry] * len(sizes) if expiry else None)
            return
        for line in sorted(dict.fromkeys(line for line, _, when in different if not when)):
            chosen = [
                (index, size, kinds[message[0]][1])
                for index, size, message in zip(indexes, sizes, messages, strict=True)
                if kinds[message[0]][0] == line and not kinds[message[0]][2]
            ]
            if chosen:
                own_indexes, own_sizes, expiries = zip(*chosen, strict=True)
                self.ready.add(line, own_indexes, own_sizes, expiries if any(expiries) else None)

    def _keep_for_later(
        self,
        indexes: Sequence[int],
        messages: Sequence[Message],
        sizes: Sequence[int],
        kinds: dict[bytes, tuple[int, int, int]],
    ) -> None:
        later: list[DueMessage] = []
        for index, (head, _), size in zip(indexes, messages, sizes, strict=True):
            line, expiry, when = kinds[head]
            if when:
                when = expiry if NEVER < expiry < when else when
                later.append(
                    DueMessage(when, index, size, expiry, 0 if line == self.ready.normal_line else line)
                )
        self.ready.later.add(later)

    def before_later(self, messages: Sequence[Message]) -> int:
        """Return the number of messages before the first that requests later delivery."""
        heads = list(map(_HEAD, messages))
        later = [
            head
            for head in dict.fromkeys(heads)
            if (delay := traits_of(head).delay) is not None and delay.due_ms(self.now_ms) > self.now_ms
        ]
        return min(map(heads.index, later), default=len(messages))

    def release(self) -> list[Place]:
        """Make due messages ready, or expire them, at most `DUE_MAX` at a time."""
        due = self.ready.later.take_due(self.now_ms, DUE_MAX)
        expired = [each for each in due if NEVER < each.expiry <= self.now_ms]
        if expired:
            self.expired_ms = self.now_ms
            self._die(
                DeadLetterReason.EXPIRED, [each.key for each in expired], [each.size for each in expired]
            )
            due = [each for each in due if not NEVER < each.expiry <= self.now_ms]
        return self.ready.line_up(due, self.next_index)

    def read(self, indexes: Sequence[int]) -> list[Message]:
        messages = self.bodies.fetch(indexes)
        if self.counts:
            find, shows_0 = self.counts.get, self.settings.shows_no_failures
            for at, index in enumerate(indexes):
                counts = find(index)
                if counts is not None:
                    messages[at] = redelivered(messages[at], *counts, shows_0=shows_0)
        return messages

    def put_back_unknown(self, index: int, message: Message) -> Place:
        """Put back a message that the queue had dropped; return its approximate original place."""
        _, priority, ttl, _ = traits_of(message[0])
        expiry = NEVER if ttl is None else max(1, self.now_ms + ttl)
        self.bodies.put_again(index, message)
        line = self.ready.line_of(priority)
        self.ready.put_back_unknown(index, len(message[1]), expiry, line)
        return line, index

    def decide(
        self, held: Sequence[tuple[int, int]], delivery_outcome: DeliveryOutcome, annotations: bytes = b""
    ) -> None:
        if not held:
            return
        if delivery_outcome is DeliveryOutcome.ACCEPT:
            self.gone([key for key, _ in held])
            return
        failed = delivery_outcome in (DeliveryOutcome.DISCARD_FAILED, DeliveryOutcome.REQUEUE_FAILED)
        for key, _ in held:
            self._count(key, failed=failed, annotations=annotations)
        if delivery_outcome in (DeliveryOutcome.DISCARD, DeliveryOutcome.DISCARD_FAILED):
            self._die(
                DeadLetterReason.REJECTED, [key for key, _ in held], [size_of(value) for _, value in held]
            )
            return
        limit = self.settings.delivery_limit
        if limit is not None:
            over = [(key, value) for key, value in held if self._counted(key) > limit]
            if over:
                held = [item for item in held if self._counted(item[0]) <= limit]
                sizes = [size_of(value) for _, value in over]
                self._die(DeadLetterReason.DELIVERY_LIMIT, [key for key, _ in over], sizes)
        due = delivery_time_ms(annotations) if annotations else None
        at_once: list[tuple[int, int, int]] = []
        for key, value in held:
            when = self._retry_at(key, failed=failed) if due is None else due
            entry = key, size_of(value), self.ready.expiry_of(key)
            if when > self.now_ms:
                self.ready.give_delayed(*entry, when)
            else:
                at_once.append(entry)
        self.line_up_again(at_once)

    def _count(self, index: int, *, failed: bool, annotations: bytes) -> None:
        acquired, failures, notes = self.counts.get(index, _NO_COUNTS)
        counts = acquired + 1, failures + failed, merged(notes, annotations)
        shared = self._shared_counts.get(counts)
        if shared is None:
            # Most messages that are returned at the same time have the same counts, and share one object.
            if len(self._shared_counts) >= _SHARED_COUNTS_MAX:
                self._shared_counts.clear()
            shared = self._shared_counts[counts] = counts
        self.counts[index] = shared

    def _counted(self, index: int) -> int:
        acquired, failures, _ = self.counts[index]
        return failures if self.settings.limit_counts_failed else acquired

    def _retry_at(self, index: int, *, failed: bool) -> int:
        settings = self.settings
        kind = settings.retry_type
        wanted = RetryType.FAILED if failed else RetryType.RETURNED
        if settings.retry_min_ms is None or kind not in (RetryType.ALL, wanted):
            return self.now_ms
        wait = settings.retry_min_ms * max(1, self.counts[index][1])
        most = RETRY_MS_MAX if settings.retry_max_ms is None else min(settings.retry_max_ms, RETRY_MS_MAX)
        return self.now_ms + min(wait, most)

    def line_up_again(self, entries: list[tuple[int, int, int]]) -> None:
        """Make messages (index, size, expiry) ready for another delivery."""
        if self.settings.delivery_limit is not None or not self.settings.unlimited_returns_last:
            for entry in entries:
                self.ready.give_return(*entry)
        else:
            # A loop of returns without a limit does not end, and must not delay other messages: the message
            # moves to the tail, as in RabbitMQ 4.0 to 4.2.
            behind = self.next_index
            for entry in entries:
                self.ready.give_to_tail(*entry, behind)

    def gone(self, indexes: list[int]) -> None:
        if indexes:
            self.ready.forget(indexes)
            if self.counts:
                for index in indexes:
                    self.counts.pop(index, None)
            self.bodies.drop(indexes)

    def _die(self, reason: DeadLetterReason, indexes: list[int], sizes: list[int]) -> None:
        settings = self.settings
        if not self.replaying:
            self.counters.lost[reason] += len(indexes)
            given = DISABLED if settings.dead_letter_exchange is None else AT_MOST_ONCE
            strategy = AT_LEAST_ONCE if at_least_once(settings) else given
            self.counters.given_up[reason, strategy] += len(indexes)
        if at_least_once(settings):
            self.ready.forget(indexes)
            for index, size in zip(indexes, sizes, strict=True):
                self.pending.add(index, reason, size)
            return
        if settings.dead_letter_exchange is not None and not self.replaying:
            self.counters.dead_lettered[reason] += len(indexes)
            exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
            self.dead_letters.append(DeadLetters(reason, self.read(indexes), exchange, key))
        self.gone(indexes)

    def expire(self) -> None:
        for indexes, sizes in self.ready.take_expired(self.expired_at):
            self.expired_ms = self.now_ms
            self._die(DeadLetterReason.EXPIRED, indexes, sizes)

    def select(
        self, places: Sequence[Place], count: int, room: int
    ) -> tuple[list[int], list[int], list[Place]]:
        """Take messages from anywhere; removed ones are skipped, expired ones removed. `room`: as in
        `OrderedEntries.take`. Returns indexes, sizes, and places where a message waits that was not taken.
        """
        indexes: list[int] = []
        sizes: list[int] = []
        left: list[Place] = []
        for line, keys in _runs(places):
            entries = self.ready.find(line, keys)
            expired = [entry for entry in entries if NEVER < entry[2] <= self.expired_at]
            if expired:
                self.expired_ms = self.now_ms
                gone = self.ready.take_out(line, [key for key, _, _ in expired])
                self._die(DeadLetterReason.EXPIRED, gone, [size for _, size, _ in expired])
                entries = [entry for entry in entries if not NEVER < entry[2] <= self.expired_at]
            stop = min(len(entries), count - len(indexes)) if room > 0 else 0
            chosen = [size for _, size, _ in entries[:stop]]
            if sum(chosen) > room:
                del chosen[that_fill(chosen, room) :]
            left += [(line, key) for key, _, _ in entries[len(chosen) :]]
            if chosen:
                indexes += self.ready.take_out(line, [key for key, _, _ in entries[: len(chosen)]])
                sizes += chosen
                room -= sum(chosen)
        return indexes, sizes, left

    def counted(self) -> tuple[int, int]:
        """Return the messages and bytes that count against the limits, including delayed and dead ones."""
        ready, pending = self.ready, self.pending
        return (
            ready.length + ready.delayed + len(pending),
            ready.size_bytes + ready.delayed_bytes + ready.later.size + pending.size_bytes,
        )

    def room_for(self, sizes: list[int], credit: int) -> int:
        """Return how many new messages are accepted. Messages that a consumer takes at once need no room."""
        settings = self.settings
        if self.full:
            return 0
        if settings.max_length is None and settings.max_length_bytes is None:
            return len(sizes)
        messages, size_bytes = self.counted()
        passing = min(credit, len(sizes))
        room = len(sizes) - passing
        if settings.max_length is not None:
            room = min(room, max(0, settings.max_length - messages))
        if settings.max_length_bytes is not None:
            left = settings.max_length_bytes - size_bytes
            fitting = takewhile(lambda total: total <= left, accumulate(sizes[passing : passing + room]))
            room = sum(1 for _ in fitting)
        return passing + room

    def leave_full(self) -> None:
        """Accept messages again when a full queue has shrunk to 80 % of its limits."""
        settings = self.settings
        messages, size_bytes = self.counted()
        if settings.overflow is Overflow.REJECT_PUBLISH:
            for count, limit in ((messages, settings.max_length), (size_bytes, settings.max_length_bytes)):
                if limit is not None and count * 5 > limit * 4:
                    return
        self.full = False

    def drop_heads(self) -> None:
        """Drop messages above the limits. When no message is ready, those published for later delivery are
        dropped, the first due first.
        """
        settings, ready = self.settings, self.ready
        if settings.max_length is not None:
            over = min(self.counted()[0] - settings.max_length, ready.length)
            if over > 0:
                self._die(DeadLetterReason.MAXLEN, *ready.take_heads(over, drops_next=settings.drops_next))
            over = min(self.counted()[0] - settings.max_length, ready.later.count)
            if over > 0:
                self._drop_later(over)
        if settings.max_length_bytes is not None:
            while ready.length and self.counted()[1] > settings.max_length_bytes:
                self._die(DeadLetterReason.MAXLEN, *ready.take_heads(1, drops_next=settings.drops_next))
            while ready.later.count and self.counted()[1] > settings.max_length_bytes:
                self._drop_later(1)

    def _drop_later(self, count: int) -> None:
        dropped = self.ready.later.take_first(count)
        self._die(DeadLetterReason.MAXLEN, [each.key for each in dropped], [each.size for each in dropped])


def _runs(places: Sequence[Place]) -> Iterator[tuple[int, list[int]]]:
    keys: list[int] = []
    line = 0
    for number, key in places:
        if keys and (number != line or key <= keys[-1]):
            yield line, keys
            keys = []
        line = number
        keys.append(key)
    if keys:
        yield line, keys
