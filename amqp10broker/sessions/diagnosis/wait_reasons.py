"""The reasons for which a link, a channel or a consumer waits: one closed set for both protocols.

Each member's value is its code, which lists and the log contain; `docs/waiting.md` explains each. Metrics,
flow events and the page are made from these rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.operations.snapshot import WaitView

STUCK_MS: Final = 1_000
"""When the socket has taken no bytes for so long, the whole connection is blocked. A delivery whose next part
has not come for so long is unfinished.
"""
_IDLE: Final = True


class Wait(StrEnum):
    """The reasons to wait, one row each.

    Attributes:
        to_do: the remedy.
        number: the code in flow events. It never changes.
        general: the code of the more general reason, for sums in the analysis; its own by default.
        idle: the part has nothing to do: it is counted separately and listed last.
    """

    meaning: str
    to_do: str
    number: int
    general: str
    idle: bool

    def __new__(
        cls, code: str, meaning: str, to_do: str, number: int, general: str = "", idle: bool = False
    ) -> Wait:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.to_do = to_do
        member.number = number
        member.general = general or code
        member.idle = idle
        return member

    # --- consumers of AMQP 1.0: the client has granted nothing ------------------------------------
    NO_CREDIT_NEVER_GRANTED = (
        "no-credit-never-granted",
        "the client has never granted credit on this link",
        (
            "let the client grant credit: receiver.flow(n), or a prefetch. Many clients grant only while a "
            "handler, a receive() or an event loop runs."
        ),
        12,
        "no-credit",
    )
    NO_CREDIT_USED_UP = (
        "no-credit-used-up",
        "deliveries have used up the client's last grant, and no new one has come",
        (
            "the client must send another flow; settling gives no credit. Look at what the client does with "
            "the last delivery; let it grant again at half."
        ),
        13,
        "no-credit",
    )
    NO_CREDIT_SET_TO_ZERO = (
        "no-credit-set-to-zero",
        "the client's flow set the credit to 0 when some of it was left",
        "the client has stopped its receiver. Let it grant again.",
        14,
        "no-credit",
    )
    NO_CREDIT_REVOKED = (
        "no-credit-revoked",
        "the client's flow lowered the credit to less than was sent already, when some of it was left",
        (
            "the client has paused or stopped its receiver with credit left. Let it grant again when it can "
            "take more."
        ),
        15,
        "no-credit",
    )
    NO_CREDIT_DRAINED = (
        "no-credit-drained",
        "the client drained its credit, was answered, and has granted none since",
        (
            "a drain takes what is there and ends; the client must grant anew for what comes later. If it "
            "did, its grant did not arrive."
        ),
        16,
        "no-credit",
    )
    NO_CREDIT_STALE_FLOW = (
        "no-credit-stale-flow",
        "the client's flows name a delivery-count so old that nothing is left of their credit",
        (
            "the client counts from a delivery-count that it does not bring up to date (link-credit is "
            "counted from the flow's delivery-count, which must be that of the deliveries received). It is a "
            "fault of the client's library."
        ),
        17,
        "no-credit",
    )

    UNSETTLED_INCOMPLETE = (
        "unsettled-incomplete",
        "the client's attach gave an incomplete unsettled map: nothing is sent until it attaches again",
        (
            "the client must detach and attach again with the rest of the map (2.7.3); until then nothing "
            "new is sent, whatever it grants."
        ),
        35,
    )

    # --- consumers of both protocols: the client could take more ----------------------------------
    PEER_WINDOW_CLOSED = (
        "peer-window-closed",
        "deliveries wait: the client's session window is used up",
        (
            "the client must send a flow with a larger incoming-window; a client whose session window fills "
            "up does not read its session."
        ),
        3,
    )
    WRITER_BLOCKED = (
        "writer-blocked",
        "bytes wait for the socket: the client, or the network, does not read fast enough",
        (
            "look at the client: stopped, busy in a handler, or behind a slow network. Nothing in the broker "
            "helps."
        ),
        8,
    )
    DRAINING = (
        "draining",
        "the client asked to drain, and the queue has not answered yet",
        "it is over when the queue answers; if it lasts, the queue is what is slow: see its own line.",
        9,
    )
    QUEUE_CREDIT_IN_FLIGHT = (
        "queue-credit-in-flight",
        "the queue was asked for messages, or whether the consumer is active, and has not answered yet",
        (
            "for a moment it is normal. If it lasts, the queue's task does not come to it: a recovery of its "
            "journal, or a busy process."
        ),
        7,
    )
    NO_LEADER = (
        "no-leader",
        "no member of the queue leads it, or its node and this one do not reach each other",
        (
            "an election is over in a second. If it lasts, most of the queue's members are not there: start "
            "their nodes. Who subscribes, fetches or purges meanwhile is refused after 30 s; what is "
            "published is confirmed when there is a leader."
        ),
        36,
    )
    NOT_ACTIVE = (
        "not-active",
        "another consumer of the queue is its single active one",
        "look at the active one. Cancel it, or let it settle, and the next consumer takes over.",
        6,
        "not-active",
        _IDLE,
    )
    TIMED_OUT = (
        "timed-out",
        "the consumer let a delivery time out, and gets no more until its client is heard of",
        (
            "the client is busy or dead; a longer consumer timeout (x-consumer-timeout) if its work takes so "
            "long. It gets messages again as soon as it settles or sends a flow."
        ),
        34,
    )
    LOWER_PRIORITY = (
        "lower-priority",
        "a consumer of higher priority takes what the queue has",
        "nothing, if that is what priorities are for; else give both the same.",
        22,
        "not-active",
        _IDLE,
    )
    UNSETTLED_HERE = (
        "unsettled-here",
        "all messages of the queue are held, unsettled, by this consumer itself",
        (
            "let the client settle (accept, acknowledge) what it has. Credit does not help: the queue has "
            "nothing else."
        ),
        20,
    )
    UNSETTLED_ELSEWHERE = (
        "unsettled-elsewhere",
        "all messages of the queue are held, unsettled, by others",
        (
            "look at that consumer: let it settle, or close it, and its messages come back. A smaller credit "
            "or prefetch there leaves more for others."
        ),
        21,
    )
    MESSAGES_DELAYED = (
        "messages-delayed",
        "all messages of the queue wait for their time: publishers delayed them, or they were returned to it",
        (
            "wait. Returned ones wait as the delayed retry of the queue says (x-delayed-retry-*), others as "
            "their publishers do (x-opt-delivery-time)."
        ),
        23,
    )
    MESSAGES_NOT_SYNCED = (
        "messages-not-synced",
        "messages are in the queue, and it hands them out when the disk has them",
        "look at the disk.",
        24,
    )
    FILTER_PASSED_NONE = (
        "filter-passed-none",
        "the stream was read to its end, and the consumer's filter let nothing through",
        "look at the filter, and at what publishers write: property names and types must match.",
        25,
        "queue-empty",
    )
    NO_MESSAGE_MATCHES = (
        "no-message-matches",
        "messages are ready, and none matches the consumer's filter, or it browses and has seen them all",
        (
            "look at the filter, and at what publishers set: a property that is missing is null, which "
            "equals nothing. What a browser has seen it is not shown again: attach anew."
        ),
        37,
        "queue-empty",
        _IDLE,
    )
    STREAM_END = (
        "stream-end",
        "the consumer has read the stream to its end",
        (
            "publish more. If older messages are wanted, attach with another rabbitmq:stream-offset-spec: "
            "the default is next."
        ),
        26,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY_EXPIRED = (
        "queue-empty-expired",
        "the queue is empty because messages expired in it",
        "a longer time to live, of the queue or of the messages; or faster consumers.",
        18,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY_NOTHING_ROUTED = (
        "queue-empty-nothing-routed",
        "nothing was ever published to the queue",
        (
            "look at the publisher's address or exchange and routing key: amqp10broker binding list. "
            "Publishers hear released (0-9-1: basic.return with mandatory) for what is routed to no queue."
        ),
        19,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY = (
        "queue-empty",
        "there is nothing to deliver",
        "publish more.",
        5,
        "queue-empty",
        _IDLE,
    )

    # --- consumers of AMQP 0-9-1 ------------------------------------------------------------------
    PREFETCH_FULL = (
        "prefetch-full",
        "the consumer holds as many unacknowledged deliveries as it may",
        "acknowledge, or a larger prefetch.",
        11,
    )
    CHANNEL_PREFETCH_FULL = (
        "channel-prefetch-full",
        "the consumers of the channel together hold as many unacknowledged deliveries as it may",
        "acknowledge, or a larger global prefetch.",
        27,
        "prefetch-full",
    )

    # --- publishers -------------------------------------------------------------------------------
    CREDIT_WITHHELD = (
        "credit-withheld",
        "as many deliveries as the link may have wait for their queues",
        (
            "look at that queue's consumers and disk; a larger max_link_credit if latency, not the disk, is "
            "what limits."
        ),
        2,
    )
    CREDIT_WITHHELD_BY_SYNC = (
        "credit-withheld-by-sync",
        "as many deliveries as the link may have wait for a sync of the disk",
        "look at the disk: journal in status has the time of the last sync.",
        28,
        "credit-withheld",
    )
    CREDIT_WITHHELD_BY_FULL_DISK = (
        "credit-withheld-by-full-disk",
        "as many deliveries as the link may have wait for the disk, which is full",
        "make room on the disk: the broker tries again each second.",
        29,
        "credit-withheld",
    )
    BLOCKED_BY_ALARM = (
        "blocked-by-alarm",
        "memory or disk is short: publishers are held back",
        "consume, make room, or raise the limit: see alarms.",
        4,
    )
    DELIVERY_UNFINISHED = (
        "delivery-unfinished",
        "the client has sent a part of a delivery and not the rest",
        "look at the client: it has stopped in the midst of a message.",
        30,
    )
    COUNT_JUMPED = (
        "count-jumped",
        "the client used up its credit by a flow that names a higher delivery-count than it has sent",
        (
            "a sender may advance its delivery-count only as the answer to a drain: it is a fault of the "
            "client's library. Messages on the link go on when the broker grants again."
        ),
        31,
        "no-credit",
    )
    CREDIT_FLOW = (
        "credit-flow",
        "AMQP 0-9-1: the connection is not read because a queue does not follow what is published",
        "separate connections for fast and slow queues, or AMQP 1.0.",
        10,
    )
    READER_HELD = (
        "reader-held",
        "the connection is not read because another session or channel of it waits",
        "look at that session or channel.",
        32,
    )

    # --- channels of AMQP 0-9-1 -------------------------------------------------------------------
    METHOD_IN_FLIGHT = (
        "method-in-flight",
        "a queue was asked something for a method and has not answered; later methods wait behind it",
        "for a moment it is normal. If it lasts, look at the queue.",
        33,
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one part waits. `wait`: None if it can continue, or has nothing to do. `why`: one sentence with the
    evidence; with `wait` None, the state: "its turn: 170 credits, window open". `for_ms`: None: unknown.
    """

    wait: Wait | None
    why: str = ""
    for_ms: int | None = None

    def view(self) -> WaitView:
        return WaitView(
            None if self.wait is None else self.wait.value,
            self.why or None,
            None if self.for_ms is None else max(0, self.for_ms) / 1000,
        )


