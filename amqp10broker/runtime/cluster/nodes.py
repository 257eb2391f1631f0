"""The present state of the other nodes as this node sees it (`metadata.node_directory`)."""

from __future__ import annotations

from amqp10broker.cluster.liveness import Liveness
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.links import QueueLinks
from amqp10broker.cluster.reply_queues import ReplyQueues
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.raft.groups import Groups


class ClusterDirectory:
    def __init__(
        self, me: int, liveness: Liveness, links: QueueLinks, replies: ReplyQueues, groups: Groups
    ) -> None:
        self._me = me
        self._liveness = liveness
        self._links = links
        self._replies = replies
        self._groups = groups

    def leader(self, queue: DeclaredQueue) -> int | None:
        member = self._groups.get(queue.number)
        if member is not None and member.raft.status.leader is None:
            return None
        return self._links.leader_of(queue.number)

    def last_leader(self, queue: DeclaredQueue) -> int | None:
        client = self._links.clients.get(queue.number)
        return client.last_leader if isinstance(client, QueueLink) else None

    def runs(self, node: int) -> bool:
        return node == self._me or node in self._liveness.hears

    def reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        return self._replies.find(vhost, name)
