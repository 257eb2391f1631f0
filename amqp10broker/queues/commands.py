"""What sessions and channels may ask of a queue.

Whoever asks has a `PeerId`; the queue gives its effects back under it. `PublisherRef`, `ConsumerRef` and
`RequestRef` are values, equal on every node, with no object of the living room in them. Nobody changes
a record after it was put; the four that are made per batch are not *declared* frozen, because that
costs 0.3 us instead of 0.1 each, which counts when every message goes to another queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import count
from typing import Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.settings import QueueSettings

ROOM_BYTES: Final = 2 * 1024 * 1024
"""Contents that a consumer asks for at one time, beside a number of messages; the one that exceeds it is the
last. So a consumer whose client does not read holds some megabytes, and not 256 of the largest messages."""

JOINED_MAX: Final = 4096
"""Publishes are joined until they have so many messages."""

NO_BOUND: Final = 2**63
"""As many bytes as there are: who asks of its own program, and what old journals say."""


class PeerId(NamedTuple):
    """A session, a channel or whoever else asks queues, by a name that every node understands.

    Equal ids mean the same one, also after they went through bytes. Who has such an id here, and where its
    mailbox is, only its own node knows.
    """

    node: int
    """Number of its node, u32; 0: of a node that is in no cluster."""
    incarnation: int
    """Which start of that node it belongs to, u32: it grows."""
    session: int
    """Which one of that start, u64."""


class ConsumerRef(NamedTuple):
    """One link or AMQP 0-9-1 consumer that consumes."""

    reply_to: PeerId
    handle: int
    """Which of all that its session has at queues, u64."""


class PublisherRef(NamedTuple):
    """One link that publishes, or one channel to this queue."""

    reply_to: PeerId
    handle: int


class RequestRef(NamedTuple):
    """One question to a queue; its `Answer` comes back under it."""

    reply_to: PeerId
    handle: int


class ReplyTo:
    """Whoever asks queues, on its own side: its id, and fresh references under it.

    Attributes:
        id: under which queues answer.
        label: for people: ``connection 3, session 1``.
    """

    __slots__ = ("_handles", "id", "label")

    def __init__(self, id: PeerId, label: str) -> None:
        self.id = id
        self.label = label
        self._handles = count(1)

    def __repr__(self) -> str:
        return f"<ReplyTo {self.label}>"

    def consumer(self) -> ConsumerRef:
        """For a new consumer."""
        return ConsumerRef(self.id, next(self._handles))

    def publisher(self) -> PublisherRef:
        """For a new publisher."""
        return PublisherRef(self.id, next(self._handles))

    def request(self) -> RequestRef:
        """For a new question."""
        return RequestRef(self.id, next(self._handles))

    def name_of(self, what: str) -> str:
        """What others read of something it has: ``connection 3, session 1, link 'x'``."""
        return f"{self.label}, {what}"


def tag_in(name: str) -> str:
    """The consumer's tag, or the link's name, in what `name_of` made of it; empty if there is none."""
    return name.partition("'")[2].removesuffix("'")


class Verdict(Enum):
    """What becomes of a delivery, in words of no protocol."""

    ACCEPT = auto()
    """Done with: remove it."""
    DISCARD = auto()
    """Not wanted: dead-letter or drop it."""
    DISCARD_FAILED = auto()
    """Likewise, and the attempt counts as failed."""
    REQUEUE = auto()
    """Back to its place."""
    REQUEUE_FAILED = auto()
    """Back to its place, and the attempt counts as failed."""


@dataclass(frozen=True, slots=True)
class AttachPublisher:
    """A link has this queue as its fixed target and wants to hear of its end."""

    publisher: PublisherRef


@dataclass(frozen=True, slots=True)
class DetachPublisher:
    """The link is gone. Publishes in flight are still confirmed."""

    publisher: PublisherRef


@dataclass(slots=True, eq=False)
class Publish:
    """Messages of one link, in order.

    Attributes:
        publisher: to whom the confirmation goes.
        ids: one number a message, given back when it is confirmed.
        messages: as many.
        settled: the client wants no outcome; given back as it is.
    """

    publisher: PublisherRef
    ids: Sequence[int]
    messages: Sequence[Message]
    settled: bool


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A link or an AMQP 0-9-1 consumer consumes from now on, with no credit yet.

    Refused with `SubscribeRefused` when it wants the queue for itself and is not the first, or when
    another has the queue for itself.

    Attributes:
        consumer: to whom deliveries go.
        settled: deliveries count as accepted when they are handed over.
        exclusive: no other consumer may come as long as this one is there.
        counted: it is a consumer for counts, exclusiveness and auto-delete. What fetches single
            messages (basic.get) is not.
        answer: say `Subscribed` when it was accepted.
        priority: of all consumers with credit, those of the highest one get messages.
        timeout_ms: how long it may hold a delivery unsettled (quorum queues); None: the queue's own.
        position: where a stream begins for it, as `message.filters` reads it; None: the default.
        filters: which messages it wants, and where in a stream it ends; None: all. Volatile queues have none.
        browse: it is shown messages and takes none; of a classic or a quorum queue. Such a consumer is not
            `counted`.
        shown: of a browser that goes on: how far it was shown, as the last `Deliver` had it; none: it begins.
        enqueued_time: it wants to know when each message of a stream was written. Other queues do not keep
            that, and do not say it.
        name: of the consumer, for people.
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
    """No more deliveries for this consumer; what it holds may still be settled.

    Deliveries that did not reach the client are given back before, by `GiveBack`.
    """

    consumer: ConsumerRef


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """The link is gone: what it holds gets the verdict, and what was never sent is in `unsent`.

    Attributes:
        consumer: which link.
        unsent: keys that did not reach the client: requeued as if never delivered.
        unsent_messages: their messages; of a settled consumer's the queue may hold no copy.
        seen: deliveries that reached the session so far. What the queue handed out beyond them is
            still on its way, never reached the client either, and is requeued in the same manner.
        verdict: for everything else that is unsettled.
    """

    consumer: ConsumerRef
    unsent: Sequence[int]
    unsent_messages: Sequence[Message]
    seen: int
    verdict: Verdict


@dataclass(slots=True, eq=False)
class Credit:
    """Set a consumer's credit: ``credit := delivery_count + credit - own delivery-count``.

    Always answered with one `CreditReply`. What is handed out for it ends with the message that uses up the
    room, whatever credit is left then: `Deliver.spent` says so, and whoever wants more asks again.

    Attributes:
        consumer: which link.
        delivery_count: as far as the session has sent to the client.
        credit: counted from there.
        drain: what cannot be delivered at once is forfeited.
        seen: deliveries that reached the session so far; see `Unsubscribe`.
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
    """The client has decided on deliveries. Unknown keys are ignored.

    Attributes:
        consumer: which link.
        keys: of its deliveries; none: the client has settled what the queue took back, and is alive.
        verdict: what becomes of them.
        annotations: an encoded map of AMQP 1.0 to merge into their message-annotations (`modified`);
            empty: none. Queues that keep messages as published ignore it.
        answer: say `Settled` when the decision cannot be lost any more. Every `Settle` that asks gets
            one, in their order and with its keys as they are, those that are unknown included.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    verdict: Verdict
    annotations: bytes = b""
    answer: bool = False


@dataclass(slots=True, eq=False)
class GiveBack:
    """The client has lowered its credit: deliveries that were not sent go back to their places.

    What the queue handed out beyond `seen` is requeued with them, for the session will not take it any
    more: accepted after a later raise of the credit it would overtake what was given back. There is no
    credit until the next `Credit`.

    Attributes:
        consumer: which link.
        keys: deliveries that reached the session and were not sent, as if they had never been made.
        messages: as many.
        delivery_count: of the queue for this consumer from now on.
        seen: deliveries that reached the session so far.
        epoch: stands on every `Deliver` and `CreditReply` made from now on.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    messages: Sequence[Message]
    delivery_count: int
    seen: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Say how many messages and consumers there are, behind everything that was posted before."""

    request: RequestRef


@dataclass(frozen=True, slots=True)
class Purge:
    """Drop the ready messages; what consumers hold stays. The answer says how many there were."""

    request: RequestRef


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the queue with its messages; everybody attached is told.

    Attributes:
        request: who wants to know how many ready messages went, or why nothing was deleted.
        if_unused: only without consumers.
        if_empty: only without ready messages.
    """

    request: RequestRef | None = None
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings of the queue have changed, by a policy. They act on what is there already, too."""

    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class Touch:
    """Somebody declared the queue again: it is not unused."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed and something is due: messages expire, consumers hold theirs for too long.

    The queue's own task says so; nobody else needs to.
    """


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
"""What changes a queue of any kind."""

Command = Change | Inspect | Touch

DELETE: Final = Delete()
TOUCH: Final = Touch()
TICK: Final = Tick()

ANSWERED_WHEN_GONE: Final = (Publish, AttachPublisher, DetachPublisher, Subscribe, Inspect, Purge, Delete)
"""Commands to which a queue that is gone has something to say. All else is about consumers, who hear that it
is gone; carried out by a queue that broke down it might meet the same fault again."""

T = TypeVar("T")


def joined(commands: Iterable[T]) -> list[T | Publish]:
    """The same commands for one queue, with publishes of one publisher that follow each other as one.

    To the queue that is the same, and each command costs as much as some tens of messages do.
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
                # What others gave is not changed.
                ids, messages = [*last.ids], [*last.messages]
                last = result[-1] = Publish(last.publisher, ids, messages, last.settled)
            ids += command.ids
            messages += command.messages
            continue
        else:
            last = command
        result.append(command)
    return result
