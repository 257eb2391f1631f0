"""Effects that queues send to sessions and channels, each under the `PeerId` of its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from amqp10broker.dataclass import dataclass

if TYPE_CHECKING:
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
    """The queue was deleted before it could take responsibility for published messages. `failed`: it was not
    deleted by a command, but broke down.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool
    failed: bool = False
    queue: str = ""


@dataclass(frozen=True, slots=True)
class PublishRejected:
    """The queue is full and refuses published messages."""

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool
    queue: str


class Refusal(Enum):
    """The reason why a queue refused a request."""

    IN_USE = "in use"
    NOT_EMPTY = "not empty"
    GONE = "gone"
    NOT_SUPPORTED = "not supported"
    NO_LEADER = "no leader"
    """The queue had no leader until the time limit of the request."""


class DeadLetterReason(StrEnum):
    """The reason of a dead-lettering, as its record in the message contains it."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


@dataclass(slots=True, eq=False)
class DeadLetters:
    """Messages that the queue gave up, in queue order, for its dead-letter exchange at that time. They are
    sent to no peer: `take_dead_letters` returns them to the queue's runtime. `exchange`: the queue's
    dead-letter exchange, which need not exist. `routing_key`: instead of the messages' own; None keeps those.
    """

    reason: DeadLetterReason
    messages: Sequence[Message]
    exchange: str
    routing_key: str | None


@dataclass(slots=True, eq=False)
class Deliver:
    """Messages for a consumer, within its credit, in queue order. `keys`: the queue's numbers, for `Settle`.
    `epoch`: of the last `GiveBack`; a session ignores deliveries of an older one. `spent`: the room of the
    last `Credit` is used up: no more until the next, whatever credit is left. `again`: some may have been
    handed out before, which their heads state. `shown`: progress of a browser of a quorum queue after these
    (`Subscribe.shown`).
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
    """The answer to a `Settle`: its outcome survives a restart, as far as messages of the queue do."""

    consumer: ConsumerRef
    keys: Sequence[int]


@dataclass(slots=True, eq=False)
class CreditReply:
    """The answer to one `Credit`, after the deliveries it caused. `delivery_count`: of the queue for this
    consumer; a drain has advanced it. `credit`: what is left; 0 after a drain. `available`: number of ready
    messages. `epoch`: of the last `GiveBack`; an answer of an older one is outdated.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    available: int
    drain: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue is gone, and the link to it must end."""

    ref: ConsumerRef | PublisherRef
    queue: str


@dataclass(frozen=True, slots=True)
class QueueDown:
    """The queue's node is unreachable, or has begun again: the consumer must end, and has lost its
    deliveries. The queue may exist again later, and publishers stay.
    """

    consumer: ConsumerRef
    queue: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The consumer is accepted; its deliveries follow."""

    consumer: ConsumerRef


@dataclass(frozen=True, slots=True)
class SubscribeRefused:
    """The consumer is not accepted. `why`: conflict of exclusive use; or the queue has no leader."""

    consumer: ConsumerRef
    queue: str
    why: Refusal = Refusal.IN_USE


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """The consumer became the single active consumer of its queue, or ceased to be it."""

    consumer: ConsumerRef
    active: bool


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The consumer held deliveries for too long, and they were returned to the queue."""

    consumer: ConsumerRef
    keys: Sequence[int]
    queue: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `Inspect`, `Purge` or `Delete`. `ready`: ready messages; for the others those that were
    removed. `consumers`: those that are counted. `refused`: None: success. `next_offset`: of a stream: of the
    next message that is published; those before it are ready.
    """

    request: RequestRef
    ready: int
    consumers: int
    refused: Refusal | None = None
    next_offset: int | None = None


Effect = (
    Confirmed
    | Unconfirmed
    | PublishRejected
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
