"""Finds habits in recorded frames, of clients of this or any broker, that harm the client or others.

`docs/frames.md` lists the rules. It checks each client of either protocol frame by frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import (
    AttachObserved,
    ChannelEnded,
    ChannelEvent,
    ConsumeObserved,
    ConsumerEnded,
    DetachObserved,
    DispositionObserved,
    EndObserved,
    FlowObserved,
    LinkEvent,
    MessageDelivered,
    ObservedChannel,
    ObservedChannels,
    ObservedConnection,
    ObservedConsumer,
    ObservedLink,
    ObservedSession,
    SettlementObserved,
    TransferObserved,
)
from amqp10broker.observe.frames.records import Ended, KnownLink, Listening, Record, RecordedFrame
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    FRAME_HEADER,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ConnectionClose,
    ConnectionTuneOk,
)
from amqp10broker.protocols.amqp091.properties import decode_properties
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
from amqp10broker.protocols.connection import WireProtocol

EVIDENCE_MAX: Final = 3


class Sort(Enum):
    # Violates the protocol, or requests something impossible.
    FAULT = "fault"
    # Something can be lost, or wait for ever, unnoticed.
    RISK = "risk"


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    sort: Sort
    finds: str
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame as text; `at_ns`: since 1970."""

    at_ns: int
    text: str


def evidence_of(record: RecordedFrame) -> Evidence:
    return Evidence(record.at_ns, record.text)


@dataclass(slots=True)
class Finding:
    """A violation of a rule. `connection`: 0: several."""

    rule: Rule
    connection: int
    where: str
    said: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class Book:
    def __init__(self) -> None:
        self._findings: dict[tuple[str, int, str], Finding] = {}

    def note(self, rule: Rule, connection: int, where: str, said: str, *evidence: Evidence) -> None:
        """Add a finding; a repeated one replaces the text and keeps the first frames."""
        key = (rule.id, connection, where)
        found = self._findings.setdefault(key, Finding(rule, connection, where))
        found.said = said
        found.evidence += evidence[: EVIDENCE_MAX - len(found.evidence)]

    def findings(self) -> Iterator[Finding]:
        """Yield all findings: faults first, then by connection and place."""
        order = list(Sort)
        yield from sorted(
            self._findings.values(),
            key=lambda each: (order.index(each.rule.sort), each.connection, each.where, each.rule.id),
        )


SECOND_NS: Final = 1_000_000_000
# Seconds that a link without obstacle may be idle.
LONG_S: Final = 5
# Unsettled deliveries of one consumer.
HELD_MANY: Final = 100
# Repetitions that are a habit rather than an accident.
OFTEN: Final = 50
FEW: Final = 10

