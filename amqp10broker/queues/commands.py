"""Commands that sessions and channels send to queues, and the effects that queues send back.

References are equal on every node and contain no object of the runtime. Records are not modified after they
were sent. The four that are made per batch are not *declared* frozen, because a frozen record takes 0.3 us to
make instead of 0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum, auto
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass

if TYPE_CHECKING:
    from amqp10broker.message.message import Message
    from amqp10broker.queues.settings import QueueSettings


ROOM_BYTES: Final = 2 * 1024 * 1024
"""The bytes of contents that a consumer requests at a time, besides a number of messages; the message that
exceeds them is the last. So a consumer whose client does not read holds some megabytes, and not 256 of the
largest messages.
"""

JOINED_MAX: Final = 4096
"""The number of messages up to which publishes are joined."""

NO_BOUND: Final = 2**63
"""No limit of bytes: for consumers inside the program."""


class PeerId(NamedTuple):
    """The id of a session, channel or other client of queues, unique in the cluster. Only its own node maps
    the id to a mailbox.
    """

    node: int
    """u32; 0 for a node that is not in a cluster."""
    incarnation: int
    """The number of the node's start, u32, growing."""
    session: int
    """The number of the session since that start, u64."""


class ConsumerRef(NamedTuple):
    reply_to: PeerId
    handle: int
    """Unique among the consumers, publishers and requests of its session, u64."""


class PublisherRef(NamedTuple):
    reply_to: PeerId
    handle: int


class RequestRef(NamedTuple):
    reply_to: PeerId
    handle: int


class ReplyTo:
    """The reply address of a client here, which makes references. `label`: ``connection 3, session 1``."""

    __slots__ = ("_handles", "id", "label")

    def __init__(self, id: PeerId, label: str) -> None:
        self.id = id
        self.label = label
        self._handles = count(1)

    def __repr__(self) -> str:
        return f"<ReplyTo {self.label}>"

    def consumer(self) -> ConsumerRef:
        return ConsumerRef(self.id, next(self._handles))

    def publisher(self) -> PublisherRef:
        return PublisherRef(self.id, next(self._handles))

    def request(self) -> RequestRef:
        return RequestRef(self.id, next(self._handles))

    def name_of(self, what: str) -> str:
        """Return a display name of one of its links or consumers: ``connection 3, session 1, link 'x'``."""
        return f"{self.label}, {what}"


def tag_in(name: str) -> str:
    """Return the consumer tag or link name in a result of `name_of`; empty if there is none."""
    return name.partition("'")[2].removesuffix("'")


class DeliveryOutcome(Enum):
    ACCEPT = auto()
    DISCARD = auto()
    DISCARD_FAILED = auto()
    """Dead-letter or drop the message, and count the attempt as failed."""
    REQUEUE = auto()
    REQUEUE_FAILED = auto()


@dataclass(frozen=True, slots=True)
class AttachPublisher:
    """Attach a publishing link that has this queue as its fixed target."""

    publisher: PublisherRef


@dataclass(frozen=True, slots=True)
class DetachPublisher:
    """Detach a link. Publishes in flight are still confirmed."""

    publisher: PublisherRef


