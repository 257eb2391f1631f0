"""What a queue tells sessions, each under the `ReplyTo` that asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, PublisherRef


@dataclass(slots=True, eq=False)
class Confirmed:
    """The queue has taken responsibility for published messages."""

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The queue will not take published messages: it was deleted before it could."""

    publisher: PublisherRef
    ids: Sequence[int]
    settled: bool


@dataclass(slots=True, eq=False)
class Deliver:
    """Messages for a consumer, within the credit it was given, in queue order.

    Attributes:
        consumer: which link.
        keys: the queue's number for each delivery, for `Settle`.
        messages: as many.
        settled: the queue keeps no copy, these are the only ones.
    """

    consumer: ConsumerRef
    keys: Sequence[int]
    messages: Sequence[Message]
    settled: bool


@dataclass(slots=True, eq=False)
class CreditReply:
    """The answer to one `Credit`, after the deliveries it caused.

    Attributes:
        consumer: which link.
        delivery_count: of the queue for this consumer; a drain has advanced it.
        credit: what is left; 0 after a drain.
        available: ready messages.
        drain: as asked.
    """

    consumer: ConsumerRef
    delivery_count: int
    credit: int
    available: int
    drain: bool


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue is gone; the link to it must end."""

    ref: ConsumerRef | PublisherRef
    queue: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """Nothing more comes for this consumer."""

    consumer: ConsumerRef


Effect = Confirmed | Unconfirmed | Deliver | CreditReply | QueueDeleted | Unsubscribed
