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
        "the client has not granted credit on this link since it attached",
        (
            "let the client grant credit: receiver.flow(n), or a prefetch. Many client libraries grant "
            "credit only while a handler, a receive() or an event loop runs."
        ),
        12,
        "no-credit",
    )
    NO_CREDIT_USED_UP = (
        "no-credit-used-up",
        "deliveries have used up the client's last grant, and the client has granted no more since",
        (
            "the client must send another flow; settling a delivery does not grant credit. Check where the "
            "client waits after its last delivery, and let it grant more when half of its credit is used."
        ),
        13,
        "no-credit",
    )
    NO_CREDIT_SET_TO_ZERO = (
        "no-credit-set-to-zero",
        "the client's flow set the credit to 0 before it was used up",
        "the client has stopped its receiver. Let it grant credit again.",
        14,
        "no-credit",
    )
    NO_CREDIT_REVOKED = (
        "no-credit-revoked",
        "the client's flow lowered the credit below the number of deliveries already sent",
        (
            "the client has paused or stopped its receiver. Let it grant credit again when it can take more "
            "deliveries."
        ),
        15,
        "no-credit",
    )
    NO_CREDIT_DRAINED = (
        "no-credit-drained",
        "the client drained its credit and has granted none since",
        (
            "a drain uses up the credit; the client must grant new credit for later messages. If it did, "
            "its flow has not arrived at the broker."
        ),
        16,
        "no-credit",
    )
    NO_CREDIT_STALE_FLOW = (
        "no-credit-stale-flow",
        "the client's flows have an old delivery-count, so that they grant no credit",
        (
            "this is a fault of the client's library: it must put the delivery-count of the deliveries that "
            "it has received into each flow, since link-credit is counted from the flow's delivery-count."
        ),
        17,
        "no-credit",
    )

    UNSETTLED_INCOMPLETE = (
        "unsettled-incomplete",
        (
            "the client's attach had an incomplete unsettled map; the broker sends nothing until the client "
            "attaches again"
        ),
        (
            "the client must detach and attach again with the rest of the map (part 2, section 2.7.3); "
            "until then credit that it grants has no effect."
        ),
        35,
    )

    # --- consumers of both protocols: the client could take more ----------------------------------
    PEER_WINDOW_CLOSED = (
        "peer-window-closed",
        "deliveries wait because the client's session window is used up",
        (
            "the client must send a flow with a larger incoming-window. A client whose session window stays "
            "used up does not read its session."
        ),
        3,
    )
    WRITER_BLOCKED = (
        "writer-blocked",
        "bytes wait for the socket because the client or the network does not take them fast enough",
        (
            "check the client: it may be stopped, busy in a handler, or behind a slow network. Nothing on "
            "the broker's side helps."
        ),
        8,
    )
    DRAINING = (
        "draining",
        "the client has requested a drain, and the queue has not answered yet",
        "it ends when the queue answers. If it lasts, the queue is slow: see the queue's line in status.",
        9,
    )
    QUEUE_CREDIT_IN_FLIGHT = (
        "queue-credit-in-flight",
        (
            "the session has requested messages from the queue, or whether the consumer is active, and the "
            "queue has not answered yet"
        ),
        (
            "this is normal for a moment. If it lasts, the queue's task is delayed: its journal is being "
            "recovered, or the process is busy."
        ),
        7,
    )
    NO_LEADER = (
        "no-leader",
        "no member of the queue is its leader, or its node and this one cannot reach each other",
        (
            "an election takes less than a second. If it lasts, most of the queue's members are down: start "
            "their nodes. Until there is a leader, requests to consume, get or purge are refused after 30 "
            "s, and publishes are confirmed only when there is one."
        ),
        36,
    )
    NOT_ACTIVE = (
        "not-active",
        "another consumer is the queue's single active consumer",
        (
            "check why the active consumer takes no messages. If it is cancelled, the next consumer becomes "
            "active."
        ),
        6,
        "not-active",
        _IDLE,
    )
    TIMED_OUT = (
        "timed-out",
        "the consumer held a delivery for too long; it gets no more until its client settles or sends a flow",
        (
            "check the client: it is busy or hangs. If its work takes that long, set a longer consumer "
            "timeout (x-consumer-timeout)."
        ),
        34,
    )
    LOWER_PRIORITY = (
        "lower-priority",
        "a consumer with a higher priority takes the queue's messages",
        "nothing, if this is intended; otherwise give both consumers the same priority.",
        22,
        "not-active",
        _IDLE,
    )
    UNSETTLED_HERE = (
        "unsettled-here",
        "this consumer holds all messages of the queue unsettled",
        (
            "let the client settle (accept, acknowledge) its deliveries. More credit does not help: the "
            "queue has no other messages."
        ),
        20,
    )
    UNSETTLED_ELSEWHERE = (
        "unsettled-elsewhere",
        "other consumers hold all messages of the queue unsettled",
        (
            "check those consumers: let them settle their deliveries, or close them, which returns the "
            "messages to the queue. A smaller credit or prefetch there leaves more messages for others."
        ),
        21,
    )
    MESSAGES_DELAYED = (
        "messages-delayed",
        (
            "all messages of the queue are delayed: by their publishers, or because they were returned to "
            "the queue"
        ),
        (
            "wait. The delay of returned messages is set by the queue's delayed retry (x-delayed-retry-*), "
            "that of others by their publishers (x-opt-delivery-time)."
        ),
        23,
    )
    MESSAGES_NOT_SYNCED = (
        "messages-not-synced",
        "the queue has messages, and delivers them after the sync of the disk",
        "check the disk: it is slow or full. journal in status has the time of the last sync.",
        24,
    )
    FILTER_PASSED_NONE = (
        "filter-passed-none",
        "the consumer has read the stream to its end, and its filter matched no message",
        "compare the filter with the properties that publishers set: names and types must match.",
        25,
        "queue-empty",
    )
    NO_MESSAGE_MATCHES = (
        "no-message-matches",
        (
            "the queue has ready messages, but none matches the consumer's filter, or the consumer browses "
            "and has seen them all"
        ),
        (
            "compare the filter with the properties that publishers set: a missing property is null, which "
            "equals nothing. A browser gets each message once: attach again to see them again."
        ),
        37,
        "queue-empty",
        _IDLE,
    )
    STREAM_END = (
        "stream-end",
        "the consumer has read the stream to its end",
        (
            "publish more. To read older messages, attach with another rabbitmq:stream-offset-spec; the "
            "default is next."
        ),
        26,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY_EXPIRED = (
        "queue-empty-expired",
        "the queue is empty because its messages expired",
        "set a longer time to live for the queue or the messages, or consume faster.",
        18,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY_NOTHING_ROUTED = (
        "queue-empty-nothing-routed",
        "no message has ever been published to the queue",
        (
            "check the publisher's address, or its exchange and routing key, against amqp10broker binding "
            "list. A publisher gets the outcome released for a message that is routed to no queue (AMQP "
            "0-9-1: basic.return, if it is mandatory)."
        ),
        19,
        "queue-empty",
        _IDLE,
    )
    QUEUE_EMPTY = (
        "queue-empty",
        "the queue has no message to deliver",
        "publish more.",
        5,
        "queue-empty",
        _IDLE,
    )

    # --- consumers of AMQP 0-9-1 ------------------------------------------------------------------
    PREFETCH_FULL = (
        "prefetch-full",
        "the consumer holds as many unacknowledged deliveries as its prefetch permits",
        "let the client acknowledge deliveries, or set a larger prefetch.",
        11,
    )
    CHANNEL_PREFETCH_FULL = (
        "channel-prefetch-full",
        (
            "the consumers of the channel together hold as many unacknowledged deliveries as its global "
            "prefetch permits"
        ),
        "let the client acknowledge deliveries, or set a larger global prefetch.",
        27,
        "prefetch-full",
    )

    # --- publishers -------------------------------------------------------------------------------
    CREDIT_WITHHELD = (
        "credit-withheld",
        "the link has as many unconfirmed deliveries as it may have; they wait for their queues",
        (
            "check the queue's disk and its consumers. If latency is the limit and not the disk, set a "
            "larger max_link_credit."
        ),
        2,
    )
    CREDIT_WITHHELD_BY_SYNC = (
        "credit-withheld-by-sync",
        "the link has as many unconfirmed deliveries as it may have; they wait for a sync of the disk",
        "check the disk: journal in status has the time of the last sync.",
        28,
        "credit-withheld",
    )
    CREDIT_WITHHELD_BY_FULL_DISK = (
        "credit-withheld-by-full-disk",
        "the link has as many unconfirmed deliveries as it may have; they wait because the disk is full",
        "free space on the disk: the broker tries to write again every second.",
        29,
        "credit-withheld",
    )
    BLOCKED_BY_ALARM = (
        "blocked-by-alarm",
        "publishers are blocked because memory or disk space is short",
        "consume messages, free space, or raise the limit: see alarms in status.",
        4,
    )
    DELIVERY_UNFINISHED = (
        "delivery-unfinished",
        "the client has sent a part of a delivery and not the rest",
        "check the client: it has stopped in the middle of a message.",
        30,
    )
    COUNT_JUMPED = (
        "count-jumped",
        (
            "the client has given up its credit with a flow whose delivery-count is higher than the number "
            "of deliveries that it sent"
        ),
        (
            "this is a fault of the client's library: a sender may advance its delivery-count only to "
            "answer a drain. The link continues when the broker grants credit again."
        ),
        31,
        "no-credit",
    )
    CREDIT_FLOW = (
        "credit-flow",
        (
            "AMQP 0-9-1: the broker has stopped reading the connection because a queue is slower than its "
            "publishers"
        ),
        "use separate connections for fast and slow queues, or AMQP 1.0.",
        10,
    )
    READER_HELD = (
        "reader-held",
        "the broker has stopped reading the connection because another session or channel of it waits",
        "check that session or channel.",
        32,
    )

    # --- channels of AMQP 0-9-1 -------------------------------------------------------------------
    METHOD_IN_FLIGHT = (
        "method-in-flight",
        "a queue has not answered a method's request yet; later methods wait for it",
        "this is normal for a moment. If it lasts, check the queue.",
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
