"""The records that tasks send to each other.

To a session or channel: `Frames` from the reader, lists of queue effects from queues, `Decided`, and the rest
from the connection, its writer and the broker. To a queue: lists of `queues.commands`. The writer's records
are in `runtime/connections/writer.py`. Neither side changes a record after it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.proposing import Decided
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.queues.commands import RequestRef
from amqp10broker.queues.effects import Effect


@dataclass(eq=False, slots=True)
class Frames:
    """Frame bodies of one socket read, or a part of them, for one session."""

    items: Sequence[object]


@dataclass(frozen=True, slots=True)
class WriterReady:
    """The writer has room again for transfers of this session. At most one is under way."""


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    config: Config


@dataclass(frozen=True, slots=True)
class AlarmChanged:
    """Publishers are to be held back, or may continue."""

    on: bool


@dataclass(frozen=True, slots=True)
class AccessChanged:
    """The user's permissions in the virtual host have changed."""


@dataclass(frozen=True, slots=True)
class LinkStolen:
    """Another session has attached a link's name: of the connection, or, of a kept link, of its container."""

    link: SenderLink | ReceiverLink


@dataclass(frozen=True, slots=True)
class LinkFree:
    """The end that the attach of a kept link waited for has gone."""

    link: SenderLink | ReceiverLink


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit is stored, or one that could not be done yet may be now (`sessions.commits`)."""

    ref: RequestRef


@dataclass(frozen=True, slots=True)
class TransactionsDue:
    """A transaction has been open for too long."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Settle what is decided, return everything else, and end. `error` goes into an end frame.

    Without `tell` no end frame is written: the connection is closing, or lost.
    """

    tell: bool = False
    error: AmqpError | None = None


WRITER_READY = WriterReady()
ACCESS_CHANGED = AccessChanged()
TRANSACTIONS_DUE = TransactionsDue()

SessionMessage = (
    Frames
    | list[Effect]
    | Decided
    | WriterReady
    | ConfigChanged
    | AlarmChanged
    | AccessChanged
    | LinkStolen
    | LinkFree
    | Committed
    | TransactionsDue
    | Stop
)
ToSession = Callable[[SessionMessage], object]
"""Puts a message into the mailbox of a session. One per session."""
