"""Simulates the engines of both sides under a virtual clock: a consumer, a network, a broker."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import INITIAL_DELIVERY_COUNT, ReceiverCredit, SenderCredit
from amqp10broker.tools.replay.pace import PublisherWait, rate_of
from amqp10broker.tools.replay.simulation import SimulationResult


@dataclass(frozen=True, slots=True)
class ConsumerModel:
    """The behaviour of a consumer in the simulation, from `consumers.Work`. `sizes` repeats in a cycle."""

    own_s: float
    supply_s: float
    renew_at: float
    bound: float
    by_finish: bool
    sizes: Sequence[int]


def deliver(habits: ConsumerModel, *, credit: int, round_trip_s: float, messages: int) -> SimulationResult:
    """Simulate a broker that always has a message, at its pace, until it has delivered `messages` messages.
    `messages`: at least 2.
    """
    return Delivering(habits, credit, round_trip_s / 2).run(messages)


class Delivering:
    """The simulation of one link, as `deliver` describes it."""

    def __init__(self, habits: ConsumerModel, credit: int, way_s: float) -> None:
        self._habits = habits
        self._credit = credit
        self._way_s = way_s
        self._sending = SenderCredit()
        # Granted explicitly: clients have different rules for granting, and the engine has its own.
        self._granting = ReceiverCredit(INITIAL_DELIVERY_COUNT, 0)
        self._events: list[tuple[float, int, str, tuple[float, ...]]] = []
        self._numbers = count()
        self._sent: list[float] = []
        self._came: list[float] = []
        self._finished = 0
        self._busy_until = 0.0
        self._ready_at = 0.0
        self._waits_since: float | None = None
        self._waits = dict.fromkeys(PublisherWait, 0.0)
        self._settled = self._held = self._held_bytes = self._held_max = self._held_bytes_max = 0

    def told(self, at: float, kind: str, content: tuple[float, ...]) -> None:
        """Observe a frame at the broker; a hook for subclasses. `content`: delivery-count and link-credit;
        nothing; or bytes.
        """

    def run(self, messages: int) -> SimulationResult:
        self._grant(0.0, self._credit)
        while self._events and len(self._sent) < messages:
            now, _, kind, content = heappop(self._events)
            self._take(now, kind, content)
        return SimulationResult(rate_of(self._sent), self._waits, self._held_max, self._held_bytes_max)

    def _later(self, at: float, kind: str, *content: float) -> None:
        heappush(self._events, (at, next(self._numbers), kind, content))

    def _take(self, now: float, kind: str, content: tuple[float, ...]) -> None:
        match kind:
            case "grant":
                self.told(now, kind, content[:2])
                self._sending.set(int(content[0]), int(content[1]), drain=False)
                self._send(now, content[2])
            case "ready":
                self._send(now, 0.0)
            case "delivery":
                self._came.append(now)
                self._busy_until = max(self._busy_until, now) + self._habits.own_s
                self._later(self._busy_until, "finished")
                if not self._habits.by_finish:
                    self._granting.receive(1)
                    self._renew(now)
            case "finished":
                if self._habits.by_finish:
                    self._granting.receive(1)
                self._finished += 1
                self._later(now + self._way_s, "outcome")
                self._granting.finish(1)
                self._renew(now)
            case _:
                self.told(now, kind, content)
                self._held_bytes -= self._size(self._settled)
                self._settled += 1
                self._held -= 1

    def _size(self, place: int) -> int:
        return self._habits.sizes[place % len(self._habits.sizes)]

    def _send(self, now: float, worked: float) -> None:
        # `worked` is how long the client worked before it granted.
        if now < self._ready_at:
            return
        if self._waits_since is not None:
            wait = now - self._waits_since
            work = min(wait, worked)
            self._waits[PublisherWait.WORK] += work
            self._waits[PublisherWait.CREDIT] += wait - work
            self._waits_since = None
        if not self._sending.link_credit:
            self._waits_since = now
            return
        self._sending.spend(1)
        size = self._size(len(self._sent))
        self.told(now, "transfer", (size,))
        self._sent.append(now)
        self._held += 1
        self._held_bytes += size
        self._held_max = max(self._held_max, self._held)
        self._held_bytes_max = max(self._held_bytes_max, self._held_bytes)
        self._later(now + self._way_s, "delivery")
        self._waits[PublisherWait.SUPPLY] += self._habits.supply_s
        self._ready_at = now + self._habits.supply_s
        self._later(self._ready_at, "ready")

    def _renew(self, now: float) -> None:
        left = self._granting.link_credit
        if left > self._habits.renew_at * self._credit:
            return
        room = round(self._habits.bound * self._credit) - self._granting.outstanding
        if min(room, self._credit) > left:
            self._grant(now, min(room, self._credit))

    def _grant(self, now: float, credit: int) -> None:
        granting = self._granting
        granting.grant(credit)
        worked = now - self._came[granting.delivery_count - 1] if granting.delivery_count else 0.0
        self._later(now + self._way_s, "grant", granting.delivery_count, credit, worked)
