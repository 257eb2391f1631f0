"""Watches one AMQP 1.0 client frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.records import KnownLink, RecordedFrame
from amqp10broker.protocols.amqp10.performatives import (
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
    Transfer,
)
from amqp10broker.protocols.serial import add, diff, limit_left
from amqp10broker.tools.lint import rules
from amqp10broker.tools.lint.findings import Book, Evidence, Rule, evidence_of
from amqp10broker.tools.lint.habits import SettlingHabit, seconds
from amqp10broker.tools.lint.rules import SECOND_NS

_CONDITIONS: Final = {
    "amqp:link:transfer-limit-exceeded": rules.BEYOND_CREDIT,
    "amqp:session:window-violation": rules.BEYOND_WINDOW,
}
# Begins the description when it is not caused by the client: the broker stops, or an operator has closed the
# connection.
_FORCED: Final = "Connection forced"
_MANAGEMENT: Final = "/management"
_BACK: Final = (Released, Modified, Rejected)


@dataclass(slots=True, eq=False)
class _LintedLink:
    # `last` is the last frame about the link; `carried` counts messages; `known`: its attach was recorded,
    # and so were all its frames.

    name: str
    address: str
    last: Evidence
    carried: int = 0
    known: bool = True


@dataclass(slots=True, eq=False)
class _Receiver(_LintedLink):
    """A link on which the client receives. `granted`: delivery-count and link-credit of the last flow; None
    without one. `idle_ns`: when it had used its credit and settled all; None otherwise.
    """

    attached: bool = False
    delivery_count: int = 0
    granted: tuple[int, int] | None = None
    grants: int = 0
    settling: SettlingHabit = field(default_factory=SettlingHabit)
    idle_ns: int | None = None


@dataclass(slots=True, eq=False)
class _Sender(_LintedLink):
    """A link on which the client sends."""

    tags: set[bytes] = field(default_factory=set)
    settled: int = 0
    refused: int = 0
    whole: bool = True
    of_transactions: bool = False


@dataclass(slots=True, eq=False)
class _Session:
    # `incoming`: links by the client's handle; `outgoing`: by the broker's.

    channel: int
    incoming: dict[int, _LintedLink] = field(default_factory=dict)
    outgoing: dict[int, _LintedLink] = field(default_factory=dict)
    asked: dict[tuple[str, bool], _LintedLink] = field(default_factory=dict)
    sent: dict[int, _Receiver] = field(default_factory=dict)
    came: dict[int, tuple[_Sender, bytes]] = field(default_factory=dict)
    next_outgoing: int | None = None
    window: tuple[int, int] | None = None
    shut_ns: int | None = None
    shut: Evidence | None = None
    sending: _Receiver | None = None


class Client10:
    """The state and the findings of one AMQP 1.0 connection."""

    def __init__(self, number: int, book: Book) -> None:
        self._number = number
        self._book = book
        self._sessions: dict[int, _Session] = {}
        self._answered: dict[int, _Session] = {}
        self._now_ns = 0

    def know(self, known: KnownLink) -> None:
        session = self._sessions.setdefault(known.channel, _Session(known.channel))
        self._answered.setdefault(known.channel, session)
        evidence = Evidence(known.at_ns, f"the {known.role} '{known.name}' was there already")
        kind = _Sender if known.role == "sender" else _Receiver
        link = kind(known.name, known.address or "", evidence, known=False)
        if isinstance(link, _Receiver):
            link.attached = True
        if known.handle is not None:
            session.outgoing[known.handle] = link
        if known.remote_handle is not None:
            session.incoming[known.remote_handle] = link

    def take(self, record: RecordedFrame) -> None:
        self._now_ns = record.at_ns
        frame = record.frame
        if record.direction == "in":
            self._received(frame.channel, frame.body, record)
        else:
            self._sent(frame.channel, frame.body, record)

    def finish(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._now_ns)
        for session in list(self._sessions.values()):
            self._end_session(session)

    # --- of the client ----------------------------------------------------------------------------

    def _received(self, channel: int, body: object, record: RecordedFrame) -> None:
        if isinstance(body, Open):
            if not body.idle_time_out:
                self._note(rules.NO_HEARTBEAT, "", "its open has no idle-time-out", record)
            return
        if isinstance(body, Begin):
            session = _Session(channel)
            session.window = 0, body.incoming_window
            self._sessions[channel] = session
            return
        found = self._sessions.get(channel)
        if found is None:
            return
        match body:
            case Attach():
                self._attach(found, body, record)
            case Flow():
                self._flow(found, body, record)
            case Transfer():
                self._transfer(found, body, record)
            case Disposition() if body.role == Role.RECEIVER:
                self._settle(found, body, record)
            case Detach():
                self._end_link(found, found.incoming.get(body.handle))
            case End():
                self._end_session(found)
            case _:
                pass

    def _attach(self, session: _Session, attach: Attach, record: RecordedFrame) -> None:
        evidence = evidence_of(record)
        if _MANAGEMENT in (_address(attach.source), _address(attach.target)):
            return  # requests and replies, one at a time
        if attach.role == Role.SENDER:
            target = attach.target
            sender = _Sender(attach.name, _address(target), evidence)
            sender.of_transactions = isinstance(target, Coordinator)
            link: _LintedLink = sender
        else:
            link = _Receiver(attach.name, _address(attach.source), evidence)
        session.incoming[attach.handle] = link
        session.asked[attach.name, bool(attach.role)] = link

    def _flow(self, session: _Session, flow: Flow, record: RecordedFrame) -> None:
        session.window = flow.next_incoming_id or 0, flow.incoming_window
        if session.shut_ns is not None and self._window_left(session):
            session.shut_ns = session.shut = None
        link = None if flow.handle is None else session.incoming.get(flow.handle)
        if not isinstance(link, _Receiver) or flow.link_credit is None:
            return
        where = self._where(session, link)
        link.last = evidence_of(record)
        if flow.delivery_count is not None and not link.attached:
            said = f"delivery-count {flow.delivery_count} before the broker's attach"
            self._note(rules.FLOW_BEFORE_ATTACH, where, said, record)
        counted_from = flow.delivery_count if flow.delivery_count is not None else link.delivery_count
        link.granted = counted_from, flow.link_credit
        link.grants += flow.link_credit > 0
        if flow.link_credit:
            link.idle_ns = None

    def _transfer(self, session: _Session, transfer: Transfer, record: RecordedFrame) -> None:
        link = session.incoming.get(transfer.handle)
        if not isinstance(link, _Sender) or link.of_transactions:
            return
        link.last = evidence_of(record)
        if link.whole:
            self._begin_delivery(session, link, transfer, record)
        link.whole = not transfer.more or transfer.aborted

    def _begin_delivery(
        self, session: _Session, link: _Sender, transfer: Transfer, record: RecordedFrame
    ) -> None:
        where = self._where(session, link)
        link.carried += 1
        if link.refused >= rules.FEW:
            said = f"{link.refused} in a row were refused, and it goes on"
            self._note(rules.SENDS_REFUSED, where, said, record)
        if transfer.settled:
            link.settled += 1
            if link.settled >= rules.FEW:
                said = f"{link.settled} of {link.carried} messages were sent settled"
                self._note(rules.SENDS_SETTLED, where, said, record)
            return
        tag, number = transfer.delivery_tag, transfer.delivery_id
        if tag is not None and not transfer.resume:
            if tag in link.tags:
                said = f"the tag {tag.hex()} is that of an unsettled delivery"
                self._note(rules.TAG_REUSED, where, said, record)
            link.tags.add(tag)
        if number is not None:
            session.came[number] = link, tag or b""

    def _settle(self, session: _Session, disposition: Disposition, record: RecordedFrame) -> None:
        last = disposition.first if disposition.last is None else disposition.last
        count = diff(last, disposition.first) + 1
        touched: set[_Receiver] = set()
        numbers: Iterator[int] = (add(disposition.first, step) for step in range(count))
        if count > len(session.sent):  # nearly all of a large range may have been settled before
            numbers = (each for each in list(session.sent) if 0 <= diff(each, disposition.first) < count)
        outcome = type(disposition.state)
        for number in numbers:
            link = session.sent.get(number)
            if link is None or not disposition.settled:
                continue
            del session.sent[number]
            touched.add(link)
            link.settling.settled(number, gives_back=outcome in _BACK)
        for link in touched:
            link.last = evidence_of(record)
            where = self._where(session, link)
            self._judge_settling(link.settling, where, record)
            if not link.settling.held and self._left(link) == 0:
                link.idle_ns = record.at_ns

    def _judge_settling(self, settling: SettlingHabit, where: str, record: RecordedFrame) -> None:
        for rule, said in settling.faults():
            self._note(rule, where, said, record)

    # --- of the broker ----------------------------------------------------------------------------

    def _sent(self, channel: int, body: object, record: RecordedFrame) -> None:
        if isinstance(body, Begin):
            session = self._sessions.get(channel if body.remote_channel is None else body.remote_channel)
            if session is not None:
                self._answered[channel] = session
                session.next_outgoing = body.next_outgoing_id
                if session.window is not None:
                    # The client's window counts from the broker's first transfer-id.
                    session.window = body.next_outgoing_id, session.window[1]
            return
        if isinstance(body, Close):
            self._ended("", body.error, record)
            return
        found = self._answered.get(channel)
        if found is None:
            return
        match body:
            case Attach():
                self._attached(found, body)
            case Transfer():
                self._delivered(found, body, record)
            case Flow():
                self._told(found, body)
            case Disposition() if body.role == Role.RECEIVER:
                self._confirmed(found, body)
            case Detach():
                link = found.outgoing.get(body.handle)
                if link is not None:
                    self._ended(self._where(found, link), body.error, record)
                    self._end_link(found, link)
            case End():
                self._ended(f"session {found.channel}", body.error, record)
                self._end_session(found)
            case _:
                pass

    def _attached(self, session: _Session, attach: Attach) -> None:
        link = session.asked.pop((attach.name, not attach.role), None)
        if link is None:
            return
        session.outgoing[attach.handle] = link
        if isinstance(link, _Receiver):
            link.attached = True
            link.address = link.address or _address(attach.source)
            link.delivery_count = attach.initial_delivery_count or 0
        else:
            link.address = link.address or _address(attach.target)

    def _delivered(self, session: _Session, transfer: Transfer, record: RecordedFrame) -> None:
        if session.next_outgoing is not None:
            session.next_outgoing = add(session.next_outgoing, 1)
            if session.shut_ns is None and not self._window_left(session):
                session.shut_ns, session.shut = record.at_ns, evidence_of(record)
        link = session.outgoing.get(transfer.handle)
        if not isinstance(link, _Receiver):
            return
        if session.sending is not link:
            session.sending = link
            left = self._left(link)
            link.delivery_count = add(link.delivery_count, 1)
            if not transfer.settled and transfer.delivery_id is not None:
                session.sent[transfer.delivery_id] = link
                link.settling.delivered(transfer.delivery_id, record.at_ns)
            elif left == 1:
                link.idle_ns = record.at_ns
        if not transfer.more or transfer.aborted:
            session.sending = None

    def _told(self, session: _Session, flow: Flow) -> None:
        link = None if flow.handle is None else session.outgoing.get(flow.handle)
        if isinstance(link, _Receiver) and flow.delivery_count is not None:
            link.delivery_count = flow.delivery_count

    def _confirmed(self, session: _Session, disposition: Disposition) -> None:
        last = disposition.first if disposition.last is None else disposition.last
        refused = isinstance(disposition.state, Rejected | Released)
        for step in range(diff(last, disposition.first) + 1):
            found = session.came.pop(add(disposition.first, step), None)
            if found is None:
                continue
            link, tag = found
            link.tags.discard(tag)
            if refused:
                link.refused += 1
            elif isinstance(disposition.state, Accepted):
                link.refused = 0

    # --- ends -------------------------------------------------------------------------------------

    def _ended(self, where: str, error: Error | None, record: RecordedFrame) -> None:
        if error is None or (error.description or "").startswith(_FORCED):
            return
        rule = _CONDITIONS.get(error.condition, rules.ENDED_BY_ERROR)
        text = f": {error.description}" if error.description else ""
        self._note(rule, where, f"{error.condition}{text}", record)

    def _end_link(self, session: _Session, link: _LintedLink | None) -> None:
        if link is None:
            return
        for links in (session.incoming, session.outgoing):
            for handle in [handle for handle, each in links.items() if each is link]:
                del links[handle]
        where = self._where(session, link)
        if isinstance(link, _Receiver):
            self._end_receiver(where, link)
            session.sent = {number: each for number, each in session.sent.items() if each is not link}

    def _end_receiver(self, where: str, link: _Receiver) -> None:
        for rule, said in link.settling.at_the_end(self._now_ns):
            self._book.note(rule, self._number, where, said, link.last)
        idle_ns = link.idle_ns
        once = link.grants == 1 and link.known
        if idle_ns is not None and once and self._now_ns - idle_ns >= rules.LONG_S * SECOND_NS:
            said = f"all credit was used and all settled for {seconds(self._now_ns - idle_ns)}"
            self._book.note(rules.CREDIT_NEVER_RENEWED, self._number, where, said, link.last)

    def _end_session(self, session: _Session) -> None:
        if self._sessions.get(session.channel) is not session:
            return
        links = {id(each): each for each in (*session.incoming.values(), *session.outgoing.values())}
        old = rules.LONG_S * SECOND_NS
        if session.shut_ns is not None and session.shut is not None and self._now_ns - session.shut_ns >= old:
            said = f"no incoming-window for {seconds(self._now_ns - session.shut_ns)}"
            where = f"session {session.channel}"
            self._book.note(rules.WINDOW_NOT_REOPENED, self._number, where, said, session.shut)
        for link in links.values():
            self._end_link(session, link)
        del self._sessions[session.channel]
        self._answered = {number: each for number, each in self._answered.items() if each is not session}

    # --- helpers ----------------------------------------------------------------------------------

    @staticmethod
    def _left(link: _Receiver) -> int:
        # Positive for a link with unknown flows.
        if link.granted is None:
            return 0 if link.known else 1
        return limit_left(*link.granted, link.delivery_count)

    @staticmethod
    def _window_left(session: _Session) -> int:
        # Positive if the window is unknown.
        if session.window is None or session.next_outgoing is None:
            return 1
        return limit_left(*session.window, session.next_outgoing)

    @staticmethod
    def _where(session: _Session, link: _LintedLink) -> str:
        role = "sender" if isinstance(link, _Sender) else "receiver"
        return f"{role} '{link.name}' of {link.address or 'no address'}, session {session.channel}"

    def _note(self, rule: Rule, where: str, said: str, record: RecordedFrame) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))


def _address(terminus: object) -> str:
    if isinstance(terminus, Coordinator):
        return "the coordinator"
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else ""
