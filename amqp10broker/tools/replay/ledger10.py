"""What a comparison of two AMQP 1.0 connections needs beyond their state: outcomes, drains, ends.

The same ledger is kept of the recording and of the replay; comparing the two gives the conditions and the
current numbers of each client frame, and in the end the differences.
"""

from __future__ import annotations

from dataclasses import field
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
)

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
        """Return how many deliveries, counted from the first, the credit allows."""
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
        """Return the error of the broker's close; "" without one, None without a close."""
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
