"""The pace of recorded publishers and consumers, the causes of their waits, and the simulation of publishers.

A message that uses a grant arrives at least one round trip after the grant was sent. So the shortest such
time bounds the round trip from above, and each gap between two messages divides into the part that the client
could not have filled and the client's own pace. A flow that counts a delivery bounds it likewise, and the
excess of a flow or an outcome is the consumer's work.

The simulation has the engines of both sides and a network under a virtual clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from heapq import heappop, heappush
from itertools import count, pairwise
from statistics import fmean, median
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import (
    DispositionObserved,
    FlowObserved,
    ObservedSession,
    TransferObserved,
)
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.credit import (
    INITIAL_DELIVERY_COUNT,
    OUTGOING_WINDOW,
    IncomingWindow,
    OutgoingWindow,
    ReceiverCredit,
    SenderCredit,
)
from amqp10broker.protocols.amqp10.performatives import (
    Flow,
    Transfer,
)
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.player import RecordedConnection
from amqp10broker.tools.replay.player10 import Ledger10, LedgerLink

MESSAGES_MIN: Final = 50
# Share of messages that waited for nothing, from which the client's own pace is known.
FREE_MIN: Final = 0.1
# A message within this share of the usual interval after an outcome has waited for it.
_AT_ONCE: Final = 0.25
# Share of the gaps that a cause must explain to count as a habit.
_HABIT: Final = 0.5
_NS: Final = 1e9


class PublisherWait(Enum):
    """Why a publisher waits, or, from credit on, a delivery to a consumer."""

    CREDIT = "link-credit"
    WINDOW = "incoming-window"
    OWN_LIMIT = "outcomes, by its own limit"
    ITSELF = "itself"
    WORK = "the client's work"
    SUPPLY = "the queue, or the broker's pace"


@dataclass(eq=False, slots=True)
class RecordedPublisher:
    """A recorded link on which a client sends. Times are in seconds.

    Attributes:
        grants: time of each grant of credit, and the messages that it allowed since the attach.
        confirms: time of outcomes, and the number of messages with an outcome by then.
        confirm_s: time from each message's arrival to its outcome, if there was one.
    """

    link: LedgerLink
    session: RecordedSession
    arrivals: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    grants: list[tuple[float, int]] = field(default_factory=list)
    confirms: list[tuple[float, int]] = field(default_factory=list)
    confirm_s: list[float] = field(default_factory=list)
    settled: bool = False
    ends_at: list[int] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _size: int = 0
    _frames: int = 0

    @property
    def rate(self) -> float:
        return rate_of(self.arrivals)

    def carry(self, at: float, size: int, transfer: Transfer, transfers: int) -> None:
        self._size += size
        self._frames += 1
        self.settled = self.settled or bool(transfer.settled)
        if transfer.more:
            return
        self._places[self.link.ids[-1]] = len(self.arrivals)
        self.arrivals.append(at)
        self.sizes.append(self._size)
        self.frames.append(self._frames)
        self.ends_at.append(transfers)
        self._size = self._frames = 0

    def grant(self, at: float) -> None:
        if self.link.limit > (self.grants[-1][1] if self.grants else 0):
            self.grants.append((at, self.link.limit))

    def confirm(self, at: float, numbers: Sequence[int]) -> None:
        places = [self._places.pop(number) for number in numbers if number in self._places]
        if places:
            self.confirm_s += [at - self.arrivals[place] for place in places]
            before = self.confirms[-1][1] if self.confirms else 0
            self.confirms.append((at, before + len(places)))


@dataclass(eq=False, slots=True)
class RecordedSession:
    """`windows`: time of each opening of the broker's window, and the transfers that it allowed since the
    begin.
    """

    session: ObservedSession
    publishers: list[RecordedPublisher] = field(default_factory=list)
    transfers: int = 0
    windows: list[tuple[float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured pace of a publisher.

    Attributes:
        own_s: seconds for a message when the client waits for nothing.
        reaction_s: seconds, beyond the round trip, from the end of a wait to the next message.
        limit: messages without outcome at most, by the client's own decision; None: no sign of one.
    """

    round_trip_s: float
    own_s: float
    reaction_s: float
    limit: int | None
    waits: dict[PublisherWait, float]
    seen: bool


def rate_of(arrivals: Sequence[float]) -> float:
    """Return messages per second after those that came first: a burst belongs to the time before it."""
    if not arrivals:
        return 0.0
    took = arrivals[-1] - arrivals[0]
    return (len(arrivals) - bisect_right(arrivals, arrivals[0])) / took if took > 0 else float("inf")