@dataclass(slots=True, eq=False)
class Publish:
    """Publish messages of one link, in order. `ids`: one number for each message, returned when it is
    confirmed. `settled`: the client wants no outcome; returned unchanged.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    messages: Sequence[Message]
    settled: bool


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe a link or an AMQP 0-9-1 consumer, without credit.

    It is refused with `SubscribeRefused` if it or another consumer has exclusive use.

    Attributes:
        settled: deliveries count as accepted when they are handed over.
        counted: false for fetches of single messages (basic.get) and browsers, which do not matter for
            counts, exclusiveness and auto-delete.
        priority: of all consumers with credit, those of the highest priority get messages.
        timeout_ms: how long it may hold a delivery (quorum queues); None: as in the queue's settings.
        position: in a stream, in the form of `message.filters`.
        filters: the messages that it wants, and its end in a stream.
        browse: it receives copies and takes no message from a classic or quorum queue.
        shown: the progress of a browser that continues, from its last `Deliver`.
        enqueued_time: messages of a stream get the time at which they were written.
    """

    consumer: ConsumerRef
    settled: bool
    exclusive: bool = False
    counted: bool = True
    answer: bool = False
    priority: int = 0
    timeout_ms: int | None = None
    position: object | None = None
    filters: object | None = None
    browse: bool = False
    shown: Sequence[int] = ()
    enqueued_time: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop deliveries to a consumer, which may still settle those that it has. Deliveries that did not reach
    the client must be returned before, by `GiveBack`.
    """

    consumer: ConsumerRef


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Remove a consumer.

    Attributes:
        unsent: keys that did not reach the client. They are requeued as if they had never been delivered.
        unsent_messages: their messages; for a settled consumer the queue may have no copy.
        seen: deliveries that reached the session so far; later ones did not reach the client either.
        delivery_outcome: of all other deliveries.
    """

    consumer: ConsumerRef
    unsent: Sequence[int]
    unsent_messages: Sequence[Message]
    seen: int
    delivery_outcome: DeliveryOutcome


@dataclass(slots=True, eq=False)
class Credit:
    """Set a consumer's credit: ``credit := delivery_count + credit - own delivery-count``.

    It is always answered with one `CreditReply`. Deliveries end with the message that uses up `room`, in
    bytes of contents, whatever credit is left. `Deliver.spent` is set then, and further deliveries need
    another `Credit`.

    Attributes:
        delivery_count: deliveries that the session has sent to the client, from which `credit` counts.
        drain: credit that cannot be used at once is forfeited.
        seen: as in `Unsubscribe`.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    drain: bool
    seen: int
    room: int = NO_BOUND


@dataclass(slots=True, eq=False)
class Settle:
    """Settle deliveries.

    Unknown keys are ignored. Without keys, the client has settled deliveries that the queue took back, which
    shows that it is alive. `annotations`: an encoded AMQP 1.0 map to merge into the message-annotations
    (`modified`); queues that store messages as published ignore it. `answer`: send `Settled` with all the
    keys, in order, when the outcome cannot be lost any more.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    delivery_outcome: DeliveryOutcome
    annotations: bytes = b""
    answer: bool = False


@dataclass(slots=True, eq=False)
class GiveBack:
    """Return unsent deliveries to their places, after the client has lowered its credit.

    Deliveries beyond `seen` are requeued with them, and the session must not take them any more: accepted
    after a later raise of the credit, they would overtake those that were given back. There is no credit
    until the next `Credit`. `delivery_count`: that of the queue for this consumer from now on. `epoch`: that
    of every `Deliver` and `CreditReply` from now on.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    messages: Sequence[Message]
    delivery_count: int
    seen: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Request the numbers of messages and consumers, after all commands that were sent before."""

    request: RequestRef


@dataclass(frozen=True, slots=True)
class Purge:
    """Drop the ready messages, and return their number."""

    request: RequestRef


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the queue with its messages. `request`: answered with the number of ready messages that were
    deleted, or the reason of a refusal. `if_unused`: only without consumers. `if_empty`: only without ready
    messages.
    """

    request: RequestRef | None = None
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class Configure:
    """Change the settings of the queue, also for present messages."""

    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class Touch:
    """Renew the lease of an unused queue, because it was declared again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Apply the passing of time. Only the queue's own task sends it."""


Change = (
    AttachPublisher
    | Configure
    | Tick
    | DetachPublisher
    | Cancel
    | Purge
    | Publish
    | Subscribe
    | Unsubscribe
    | Credit
    | Settle
    | GiveBack
    | Delete
)
Command = Change | Inspect | Touch

DELETE: Final = Delete()
TOUCH: Final = Touch()
TICK: Final = Tick()

