"""Why a link, a channel or a consumer waits: one closed set for both protocols.

Each member's value is its code, as `amqp10broker status`, `list-links`, `list-channels`, `list-consumers`
and the log write it; `docs/waiting.md` explains each. In flow events the same set has numbers:
`flowevents.schema.Reason`, member by member of the same name.

Whoever decides that something waits gives a `Waiting`: the code, one sentence with what shows it, and since
when. ``None`` in place of the code is no wait: it is the client's turn, or nothing is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from amqp10broker.management.snapshot import WaitView

STUCK_MS: Final = 1_000
"""Bytes that the socket has not taken for so long are a reason to wait for the whole connection; a delivery
whose next part has not come for so long is unfinished."""


class Wait(StrEnum):
    """The codes. `meaning` says in a line what each tells."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Wait:
        """A code and its meaning."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # --- consumers of AMQP 1.0: the client has granted nothing ------------------------------------
    NO_CREDIT_NEVER_GRANTED = (
        "no-credit-never-granted",
        "the client has never granted credit on this link",
    )
    NO_CREDIT_USED_UP = (
        "no-credit-used-up",
        "deliveries have used up the client's last grant, and no new one has come",
    )
    NO_CREDIT_SET_TO_ZERO = (
        "no-credit-set-to-zero",
        "the client's flow set the credit to 0 when some of it was left",
    )
    NO_CREDIT_REVOKED = (
        "no-credit-revoked",
        "the client's flow lowered the credit to less than was sent already, when some of it was left",
    )
    NO_CREDIT_DRAINED = (
        "no-credit-drained",
        "the client drained its credit, was answered, and has granted none since",
    )
    NO_CREDIT_STALE_FLOW = (
        "no-credit-stale-flow",
        "the client's flows name a delivery-count so old that nothing is left of their credit",
    )

    UNSETTLED_INCOMPLETE = (
        "unsettled-incomplete",
        "the client's attach gave an incomplete unsettled map: nothing is sent until it attaches again",
    )

    # --- consumers of both protocols: the client could take more ----------------------------------
    PEER_WINDOW_CLOSED = (
        "peer-window-closed",
        "deliveries wait: the client's session window is used up",
    )
    WRITER_BLOCKED = (
        "writer-blocked",
        "bytes wait for the socket: the client, or the network, does not read fast enough",
    )
    DRAINING = (
        "draining",
        "the client asked to drain, and the queue has not answered yet",
    )
    QUEUE_CREDIT_IN_FLIGHT = (
        "queue-credit-in-flight",
        "the queue was asked for messages, or whether the consumer is active, and has not answered yet",
    )
    NO_LEADER = (
        "no-leader",
        "no member of the queue leads it, or its node cannot be reached",
    )
    NOT_ACTIVE = (
        "not-active",
        "another consumer of the queue is its single active one",
    )
    TIMED_OUT = (
        "timed-out",
        "the consumer let a delivery time out, and gets no more until its client is heard of",
    )
    LOWER_PRIORITY = (
        "lower-priority",
        "a consumer of higher priority takes what the queue has",
    )
    UNSETTLED_HERE = (
        "unsettled-here",
        "all messages of the queue are held, unsettled, by this consumer itself",
    )
    UNSETTLED_ELSEWHERE = (
        "unsettled-elsewhere",
        "all messages of the queue are held, unsettled, by others",
    )
    MESSAGES_DELAYED = (
        "messages-delayed",
        "all messages of the queue were returned to it and wait until they are tried again",
    )
    MESSAGES_NOT_SYNCED = (
        "messages-not-synced",
        "messages are in the queue, and it hands them out when the disk has them",
    )
    FILTER_PASSED_NONE = (
        "filter-passed-none",
        "the stream was read to its end, and the consumer's filter let nothing through",
    )
    STREAM_END = (
        "stream-end",
        "the consumer has read the stream to its end",
    )
    QUEUE_EMPTY_EXPIRED = (
        "queue-empty-expired",
        "the queue is empty because messages expired in it",
    )
    QUEUE_EMPTY_NOTHING_ROUTED = (
        "queue-empty-nothing-routed",
        "nothing was ever published to the queue",
    )
    QUEUE_EMPTY = (
        "queue-empty",
        "there is nothing to deliver",
    )

    # --- consumers of AMQP 0-9-1 ------------------------------------------------------------------
    PREFETCH_FULL = (
        "prefetch-full",
        "the consumer holds as many unacknowledged deliveries as it may",
    )
    CHANNEL_PREFETCH_FULL = (
        "channel-prefetch-full",
        "the consumers of the channel together hold as many unacknowledged deliveries as it may",
    )

    # --- publishers -------------------------------------------------------------------------------
    CREDIT_WITHHELD = (
        "credit-withheld",
        "as many deliveries as the link may have wait for their queues",
    )
    CREDIT_WITHHELD_BY_SYNC = (
        "credit-withheld-by-sync",
        "as many deliveries as the link may have wait for a sync of the disk",
    )
    CREDIT_WITHHELD_BY_FULL_DISK = (
        "credit-withheld-by-full-disk",
        "as many deliveries as the link may have wait for the disk, which is full",
    )
    BLOCKED_BY_ALARM = (
        "blocked-by-alarm",
        "memory or disk is short: publishers are held back",
    )
    DELIVERY_UNFINISHED = (
        "delivery-unfinished",
        "the client has sent a part of a delivery and not the rest",
    )
    COUNT_JUMPED = (
        "count-jumped",
        "the client used up its credit by a flow that names a higher delivery-count than it has sent",
    )
    CREDIT_FLOW = (
        "credit-flow",
        "AMQP 0-9-1: the connection is not read because a queue does not follow what is published",
    )
    READER_HELD = (
        "reader-held",
        "the connection is not read because another session or channel of it waits",
    )

    # --- channels of AMQP 0-9-1 -------------------------------------------------------------------
    METHOD_IN_FLIGHT = (
        "method-in-flight",
        "a queue was asked something for a method and has not answered; later methods wait behind it",
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one thing waits.

    Attributes:
        wait: the code; None: it does not.
        why: one sentence with what shows it. With `wait` None what is to be said of its state, if anything:
            "its turn: 170 credits, window open".
        for_ms: how long it has waited, None if it does not wait or nobody can know.
    """

    wait: Wait | None
    why: str = ""
    for_ms: int | None = None

    def view(self) -> WaitView:
        """As doors show it."""
        return WaitView(
            None if self.wait is None else self.wait.value,
            self.why or None,
            None if self.for_ms is None else max(0, self.for_ms) / 1000,
        )


NO_WAIT = Waiting(None)
"""Nothing waits, and there is nothing to say."""


def seconds(ms: int) -> str:
    """A duration as a text: ``0.4 s``, ``12 s``."""
    s = max(0, ms) / 1000
    return f"{s:.1f} s" if s < 10 else f"{s:.0f} s"


def count(number: int, noun: str) -> str:
    """``1 message``, ``2 messages``; the plural of nouns in y has ies."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