FLOW_BEFORE_ATTACH: Final = Rule(
    "flow-before-attach",
    Sort.FAULT,
    "a receiver's flow with a delivery-count before the sender's attach was sent",
    "Credit counts from the sender's delivery-count, known from its attach on: after another guess, the "
    "receiver gets more messages than it asked for, or none.",
    "Leave delivery-count out of flows until the attach has come, or wait for it (part 2, section 2.7.4).",
)
CREDIT_NEVER_RENEWED: Final = Rule(
    "credit-never-renewed",
    Sort.RISK,
    f"a receiver that has used the credit of its only flow, settled all, and was silent for {LONG_S} s",
    "The link gets nothing any more, whatever is in the queue.",
    "Send a flow with new credit when messages are settled, or detach the link.",
)
SETTLES_NOTHING: Final = Rule(
    "settles-nothing",
    Sort.RISK,
    f"a receiver that got at least {FEW} unsettled deliveries, the first {LONG_S} s ago, and settled none",
    "Other consumers do not get the messages, and all are delivered again when this one goes.",
    "Send dispositions for what was processed, or attach with snd-settle-mode settled.",
)
UNSETTLED_GROWS: Final = Rule(
    "unsettled-grows",
    Sort.RISK,
    f"a consumer that settles some, and at the end holds at least {HELD_MANY} and half of all it got, the "
    f"oldest for {LONG_S} s",
    "Their number grows until the broker or the client has no room, and they are delivered again when the "
    "consumer goes.",
    "Settle each delivery, also those that are skipped or have failed.",
)
WINDOW_NOT_REOPENED: Final = Rule(
    "window-not-reopened",
    Sort.RISK,
    f"a client's session whose incoming-window was used up, and which sent no flow for {LONG_S} s",
    "No link of the session gets anything, whatever its credit.",
    "Send a flow with a new incoming-window when transfers were taken, settled or not.",
)
BEYOND_CREDIT: Final = Rule(
    "beyond-credit",
    Sort.FAULT,
    "a transfer of a link that had no credit left",
    "The broker detaches the link (amqp:link:transfer-limit-exceeded).",
    "Send while delivery-count is below the last flow's delivery-count + link-credit.",
)
BEYOND_WINDOW: Final = Rule(
    "beyond-window",
    Sort.FAULT,
    "a transfer beyond the broker's incoming-window",
    "The broker ends the session (amqp:session:window-violation).",
    "Count transfers against the last flow's next-incoming-id + incoming-window.",
)
TAG_REUSED: Final = Rule(
    "tag-reused",
    Sort.FAULT,
    "a delivery with the delivery-tag of one that is unsettled on the same link",
    "Deliveries of one tag are one when a link is resumed.",
    "Count, or use a UUID; reuse a tag when its delivery is settled (part 2, section 2.6.12).",
)
SENDS_SETTLED: Final = Rule(
    "sends-settled",
    Sort.RISK,
    f"{FEW} messages that were sent settled",
    "No outcome comes back: a message that was not routed, or not stored, is lost without notice.",
    "Send unsettled and wait for the outcome, unless messages may be lost.",
)
SENDS_REFUSED: Final = Rule(
    "sends-what-is-refused",
    Sort.RISK,
    f"a sender that goes on after {FEW} of its messages in a row were rejected or released",
    "They are in no queue.",
    "Look at the outcome: rejected has the reason; released: no queue is bound, or none took it.",
)
RETURNS_EVERYTHING: Final = Rule(
    "returns-everything",
    Sort.RISK,
    f"a consumer that gave back {OFTEN} messages and accepted none",
    "The same messages go round at full speed.",
    "Reject what cannot be processed (it is dead-lettered then), or wait before giving it back.",
)
NO_HEARTBEAT: Final = Rule(
    "no-heartbeat",
    Sort.RISK,
    "an open without idle-time-out, or connection.tune-ok with heartbeat 0",
    "If the network fails without closing the connection, the client waits forever.",
    "Set an idle-time-out, or heartbeats, of 10 to 60 seconds.",
)
ENDED_BY_ERROR: Final = Rule(
    "ended-by-error",
    Sort.FAULT,
    "a link, session, channel or connection that the broker ended with an error; not by force from outside",
    "What was under way on it is not done.",
    "The condition and the text name the cause.",
)
UNCONFIRMED: Final = Rule(
    "unconfirmed",
    Sort.RISK,
    f"{FEW} persistent messages on a channel without confirms or transactions",
    "If the broker or the connection fails before they are stored, they are lost without notice.",
    "confirm.select, and wait for basic.ack.",
)
AUTO_ACK: Final = Rule(
    "auto-ack",
    Sort.RISK,
    f"a consumer without acknowledgements that got {FEW} persistent messages",
    "They are gone when they are written: what was not processed yet is lost with the client.",
    "Consume with no-ack false, and acknowledge what was processed.",
)
RETURNS_IGNORED: Final = Rule(
    "returns-ignored",
    Sort.RISK,
    f"a publisher that goes on to an exchange and key after {FEW} of its messages there were returned",
    "They are in no queue.",
    "Handle basic.return: bind a queue, or stop.",
)

RULES: Final = {rule.id: rule for rule in list(vars().values()) if isinstance(rule, Rule)}


class SettlingHabit:
    """How one consumer settles. `held`: the unsettled deliveries, oldest first: number and time of
    sending.
    """

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self._got = 0
        self._settled = 0
        self._given_back = 0

    def delivered(self, number: int, at_ns: int) -> None:
        self.held[number] = at_ns
        self._got += 1

    def settled(self, number: int, *, gives_back: bool) -> None:
        self.held.pop(number, None)
        self._settled += 1
        self._given_back += gives_back

    def faults(self) -> Iterator[tuple[Rule, str]]:
        """Yield violations that are certain during the recording."""
        if self._given_back >= OFTEN and self._given_back == self._settled:
            yield RETURNS_EVERYTHING, f"{self._given_back} messages were given back, none was accepted"

    def at_the_end(self, now_ns: int) -> Iterator[tuple[Rule, str]]:
        """Yield violations that are certain only at the end."""
        if not self.held:
            return
        count, age_ns = len(self.held), now_ns - next(iter(self.held.values()))
        if age_ns < LONG_S * SECOND_NS:
            return
        said = f"{count} of {self._got} messages are unsettled, the first for {seconds(age_ns)}"
        if not self._settled and count >= FEW:
            yield SETTLES_NOTHING, said
        elif self._settled and count >= HELD_MANY and 2 * count >= self._got:
            yield UNSETTLED_GROWS, said