def publishers(part: RecordedConnection) -> list[RecordedSession]:
    """Return the sessions of a recorded connection with publishers that can be forecast."""
    if part.protocol is not WireProtocol.AMQP_10:
        return []
    ledger = Ledger10()
    sessions: dict[ObservedSession, RecordedSession] = {}
    links: dict[LedgerLink, RecordedPublisher] = {}

    for step in part.steps:
        body: Any = step.frame.body
        channel, at = step.frame.channel, step.at_ns / _NS
        events = ledger.apply(step.direction, channel, body)
        session = ledger.state.session(step.direction, channel)
        if session is None:
            continue
        recorded = sessions.setdefault(session, RecordedSession(session))
        if not step.sent:
            recorded.windows.append((at, recorded.transfers + (session.windows["in"].left or 0)))
        elif isinstance(body, Transfer):
            recorded.transfers += 1
        for event in events:
            if not isinstance(event, FlowObserved | TransferObserved | DispositionObserved):
                continue
            link = ledger.links.get(event.link)
            if link is None or not link.sends or link.left_out:
                continue
            if link not in links:
                links[link] = RecordedPublisher(link, recorded)
                recorded.publishers.append(links[link])
            if isinstance(event, TransferObserved):
                links[link].carry(at, step.frame.payload_bytes, body, recorded.transfers)
            elif isinstance(event, FlowObserved):
                links[link].grant(at)
            elif not step.sent:
                links[link].confirm(at, sorted(event.delivery_ids))
    return list(sessions.values())


def round_trip_s(recorded: Sequence[RecordedPublisher]) -> float | None:
    """Return the shortest time from a grant to the first message that needed it; None: there is none."""
    times = [
        publisher.arrivals[needed] - at
        for publisher in recorded
        for needed, at in _needed(publisher)
        if needed < len(publisher.arrivals)
    ]
    return max(0.0, min(times)) if times else None


def _needed(publisher: RecordedPublisher) -> list[tuple[int, float]]:
    limits = [(0.0, 0), *publisher.grants]
    return [(before, at) for (_, before), (at, now) in pairwise(limits) if now > before]


def pace_of(publisher: RecordedPublisher, round_trip: float) -> Pace:
    """Measure a publisher with at least two messages."""
    arrivals = publisher.arrivals
    waits = dict.fromkeys(PublisherWait, 0.0)
    free: list[float] = []
    held_up: list[float] = []
    credit = allowed_at(publisher.grants, [place + 1 for place in range(len(arrivals))])
    window = allowed_at(publisher.session.windows, publisher.ends_at)
    limit = _own_limit(publisher, round_trip)
    answered = (
        []
        if limit is None
        else allowed_at(publisher.confirms, [each + 1 - limit for each in range(len(arrivals))])
    )
    for place in range(1, len(arrivals)):
        gap = arrivals[place] - arrivals[place - 1]
        known = {PublisherWait.CREDIT: credit[place], PublisherWait.WINDOW: window[place]}
        if limit is not None:
            known[PublisherWait.OWN_LIMIT] = answered[place]
        late = {
            reason: min(gap, max(0.0, at + round_trip - arrivals[place - 1]))
            for reason, at in known.items()
            if at is not None
        }
        reason, wait = max(late.items(), key=lambda each: each[1], default=(PublisherWait.ITSELF, 0.0))
        waits[reason] += wait
        waits[PublisherWait.ITSELF] += gap - wait
        (held_up if wait else free).append(gap - wait)
    # If every message waited, the client's own speed is unknown.
    seen = len(free) >= FREE_MIN * len(arrivals)
    own_s = fmean(free) if seen else 0.0
    return Pace(round_trip, own_s, fmean(held_up) if held_up else 0.0, limit, waits, seen)


def allowed_at(allowances: Sequence[tuple[float, int]], numbers: Sequence[int]) -> list[float | None]:
    """Return when each of these ascending numbers of messages was allowed; None: always, or never."""
    found: list[float | None] = []
    place = 0
    for number in numbers:
        while place < len(allowances) and allowances[place][1] < number:
            place += 1
        found.append(allowances[place][0] if number > 0 and place < len(allowances) else None)
    return found


