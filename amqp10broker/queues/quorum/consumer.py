"""The state of a quorum queue's consumers.

Without a single active consumer, the consumers of the highest priority with credit take turns. With one, only
that one gets messages. A later consumer of higher priority takes over when the active one has settled its
deliveries. Until then the active one is quiescing and gets nothing (tests/queue-features.md, section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.filter_set import MessageFilter, decode_wanted
from amqp10broker.queues.commands import NO_BOUND, ConsumerRef
from amqp10broker.queues.machine import RoundRobin
from amqp10broker.queues.queue_status import ConsumerStatus
from amqp10broker.queues.quorum.ordered_entries import delivered_at

_OLD_RANKS_MAX: Final = 64
"""The number of outdated ranks that may be held, besides one for each consumer."""


class ConsumerSelection:
    """A consumer's selection and its progress. `at`: for each line of `ReadyIndexes.lines`, and for
    `selecting.Again`, the key before which everything was looked at. `ends`: for a drain: the keys up to
    which it must look.
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
        """The decoded filter, which only the leader needs."""
        if self._filter is None:
            self._filter = decode_wanted(self.wanted).messages
            assert self._filter is not None, "it selects"
        return self._filter


@dataclass(eq=False)
class QuorumConsumer:
    """A consumer's state in its queue.

    Attributes:
        counted: false for a fetch of one message.
        timeout_ms: None: as in the queue's settings.
        room: bytes of contents that it may get now; at 0 there is no credit either.
        unsettled: index -> ``delivery time in ms << 32 | size``, in order of delivery; for a settled consumer
            only deliveries that may not have reached its session.
        silent: it let a delivery time out and has sent nothing since.
        given_up: it was suspended for so long that its deliveries were returned.
        selection: None: it gets the first message.
    """

    ref: ConsumerRef
    number: int
    settled: bool
    counted: bool
    priority: int
    timeout_ms: int | None
    name: str = ""
    credit: int = 0
    room: int = NO_BOUND
    delivery_count: int = 0
    handed_out: int = 0
    turn: int = 1
    epoch: int = 0
    unsettled: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False
    silent: bool = False
    suspended: bool = False
    given_up: bool = False
    active: bool = False
    queued: bool = False
    settled_ms: int | None = None
    selection: ConsumerSelection | None = None
    shown: ClassVar[Sequence[int]] = ()
    """Its progress is part of the state, so no node has to record it (`Deliver.shown`)."""

    @property
    def part(self) -> ConsumerStatus:
        held = 0 if self.settled else len(self.unsettled)
        held_ms = delivered_at(next(iter(self.unsettled.values()))) if held else 0
        return ConsumerStatus(
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
        return bool(self.unsettled) and not self.settled


class ConsumerRotation(dict[int, RoundRobin[QuorumConsumer]]):
    """The consumers that may get messages now, by priority; no ring is empty."""

    def credit(self) -> int:
        return sum(each.credit for group in self.values() for each in group)

    def first(self) -> RoundRobin[QuorumConsumer]:
        return self[max(self)] if len(self) > 1 else next(iter(self.values()))

    def add(self, consumer: QuorumConsumer) -> None:
        if not consumer.queued:
            consumer.queued = True
            self.setdefault(consumer.priority, RoundRobin())[consumer] = None

    def remove(self, consumer: QuorumConsumer) -> None:
        if consumer.queued:
            consumer.queued = False
            group = self[consumer.priority]
            del group[consumer]
            if not group:
                del self[consumer.priority]


class Activity:
    """The choice of the single active consumer.

    The candidates are in a heap: when thousands of consumers come and go together, none is compared with all
    the others. `holder`: the active or quiescing consumer.
    """

    __slots__ = ("_all", "_changed", "_ranks", "holder")

    def __init__(self, consumers: Mapping[ConsumerRef, QuorumConsumer]) -> None:
        self.holder: QuorumConsumer | None = None
        self._all = consumers
        self._changed: list[QuorumConsumer] = []
        self._ranks = [(*_rank(each), each) for each in consumers.values() if each.counted]
        heapify(self._ranks)

    def rank(self, consumer: QuorumConsumer) -> None:
        """Update a consumer's rank. Outdated ranks are removed when they come first or become too many."""
        if consumer is self.holder or not consumer.counted:
            return
        heappush(self._ranks, (*_rank(consumer), consumer))
        if len(self._ranks) > 2 * len(self._all) + _OLD_RANKS_MAX:
            self._ranks = [(*_rank(each), each) for each in self._all.values() if self._is_able(each)]
            heapify(self._ranks)

    def choose(self) -> None:
        holder = self.holder
        best = self._best()
        if holder is None or not self._is_able(holder):
            if holder is not None:
                self._set(holder, active=False)
            self.holder = best
            if best is not None:
                self._set(best, active=True)
        elif best is not None and best.priority > holder.priority:
            # It is quiescing first, so that messages stay in order from one consumer to the other.
            self._set(holder, active=False)
            if not holder.busy:
                self.holder = best
                self._set(best, active=True)
                self.rank(holder)
        else:
            self._set(holder, active=True)

    def take_changed(self) -> list[QuorumConsumer]:
        changed, self._changed = self._changed, []
        return changed

    def _best(self) -> QuorumConsumer | None:
        # Return None if the holder is the only candidate.
        ranks = self._ranks
        while ranks:
            *rank, consumer = ranks[0]
            if self._is_able(consumer) and not consumer.suspended and tuple(rank) == _rank(consumer):
                return consumer
            heappop(ranks)
        return None

    def _is_able(self, consumer: QuorumConsumer) -> bool:
        here = self._all.get(consumer.ref) is consumer
        gets_none = consumer.cancelled or consumer.silent or consumer.given_up
        return here and consumer.counted and not gets_none

    def _set(self, consumer: QuorumConsumer, *, active: bool) -> None:
        if consumer.active != active:
            consumer.active = active
            if consumer in self._changed:
                self._changed.remove(consumer)  # it is in the state that it was last notified of
            else:
                self._changed.append(consumer)


def _rank(consumer: QuorumConsumer) -> tuple[int, int, int]:
    # The smallest rank is the best: the highest priority, then the most credit, then the oldest.
    return -consumer.priority, -consumer.credit, consumer.number
