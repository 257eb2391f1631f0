"""Plays the client of an AMQP 1.0 connection.

The same ledger (outcomes, drains, ends) is kept of the recording and of the replay; comparing the two gives
the conditions and the current numbers of each client frame, and in the end the differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
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
from amqp10broker.observe.frames.records import TracedFrame
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.connection import HEARTBEAT, TYPE_SASL, encode_frame
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
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
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import AMQP_10_HEADER, SASL_HEADER, WireProtocol
from amqp10broker.tools.replay.player import (
    Difference,
    DifferenceKind,
    Player,
    RecordedConnection,
    ReplayLogin,
    Step,
    other_end,
    otherwise,
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
        """How many deliveries, counted from the first, the credit allows."""
        credit = self.state.credit
        return serial.diff(credit.delivery_count, self.state.initial_count) + credit.link_credit


class Ledger10:
    """The ledger of one connection. `errors`: those of the broker's ends of sessions, "" for one without;
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
        """The error of the broker's close; "" without one, None without a close."""
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


_STRUCTURE: Final = (Open, Begin, Attach, Detach, End, Close)
_SENT_WITHOUT: Final = "messages of transactions are sent without them"


class Player10(Player):
    protocol = WireProtocol.AMQP_10
    header = SASL_HEADER
    heartbeat = HEARTBEAT
    _was: Ledger10
    _now: Ledger10

    def __init__(self, part: RecordedConnection, login: ReplayLogin) -> None:
        super().__init__(part, login)
        self.ready = False
        self._was = Ledger10()
        self._now = Ledger10()
        self._sessions: dict[ObservedSession, ObservedSession] = {}
        self._links: dict[LedgerLink, LedgerLink] = {}
        self._given_up: set[LedgerLink | ObservedSession | Ledger10] = set()
        self._unsent: dict[LedgerLink, set[int]] = {}
        self.controls, self._lengths = _look_through(part)

    def heartbeat_s(self) -> float:
        opened = self._now.state.opened.get("out")
        return 0.0 if opened is None else (opened.idle_time_out or 0) / 2000

    # --- frames of the broker -----------------------------------------------------------------------

    def take(self, frame: TracedFrame) -> None:
        body = frame.body
        match body:
            case SaslMechanisms():
                self._log_in(body)
            case SaslOutcome() if body.code == SaslCode.OK:
                self.write(AMQP_10_HEADER)
                self.ready = True
            case SaslOutcome():
                self.refused = True
                self.over = f"the broker refused the user '{self.login.user}'"
            case None:
                if frame.channel < 0 and frame.data not in (SASL_HEADER, AMQP_10_HEADER):
                    self.over = f"the broker does not speak AMQP 1.0: {frame.said}"
            case _:
                events = self._now.apply("out", frame.channel, body)
                if isinstance(body, Close):
                    if "in" not in self._now.state.closed:
                        self._say(0, Close())
                        why = f"the broker closed the connection with {self._now.error or 'no error'}"
                        if body.error is not None and body.error.description:
                            why = f"{why}: {body.error.description}"
                        self.over = None if self.broker_closes(Close) else why
                    self.closed = True
                for event in events:
                    self._answer(event, body)

    def _log_in(self, offered: SaslMechanisms) -> None:
        login = self.login
        mechanism = "PLAIN" if login.user else "ANONYMOUS"
        if mechanism not in offered.sasl_server_mechanisms:
            self.refused = True
            self.over = (
                f"the broker offers no login by {mechanism}, only {', '.join(offered.sasl_server_mechanisms)}"
            )
            return
        response = b"\0" + login.user.encode() + b"\0" + login.password.encode() if login.user else b"replay"
        init = SaslInit(mechanism=Symbol(mechanism), initial_response=response)
        self.write(encode_frame(0, init.encode(), TYPE_SASL))

    def _answer(self, event: LinkEvent, body: Any) -> None:
        # A detach or end of the broker is answered at once; the recorded answer is omitted then.
        match event:
            case EndObserved(answered=False):
                self._say(event.session.channel, End())
            case DetachObserved(answered=False):
                handle = event.link.handles["in"]
                self._say(event.session.channel, Detach(handle=handle, closed=body.closed))
            case _:
                pass

    # --- conditions ---------------------------------------------------------------------------------

    def waits_for(self, step: Step) -> str | None:
        body, channel = step.frame.body, step.frame.channel
        if isinstance(body, Open):
            return None if self.ready else "the login"
        if self._lacks_open():
            return "the broker's open"
        if isinstance(body, Close):
            return self.still_owed()
        was = self._was.state.session("in", channel)
        if was is None or isinstance(body, Begin):
            return None
        now = self._sessions.get(was)
        if now is None or now.ended:
            return None
        if was.established and not now.established and was not in self._given_up:
            return f"the answer to begin on channel {channel}"
        match body:
            case End():
                return self._session_owes(was, now)
            case Detach() | Flow() | Transfer():
                link = self._was.link(channel, body.handle)
                return None if link is None else self._link_lacks(step, link, now)
            case Disposition():
                return self._settling_lacks(was, body)
            case _:
                pass
        return None

    def _lacks_open(self) -> bool:
        return "out" in self._was.state.opened and "out" not in self._now.state.opened

    def _link_lacks(self, step: Step, was: LedgerLink, session: ObservedSession) -> str | None:
        now, body = self._links.get(was), step.frame.body
        if now is None or now.state.ended:
            return None
        if was.state.attached and not now.state.attached and was not in self._given_up:
            return f"the attach of {was}"
        match body:
            case Detach():
                return self._link_owes(was, now)
            case Flow():
                if was.sends or was in self._given_up or body.delivery_count is None:
                    return None
                counted = min(serial.diff(body.delivery_count, was.state.initial_count), was.whole)
                return f"delivery {now.whole + 1} of {was}" if now.whole < counted else None
            case Transfer():
                begins = self._lengths[step.index][0] == 0
                if begins and len(now.ids) >= now.limit:
                    return None if now in self._given_up else f"credit for {was}"
                if not session.windows["in"].left and session not in self._given_up:
                    return f"the incoming-window of the session on channel {session.channel}"
            case _:
                pass
        return None

    def _named(self, was: ObservedSession, body: Disposition) -> Iterator[tuple[LedgerLink, list[int]]]:
        # The recorded deliveries to the client that a disposition names: links, and places in them.
        last = body.first if body.last is None else body.last
        for link, numbers in was.named("in", body.role, ((body.first, last),)):
            found = self._was.links[link]
            yield found, sorted(found.places[number] for number in numbers)

    def _settling_lacks(self, was: ObservedSession, body: Disposition) -> str | None:
        if body.role is Role.SENDER:
            return None
        for link, places in self._named(was, body):
            other = self._links.get(link)
            if other is None or other.state.ended or link in self._given_up:
                continue
            for place in places:
                if other.whole <= place:
                    return f"delivery {place + 1} of {link}"
        return None

    def _link_owes(self, was: LedgerLink, now: LedgerLink | None) -> str | None:
        if now is None or was in self._given_up or (now.state.ended and not was.state.ended):
            return None
        if was.state.attached and not now.state.attached:
            return f"the attach of {was}"
        if not was.sends and now.whole < was.whole:
            return f"delivery {now.whole + 1} of {was}"
        if now.drained < was.drained:
            return f"the answer to a drain of {was}"
        unsent = self._unsent.get(was)
        owed = len(was.outcomes) if unsent is None else sum(each not in unsent for each in was.outcomes)
        if len(now.outcomes) < owed:
            return f"{owed - len(now.outcomes)} outcomes of {was}"
        if was.state.ended and was.error is not None and not now.state.ended:
            return f"the broker's detach of {was}"
        return None

    def _session_owes(self, was: ObservedSession, now: ObservedSession | None) -> str | None:
        if now is None or now.ended or was in self._given_up:
            return None
        if was.established and not now.established:
            return f"the answer to begin on channel {was.channel}"
        for link in self._was.links_of(was):
            owed = self._link_owes(link, self._links.get(link))
            if owed is not None:
                return owed
        if was.ended and was in self._was.errors:
            return f"the broker's end of the session on channel {was.channel}"
        return None

    def still_owed(self) -> str | None:
        if self._was in self._given_up or self.over is not None:
            return None
        if self._lacks_open():
            return "the broker's open"
        for session in self._was.sessions:
            owed = self._session_owes(session, self._sessions.get(session))
            if owed is not None:
                return owed
        if self._was.error is not None and self._now.error is None:
            return "the broker's close"
        return None

    def give_up(self, step: Step) -> None:
        body, channel = step.frame.body, step.frame.channel
        was = self._was.state.session("in", channel)
        if was is None or isinstance(body, Open | Begin | Close):
            if isinstance(body, Open) or "out" not in self._now.state.opened:
                self.lost("the broker does not answer")
            self._given_up.add(self._was)
            return
        now = self._sessions.get(was)
        match body:
            case End():
                self._given_up |= {was, *self._was.links_of(was)}
            case Disposition():
                self._given_up |= {link for link, _ in self._named(was, body)}
            case Detach() | Flow() | Transfer() if (link := self._was.link(channel, body.handle)) is not None:
                self._given_up.add(link)
                other = self._links.get(link)
                if isinstance(body, Transfer) and now is not None:
                    if other is not None and len(other.ids) >= other.limit:
                        self._given_up.add(other)
                    elif not now.windows["in"].left:
                        self._given_up.add(now)
        if now is not None and not now.established:
            self._given_up.add(was)

    # --- frames of the client -----------------------------------------------------------------------

    def say(self, step: Step) -> None:
        body, channel, frame = step.frame.body, step.frame.channel, step.frame
        was = self._was.state.session("in", channel)
        now = None if was is None else self._sessions.get(was)
        events = self._was.apply("in", channel, body)
        if self.over is not None or (self._now.error is not None and isinstance(body, Close)):
            return
        match body:
            case Open():
                vhost = self.login.vhost
                if vhost is not None:
                    self._say(channel, replace(body, hostname=f"vhost:{vhost}"))
                else:
                    self._say_as_it_was(frame)
            case Close():
                self._say_as_it_was(frame)
            case Begin():
                begun = zip(events, self._say_as_it_was(frame), strict=True)
                self._sessions |= {each.session: other.session for each, other in begun}
            case _ if now is None or now.ended:
                return
            case Attach():
                self._attach(channel, body)
            case End():
                self._say_as_it_was(frame)
            case Flow():
                self._flow(now, body, self._was.link(channel, body.handle))
            case Transfer():
                self._transfer(step, now, body, self._was.link(channel, body.handle))
            case Disposition():
                self._settle(now, body, [event for event in events if isinstance(event, DispositionObserved)])
            case Detach():
                if body.handle in now.links["in"]:
                    self._say_as_it_was(frame)
            case _:
                pass

    def _attach(self, channel: int, body: Attach) -> None:
        was = self._was.link(channel, body.handle)
        assert was is not None
        if was.left_out:
            self.left_out[was.left_out] = None
            return
        self._say(channel, self._addressed(body))
        now = self._now.link(channel, body.handle)
        assert now is not None
        self._links[was] = now

    def _addressed(self, body: Attach) -> Attach:
        # An attach to an address that the recorded broker chose must use the one chosen by this broker.
        chosen = {
            was.state.address: now.state.address
            for was, now in self._links.items()
            if getattr(was.state.terminus, "dynamic", False) and now.state.address
        }
        given: dict[str, Any] = {}
        for name in ("source", "target"):
            end = getattr(body, name)
            address = getattr(end, "address", None)
            if isinstance(address, str) and address in chosen:
                given[name] = replace(end, address=chosen[address])
        return replace(body, **given) if given else body

    def _flow(self, now: ObservedSession, body: Flow, was: LedgerLink | None) -> None:
        # The frame has the current counts.
        given: dict[str, Any] = {"next_outgoing_id": now.windows["in"].next_id}
        if now.established:
            given["next_incoming_id"] = now.windows["out"].next_id
        if body.handle is not None:
            other = None if was is None else self._links.get(was)
            if was is None or other is None or other.state.ended:
                # A broker detached it while the flow was in flight.
                return
            if body.delivery_count is not None:
                begun = len(other.ids)
                counted = serial.diff(body.delivery_count, was.state.initial_count)
                counted = begun if other.sends or counted > begun else counted
                given["delivery_count"] = serial.add(other.state.initial_count, counted)
        self._say(now.channel, replace(body, **given))

    def _transfer(self, step: Step, now: ObservedSession, body: Transfer, was: LedgerLink | None) -> None:
        other = None if was is None else self._links.get(was)
        if was is None or other is None or other.state.ended:
            return
        offset, whole = self._lengths[step.index]
        covered = offset > 0 or len(other.ids) < other.limit
        if not covered or not now.windows["in"].left or body.handle not in now.links["in"]:
            self._unsent.setdefault(was, set()).add(was.ids[-1])
        if was.ids[-1] in self._unsent.get(was, ()):
            return
        if isinstance(body.state, TransactionalState):
            self.left_out[_SENT_WITHOUT] = None
            body = replace(body, state=None)
        size = step.frame.payload_bytes
        opened = self._now.state.opened.get("out")
        frame_size_max = MIN_MAX_FRAME_SIZE if opened is None else opened.max_frame_size
        room = frame_size_max - FRAME_HEADER_BYTES - len(body.encode())
        payload = content(offset, size, whole)
        for start in range(0, size or 1, room):
            more = body.more or start + room < size
            piece = replace(body, more=more) if start == 0 else Transfer(handle=body.handle, more=more)
            self._say(now.channel, piece, payload[start : start + room])

    def _settle(self, now: ObservedSession, body: Disposition, events: list[DispositionObserved]) -> None:
        if isinstance(body.state, TransactionalState):
            self.left_out[_SENT_WITHOUT] = None
            body = replace(body, state=body.state.outcome)
        if body.role is Role.SENDER:
            self._say(now.channel, body)
            return
        numbers: list[int] = []
        for event in events:
            link = self._was.links[event.link]
            other = self._links.get(link)
            if other is not None and not other.state.ended:
                places = (link.places[number] for number in event.delivery_ids)
                numbers += [other.ids[place] for place in places if other.whole > place]
        for first, last in serial.ranges(numbers):
            self._say(now.channel, replace(body, first=first, last=None if first == last else last))

    def _say(self, channel: int, body: Any, payload: bytes = b"") -> list[LinkEvent]:
        self.send(encode_frame(channel, body.encode() + payload))
        return self._now.apply("in", channel, body)

    def _say_as_it_was(self, frame: TracedFrame) -> list[LinkEvent]:
        self.send(frame.data)
        return self._now.apply("in", frame.channel, frame.body)

    def close(self) -> None:
        state = self._now.state
        if "in" not in state.closed and self.over is None and "out" in state.opened:
            state.apply("in", 0, Close())
            self.write(encode_frame(0, Close().encode()))

    # --- differences --------------------------------------------------------------------------------

    def differences(self) -> Iterator[Difference]:
        was, now = self._was, self._now
        yield from self.ends()
        if self.over is None and (said := other_end(was.error or None, now.error or None)):
            yield self.difference(DifferenceKind.ERROR, "", said)
        for session in was.sessions:
            other = self._sessions.get(session)
            if other is None:
                continue
            where = f"session on channel {session.channel}"
            if said := other_end(was.errors.get(session), now.errors.get(other)):
                yield self.difference(DifferenceKind.ERROR, where, said)
            if session.established and other.established:
                before, after = (each.begun["out"].incoming_window for each in (session, other))
                if before != after:
                    said = f"incoming-window {before} in the recording, {after} now"
                    yield self.difference(DifferenceKind.CREDIT, where, said)
            for link in was.links_of(session):
                if link in self._links:
                    yield from self._of_link(link, self._links[link])

    def _of_link(self, was: LedgerLink, now: LedgerLink) -> Iterator[Difference]:
        if said := other_end(was.error, now.error):
            yield self.difference(DifferenceKind.ERROR, was, said)
        if was.state.attached and not now.state.attached:
            yield self.difference(DifferenceKind.MISSING, was, "the broker did not attach it")
        unsent = self._unsent.get(was, ())
        if unsent:
            said = (
                f"{len(unsent)} of {len(was.ids)} messages were not sent: no credit or window came for them"
            )
            yield self.difference(DifferenceKind.CREDIT, was, said)
        if None not in (was.first_credit, now.first_credit) and was.first_credit != now.first_credit:
            said = f"credit {was.first_credit} at first in the recording, {now.first_credit} now"
            yield self.difference(DifferenceKind.CREDIT, was, said)
        for said in otherwise(was.outcomes, now.outcomes, "message"):
            yield self.difference(DifferenceKind.OUTCOME, was, said)
        if self.over is not None or now.error is not None:
            return  # the lost connection explains what is missing
        missing = sum(1 for each in was.outcomes if each not in now.outcomes and each not in unsent)
        if missing:
            yield self.difference(
                DifferenceKind.MISSING, was, f"{missing} of {len(was.outcomes)} outcomes did not come"
            )
        if not was.sends and now.whole < was.whole:
            said = f"{was.whole - now.whole} of {was.whole} messages did not come"
            yield self.difference(DifferenceKind.MISSING, was, said)
        if now.drained < was.drained:
            said = f"{was.drained - now.drained} of {was.drained} drains were not answered"
            yield self.difference(DifferenceKind.MISSING, was, said)