NO_WAIT = Waiting(None)


def seconds(ms: int) -> str:
    """Format a duration: ``0.4 s``, ``12 s``."""
    s = max(0, ms) / 1000
    return f"{s:.1f} s" if s < 10 else f"{s:.0f} s"


def count(number: int, noun: str) -> str:
    """Format a count: ``1 message``, ``2 messages``, ``2 deliveries``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


class WaitContext(NamedTuple):
    """The state of a connection.

    Attributes:
        writer_blocked: deliveries of the session or channel wait for the connection's writer.
        writer_ms: how long the socket has taken none of the writer's bytes; None: the writer is empty.
        held_by: the connection is not read, because this part of it handles nothing: ``session 3``.
        blocked_ms: since when the connection is not read because it published during an alarm.
        reader_credit: for a channel: contents that the connection's reader may pass to it before it waits.
        holds_reader: the reader waits for this channel.
    """

    now_ms: int = 0
    writer_blocked: bool = False
    writer_ms: int | None = None
    writer_bytes: int = 0
    held_by: str | None = None
    held_ms: int = 0
    alarms: tuple[str, ...] = ()
    blocked_ms: int | None = None
    reader_credit: int = 0
    holds_reader: bool = False

    @property
    def stuck(self) -> bool:
        """Whether the client has not read for some time what was sent to it."""
        return self.writer_ms is not None and self.now_ms - self.writer_ms >= STUCK_MS

    def ago(self, since_ms: int) -> str:
        return f"{seconds(self.now_ms - since_ms)} ago"
