"""The rules of the lint, findings with their evidence, and how consumers of both protocols settle.

`amqp10` and `amqp091` find the violations; `docs/frames.md` lists the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.records import RecordedFrame

# The first frames of a finding, which are shown.
EVIDENCE_MAX: Final = 3


class Sort(Enum):
    # Violates the protocol, or requests something impossible.
    FAULT = "fault"
    # Something can be lost, or wait for ever, unnoticed.
    RISK = "risk"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the lint."""

    id: str
    sort: Sort
    finds: str
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame as text; `at_ns` is nanoseconds since 1970."""

    at_ns: int
    text: str


def evidence_of(record: RecordedFrame) -> Evidence:
    return Evidence(record.at_ns, record.text)


@dataclass(slots=True)
class Finding:
    """A violation of a rule. `connection`: number of the connection; 0: several connections."""

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
# Seconds for which a link without obstacle may be idle before that is a finding.
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
    "The delivery-count is the sender's, and known from its attach on. Credit counts from it: with a broker "
    "that begins elsewhere than at the guess, the receiver gets more messages than it asked for, or none.",
    "Leave delivery-count out of flows until the attach has come, or wait for it (part 2, section 2.7.4).",
)
CREDIT_NEVER_RENEWED: Final = Rule(
    "credit-never-renewed",
    Sort.RISK,
    f"a receiver that has used the credit of its only flow, settled all, and was silent for {LONG_S} s",
    "The link stays attached and gets nothing any more, whatever is in the queue.",
    "Send a flow with new credit when messages are settled, or detach the link.",
)
SETTLES_NOTHING: Final = Rule(
    "settles-nothing",
    Sort.RISK,
    f"a receiver that got at least {FEW} unsettled deliveries, the first {LONG_S} s ago, and settled none",
    "The messages stay with the consumer: others do not get them, and all are delivered again when it goes.",
    "Send dispositions for what was processed, or attach with snd-settle-mode settled.",
)
UNSETTLED_GROWS: Final = Rule(
    "unsettled-grows",
    Sort.RISK,
    f"a consumer that settles some, and at the end holds at least {HELD_MANY} and half of all it got, the "
    f"oldest for {LONG_S} s",
    "Some messages are never settled: their number grows until the broker or the client has no room, and "
    "they are delivered again when the consumer goes.",
    "Settle each delivery, also those that are skipped or have failed.",
)
WINDOW_NOT_REOPENED: Final = Rule(
    "window-not-reopened",
    Sort.RISK,
    f"a client's session whose incoming-window was used up, and which sent no flow for {LONG_S} s",
    "No link of the session gets anything, whatever its credit.",
    "Send a flow with a new incoming-window when transfers were taken, whether or not they are settled.",
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
    "Tags tell deliveries apart when a link is resumed; two of one name are one.",
    "Count, or use a UUID; reuse a tag when its delivery is settled (part 2, section 2.6.12).",
)
SENDS_SETTLED: Final = Rule(
    "sends-settled",
    Sort.RISK,
    f"{FEW} messages that were sent settled",
    "No outcome comes back: a message that was not routed, or not stored, is lost without notice.",
    "Send unsettled and wait for the outcome, unless losing messages is meant.",
)
SENDS_REFUSED: Final = Rule(
    "sends-what-is-refused",
    Sort.RISK,
    f"a sender that goes on after {FEW} of its messages in a row were rejected or released",
    "They are in no queue.",
    "Look at the outcome: rejected says why; released means that no queue is bound, or none took it.",
)
RETURNS_EVERYTHING: Final = Rule(
    "returns-everything",
    Sort.RISK,
    f"a consumer that gave back {OFTEN} messages and accepted none",
    "The same messages go round and round, at full speed.",
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
    "Read the condition and the text: they name the cause.",
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
    "They are gone when they are written to the socket: what was not processed yet is lost with the client.",
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
    """How one consumer settles.

    `held` has the unsettled deliveries, oldest first: number and time of sending.
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
