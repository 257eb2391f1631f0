"""Commands that sessions and channels send to queues, and the effects that queues send back.

A sender has a `PeerId`, under which the queue returns its effects. `PublisherRef`, `ConsumerRef` and
`RequestRef` are values that are equal on every node and contain no object of the runtime. Records are not
modified after they were sent; the four that are made per batch are not *declared* frozen, because that costs
0.3 us instead of 0.1 each, which counts when every message goes to another queue.
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
"""Bytes of contents that a consumer requests at a time, beside a number of messages; the message that exceeds
it is the last. So a consumer with a client that does not read holds some megabytes, and not 256 of the
largest messages.
"""

JOINED_MAX: Final = 4096
"""Messages up to which publishes are joined."""

NO_BOUND: Final = 2**63
"""No limit of bytes: for consumers inside the program."""


class PeerId(NamedTuple):
    """The id of a session, channel or other client of queues, valid on every node. Equal ids mean the same
    client, also after encoding. Only its own node maps the id to a mailbox.
    """

    node: int
    """Number of its node, u32; 0: of a node that is in no cluster."""
    incarnation: int
    """Start of that node, u32, growing."""
    session: int
    """Number of the session in that start, u64."""


class ConsumerRef(NamedTuple):
    """A consuming link or AMQP 0-9-1 consumer."""

    reply_to: PeerId
    handle: int
    """Unique among the consumers, publishers and requests of its session, u64."""


class PublisherRef(NamedTuple):
    """A publishing link, or a channel that publishes to this queue."""

    reply_to: PeerId
    handle: int


class RequestRef(NamedTuple):
    """A request to a queue, which its `Answer` contains."""

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
    """The outcome of a delivery, independent of the protocol."""

    ACCEPT = auto()
    DISCARD = auto()
    DISCARD_FAILED = auto()
    """Dead-letter or drop the message, and count the attempt as failed."""
    REQUEUE = auto()
    """Put the message back to its place."""
    REQUEUE_FAILED = auto()
    """Put the message back to its place, and count the attempt as failed."""


@dataclass(frozen=True, slots=True)
class AttachPublisher:
    """Attach a link with this queue as its fixed target, which is notified of the queue's end."""

    publisher: PublisherRef


@dataclass(frozen=True, slots=True)
class DetachPublisher:
    """Detach a link. Publishes in flight are still confirmed."""

    publisher: PublisherRef


@dataclass(slots=True, eq=False)
class Publish:
    """Publish messages of one link, in order. `publisher`: receiver of the confirmation. `ids`: one number a
    message, returned when it is confirmed. `settled`: the client wants no outcome; returned unchanged.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    messages: Sequence[Message]
    settled: bool


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe a link or an AMQP 0-9-1 consumer, without credit.

    Refused with `SubscribeRefused` if it requests exclusive use and is not the first, or if another has
    exclusive use.

    Attributes:
        settled: deliveries count as accepted when they are handed over.
        exclusive: no other consumer may come as long as this one exists.
        counted: false for fetches of single messages (basic.get), which do not matter for counts,
            exclusiveness and auto-delete.
        answer: send `Subscribed` on success.
        priority: of all consumers with credit, those of the highest get messages.
        timeout_ms: how long it may hold a delivery unsettled (quorum queues); None: as in the queue's
            settings.
        position: start position in a stream, in the form of `message.filters`; None: the default.
        filters: the messages it wants, and its end in a stream; None: all. Volatile queues have none.
        browse: it receives copies and takes no message; of a classic or a quorum queue. Such a consumer is
            not `counted`.
        shown: progress of a browser that goes on, from its last `Deliver`; empty: it begins.
        enqueued_time: messages of a stream get the time at which they were written. Other queues do not store
            it.
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
    """Remove a consumer: unsettled deliveries get the outcome `delivery_outcome`, those that were never sent
    are in `unsent`. `unsent`: keys that did not reach the client: requeued as if never delivered.
    `unsent_messages`: their messages; of a settled consumer's the queue may have no copy. `seen`: deliveries
    that reached the session so far. Deliveries beyond them are still on their way, never reached the client
    either, and are requeued in the same manner.
    """

    consumer: ConsumerRef
    unsent: Sequence[int]
    unsent_messages: Sequence[Message]
    seen: int
    delivery_outcome: DeliveryOutcome


@dataclass(slots=True, eq=False)
class Credit:
    """Set a consumer's credit: ``credit := delivery_count + credit - own delivery-count``.

    Always answered with one `CreditReply`. Deliveries end with the message that uses up the room, whatever
    credit is left; `Deliver.spent` is set then, and further deliveries need another `Credit`.

    Attributes:
        delivery_count: deliveries that the session has sent to the client.
        credit: counted from there.
        drain: credit that cannot be used at once is forfeited.
        seen: deliveries that reached the session so far; as in `Unsubscribe`.
        room: bytes of contents, at least 1.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    drain: bool
    seen: int
    room: int = NO_BOUND


@dataclass(slots=True, eq=False)
class Settle:
    """Settle deliveries. Unknown keys are ignored. `keys`: of the deliveries; none: the client has settled
    deliveries that the queue took back, and is alive. `annotations`: an encoded AMQP 1.0 map to merge into
    the message-annotations (`modified`); empty: none. Queues that store messages as published ignore it.
    `answer`: send `Settled` when the outcome cannot be lost any more. There is one for each such `Settle`, in
    order, with all its keys, unknown ones included.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    delivery_outcome: DeliveryOutcome
    annotations: bytes = b""
    answer: bool = False


@dataclass(slots=True, eq=False)
class GiveBack:
    """Return deliveries that were not sent to their places, after the client has lowered its credit.

    Deliveries beyond `seen` are requeued with them, and the session must not take them any more: accepted
    after a later raise of the credit, they would overtake those that were given back. There is no credit
    until the next `Credit`.

    Attributes:
        keys: deliveries that reached the session and were not sent, as if they had never been made.
        delivery_count: of the queue for this consumer from now on.
        seen: deliveries that reached the session so far.
        epoch: of every `Deliver` and `CreditReply` from now on.
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
    """Drop the ready messages, and return their number; those that consumers hold stay."""

    request: RequestRef


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the queue with its messages, and notify all attached links. `request`: answered with the number
    of ready messages that went, or the reason of a refusal. `if_unused`: only without consumers. `if_empty`:
    only without ready messages.
    """

    request: RequestRef | None = None
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class Configure:
    """Change the settings of the queue. They apply to present messages, too."""

    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class Touch:
    """Renew the lease of an unused queue, because it was declared again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Apply the passing of time: expiries, time-outs of deliveries. Sent by the queue's own task only."""


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
"""Commands that a deleted queue answers. All others are about consumers, which are notified that it is gone;
applied to a queue that broke down they might meet the same fault again.
"""

T = TypeVar("T")


def joined(commands: Iterable[T]) -> list[T | Publish]:
    """Join consecutive publishes of one publisher to the same queue. They are equivalent for the queue, and
    each command costs as much as some tens of messages.
    """
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
