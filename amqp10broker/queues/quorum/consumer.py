"""The consumers of a quorum queue: what each holds, whose turn it is, which one is active.

Without a single active consumer, those of the highest priority with credit take turns. With one, only
it gets messages. A consumer of higher priority that comes later takes over when the active one has
settled what it holds; until then that one is quiescing and gets nothing (docs/queue-features.md, section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from amqp10broker.queues.commands import NO_BOUND, ConsumerRef
from amqp10broker.queues.outlook import Part
from amqp10broker.queues.turns import Ring

if TYPE_CHECKING:
    from amqp10broker.message.filters.filters import MessageFilter

SIZE_BITS: Final = 32
_SIZE_MASK: Final = (1 << SIZE_BITS) - 1

_OLD_RANKS_MAX: Final = 64
"""Ranks that do not hold any more, beside as many as there are consumers."""


class Selection:
    """What a consumer selects, and how far it has looked.

    Attributes:
        wanted: as the log has it.
        at: by line of `Ready.in_order`, and of `selecting.Again`: everything before this key was looked at.
        ends: of a drain: what must have been looked through; None: no drain is under way.
        looked_at: messages that it has gone over, as far as this process knows.
        passed: how many of these it was given.
    """

    __slots__ = ("_filter", "at", "ends", "looked_at", "passed", "wanted")

    def __init__(self, wanted: bytes, at: Sequence[int], ends: Sequence[int] | None = None) -> None:
        self.wanted = wanted
        self.at = list(at)
        self.ends = ends
        self.looked_at = 0
        self.passed = 0
        self._filter: MessageFilter | None = None

    @property
    def filter(self) -> MessageFilter:
        """The same, for who leads."""
        if self._filter is None:
            # Not before somebody selects: a broker starts sooner without filters.
            from amqp10broker.message.filters.wanted import decode_wanted

            self._filter = decode_wanted(self.wanted).messages
            assert self._filter is not None, "it selects"
        return self._filter


class Consumer:
    """One consumer's part of the queue.

    Attributes:
        settled: deliveries count as accepted when they have reached the session.
        counted: it is a consumer for counts and single activity, which a fetch of one message is not.
        priority: of all with credit, those of the highest get messages.
        timeout_ms: how long it may hold a delivery; None: as the queue's settings say.
        name: for people.
        number: grows with each that subscribes.
        credit: deliveries it may have now.
        room: bytes of contents it may have now; used up, there is no credit either.
        delivery_count: deliveries it had, as `Credit` counts them; a drain jumps ahead.
        handed_out: deliveries it had, all of them.
        turn: deliveries it gets before the next consumer.
        epoch: of its last `GiveBack`.
        unsettled: index -> ``when it was delivered in ms << 32 | size``, in order of delivery; of a
            settled consumer only what may still be on its way to the session.
        cancelled: it gets no more, and holds what it has not settled.
        silent: it let a delivery time out, and has not been heard of since. It gets nothing.
        suspended: its node is not heard of. It gets nothing.
        given_up: for so long that what it held came back: another may be the active one.
        active: it is told that it is the single active consumer.
        queued: it is in a queue of turns.
        settled_ms: when it decided on deliveries last; None: it never did, as far as this process knows.
        selection: what it selects; None: it gets whatever is first.
    """

    __slots__ = (
        "active",
        "cancelled",
        "counted",
        "credit",
        "delivery_count",
        "epoch",
        "given_up",
        "handed_out",
        "name",
        "number",
        "priority",
        "queued",
        "ref",
        "room",
        "selection",
        "settled",
        "settled_ms",
        "silent",
        "suspended",
        "timeout_ms",
        "turn",
        "unsettled",
    )

    shown: Final = ()
    """The state says where it is (`Deliver.shown`)."""

    def __init__(
        self,
        ref: ConsumerRef,
        number: int,
        *,
        settled: bool,
        counted: bool,
        priority: int,
        timeout_ms: int | None,
        name: str = "",
    ) -> None:
        self.ref = ref
        self.number = number
        self.settled = settled
        self.counted = counted
        self.priority = priority
        self.timeout_ms = timeout_ms
        self.name = name
        self.credit = 0
        self.room = NO_BOUND
        self.delivery_count = 0
        self.handed_out = 0
        self.turn = 1
        self.epoch = 0
        self.unsettled: dict[int, int] = {}
        self.cancelled = False
        self.silent = False
        self.suspended = False
        self.given_up = False
        self.active = False
        self.queued = False
        self.settled_ms: int | None = None
        self.selection: Selection | None = None

    @property
    def part(self) -> Part:
        """What others may know of it."""
        held = 0 if self.settled else len(self.unsettled)
        held_ms = delivered_at(next(iter(self.unsettled.values()))) if held else 0
        return Part(
            self.ref,
            self.credit,
            self.priority,
            held,
            held_ms,
            self.settled_ms,
            silent=self.silent,
            name=self.name,
            away=self.suspended,
        )

    @property
    def busy(self) -> bool:
        """It holds something that somebody has to decide on."""
        return bool(self.unsettled) and not self.settled


def size_of(held: int) -> int:
    """The size in a value of `Consumer.unsettled`."""
    return held & _SIZE_MASK


def delivered_at(held: int) -> int:
    """The time in ms in a value of `Consumer.unsettled`."""
    return held >> SIZE_BITS


class Turns:
    """Consumers that can take a message now, by priority, each priority in turns."""

    __slots__ = ("_by_priority",)

    def __init__(self) -> None:
        self._by_priority: dict[int, Ring[Consumer]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_priority)

    def credit(self) -> int:
        """All that these consumers may have."""
        return sum(each.credit for group in self._by_priority.values() for each in group)

    def first(self) -> Ring[Consumer]:
        """Those of the highest priority. There must be some."""
        by_priority = self._by_priority
        return by_priority[max(by_priority)] if len(by_priority) > 1 else next(iter(by_priority.values()))

    def add(self, consumer: Consumer) -> None:
        """It can take messages from now on; the others of its priority are first."""
        if not consumer.queued:
            consumer.queued = True
            self._by_priority.setdefault(consumer.priority, Ring()).add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """It cannot any more."""
        if consumer.queued:
            consumer.queued = False
            group = self._by_priority[consumer.priority]
            group.remove(consumer)
            if not group:
                del self._by_priority[consumer.priority]

    def clear(self) -> None:
        """None can."""
        self._by_priority.clear()

    def in_order(self) -> list[Consumer]:
        """All of them, those of one priority in the order of their turns."""
        return [each for _, group in sorted(self._by_priority.items()) for each in group]


class Activity:
    """Which consumer is the active one, of a queue that has only one.

    The best to follow is kept in a heap: of thousands of consumers that come and go together, none is
    compared with all the others.

    Attributes:
        holder: the active or quiescing consumer, None if nobody can be.
    """

    __slots__ = ("_all", "_changed", "_ranks", "holder")

    def __init__(self, consumers: Mapping[ConsumerRef, Consumer]) -> None:
        """Begin without an active one.

        Args:
            consumers: all of the queue, also those to come.
        """
        self.holder: Consumer | None = None
        self._all = consumers
        self._changed: list[Consumer] = []
        self._ranks = [(*_rank(each), each) for each in consumers.values() if each.counted]
        heapify(self._ranks)

    def rank(self, consumer: Consumer) -> None:
        """One that is not the holder is new, can be active again, or its credit is another.

        Ranks that do not hold any more are thrown away when they come first, or when they are too many.
        """
        if consumer is self.holder or not consumer.counted:
            return
        heappush(self._ranks, (*_rank(consumer), consumer))
        if len(self._ranks) > 2 * len(self._all) + _OLD_RANKS_MAX:
            self._ranks = [(*_rank(each), each) for each in self._all.values() if self._is_able(each)]
            heapify(self._ranks)

    def choose(self) -> None:
        """Look again who is to be active, after anything that may have changed it."""
        holder = self.holder
        best = self._best()
        if holder is None or not self._is_able(holder):
            if holder is not None:
                self._set(holder, active=False)
            self.holder = best
            if best is not None:
                self._set(best, active=True)
        elif best is not None and best.priority > holder.priority:
            # Quiescing first, so that messages stay in order from one to the other.
            self._set(holder, active=False)
            if not holder.busy:
                self.holder = best
                self._set(best, active=True)
                self.rank(holder)
        else:
            self._set(holder, active=True)

    def take_changed(self) -> list[Consumer]:
        """Consumers whose `active` is not what it was at the last call."""
        changed, self._changed = self._changed, []
        return changed

    def _best(self) -> Consumer | None:
        """The able one of the highest rank; None if there is none but the holder."""
        ranks = self._ranks
        while ranks:
            *rank, consumer = ranks[0]
            if self._is_able(consumer) and not consumer.suspended and tuple(rank) == _rank(consumer):
                return consumer
            heappop(ranks)
        return None

    def _is_able(self, consumer: Consumer) -> bool:
        here = self._all.get(consumer.ref) is consumer
        gets_none = consumer.cancelled or consumer.silent or consumer.given_up
        return here and consumer.counted and not gets_none

    def _set(self, consumer: Consumer, *, active: bool) -> None:
        if consumer.active != active:
            consumer.active = active
            if consumer in self._changed:
                self._changed.remove(consumer)  # back to what it was told
            else:
                self._changed.append(consumer)


def _rank(consumer: Consumer) -> tuple[int, int, int]:
    """The smallest is the best: of the highest priority, with the most credit, of the first that came."""
    return -consumer.priority, -consumer.credit, consumer.number
