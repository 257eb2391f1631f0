"""A commit: what a session or channel has several queues do at once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle
from amqp10broker.queues.commands import Command, RequestRef

Part = tuple[QueueHandle, Command]
"""What one queue is to do: publish, or settle."""


def no_part_text(queue: DeclaredQueue) -> str:
    """What a client hears of a queue that takes part in no commit, and what it can do."""
    name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if queue.kind.name == "quorum":
        return (
            f"{name} takes part in no transaction of this connection: a quorum queue does at the node that "
            "has its only member. "
            "Publish to it and settle its deliveries outside of transactions, or use a classic queue"
        )
    return (
        f"{name} takes part in no transaction of this connection: it is on another node. "
        "Connect to the queue's node, which list-queues shows, or leave the transaction out"
    )


class NoRoom(str):
    """Why nothing was done: a queue would have more messages than it may have."""

    __slots__ = ()


class NotYet(str):
    """Why nothing was done: a queue that was declared just now, or is read after a start, is not ready."""

    __slots__ = ()


class Commits(Protocol):
    """Carries commits out."""

    @property
    def safe(self) -> bool:
        """Whether the last commit is as safe as it will be: nothing of it is kept on disk."""

    def takes(self, handle: QueueHandle) -> bool:
        """Whether a queue may have a part in one: it is on this node, and nobody else has it."""

    def commit(
        self,
        mail: Sequence[tuple[QueueHandle, Command]],
        parts: Sequence[Part],
        ref: RequestRef | None = None,
        also: Callable[[], None] | None = None,
    ) -> str | None:
        """Have all parts carried out in one step, behind what was to be told to queues before.

        Nobody sees some of them without the others, and of what is kept on disk all is there after a
        restart, or nothing.

        Args:
            mail: letters to queues, in order; they are told in any case.
            parts: those of one queue in their order.
            ref: `Committed` follows with it when everything is as safe as it will be, unless it is `safe` at
                once; None: nobody waits.
            also: appends further records to what is kept on disk; not called where none of it is.

        Returns:
            Why nothing was done; None: it is done.
        """

    def when_ready(self, parts: Sequence[Part], ref: RequestRef) -> None:
        """`Committed` follows when parts that were `NotYet` done are worth another try.

        Args:
            parts: of the commit.
            ref: of the letter.
        """