def _own_limit(publisher: RecordedPublisher, round_trip: float) -> int | None:
    # The limit of messages without outcome, if it is the main reason of waits.
    if publisher.settled or not publisher.confirms:
        return None
    times = [at for at, _ in publisher.confirms]
    arrivals = publisher.arrivals
    under_way = []
    for place, at in enumerate(arrivals):
        known = bisect_right(times, at - round_trip + 1e-9)
        under_way.append(place + 1 - (publisher.confirms[known - 1][1] if known else 0))
    limit = max(under_way)
    allowed = allowed_at(publisher.grants, [place + 1 for place in range(len(arrivals))])
    by_credit = sum(
        at is not None and at + round_trip > arrivals[place - 1] for place, at in enumerate(allowed) if place
    )
    if by_credit > 0.05 * len(arrivals) or sum(each == limit for each in under_way) < _HABIT * len(arrivals):
        return None
    # A client that sends seldom also has one in flight; one that waits sends as soon as the outcome arrives.
    answered = allowed_at(publisher.confirms, [place + 1 - limit for place in range(len(arrivals))])
    late, whole = [], []
    for place in range(1, len(arrivals)):
        answer = answered[place]
        if answer is not None:
            late.append(arrivals[place] - answer - round_trip)
            whole.append(arrivals[place] - arrivals[place - 1])
    return limit if late and median(late) < _AT_ONCE * median(whole) else None


@dataclass(frozen=True, slots=True)
class RecordedGrant:
    """A flow of the client with a credit."""

    at: float
    count: int
    credit: int
    unfinished: int


@dataclass(eq=False, slots=True)
class RecordedConsumer:
    """A recorded link on which a client receives. Times are in seconds. `finished`: time of outcomes of the
    client, and the number of deliveries with one by then. `window_used_up`: the client's incoming-window
    reached 0.
    """

    link: LedgerLink
    sent: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    grants: list[RecordedGrant] = field(default_factory=list)
    finished: list[tuple[float, int]] = field(default_factory=list)
    settled: bool = False
    drains: bool = False
    window_used_up: bool = False
    _size: int = 0

    @property
    def rate(self) -> float:
        return rate_of(self.sent)

    @property
    def credit(self) -> int:
        """The largest credit that the client has granted at once."""
        return max((grant.credit for grant in self.grants), default=0)

    @property
    def progress(self) -> list[tuple[float, int]]:
        """Return when how many deliveries were finished: by outcomes, else by flows."""
        return self.finished or [(grant.at, grant.count) for grant in self.grants if grant.count]

    def carry(self, at: float, size: int, transfer: Transfer) -> None:
        self._size += size
        self.settled = self.settled or bool(transfer.settled)
        if transfer.more:
            return
        self.sent.append(at)
        self.sizes.append(self._size)
        self._size = 0

    def flow(self, at: float, body: Flow) -> None:
        count = (
            0
            if body.delivery_count is None
            else serial.diff(body.delivery_count, self.link.state.initial_count)
        )
        done = self.finished[-1][1] if self.finished else 0
        unfinished = 0 if self.settled else max(0, count - done)
        self.grants.append(RecordedGrant(at, count, body.link_credit or 0, unfinished))
        self.drains = self.drains or body.drain

    def finish(self, at: float, deliveries: int) -> None:
        before = self.finished[-1][1] if self.finished else 0
        self.finished.append((at, before + deliveries))


@dataclass(frozen=True, slots=True)
class Work:
    """The measured work of a consumer.

    Attributes:
        supply_s: seconds that the broker needs for the next message when it waits for nothing.
        reaction_s: seconds, beyond the round trip and the work, from the end of a wait to the next message.
        renew_at: share of the credit that is left when the client grants again.
        bound: most deliveries received or granted without outcome, as a multiple of the credit.
        by_finish: the client counts a delivery as received when it has finished it.
        work_seen, supply_seen: whether the recording shows how fast the client, and the broker, are by
            themselves.
    """

    own_s: float
    supply_s: float
    reaction_s: float
    renew_at: float
    bound: float
    by_finish: bool
    waits: dict[PublisherWait, float]
    work_seen: bool
    supply_seen: bool


def consumers(part: RecordedConnection) -> list[RecordedConsumer]:
    """Return the links of a recorded connection on which the client receives."""
    if part.protocol is not WireProtocol.AMQP_10:
        return []
    ledger = Ledger10()
    found: dict[LedgerLink, RecordedConsumer] = {}
    for step in part.steps:
        body: Any = step.frame.body
        at = step.at_ns / _NS
        for event in ledger.apply(step.direction, step.frame.channel, body):
            if not isinstance(event, FlowObserved | TransferObserved | DispositionObserved):
                continue
            link = ledger.links.get(event.link)
            if link is None or link.sends or link.left_out:
                continue
            if isinstance(event, FlowObserved) and event.grants:
                found.setdefault(link, RecordedConsumer(link)).flow(at, body)
            elif isinstance(event, DispositionObserved) and step.sent and link in found:
                found[link].finish(at, len(event.delivery_ids))
            elif isinstance(event, TransferObserved) and link in found:
                found[link].carry(at, step.frame.payload_bytes, body)
                found[link].window_used_up |= event.session.windows["out"].left == 0
    return list(found.values())


