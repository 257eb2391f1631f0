"""What a queue tells sessions and channels, each under the `PeerId` that asked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, PublisherRef, RequestRef


@dataclass(slots=True, eq=False)
class Confirmed:
    """The queue has taken responsibility for published messages."""

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The queue will not take published messages: it was deleted before it could.

    Attributes:
        publisher: as in `Confirmed`.
        ids: as in `Confirmed`.
        settled: as in `Confirmed`.
        failed: it was not deleted by anybody, it broke down.
        queue: its name.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool
    failed: bool = False
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The queue is full and does not take published messages.

    Attributes:
        publisher: as in `Confirmed`.
        ids: as in `Confirmed`.
        settled: as in `Confirmed`.
        queue: its name.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool
    queue: str


class Refusal(Enum):
    """Why a queue did not do what was asked."""

    IN_USE = "in use"
    NOT_EMPTY = "not empty"
    GONE = "gone"
    """It was deleted before the question came."""
    NOT_SUPPORTED = "not supported"
    """A queue of this kind cannot do it."""
    NO_LEADER = "no leader"
    """No member of the queue led it for so long that the one who asked was not to wait any longer."""


class Reason(StrEnum):
    """Why a message is dead-lettered, as its record of dead-lettering says."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


@dataclass(slots=True, eq=False)
class DeadLetters:
    """Messages that the queue gave up, in queue order, for the dead-letter exchange it had then.

    Not told to anybody who asked: `take_dead_letters` gives it to whoever runs the queue.

    Attributes:
        reason: why.
        messages: which.
        exchange: the queue's dead-letter exchange; it need not exist.
        routing_key: instead of the messages' own; None keeps those.
    """

    reason: Reason
    messages: Sequence[Message]
    exchange: str
    routing_key: str | None


@dataclass(slots=True, eq=False)
class Deliver:
    """Messages for a consumer, within the credit it was given, in queue order.

    Attributes:
        consumer: which link.
        keys: the queue's number for each delivery, for `Settle`.
        messages: as many.
        epoch: of the last `GiveBack`; a session does not take deliveries of an older one.
        spent: the room of the last `Credit` is used up: no more until the next, whatever credit is left.
        again: some of them may have been handed out before: their heads say which.
        shown: of a browser of a quorum queue: how far it has been shown with these (`Subscribe.shown`).
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    messages: Sequence[Message]
    epoch: int
    spent: bool = False
    again: bool = False
    shown: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class Settled:
    """The answer to one `Settle` that asked: what it decided survives a restart, as far as anything does.

    Attributes:
        consumer: which link.
        keys: of the `Settle`.
    """

    consumer: ConsumerRef
    keys: Sequence[int]


@dataclass(slots=True, eq=False)
class CreditReply:
    """The answer to one `Credit`, after the deliveries it caused.

    Attributes:
        consumer: which link.
        delivery_count: of the queue for this consumer; a drain has advanced it.
        credit: what is left; 0 after a drain.
        available: ready messages.
        drain: as asked.
        epoch: of the last `GiveBack`; an answer of an older one has been overtaken.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    available: int
    drain: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue is gone; the link to it must end."""

    ref: ConsumerRef | PublisherRef
    queue: str


@dataclass(frozen=True, slots=True)
class QueueDown:
    """The queue's node cannot be reached, or has begun again: the consumer must end, and what it held is not
    its own any more. The queue may be there again later, and publishers stay."""

    consumer: ConsumerRef
    queue: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The consumer is accepted; its deliveries follow."""

    consumer: ConsumerRef


@dataclass(frozen=True, slots=True)
class SubscribeRefused:
    """The consumer is not accepted.

    Attributes:
        consumer: which link.
        queue: its name.
        why: another has the queue for itself, or it wanted that and cannot; or the queue has no leader.
    """

    consumer: ConsumerRef
    queue: str
    why: Refusal = Refusal.IN_USE


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """The consumer became the active one of a queue with a single active consumer, or is it no more."""

    consumer: ConsumerRef
    active: bool


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The consumer held deliveries for longer than it may: they went back to the queue."""

    consumer: ConsumerRef
    keys: Sequence[int]
    queue: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `Inspect`, `Purge` or `Delete`.

    Attributes:
        request: the question.
        ready: ready messages; for `Purge` and `Delete` those that went.
        consumers: consumers that are counted.
        refused: why nothing was done, None if it was.
        next_offset: of a stream: of the next message that is published; those before it are ready.
    """

    request: RequestRef
    ready: int
    consumers: int
    refused: Refusal | None = None
    next_offset: int | None = None


Effect = (
    Confirmed
    | Unconfirmed
    | Rejected
    | Deliver
    | Settled
    | CreditReply
    | QueueDeleted
    | QueueDown
    | Subscribed
    | SubscribeRefused
    | Answer
    | ActiveChanged
    | TimedOut
)
