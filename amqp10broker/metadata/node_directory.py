"""The present places of queues, which are not in the catalog: leaders, and running nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqp10broker.metadata.queue import DeclaredQueue

if TYPE_CHECKING:
    from amqp10broker.metadata.vhost import VirtualHost


class NodeDirectory(Protocol):
    """The state of other nodes, as a node of a cluster sees it. Nodes are named by their numbers."""

    def leader(self, queue: DeclaredQueue) -> int | None:
        """The last known leader node of a queue with members; None if there is none."""

    def last_leader(self, queue: DeclaredQueue) -> int | None:
        """The node of the queue's last known leader; None if there has been none."""

    def runs(self, node: int) -> bool:
        """Whether a node can be reached; this one can."""

    def reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        """A queue of direct reply-to that another node has, if this one must take its name for that."""
