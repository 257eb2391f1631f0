"""Derives from frames recorded at the broker how fast consumers are, and what their deliveries waited for.

A flow that counts a delivery arrives at least one round trip after the delivery was sent, so the shortest
such time bounds the round trip from above, and the excess of a flow or an outcome is the client's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import DispositionObserved, FlowObserved, TransferObserved
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.performatives import Flow, Transfer
from amqp10broker.protocols.preface import Protocol
from amqp10broker.tools.replay.ledger10 import Ledger10, LedgerLink
from amqp10broker.tools.replay.pace import FREE_MIN, PublisherWait, allowed_at, rate_of
from amqp10broker.tools.replay.script import RecordedConnection

_NS: Final = 1e9


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
        """Return the largest credit that the client has granted at once."""
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
        bound: maximum of deliveries received or granted without outcome, as a multiple of the credit.
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
    if part.protocol is not Protocol.AMQP_10:
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


def round_trip_s(found: Sequence[RecordedConsumer]) -> float | None:
    """Return the shortest time from a delivery to a flow that counts it, or its outcome; None if there is
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
    # The share that explains this remainder: numbers are integers, and a remainder of one too few can halve
    # the rate.
    if left == credit // 2 > 0:
        return 0.5
    return 1.0 if left >= credit - 1 > 0 else left / credit


def _bound(renewals: Sequence[RecordedGrant], credit: int) -> float:
    # A client that never granted less than all was not limited by a bound: it is that of our engine, or
    # higher.
    seen = max(((each.unfinished + each.credit) / credit for each in renewals), default=1.0)
    return max(1.0, seen) if any(each.credit < credit for each in renewals) else max(2.0, seen)


def _own(consumer: RecordedConsumer, round_trip: float) -> tuple[float, float, bool]:
    # Seconds of work per message; seconds after a wait for the next; whether the recording shows the first.
    spent, free, idle = 0.0, 0, []
    sent = consumer.sent
    for (before, done), (at, count) in pairwise(consumer.progress):
        if not done < count <= len(sent):
            continue
        # The client had the last of them no earlier than this, by the broker's clock.
        there = sent[count - 1] + round_trip
        if there <= before:
            spent += at - before
            free += count - done
        else:
            idle.append(max(0.0, at - there))
    seen = free >= FREE_MIN * len(sent)
    return (spent / free if seen else 0.0), (fmean(idle) if idle else 0.0), seen
