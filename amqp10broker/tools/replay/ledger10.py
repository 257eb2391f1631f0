"""The state of an AMQP 1.0 connection: links, credit, deliveries, outcomes, ends.

The same record is kept of the recording and of the replay; comparing the two gives the conditions and the
current numbers of each client frame, and in the end the differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.performatives import (
    MIN_MAX_FRAME_SIZE,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    Released,
    Role,
    TransactionalState,
    Transfer,
)

MANAGEMENT: Final = "/management"


@dataclass(eq=False, slots=True)
class LedgerLink:
    """One link. `error`: of the broker's detach; "" without one, None without a detach. `limit`: deliveries
    that the credit of the client's sender allows, counted from the first.
    """

    name: str
    sends: bool
    address: str
    dynamic: bool
    handle: int
    left_out: str = ""
    attached: bool = False
    gone: bool = False
    error: str | None = None
    base: int = 0
    begun: int = 0
    whole: int = 0
    ids: list[int] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    first_credit: int | None = None
    limit: int = 0
    draining: bool = False
    drained: int = 0
    _open: bool = False

    def __str__(self) -> str:
        way = "to" if self.sends else "from"
        return f"link '{self.name}' {way} {self.address or 'an address that the broker chose'}"

    def carry(self, transfer: Transfer) -> bool:
        """Count a transfer frame; return whether it begins a delivery."""
        begins = not self._open
        if begins:
            self.begun += 1
            self.ids.append(-1 if transfer.delivery_id is None else transfer.delivery_id)
        self._open = transfer.more and not transfer.aborted
        if not self._open:
            self.whole += 1
        return begins


@dataclass(eq=False, slots=True)
class LedgerSession:
    """One session. `error`: of the broker's end; "" without one, None without an end."""

    channel: int
    next_outgoing: int
    begun: bool = False
    window: int = 0
    gone: bool = False
    error: str | None = None
    next_incoming: int = 0
    links: dict[int, LedgerLink] = field(default_factory=dict)
    all_links: list[LedgerLink] = field(default_factory=list)
    own: dict[int, LedgerLink] = field(default_factory=dict)
    got: dict[int, tuple[LedgerLink, int]] = field(default_factory=dict)
    remote_links: dict[int, LedgerLink] = field(default_factory=dict)
    _granted: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"session on channel {self.channel}"

    @property
    def window_left(self) -> int:
        base, allowance = self._granted
        return serial.limit_left(base, allowance, self.next_outgoing)

    def grant(self, base: int | None, window: int) -> None:
        self._granted = (self._granted[0] if base is None else base, window)


