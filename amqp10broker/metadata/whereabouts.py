"""Where queues are just now, which the catalog's entries do not say: who leads, and which nodes run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqp10broker.metadata.queue import DeclaredQueue

if TYPE_CHECKING:
    from amqp10broker.metadata.vhost import VirtualHost


class Whereabouts(Protocol):
    """What a node of a cluster knows of the others. Nodes are named by their numbers."""

    def leader(self, queue: DeclaredQueue) -> int | None:
        """The node that leads a queue with members, as it was heard last; None: none is known."""

    def last_leader(self, queue: DeclaredQueue) -> int | None:
        """The node that led such a queue last, as far as this node has heard; None: it has not."""

    def runs(self, node: int) -> bool:
        """Whether a node can be reached; this one can."""

    def reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        """A queue of direct reply-to that another node has, if this one must take its name for that."""
