"""How fast the publishers of a recording are and what they waited for, and a ledger of each connection.

A message that uses a grant arrives at least one round trip after the grant was sent; so the shortest such
time bounds the round trip from above, and each gap between two messages divides into the part that the client
could not have filled and the client's own pace.

The same ledger (outcomes, drains, ends) is kept of the recording and of the replay; comparing the two gives
the conditions and the current numbers of each client frame, and in the end the differences.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import (
    AttachObserved,
    BeginObserved,
    DetachObserved,
    Direction,
    DispositionObserved,
    EndObserved,
    FlowObserved,
    LinkEvent,
    ObservedConnection,
    ObservedLink,
    ObservedSession,
    TransferObserved,
)
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Close,
    Coordinator,
    Error,
    Modified,
    Open,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.player import RecordedConnection

MANAGEMENT: Final = "/management"


@dataclass(eq=False, slots=True)
class LedgerLink:
    """One link. `error`: of the broker's detach; "" without one, None without a detach. `ids`: delivery-ids
    in the order of the deliveries; `places` is the inverse; `whole`: complete ones.
    """

    state: ObservedLink
    session: ObservedSession
    left_out: str = ""
    error: str | None = None
    whole: int = 0
    ids: list[int] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    first_credit: int | None = None
    draining: bool = False
    drained: int = 0

    def __str__(self) -> str:
        way = "to" if self.sends else "from"
        return f"link '{self.state.name}' {way} {self.state.address or 'an address that the broker chose'}"

    @property
    def sends(self) -> bool:
        """Whether the client sends."""
        return self.state.direction == "in"

    @property
    def limit(self) -> int:
        """How many deliveries, counted from the first, the credit allows."""
        credit = self.state.credit
        return serial.diff(credit.delivery_count, self.state.initial_count) + credit.link_credit


class Ledger10:
    """The ledger of one connection. `errors`: of the broker's ends of sessions, "" for one without;
    `answers`: number of frames of the broker that begin or end something.
    """

    def __init__(self) -> None:
        self.state = ObservedConnection()
        self.sessions: list[ObservedSession] = []
        self.links: dict[ObservedLink, LedgerLink] = {}
        self.errors: dict[ObservedSession, str] = {}
        self.answers = 0

    @property
    def error(self) -> str | None:
        """Of the broker's close; "" without one, None without a close."""
        close = self.state.closed.get("out")
        return None if close is None else error_text(close.error)

    def link(self, channel: int, handle: int | None) -> LedgerLink | None:
        """Return the link of the client's frames with this handle."""
        session = self.state.session("in", channel)
        if session is None or handle not in session.links["in"]:
            return None
        return self.links[session.links["in"][handle]]

    def links_of(self, session: ObservedSession) -> list[LedgerLink]:
        """Return all links of a session, in the order of their attaches."""
        return [link for link in self.links.values() if link.session is session]

    def apply(self, direction: Direction, channel: int, body: Any) -> list[LinkEvent]:
        events = self.state.apply(direction, channel, body)
        self.answers += direction == "out" and isinstance(body, Open | Close)
        for event in events:
            self._take(direction, event, body)
        return events

    def _take(self, direction: Direction, event: LinkEvent, body: Any) -> None:
        link = None if isinstance(event, BeginObserved | EndObserved) else self.links.get(event.link)
        match event:
            case BeginObserved():
                if event.answered:
                    self.answers += direction == "out"
                else:
                    self.sessions.append(event.session)
            case EndObserved() if direction == "out":
                self.answers += 1
                if not event.answered or body.error is not None:
                    self.errors[event.session] = error_text(body.error)
            case AttachObserved():
                if link is None:
                    self.links[event.link] = LedgerLink(event.link, event.session, _left_out(event.link))
                elif event.answered:
                    self.answers += not link.left_out
            case FlowObserved() if link is not None:
                if direction == "in":
                    link.draining = link.draining or (event.grants and body.drain)
                elif event.grants:
                    if link.first_credit is None:
                        link.first_credit = body.link_credit
                elif link.draining:
                    link.draining = False
                    link.drained += 1
            case TransferObserved() if link is not None:
                if event.begins:
                    link.places[event.delivery_id] = len(link.ids)
                    link.ids.append(event.delivery_id)
                link.whole += event.ends
            case DispositionObserved() if link is not None and direction == "out" and link.sends:
                outcome = outcome_text(body.state, settled=body.settled)
                link.outcomes |= dict.fromkeys(sorted(event.delivery_ids), outcome)
            case DetachObserved() if link is not None and direction == "out":
                self.answers += not link.left_out
                if not event.answered or body.error is not None:
                    link.error = error_text(body.error)
            case _:
                pass


def _left_out(link: ObservedLink) -> str:
    if isinstance(link.terminus, Coordinator):
        return "transactions: what is asked of them is in contents, which were not recorded"
    if link.address == MANAGEMENT:
        return f"requests to {MANAGEMENT}: they are in contents, which were not recorded"
    dynamic = bool(getattr(link.terminus, "dynamic", False))
    if link.direction == "in" and not link.address and not dynamic and link.terminus is not None:
        return "a sender whose messages name their address: they do it in contents, which were not recorded"
    return ""


def error_text(error: Error | None) -> str:
    return "" if error is None else str(error.condition)


def outcome_text(state: Any, *, settled: bool) -> str:
    match state:
        case TransactionalState():
            return outcome_text(state.outcome, settled=settled)
        case Accepted():
            return "accepted"
        case Released():
            return "released"
        case Modified():
            return "modified"
        case Rejected():
            return f"rejected ({error_text(state.error)})" if state.error is not None else "rejected"
        case None:
            return "settled without an outcome" if settled else "no outcome"
        case _:
            return type(state).__name__.lower()


# Fewer messages give no forecast.
MESSAGES_MIN: Final = 50
# This share of the messages must have waited for nothing, for the client's own pace to be known.
FREE_MIN: Final = 0.1
# A message within this share of the usual interval after an outcome has waited for the outcome.
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
    # The first message that needs each grant, and the time of the grant.
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
