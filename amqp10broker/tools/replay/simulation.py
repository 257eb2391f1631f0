"""Simulates the engines of both sides under a virtual clock: a session of publishers, a network, a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import count

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import (
    INITIAL_DELIVERY_COUNT,
    OUTGOING_WINDOW,
    IncomingWindow,
    OutgoingWindow,
    ReceiverCredit,
    SenderCredit,
)
from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.tools.replay.pace import PublisherWait, rate_of


@dataclass(frozen=True, slots=True)
class Habits:
    """The behaviour of a publisher in the simulation. `limit`: of messages without outcome; None for none.
    `confirm_s`: seconds from a message's arrival to its outcome, by message, repeated in a cycle.
    """

    own_s: float
    limit: int | None
    confirm_s: Sequence[float]
    frames: Sequence[int]
    sizes: Sequence[int]
    settled: bool = False


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a simulation for one publisher or consumer."""

    rate: float
    waits: dict[PublisherWait, float]
    held: int
    held_bytes: int


@dataclass(slots=True)
class _SimulatedLink:
    habits: Habits
    credit: SenderCredit
    granting: ReceiverCredit
    waits: dict[PublisherWait, float] = field(default_factory=lambda: dict.fromkeys(PublisherWait, 0.0))
    sent: int = 0
    known: int = 0
    ready_at: float = 0.0
    waits_since: float | None = None
    reason: PublisherWait = PublisherWait.ITSELF
    arrivals: list[float] = field(default_factory=list)
    held: int = 0
    held_bytes: int = 0
    held_max: int = 0
    held_bytes_max: int = 0


def simulate(
    publishers: Sequence[Habits], *, max_link_credit: int, window: int, round_trip_s: float, messages: int
) -> list[SimulationResult]:
    """Simulate the publishers of one session until one of them has sent `messages` messages.

    The broker processes each message at once; the time to its outcome does not depend on anything else.
    `messages`: at least 2.
    """
    return Simulation(publishers, max_link_credit, window, round_trip_s / 2).run(messages)


class Simulation:
    """The simulation of one session, as `simulate` describes it."""

    def __init__(self, publishers: Sequence[Habits], credit: int, window: int, way_s: float) -> None:
        self._links = [
            _SimulatedLink(each, SenderCredit(), ReceiverCredit(INITIAL_DELIVERY_COUNT, credit))
            for each in publishers
        ]
        self._outgoing = OutgoingWindow()
        self._incoming = IncomingWindow(window)
        self._incoming.next_incoming_id = 0
        self._outgoing.remote_incoming_window = window
        self._way_s = way_s
        self._events: list[tuple[float, int, str, int, tuple[int, int]]] = []
        self._numbers = count()

    def told(self, at: float, kind: str, number: int, content: tuple[int, int]) -> None:
        """Observe a frame at the broker; a hook for subclasses. `content`: frames and bytes of a message; or
        delivery-count and link-credit; or next-incoming-id and incoming-window.
        """

    def run(self, messages: int) -> list[SimulationResult]:
        for number, link in enumerate(self._links):
            link.granting.top_up()
            self._grant(0.0, number)
        now = 0.0
        while self._events and not any(len(link.arrivals) >= messages for link in self._links):
            now, _, kind, number, content = heappop(self._events)
            self._take(now, kind, number, content)
        return [
            SimulationResult(rate_of(link.arrivals), link.waits, link.held_max, link.held_bytes_max)
            for link in self._links
        ]

    def _later(self, at: float, kind: str, number: int, content: tuple[int, int] = (0, 0)) -> None:
        heappush(self._events, (at, next(self._numbers), kind, number, content))

    def _take(self, now: float, kind: str, number: int, content: tuple[int, int]) -> None:
        link = self._links[number]
        match kind:
            case "transfer":
                self._arrive(now, number, content)
            case "confirm":
                self.told(now, kind, number, content)
                link.held -= 1
                link.held_bytes -= content[1]
                link.granting.finish(1)
                self._grant(now, number)
                self._later(now + self._way_s, "outcome", number)
            case "outcome":
                link.known += 1
                self._send(now, number)
            case "credit":
                link.credit.set(*content, drain=False)
                self._send(now, number)
            case "window":
                base, left = content
                self._outgoing.update(
                    Flow(
                        next_incoming_id=base,
                        incoming_window=left,
                        next_outgoing_id=0,
                        outgoing_window=OUTGOING_WINDOW,
                    )
                )
                for other in range(len(self._links)):
                    self._send(now, other)
            case _:
                self._send(now, number)

    def _send(self, now: float, number: int) -> None:
        link = self._links[number]
        if now < link.ready_at:
            return
        habits = link.habits
        frames = habits.frames[link.sent % len(habits.frames)]
        reason = None
        if not link.credit.link_credit:
            reason = PublisherWait.CREDIT
        elif habits.limit is not None and link.sent - link.known >= habits.limit:
            reason = PublisherWait.OWN_LIMIT
        elif self._outgoing.remote_incoming_window < frames:
            reason = PublisherWait.WINDOW
        if link.waits_since is not None:
            link.waits[link.reason] += now - link.waits_since
            link.waits_since = None
        if reason is not None:
            link.reason, link.waits_since = reason, now
            return
        link.credit.spend(1)
        self._outgoing.spend(frames)
        size = habits.sizes[link.sent % len(habits.sizes)]
        self._later(now + self._way_s, "transfer", number, (frames, size))
        link.sent += 1
        link.waits[PublisherWait.ITSELF] += habits.own_s
        link.ready_at = now + habits.own_s
        self._later(link.ready_at, "ready", number)

    def _arrive(self, now: float, number: int, content: tuple[int, int]) -> None:
        link = self._links[number]
        frames, size = content
        self.told(now, "transfer", number, content)
        place = len(link.arrivals)
        link.arrivals.append(now)
        link.held += 1
        link.held_bytes += size
        link.held_max = max(link.held_max, link.held)
        link.held_bytes_max = max(link.held_bytes_max, link.held_bytes)
        link.granting.receive(1)
        self._incoming.count(frames)
        if self._incoming.flow_due:
            self._incoming.flow_due = False
            assert self._incoming.next_incoming_id is not None
            opened = (self._incoming.next_incoming_id, self._incoming.advertised)
            self.told(now, "window", number, opened)
            self._later(now + self._way_s, "window", number, opened)
        self._grant(now, number)
        habits = link.habits
        late = habits.confirm_s[place % len(habits.confirm_s)] if habits.confirm_s else 0.0
        self._later(now + late, "confirm", number, content)

    def _grant(self, now: float, number: int) -> None:
        granting = self._links[number].granting
        if granting.granted is not None:
            self.told(now, "credit", number, granting.granted)
            self._later(now + self._way_s, "credit", number, granting.granted)
            granting.granted = None