def content(offset: int, size: int, whole: int) -> bytes:
    """Return a part of a message of a recorded length, a data section of zeros. `whole`: length of the
    message; less than four bytes cannot be one.
    """
    if whole > 260:
        head = b"\x00\x53\x75\xb0" + (whole - 8).to_bytes(4, "big")
    elif whole > 4:
        head = b"\x00\x53\x75\xa0" + bytes((whole - 5,))
    else:
        head = b"\x00\x53\x77\x40"[:whole]
    return head[offset : offset + size] + bytes(max(0, min(size, offset + size - len(head))))


def _look_through(part: RecordedConnection) -> tuple[list[tuple[int, bool]], dict[int, tuple[int, int]]]:
    # Frames that begin or end something, and of each transfer its offset and the length of its message.
    ledger = Ledger10()
    controls: list[tuple[int, bool]] = []
    lengths: dict[int, tuple[int, int]] = {}
    parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step in part.steps:
        body, channel = step.frame.body, step.frame.channel
        before = ledger.answers
        ledger.apply(step.direction, channel, body)
        if isinstance(body, _STRUCTURE) if step.sent else ledger.answers > before:
            controls.append((step.index, step.sent))
        if step.sent and isinstance(body, Transfer):
            pieces = parts.setdefault((channel, body.handle), [])
            pieces.append((step.index, step.frame.payload_bytes))
            if not body.more or body.aborted:
                _measure(parts.pop((channel, body.handle)), lengths)
    for pieces in parts.values():
        _measure(pieces, lengths)
    return controls, lengths


def _measure(pieces: list[tuple[int, int]], lengths: dict[int, tuple[int, int]]) -> None:
    whole = sum(size for _, size in pieces)
    offset = 0
    for index, size in pieces:
        lengths[index] = (offset, whole)
        offset += size