def consumers_round_trip_s(found: Sequence[RecordedConsumer]) -> float | None:
    """Return the shortest time from a delivery to a flow that counts it, or its outcome; None: there is
    none.
    """
    times = [
        at - each.sent[count - 1]
        for each in found
        for at, count in [*((grant.at, grant.count) for grant in each.grants), *each.finished]
        if 0 < count <= len(each.sent)
    ]
    return max(0.0, min(times)) if times else None


def work_of(consumer: RecordedConsumer, round_trip: float) -> Work:
    """Measure a consumer with at least two deliveries and a grant."""
    own_s, idle_s, work_seen = _own(consumer, round_trip)
    sent = consumer.sent
    waits = dict.fromkeys(PublisherWait, 0.0)
    limits = [(grant.at, grant.count + grant.credit) for grant in consumer.grants]
    allowed = allowed_at(limits, [place + 1 for place in range(len(sent))])
    worked = {
        grant.at: max(0.0, grant.at - sent[grant.count - 1] - round_trip)
        for grant in consumer.grants
        if 0 < grant.count <= len(sent)
    }
    free: list[float] = []
    late: list[float] = []
    for place in range(1, len(sent)):
        gap = sent[place] - sent[place - 1]
        at = allowed[place]
        wait = 0.0 if at is None else min(gap, max(0.0, at - sent[place - 1]))
        work = min(wait, worked.get(at or 0.0, 0.0))
        waits[PublisherWait.WORK] += work
        waits[PublisherWait.CREDIT] += wait - work
        waits[PublisherWait.SUPPLY] += gap - wait
        (late if wait else free).append(gap - wait)
    supply_seen = len(free) >= FREE_MIN * len(sent)
    renewals = [
        (before.count + before.credit - grant.count, grant)
        for before, grant in pairwise(consumer.grants)
        if grant.count + grant.credit > before.count + before.credit
    ]
    credit = consumer.credit or 1
    left = median(max(0, each) for each, _ in renewals) if renewals else 0.0
    return Work(
        own_s,
        fmean(free) if supply_seen else 0.0,
        (fmean(late) if late else 0.0) + (0.0 if work_seen else idle_s),
        _renew_at(int(left), credit),
        _bound([each for _, each in renewals], credit),
        # Without outcomes, flows are the only evidence of its work.
        consumer.settled or median([each.unfinished for _, each in renewals] or [1]) == 0,
        waits,
        work_seen,
        supply_seen,
    )


def _renew_at(left: int, credit: int) -> float:
    # Numbers are integers, and a remainder of one too few can halve the rate.
    if left == credit // 2 > 0:
        return 0.5
    return 1.0 if left >= credit - 1 > 0 else left / credit


def _bound(renewals: Sequence[RecordedGrant], credit: int) -> float:
    # A client that never granted less than all was not limited: the bound is that of our engine, or higher.
    seen = max(((each.unfinished + each.credit) / credit for each in renewals), default=1.0)
    return max(1.0, seen) if any(each.credit < credit for each in renewals) else max(2.0, seen)


def _own(consumer: RecordedConsumer, round_trip: float) -> tuple[float, float, bool]:
    # Seconds of work per message, and after a wait for the next; whether the recording shows the first.
    spent, free, idle = 0.0, 0, []
    sent = consumer.sent
    for (before, done), (at, sent_by_then) in pairwise(consumer.progress):
        if not done < sent_by_then <= len(sent):
            continue
        # The client had the last of them no earlier than this, by the broker's clock.
        there = sent[sent_by_then - 1] + round_trip
        if there <= before:
            spent += at - before
            free += sent_by_then - done
        else:
            idle.append(max(0.0, at - there))
    seen = free >= FREE_MIN * len(sent)
    return (spent / free if seen else 0.0), (fmean(idle) if idle else 0.0), seen


@dataclass(frozen=True, slots=True)
class Habits:
    """A publisher in the simulation. `limit`: of messages without outcome; None: none. `confirm_s`: seconds
    from a message's arrival to its outcome, by message, repeated in a cycle.
    """

    own_s: float
    limit: int | None
    confirm_s: Sequence[float]
    frames: Sequence[int]
    sizes: Sequence[int]
    settled: bool = False


@dataclass(frozen=True, slots=True)
class SimulationResult:
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
    """Simulate the publishers of one session until one of them has sent so many `messages`, at least 2.

    The broker processes each message at once; the time to its outcome does not depend on anything else.
    """
    return Simulation(publishers, max_link_credit, window, round_trip_s / 2).run(messages)


class Simulation:
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
        """Observe a frame at the broker; for subclasses. `content`: frames and bytes of a message; or
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