ANSWERED_WHEN_GONE: Final = (Publish, AttachPublisher, DetachPublisher, Subscribe, Inspect, Purge, Delete)
"""The commands that a deleted queue answers. All others are about consumers, which are notified."""

T = TypeVar("T")


def joined(commands: Iterable[T]) -> list[T | Publish]:
    """Join consecutive publishes of one publisher: a command takes as much time as some tens of messages."""
    result: list[T | Publish] = []
    last: Publish | None = None
    ids: list[int] = []
    messages: list[Message] = []
    for command in commands:
        if not isinstance(command, Publish):
            last = None
        elif (
            last is not None
            and command.publisher == last.publisher
            and command.settled is last.settled
            and len(last.messages) < JOINED_MAX
        ):
            if last.messages is not messages:
                # Lists of the callers are not modified.
                ids, messages = [*last.ids], [*last.messages]
                last = result[-1] = Publish(last.publisher, ids, messages, last.settled)
            ids += command.ids
            messages += command.messages
            continue
        else:
            last = command
        result.append(command)
    return result


@dataclass(slots=True, eq=False)
class Confirmed:
    """The queue has taken responsibility for published messages."""

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The queue was deleted before it was responsible for published messages. `failed`: by a fault."""

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
    IN_USE = "in use"
    NOT_EMPTY = "not empty"
    GONE = "gone"
    NOT_SUPPORTED = "not supported"
    NO_LEADER = "no leader"
    """The queue had no leader until the time limit of the request was over."""


class DeadLetterReason(StrEnum):
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


@dataclass(slots=True, eq=False)
class DeadLetters:
    """Messages that the queue gave up, in queue order, for its dead-letter exchange at that time, which may
    not exist. `routing_key`: None: each message keeps its own.
    """

    reason: DeadLetterReason
    messages: Sequence[Message]
    exchange: str
    routing_key: str | None


@dataclass(frozen=True, slots=True)
class DeadMessage:
    key: int
    message: Message
    reason: DeadLetterReason


@dataclass(slots=True, eq=False)
class Deliver:
    """Messages for a consumer, within its credit, in queue order.

    Attributes:
        epoch: that of the last `GiveBack`; a session ignores deliveries of an older one.
        spent: the room of the last `Credit` is used up.
        again: some may have been handed out before, which their heads state.
        shown: the progress of a browser of a quorum queue after these messages.
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
    """The outcome of a `Settle` survives a restart, as far as the queue's messages do."""

    consumer: ConsumerRef
    keys: Sequence[int]


@dataclass(slots=True, eq=False)
class CreditReply:
    """The answer to one `Credit`, after the deliveries that it caused. `delivery_count`: that of the queue; a
    drain has advanced it. `credit`: the credit that is left. `available`: the number of ready messages.
    `epoch`: that of the last `GiveBack`; an answer with an older one is outdated.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    available: int
    drain: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue was deleted, and the link to it must end."""

    ref: ConsumerRef | PublisherRef
    queue: str


@dataclass(frozen=True, slots=True)
class QueueDown:
    """The queue's node is unreachable, or was restarted: the consumer must end, and has lost its deliveries.
    The queue may exist again later, and publishers stay.
    """

    consumer: ConsumerRef
    queue: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The consumer is accepted; its deliveries follow."""

    consumer: ConsumerRef


@dataclass(frozen=True, slots=True)
class SubscribeRefused:
    """The consumer is not accepted. `why`: a conflict of exclusive use, or the queue has no leader."""

    consumer: ConsumerRef
    queue: str
    why: Refusal = Refusal.IN_USE


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """The consumer became the single active consumer, or is not active any more."""

    consumer: ConsumerRef
    active: bool


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The consumer held deliveries for too long, and they were returned."""

    consumer: ConsumerRef
    keys: Sequence[int]
    queue: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `Inspect`, `Purge` or `Delete`. `ready`: the number of ready messages, or of those that
    were removed. `refused`: None: success. `next_offset`: of a stream.
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