def seconds(duration_ns: int) -> str:
    return f"{duration_ns / SECOND_NS:.0f} s"


_CONDITIONS: Final = {
    "amqp:link:transfer-limit-exceeded": BEYOND_CREDIT,
    "amqp:session:window-violation": BEYOND_WINDOW,
}
# The text of a stop of the broker, or of an operator: not caused by the client.
_FORCED: Final = "Connection forced"
_MANAGEMENT: Final = "/management"
_BACK: Final = (Released, Modified, Rejected)
_LONG_NS: Final = LONG_S * SECOND_NS


@dataclass(slots=True, eq=False)
class _LintedLink:
    """The habits on one link.

    The client receives: `last` is its last frame about the link; `grants` counts flows with credit;
    `idle_ns`: when it had used its credit and settled all. It sends: `tags` of unsettled deliveries, counts
    of messages.
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
    """State and findings of one AMQP 1.0 connection."""

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


CONNECTION_FORCED: Final = 320
_PERSISTENT: Final = 2
_FRAME_BYTES: Final = 7
_PROPERTIES_AT: Final = _FRAME_BYTES + 12


@dataclass(slots=True, eq=False)
class _LintedConsumer:
    # `settling` and `persistent` are of its deliveries.

    last: Evidence
    settling: SettlingHabit = field(default_factory=SettlingHabit)
    persistent: int = 0


class Client091:
    """State and findings of one AMQP 0-9-1 connection."""

    def __init__(self, number: int, book: Book) -> None:
        self._number = number
        self._book = book
        self._state = ObservedChannels()
        self._consumers: dict[ObservedConsumer, _LintedConsumer] = {}
        # For each channel: persistent messages without confirms; the consumer of the content that follows.
        self._unconfirmed: Counter[ObservedChannel] = Counter()
        self._header_of: dict[ObservedChannel, ObservedConsumer] = {}
        self._returned: Counter[tuple[str, str]] = Counter()
        self._now_ns = 0

    def know(self, known: KnownLink) -> None:
        consumer = ObservedConsumer(known.address or "", known.name, recorded=False)
        self._state.channel(known.channel).consumers[known.name] = consumer
        said = f"the consumer '{known.name}' was there already"
        self._consumers[consumer] = _LintedConsumer(Evidence(known.at_ns, said))

    def take(self, record: RecordedFrame) -> None:
        self._now_ns = record.at_ns
        body, number = record.frame.body, record.frame.channel
        if body is None:
            if number > 0:
                self._content(self._state.channel(number), record)
            return
        for event in self._state.apply(record.direction, number, body):
            self._take(event, body, record)
        if isinstance(body, BasicPublish | BasicReturn):
            self._header_of.pop(self._state.channel(number), None)
        match body:
            case BasicPublish():
                self._publish(number, body, record)
            case BasicReturn():
                self._returned[body.exchange, body.routing_key] += 1
            case ConnectionTuneOk() if not body.heartbeat:
                self._note(NO_HEARTBEAT, "", "heartbeat 0", record)
            case ConnectionClose() if record.direction == "out" and body.reply_code != CONNECTION_FORCED:
                self._note(ENDED_BY_ERROR, "", f"{body.reply_code}: {body.reply_text}", record)
            case _:
                pass

    def finish(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._now_ns)
        for channel in self._state.by_number.values():
            self._end_channel(channel)

    def _take(self, event: ChannelEvent, body: Any, record: RecordedFrame) -> None:
        match event:
            case ConsumeObserved():
                self._consumers[event.consumer] = _LintedConsumer(evidence_of(record))
            case MessageDelivered():
                self._deliver(event, record)
            case SettlementObserved() if event.consumer in self._consumers:
                self._settle(event, record)
            case ConsumerEnded():
                self._end_consumer(event.channel, event.consumer)
            case ChannelEnded(answered=False):
                if record.direction == "out" and isinstance(body, ChannelClose):
                    said = f"{body.reply_code}: {body.reply_text}"
                    self._note(ENDED_BY_ERROR, f"channel {event.channel.number}", said, record)
                self._end_channel(event.channel)
            case _:
                pass

    def _publish(self, number: int, publish: BasicPublish, record: RecordedFrame) -> None:
        exchange, key = publish.exchange, publish.routing_key
        returned = self._returned[exchange, key]
        if returned >= FEW:
            where = f"exchange '{exchange}', routing key '{key}', channel {number}"
            said = f"{returned} messages were returned, and it goes on"
            self._note(RETURNS_IGNORED, where, said, record)

    def _deliver(self, event: MessageDelivered, record: RecordedFrame) -> None:
        self._header_of[event.channel] = event.consumer
        if event.no_ack or not event.consumer.recorded:
            return
        consumer = self._consumers.setdefault(event.consumer, _LintedConsumer(evidence_of(record)))
        consumer.settling.delivered(event.delivery_tag, record.at_ns)

    def _settle(self, event: SettlementObserved, record: RecordedFrame) -> None:
        consumer = self._consumers[event.consumer]
        for tag in event.delivery_tags:
            consumer.settling.settled(tag, gives_back=event.gives_back)
        consumer.last = evidence_of(record)
        for rule, said in consumer.settling.faults():
            self._note(rule, _where_in_channel(event.channel, event.consumer), said, record)

    # --- contents ---------------------------------------------------------------------------------

    def _content(self, channel: ObservedChannel, record: RecordedFrame) -> None:
        # A header or a body; only the properties of a header matter.
        data = record.frame.data
        if data[:1] != bytes((FRAME_HEADER,)):
            return
        try:
            properties = decode_properties(data[_PROPERTIES_AT:-1])
        except AmqpHardError:
            return  # its frame contains that
        if properties.delivery_mode != _PERSISTENT:
            return
        if record.direction == "in":
            self._published_persistent(channel, record)
            return
        consumer = self._header_of.get(channel)
        linted = None if consumer is None else self._consumers.get(consumer)
        if consumer is not None and linted is not None and consumer.no_ack:
            linted.persistent += 1
            if linted.persistent >= FEW:
                said = f"{linted.persistent} persistent messages without acknowledgement"
                self._note(AUTO_ACK, _where_in_channel(channel, consumer), said, record)

    def _published_persistent(self, channel: ObservedChannel, record: RecordedFrame) -> None:
        if channel.confirms or channel.transacts or not channel.recorded:
            return
        self._unconfirmed[channel] += 1
        if self._unconfirmed[channel] >= FEW:
            said = f"{self._unconfirmed[channel]} persistent messages"
            self._note(UNCONFIRMED, f"channel {channel.number}", said, record)

    # --- ends -------------------------------------------------------------------------------------

    def _end_consumer(self, channel: ObservedChannel, consumer: ObservedConsumer) -> None:
        linted = self._consumers.pop(consumer, None)
        if linted is not None:
            for rule, said in linted.settling.at_the_end(self._now_ns):
                self._book.note(rule, self._number, _where_in_channel(channel, consumer), said, linted.last)

    def _end_channel(self, channel: ObservedChannel) -> None:
        self._unconfirmed.pop(channel, None)
        self._header_of.pop(channel, None)
        for consumer in (*channel.consumers.values(), channel.getter):
            self._end_consumer(channel, consumer)

    def _note(self, rule: Rule, where: str, said: str, record: RecordedFrame) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))


def _where_in_channel(channel: ObservedChannel, consumer: ObservedConsumer) -> str:
    if not consumer.queue and not consumer.tag:
        return f"basic.get of channel {channel.number}"
    return f"consumer '{consumer.tag}' of {consumer.queue or 'no queue'}, channel {channel.number}"


class Lint:
    """Processes the frames of any number of connections.

    It stores attached links and unsettled deliveries; of ended objects only findings.
    """

    def __init__(self) -> None:
        self._book = Book()
        self._clients: dict[int, Client10 | Client091] = {}
        self._now_ns = 0
        self.connections = 0
        self.frames = 0

    def take(self, record: Record) -> None:
        self._now_ns = max(self._now_ns, record.at_ns)
        if isinstance(record, Listening):
            self._end(record.connection)
            kind = Client10 if record.protocol is WireProtocol.AMQP_10 else Client091
            self._clients[record.connection] = kind(record.connection, self._book)
            self.connections += 1
            return
        client = self._clients.get(record.connection)
        if client is None:
            return
        if isinstance(record, KnownLink):
            client.know(record)
        elif isinstance(record, Ended):
            self._end(record.connection)
        else:
            self.frames += 1
            client.take(record)

    def finish(self, now_ns: int = 0) -> list[Finding]:
        """Return the findings. `now_ns`: time of the end; that of the last record if that is later."""
        self._now_ns = max(self._now_ns, now_ns)
        for connection in list(self._clients):
            self._end(connection)
        return list(self._book.findings())

    def _end(self, connection: int) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            client.finish(self._now_ns)
