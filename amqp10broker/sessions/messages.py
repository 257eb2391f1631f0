"""The records that tasks send to each other, and the interface of commits at several queues.

Neither the sender nor the receiver changes a record after it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.plan import Decided
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand, QueueHandle
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.queues.commands import Effect, RequestRef


@dataclass(eq=False, slots=True)
class Frames:
    """The frame bodies of one socket read, or a part of them."""

    items: Sequence[object]


class Notice(Enum):
    """The messages without content."""

    WRITER_READY = auto()
    """The writer has room again. At most one such message is in the mailbox."""
    ACCESS_CHANGED = auto()
    """The user's permissions in the virtual host have changed."""
    TRANSACTIONS_DUE = auto()
    """A transaction has been open for too long."""


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    config: Config


@dataclass(frozen=True, slots=True)
class AlarmChanged:
    on: bool


@dataclass(frozen=True, slots=True)
class LinkStolen:
    """Another session (of the connection; if resumable: of the container) has attached a link's name."""

    link: SenderLink | ReceiverLink


@dataclass(frozen=True, slots=True)
class LinkFree:
    """The end for which the attach of a resumable link waited has been detached."""

    link: SenderLink | ReceiverLink


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit is stored, or a commit that returned `NotYet` may be possible now."""

    ref: RequestRef


@dataclass(frozen=True, slots=True)
class Stop:
    """Settle what is decided, return everything else, and end the session, with an end frame if `tell`."""

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
"""Puts a message into the mailbox of a session."""


Part = QueueCommand
"""A command for one queue: publish, or settle."""


def no_part_text(queue: DeclaredQueue) -> str:
    name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if queue.kind.name == "quorum":
        return (
            f"{name} takes part in no transaction of this connection: a quorum queue does at the node that "
            "has its only member. Publish to it and settle its deliveries outside of transactions, or use "
            "a classic queue"
        )
    return (
        f"{name} takes part in no transaction of this connection: it is on another node. "
        "Connect to the queue's node, which 'queue list' shows, or leave the transaction out"
    )


class NoRoom(str):
    """The text why a commit was not carried out: a queue would exceed its limit."""

    __slots__ = ()


class NotYet(str):
    """Why a commit was not carried out: a queue, just declared or read after a start, is not ready."""

    __slots__ = ()


class QueueCommits(Protocol):
    """Carries out commits at several queues."""

    @property
    def safe(self) -> bool:
        """Whether the last commit is complete without a wait, because nothing of it is stored on disk."""

    def takes(self, handle: QueueHandle) -> bool:
        """Return whether a queue may take part: it is on this node, and is not replicated."""

    def commit(
        self,
        mail: Sequence[QueueCommand],
        parts: Sequence[Part],
        ref: RequestRef | None = None,
        also: Callable[[], None] | None = None,
    ) -> str | None:
        """Carry out all parts in one step, after the commands `mail`, which are carried out in any case.

        The parts become visible together; of those stored on disk, all or none are there after a restart.
        `Committed` follows with `ref` when everything is stored, unless the commit is `safe` at once. `also`
        appends further records to those on disk, if there are any. Returns why nothing was done, or None.
        """

    def when_ready(self, parts: Sequence[Part], ref: RequestRef) -> None:
        """Send `Committed` when another attempt at the parts is worth it."""
