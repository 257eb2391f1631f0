"""Watches one AMQP 1.0 client frame by frame."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import (
    AttachObserved,
    DetachObserved,
    DispositionObserved,
    EndObserved,
    FlowObserved,
    LinkEvent,
    ObservedConnection,
    ObservedLink,
    ObservedSession,
    TransferObserved,
)
from amqp10broker.observe.frames.records import KnownLink, RecordedFrame
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Close,
    Coordinator,
    Disposition,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    Released,
    Transfer,
)
from amqp10broker.tools.lint.findings import (
    BEYOND_CREDIT,
    BEYOND_WINDOW,
    CREDIT_NEVER_RENEWED,
    ENDED_BY_ERROR,
    FEW,
    FLOW_BEFORE_ATTACH,
    LONG_S,
    NO_HEARTBEAT,
    SECOND_NS,
    SENDS_REFUSED,
    SENDS_SETTLED,
    TAG_REUSED,
    WINDOW_NOT_REOPENED,
    Book,
    Evidence,
    Rule,
    SettlingHabit,
    evidence_of,
    seconds,
)

_CONDITIONS: Final = {
    "amqp:link:transfer-limit-exceeded": BEYOND_CREDIT,
    "amqp:session:window-violation": BEYOND_WINDOW,
}
# Begins the description when it is not caused by the client: the broker stops, or an operator has closed the
# connection.
_FORCED: Final = "Connection forced"
_MANAGEMENT: Final = "/management"
_BACK: Final = (Released, Modified, Rejected)
_LONG_NS: Final = LONG_S * SECOND_NS


@dataclass(slots=True, eq=False)
class _LintedLink:
    """The habits on one link.

    The client receives: `last` is its last frame about the link; `grants` counts flows with credit;
    `idle_ns`: when it had used its credit and settled all, None otherwise. The client sends: `tags` of
    unsettled deliveries, counts of messages.
    """

    last: Evidence
    grants: int = 0
    settling: SettlingHabit = field(default_factory=SettlingHabit)
    idle_ns: int | None = None
    tags: set[bytes] = field(default_factory=set)
    tag_of: dict[int, bytes] = field(default_factory=dict)
    carried: int = 0
    settled: int = 0
    refused: int = 0


class Client10:
    """The state and the findings of one AMQP 1.0 connection."""

    def __init__(self, number: int, book: Book) -> None:
        self._number = number
        self._book = book
        self._state = ObservedConnection()
        self._links: dict[ObservedLink, _LintedLink] = {}
        # Sessions whose incoming-window is used up: since when, and by which frame.
        self._shut: dict[ObservedSession, Evidence] = {}
        self._now_ns = 0

    def know(self, known: KnownLink) -> None:
        link = known.observed()
        self._state.know(known.channel, link)
        said = f"the {known.role} '{known.name}' was there already"
        self._links[link] = _LintedLink(Evidence(known.at_ns, said))

    def take(self, record: RecordedFrame) -> None:
        self._now_ns = record.at_ns
        body, direction = record.frame.body, record.direction
        events = self._state.apply(direction, record.frame.channel, body)
        if direction == "in" and isinstance(body, Open) and not body.idle_time_out:
            self._note(NO_HEARTBEAT, "", "its open has no idle-time-out", record)
        elif direction == "out" and isinstance(body, Close):
            self._ended("", body.error, record)
        elif isinstance(body, Flow | Transfer):
            session = self._state.session(direction, record.frame.channel)
            if session is not None:
                left = session.windows["out"].left
                if left:
                    self._shut.pop(session, None)
                elif left == 0 and isinstance(record.frame.body, Transfer) and record.direction == "out":
                    self._shut.setdefault(session, evidence_of(record))
        for event in events:
            self._take(event, body, record)

    def _take(self, event: LinkEvent, body: Any, record: RecordedFrame) -> None:
        came = record.direction == "in"
        match event:
            case AttachObserved(link=link) if not event.answered and came:
                if link.address != _MANAGEMENT:  # requests and replies, one at a time
                    self._links[link] = _LintedLink(evidence_of(record))
            case FlowObserved(link=link) if event.grants and came and link in self._links:
                self._granted(event, self._links[link], body, record)
            case TransferObserved(link=link) if event.begins and link in self._links:
                if not came:
                    self._delivered(event, self._links[link], body, record)
                elif not isinstance(link.terminus, Coordinator):
                    self._sent(event, self._links[link], body, record)
            case DispositionObserved(link=link) if link in self._links:
                if link.direction == "out" and came and event.settled:
                    self._settled(event, self._links[link], body, record)
                elif link.direction == "in" and not came:
                    _confirm(event, self._links[link], body)
            case DetachObserved(link=link) if not event.answered:
                if not came and link in self._links:
                    self._ended(_where(event.session, link), body.error, record)
                self._end_link(event.session, link)
            case EndObserved(session=session) if not event.answered:
                if not came:
                    self._ended(f"session {session.channel}", body.error, record)
                self._end_session(session)
            case _:
                pass

    def finish(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._now_ns)
        for session in self._state.sessions():
            self._end_session(session)

    # --- of the client ----------------------------------------------------------------------------

    def _granted(self, event: FlowObserved, habits: _LintedLink, flow: Flow, record: RecordedFrame) -> None:
        habits.last = evidence_of(record)
        if flow.delivery_count is not None and not event.link.attached:
            said = f"delivery-count {flow.delivery_count} before the broker's attach"
            self._note(FLOW_BEFORE_ATTACH, _where(event.session, event.link), said, record)
        if flow.link_credit:
            habits.grants += 1
            habits.idle_ns = None

    def _sent(
        self, event: TransferObserved, habits: _LintedLink, transfer: Transfer, record: RecordedFrame
    ) -> None:
        where = _where(event.session, event.link)
        habits.carried += 1
        if habits.refused >= FEW:
            said = f"{habits.refused} in a row were refused, and it goes on"
            self._note(SENDS_REFUSED, where, said, record)
        if transfer.settled:
            habits.settled += 1
            if habits.settled >= FEW:
                said = f"{habits.settled} of {habits.carried} messages were sent settled"
                self._note(SENDS_SETTLED, where, said, record)
            return
        tag = transfer.delivery_tag
        if tag is not None and not transfer.resume:
            if tag in habits.tags:
                said = f"the tag {tag.hex()} is that of an unsettled delivery"
                self._note(TAG_REUSED, where, said, record)
            habits.tags.add(tag)
            habits.tag_of[event.delivery_id] = tag

    def _settled(
        self, event: DispositionObserved, habits: _LintedLink, disposition: Disposition, record: RecordedFrame
    ) -> None:
        gives_back = isinstance(disposition.state, _BACK)
        for number in event.delivery_ids:
            habits.settling.settled(number, gives_back=gives_back)
        habits.last = evidence_of(record)
        for rule, said in habits.settling.faults():
            self._note(rule, _where(event.session, event.link), said, record)
        if not habits.settling.held and not event.link.credit.link_credit:
            habits.idle_ns = record.at_ns

    # --- of the broker ----------------------------------------------------------------------------

    def _delivered(
        self, event: TransferObserved, habits: _LintedLink, transfer: Transfer, record: RecordedFrame
    ) -> None:
        if not transfer.settled:
            habits.settling.delivered(event.delivery_id, record.at_ns)
        elif not event.link.credit.link_credit:
            habits.idle_ns = record.at_ns

    # --- ends -------------------------------------------------------------------------------------

    def _ended(self, where: str, error: Error | None, record: RecordedFrame) -> None:
        if error is None or (error.description or "").startswith(_FORCED):
            return
        rule = _CONDITIONS.get(error.condition, ENDED_BY_ERROR)
        text = f": {error.description}" if error.description else ""
        self._note(rule, where, f"{error.condition}{text}", record)

    def _end_link(self, session: ObservedSession, link: ObservedLink) -> None:
        habits = self._links.pop(link, None)
        if habits is None or link.direction == "in":
            return
        where = _where(session, link)
        for rule, said in habits.settling.at_the_end(self._now_ns):
            self._book.note(rule, self._number, where, said, habits.last)
        if habits.idle_ns is not None and habits.grants == 1 and link.recorded:
            idle_ns = self._now_ns - habits.idle_ns
            if idle_ns >= _LONG_NS:
                said = f"all credit was used and all settled for {seconds(idle_ns)}"
                self._book.note(CREDIT_NEVER_RENEWED, self._number, where, said, habits.last)

    def _end_session(self, session: ObservedSession) -> None:
        shut = self._shut.pop(session, None)
        if shut is not None and self._now_ns - shut.at_ns >= _LONG_NS:
            said = f"no incoming-window for {seconds(self._now_ns - shut.at_ns)}"
            where = f"session {session.channel}"
            self._book.note(WINDOW_NOT_REOPENED, self._number, where, said, shut)
        for link in session.all_links():
            self._end_link(session, link)

    def _note(self, rule: Rule, where: str, said: str, record: RecordedFrame) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))


def _confirm(event: DispositionObserved, habits: _LintedLink, disposition: Disposition) -> None:
    for number in event.delivery_ids:
        habits.tags.discard(habits.tag_of.pop(number, b""))
    if isinstance(disposition.state, Rejected | Released):
        habits.refused += len(event.delivery_ids)
    elif isinstance(disposition.state, Accepted):
        habits.refused = 0


def _where(session: ObservedSession, link: ObservedLink) -> str:
    role = "sender" if link.direction == "in" else "receiver"
    address = "the coordinator" if isinstance(link.terminus, Coordinator) else link.address
    return f"{role} '{link.name}' of {address or 'no address'}, session {session.channel}"
