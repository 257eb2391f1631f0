"""What this node of a cluster knows of the others just now (`catalog.whereabouts`)."""

from __future__ import annotations

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.replication.lane_table import Lanes
from amqp10broker.replication.liveness import Liveness
from amqp10broker.replication.reply_queues import ReplyQueues


class Whereabouts:
    """A `catalog.whereabouts.Whereabouts`."""

    def __init__(self, me: int, liveness: Liveness, lanes: Lanes, replies: ReplyQueues) -> None:
        """Know nothing else.

        Args:
            me: number of this node.
            liveness: which other nodes are alive.
            lanes: have heard who leads.
            replies: know the queues of direct reply-to of all nodes.
        """
        self._me = me
        self._liveness = liveness
        self._lanes = lanes
        self._replies = replies

    def leader(self, queue: DeclaredQueue) -> int | None:
        """See the protocol."""
        return self._lanes.leader_of(queue.number)

    def runs(self, node: int) -> bool:
        """See the protocol."""
        return node == self._me or node in self._liveness.hears

    def reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        """See the protocol."""
        return self._replies.find(vhost, name)
