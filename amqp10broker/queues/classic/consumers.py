"""The consumers of a classic queue: rotation among those with credit, higher priorities first.

With a single active consumer only that one takes part, and the others wait. Only `Credit` changes credit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import chain
from typing import ClassVar, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.backlog import Window, content_bytes
from amqp10broker.queues.classic.ready import Cursor, Keyed, Level, ReadyMessages
from amqp10broker.queues.commands import NO_BOUND, ConsumerRef
from amqp10broker.queues.machine import RoundRobin, that_fill, turn_within
from amqp10broker.queues.queue_status import ConsumerStatus, Looking


@dataclass(eq=False)
class ClassicConsumer:
    """A consumer's state in its queue.

    Attributes:
        room: bytes of contents that it may get now; at 0 there is no credit either.
        unsettled: key -> message as delivered; for a settled or browsing consumer only deliveries that may
            not have reached its session.
        counted: false for a fetch of one message.
        cursor: for a consumer that selects or browses.
    """

    ref: ConsumerRef
    settled: bool
    exclusive: bool
    counted: bool
    priority: int = 0
    name: str = ""
    cursor: Cursor | None = None
    browses: bool = field(init=False)
    cancelled: bool = False
    credit: int = 0
    room: int = NO_BOUND
    delivery_count: int = 0
    handed_out: int = 0
    epoch: int = 0
    turn: int = 1
    unsettled: dict[int, Message] = field(default_factory=dict)
    queued: bool = False
    held_ms: int = 0
    settled_ms: int | None = None
    shown: ClassVar[Sequence[int]] = ()
    """Its progress does not move with the queue to another node (`Deliver.shown`)."""

    def __post_init__(self) -> None:
        self.browses = self.cursor is not None and not self.cursor.takes

    def part(self, waiting: ReadyMessages) -> ConsumerStatus:
        held = 0 if self.settled or self.browses else len(self.unsettled)
        part = ConsumerStatus(
            self.ref, self.credit, self.priority, held, self.held_ms, self.settled_ms, name=self.name
        )
        cursor = self.cursor
        if cursor is None:
            return part
        rests = self.credit > 0 and not has_more(waiting, cursor)
        looking = Looking(cursor.wanted is not None, cursor.looked_at, cursor.passed, rests)
        return part._replace(looking=looking, browses=self.browses)

    def grant(self, credit: int, room: int) -> None:
        self.turn = turn_within(credit)
        self.room = room


class Consumers:
    """All consumers of a queue. `active`: the single active one; None: there is none, or all are active."""

    __slots__ = ("_counted", "_resting", "active", "by_ref", "looking", "rings", "single", "top")

    def __init__(self, *, single: bool) -> None:
        self.by_ref: dict[ConsumerRef, ClassicConsumer] = {}
        # Consumers that are counted and not cancelled, in order of arrival.
        self._counted: dict[ConsumerRef, ClassicConsumer] = {}
        # Consumers with credit by priority, the highest first; no ring is empty.
        self.rings: dict[int, RoundRobin[ClassicConsumer]] = {}
        # The first of these rings; an empty one if there is none.
        self.top: RoundRobin[ClassicConsumer] = RoundRobin()
        # Selecting consumers with credit that have looked at all messages. True: the last search found
        # nothing, so the consumer is next in the rotation.
        self._resting: dict[ClassicConsumer, bool] = {}
        self.looking: dict[ConsumerRef, ClassicConsumer] = {}
        self.single = single
        self.active: ClassicConsumer | None = None

    def __iter__(self) -> Iterator[ClassicConsumer]:
        return chain(self.by_ref.values(), self.browsers())

    def find_any(self, ref: ConsumerRef) -> ClassicConsumer | None:
        return self.by_ref.get(ref) or self.looking.get(ref)

    def browsers(self) -> list[ClassicConsumer]:
        return [each for each in self.looking.values() if each.browses]

    @property
    def counted(self) -> int:
        return len(self._counted)

    def may_join(self, *, exclusive: bool) -> bool:
        other = next(iter(self._counted.values()), None)
        return other is None or not (exclusive or other.exclusive)

    def add(self, consumer: ClassicConsumer) -> None:
        if consumer.cursor is not None:
            self.looking[consumer.ref] = consumer
            if consumer.browses:
                return
        self.by_ref[consumer.ref] = consumer
        if consumer.counted:
            self._counted[consumer.ref] = consumer
        if self.single and self.active is None and consumer.counted:
            self.active = consumer

    def remove(self, consumer: ClassicConsumer) -> None:
        self.by_ref.pop(consumer.ref, None)
        self.retire(consumer)

    def retire(self, consumer: ClassicConsumer) -> None:
        """Stop deliveries to a consumer. If it was active, the next in order of arrival becomes active."""
        self._counted.pop(consumer.ref, None)
        self.take_credit(consumer)
        self.looking.pop(consumer.ref, None)
        if self.active is consumer:
            self.active = next(iter(self._counted.values()), None)
            if self.active is not None:
                self.set_credit(self.active, self.active.credit)

    def clear(self) -> None:
        self.by_ref.clear()
        self._counted.clear()
        self.rings.clear()
        self.top = RoundRobin()
        self._resting.clear()
        self.looking.clear()
        self.active = None

    def is_active(self, consumer: ClassicConsumer) -> bool:
        return not self.single or consumer is self.active or not consumer.counted

    def set_credit(self, consumer: ClassicConsumer, credit: int) -> None:
        consumer.credit = credit
        takes_part = credit > 0 and self.is_active(consumer)
        if takes_part and not consumer.queued:
            self.join_ring(consumer)
        elif not takes_part and consumer.queued:
            self.leave_ring(consumer)

    def take_credit(self, consumer: ClassicConsumer) -> None:
        self._resting.pop(consumer, None)
        self.set_credit(consumer, 0)

    def join_ring(self, consumer: ClassicConsumer) -> None:
        consumer.queued = True
        ring = self.rings.get(consumer.priority)
        if ring is None:
            ring = self.rings[consumer.priority] = RoundRobin()
            ring[consumer] = None
            if len(self.rings) > 1:
                self.rings = dict(sorted(self.rings.items(), reverse=True))
            self.top = next(iter(self.rings.values()))
        else:
            ring[consumer] = None

    def rest(self, consumer: ClassicConsumer, *, in_vain: bool) -> None:
        """Suspend the first of the top ring, which has looked through all messages."""
        self.leave_ring(consumer)
        self._resting[consumer] = in_vain

    def wake(self, waiting: ReadyMessages) -> None:
        """Resume suspended consumers if there are messages that they have not looked at."""
        for consumer, in_vain in [*self._resting.items()][::-1]:
            assert consumer.cursor is not None
            if has_more(waiting, consumer.cursor):
                del self._resting[consumer]
                self.join_ring(consumer)
                if in_vain:
                    self.rings[consumer.priority].move_to_end(consumer, last=False)

    def leave_ring(self, consumer: ClassicConsumer) -> None:
        consumer.queued = False
        ring = self.rings[consumer.priority]
        del ring[consumer]
        if not ring:
            del self.rings[consumer.priority]
            self.top = next(iter(self.rings.values()), ring)

    def had_turns(self, takers: Sequence[ClassicConsumer], count: int) -> None:
        """Rotate after the first consumers of the top ring got `count` messages, at least one."""
        self.top.turn_by(takers, count)
        for consumer in takers:
            if not consumer.credit:
                self.leave_ring(consumer)

    def had_turn(self, consumer: ClassicConsumer) -> None:
        """Rotate after the first consumer of the top ring was served; without credit it leaves the ring."""
        ring = self.rings[consumer.priority]
        if consumer.credit:
            ring.move_to_end(consumer)
        else:
            self.leave_ring(consumer)


WINDOW_MAX: Final = 128


def has_more(waiting: ReadyMessages, cursor: Cursor) -> bool:
    """Return whether there may be messages that the cursor has not passed."""
    for which, level in enumerate(waiting.levels):
        if level.count and (cursor.behind[which] or cursor.at[which] < level.backlog.next):
            return True
    return False


def has_passed(waiting: ReadyMessages, cursor: Cursor, ends: Sequence[int]) -> bool:
    """Return whether a cursor has passed everything before these positions, one for each level."""
    return not has_more(waiting, cursor) or (
        not any(cursor.behind) and all(at >= end for at, end in zip(cursor.at, ends, strict=True))
    )


class Search:
    def __init__(
        self, waiting: ReadyMessages, cursor: Cursor, count: int, room: int, budget: int, now_ms: int
    ) -> None:
        self._waiting = waiting
        self._cursor = cursor
        self._count = count
        self._room = room
        self._budget = budget
        self._now_ms = now_ms
        self.keys: list[int] = []
        self.messages: list[Message] = []
        self.size = 0
        self.expired: list[Keyed] = []
        self.again = False
        self.looked_at = 0
        for which, level in enumerate(waiting.levels):
            if not (self._look_behind(which, level) and self._look_on(which, level)):
                break
        cursor.looked_at += self.looked_at
        cursor.passed += len(self.keys)

    @property
    def _goes_on(self) -> bool:
        return len(self.keys) < self._count and self.size < self._room and self.looked_at < self._budget

    def _look_behind(self, which: int, level: Level) -> bool:
        # Return whether all places behind the cursor were looked at.
        behind = self._cursor.behind[which]
        while behind:
            if not self._goes_on:
                return False
            position = heappop(behind)
            window = level.window(position, 1)
            # Otherwise the message was taken meanwhile.
            if window is not None and window.positions[0] == position:
                self._look_through(which, level, window)
        return True

    def _look_on(self, which: int, level: Level) -> bool:
        # Return whether the end of the level was reached.
        cursor = self._cursor
        end = level.backlog.next
        step = self._count - len(self.keys)
        while cursor.at[which] < end:
            if not self._goes_on:
                return False
            most = min(step, WINDOW_MAX, self._budget - self.looked_at)
            window = level.window(cursor.at[which], most) if level.count else None
            if window is None:
                cursor.at[which] = end
                break
            cursor.at[which] = window.positions[-1] + 1
            found = self._look_through(which, level, window)
            step = max(1, self._count - len(self.keys)) if found else 2 * step
        return True

    def _look_through(self, which: int, level: Level, window: Window) -> bool:
        # Return whether the consumer wants any of these messages.
        self.looked_at += len(window.messages)
        wanted = self._cursor.wanted
        places: Sequence[int] = range(len(window.messages))
        if wanted is not None:
            places = wanted.matching(window.messages, self._now_ms)
        if not places:
            return False
        positions, messages = window.positions, window.messages
        left = self._count - len(self.keys)
        chosen = places[:left]
        sizes = [len(messages[place][1]) for place in chosen]
        room = self._room - self.size
        if sum(sizes) > room:
            chosen = chosen[: that_fill(sizes, room)]
        for place in places[len(chosen) :]:
            heappush(self._cursor.behind[which], positions[place])
        self.again = self.again or window.again
        self._have(level, window, chosen)
        return True

    def _have(self, level: Level, window: Window, chosen: Sequence[int]) -> None:
        waiting = self._waiting
        if self._cursor.takes:
            taken = waiting.take_out(level, window, chosen)
        else:
            taken = waiting.seen(level, window, chosen)
        if waiting.may_expire:
            taken = self._without_expired(window, chosen, taken)
        self.keys += [key for key, _ in taken]
        had = [message for _, message in taken]
        self.messages += had
        self.size += content_bytes(had)

    def _without_expired(self, window: Window, chosen: Sequence[int], taken: list[Keyed]) -> list[Keyed]:
        # The expiry is checked when a message is the consumer's next, as for other consumers.
        times = window.expiries
        kept: list[Keyed] = []
        for place, keyed in zip(chosen, taken, strict=True):
            # The expiry of a message that was handed out before is stored by key.
            expiry = (0 if times is None else times[place]) or self._waiting.expiries.get(keyed[0], 0)
            if not expiry or expiry >= self._now_ms:
                kept.append(keyed)
            elif self._cursor.takes:
                self.expired.append(keyed)
        return kept