class Ledger10:
    """The state of one connection. `opened`: the broker's open frame; None before it. `error`: of the
    broker's close; "" without one, None without a close.
    """

    def __init__(self) -> None:
        self.opened: Open | None = None
        self.closing = False
        self.error: str | None = None
        self.sessions: dict[int, LedgerSession] = {}
        self.all_sessions: list[LedgerSession] = []
        self.answers = 0
        self._remote: dict[int, LedgerSession] = {}

    @property
    def frame_size_max(self) -> int:
        """Return the largest frame that the broker accepts, in bytes."""
        return MIN_MAX_FRAME_SIZE if self.opened is None else self.opened.max_frame_size

    def remote(self, channel: int) -> LedgerSession | None:
        return self._remote.get(channel)

    def sent(self, channel: int, body: Any) -> LedgerSession | LedgerLink | None:
        """Record a frame of the client; return the session or link that it begins."""
        if isinstance(body, Begin):
            session = self.sessions[channel] = LedgerSession(channel, body.next_outgoing_id)
            session.grant(body.next_outgoing_id, 0)
            self.all_sessions.append(session)
            return session
        if isinstance(body, Close):
            self.closing = True
            return None
        found = self.sessions.get(channel)
        if found is None:
            return None
        match body:
            case Attach():
                return self._attach(found, body)
            case Transfer():
                found.next_outgoing = serial.add(found.next_outgoing, 1)
                link = found.links.get(body.handle)
                if link is not None and link.carry(body):
                    found.own[link.ids[-1]] = link
            case Flow() if body.handle is not None and body.drain:
                link = found.links.get(body.handle)
                if link is not None and not link.sends:
                    link.draining = True
            case Detach():
                link = found.links.pop(body.handle, None)
                if link is not None:
                    link.gone = True
            case End():
                found.gone = True
                del self.sessions[channel]
            case _:
                pass
        return None

    def came(self, channel: int, body: Any) -> None:
        match body:
            case Open():
                self.opened = body
                self.answers += 1
                return
            case Close():
                self.error = error_text(body.error)
                self.answers += 1
                return
            case Begin():
                begun = self.sessions.get(-1 if body.remote_channel is None else body.remote_channel)
                if begun is not None:
                    self._remote[channel] = begun
                    begun.begun = True
                    begun.window = body.incoming_window
                    begun.next_incoming = body.next_outgoing_id
                    begun.grant(None, body.incoming_window)
                    self.answers += 1
                return
            case _:
                pass
        session = self._remote.get(channel)
        if session is None:
            return
        match body:
            case End():
                if not session.gone:
                    session.error = error_text(body.error)
                    session.gone = True
                elif body.error is not None:
                    session.error = error_text(body.error)
                del self._remote[channel]
                self.answers += 1
            case Attach():
                self._attached(session, body)
            case Transfer():
                self._transfer(session, body)
            case Flow():
                self._flow(session, body)
            case Disposition() if body.role is Role.RECEIVER:
                self._outcomes(session, body)
            case Detach():
                link = session.remote_links.pop(body.handle, None)
                if link is not None:
                    self.answers += not link.left_out
                    if not link.gone or body.error is not None:
                        link.error = error_text(body.error)
                    link.gone = True
            case _:
                pass

    def _attach(self, session: LedgerSession, body: Attach) -> LedgerLink:
        sends = body.role is Role.SENDER
        end = body.target if sends else body.source
        address = getattr(end, "address", None)
        dynamic = bool(getattr(end, "dynamic", False))
        left_out = ""
        if isinstance(end, Coordinator):
            left_out = "transactions: what is asked of them is in contents, which were not recorded"
        elif address == MANAGEMENT:
            left_out = f"requests to {MANAGEMENT}: they are in contents, which were not recorded"
        elif sends and address is None and not dynamic and end is not None:
            left_out = (
                "a sender whose messages name their address: they do it in contents, which were not recorded"
            )
        link = LedgerLink(body.name, sends, str(address or ""), dynamic, body.handle, left_out)
        if sends:
            link.base = body.initial_delivery_count or 0
        session.links[body.handle] = link
        session.all_links.append(link)
        return link

    def _attached(self, session: LedgerSession, body: Attach) -> None:
        sends = body.role is Role.RECEIVER
        link = next(
            (
                each
                for each in reversed(session.all_links)
                if each.name == body.name and each.sends is sends and not each.attached
            ),
            None,
        )
        if link is None:
            return
        link.attached = True
        session.remote_links[body.handle] = link
        end = body.target if sends else body.source
        if link.dynamic and end is not None:
            link.address = str(getattr(end, "address", None) or "")
        if not sends:
            link.base = body.initial_delivery_count or 0
        self.answers += not link.left_out

    def _transfer(self, session: LedgerSession, body: Transfer) -> None:
        session.next_incoming = serial.add(session.next_incoming, 1)
        link = session.remote_links.get(body.handle)
        if link is not None and link.carry(body):
            session.got[link.ids[-1]] = (link, link.begun - 1)

    def _flow(self, session: LedgerSession, body: Flow) -> None:
        session.grant(body.next_incoming_id, body.incoming_window)
        link = None if body.handle is None else session.remote_links.get(body.handle)
        if link is None:
            return
        if not link.sends:
            if link.draining:
                link.draining = False
                link.drained += 1
            return
        credit = body.link_credit or 0
        if link.first_credit is None:
            link.first_credit = credit
        count = link.base if body.delivery_count is None else body.delivery_count
        link.limit = serial.diff(count, link.base) + credit

    def _outcomes(self, session: LedgerSession, body: Disposition) -> None:
        outcome = outcome_text(body.state, settled=body.settled)
        for number in within(session.own, body.first, body.last):
            session.own[number].outcomes[number] = outcome


def within(known: dict[int, Any], first: int, last: int | None) -> Iterator[int]:
    """Yield the known delivery-ids of a range, which may be as large as the number space."""
    span = 0 if last is None else serial.diff(last, first)
    if span <= len(known):
        for step in range(span + 1):
            number = serial.add(first, step)
            if number in known:
                yield number
    else:
        yield from [number for number in known if 0 <= serial.diff(number, first) <= span]


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
