"""The records that tasks send to each other, and the interface of commits at several queues.

To a session or channel: `Frames` from the reader, lists of queue effects from queues, `Decided`, and the rest
from the connection, its writer and the broker. To a queue: lists of `queues.commands`. Neither side changes a
record after it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Decided
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand, QueueHandle
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.queues.commands import Effect, RequestRef


@dataclass(eq=False, slots=True)
class Frames:
    """Frame bodies of one socket read, or a part of them, for one session."""

    items: Sequence[object]


class Notice(Enum):
    """The messages without content."""

    WRITER_READY = auto()
    """The writer has room again for transfers of this session. At most one is under way."""
    ACCESS_CHANGED = auto()
    """The user's permissions in the virtual host have changed."""
    TRANSACTIONS_DUE = auto()
    """A transaction has been open for too long."""


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    config: Config


@dataclass(frozen=True, slots=True)
class AlarmChanged:
    """Publishers are to be held back, or may continue."""

    on: bool


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
    """A commit is stored, or one that could not be done yet may be now (`sessions.messages`)."""

    ref: RequestRef


@dataclass(frozen=True, slots=True)
class Stop:
    """Settle what is decided, return everything else, and end. `error` goes into an end frame.

    Without `tell` no end frame is written: the connection is closing, or lost.
    """

    tell: bool = False
    error: AmqpError | None = None


SessionMessage = (
    Frames
    | list[Effect]
    | Decided
    | Notice
    | ConfigChanged
    | AlarmChanged
    | LinkStolen
    | LinkFree
    | Committed
    | Stop
)
ToSession = Callable[[SessionMessage], object]
"""Puts a message into the mailbox of a session. One per session."""


Part = QueueCommand
"""A command for one queue: publish, or settle."""


def no_part_text(queue: DeclaredQueue) -> str:
    """Return the error text for a queue that cannot take part in a commit."""
    name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if queue.kind.name == "quorum":
        return (
            f"{name} takes part in no transaction of this connection: a quorum queue does at the node that "
            "has its only member. "
            "Publish to it and settle its deliveries outside of transactions, or use a classic queue"
        )
    return (
        f"{name} takes part in no transaction of this connection: it is on another node. "
        "Connect to the queue's node, which 'queue list' shows, or leave the transaction out"
    )


class NoRoom(str):
    """Why nothing was done: a queue would exceed its limit."""

    __slots__ = ()


class NotYet(str):
    """Why nothing was done: a queue that was declared just now, or is read after a start, is not ready."""

    __slots__ = ()


class QueueCommits(Protocol):
    """Carries out commits at several queues."""

    @property
    def safe(self) -> bool:
        """Whether the last commit needs no further wait: nothing of it is stored on disk."""

    def takes(self, handle: QueueHandle) -> bool:
        """Return whether a queue may take part: it is on this node, and is not replicated."""

    def commit(
        self,
        mail: Sequence[QueueCommand],
        parts: Sequence[Part],
        ref: RequestRef | None = None,
        also: Callable[[], None] | None = None,
    ) -> str | None:
        """Have all parts carried out in one step, after the commands before them.

        The parts become visible together, and those stored on disk are all there after a restart, or none.

        Args:
            mail: commands to queues, in order; they are carried out in any case.
            ref: `Committed` follows with it when everything is stored, unless it is `safe` at once; None: no
                answer.
            also: appends further records to those on disk; not called where none are.

        Returns:
            Why nothing was done; None: it is done.
        """

    def when_ready(self, parts: Sequence[Part], ref: RequestRef) -> None:
        """Send `Committed` when parts that were `NotYet` done are worth another attempt."""
