"""The access of a cluster's node to queues, and of other nodes to those that are here.

A quorum queue is reached by a link, even at the node of its leader. A classic queue or a stream is reached by
a link, except at its home, where it is reached as in a broker without a cluster. The module also counts the
queues here that have no leader: how many, since when and why.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final, cast

import trio

from amqp10broker.cluster.remote_queue.home_link import HomeLink, HomeLinkServer
from amqp10broker.cluster.remote_queue.link import NO_LEADER_MS, QueueLink
from amqp10broker.cluster.remote_queue.links import LinkServer, PostAll, QueueLinks
from amqp10broker.cluster.remote_queue.messages import BODIES, LinkPort
from amqp10broker.cluster.reply_queues import REPLY_KINDS, ReplyQueues
from amqp10broker.cluster.wire import ConnectionPurpose, PeerFrame
from amqp10broker.layout import BadBytes
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import QUORUM, DeclaredQueue, QueueSpec
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.node import Leaderless
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import InlineQueue, ReplyRegistry
from amqp10broker.runtime.queues.queue_task import QueueTask, RemoteQueue

_log = Log("amqp10broker.cluster")

TICK_S: Final = 0.1
"""The interval of checks of links that wait for something."""


class NodeQueues:
    def __init__(
        self,
        node: int,
        peers: Peers,
        reply_registry: ReplyRegistry,
        now_ms: Callable[[], int],
        name_of: Callable[[int], str],
        find_vhost: Callable[[str], VirtualHost | None],
    ) -> None:
        self._reply_registry = reply_registry
        self._name_of = name_of
        self._gone: set[int] = set()
        port = LinkPort(
            node,
            reply_registry.incarnation,
            lambda to, kind, group, body: peers.send(to, ConnectionPurpose.COMMANDS, kind, group, body),
            peers.backlog_bytes,
            reply_registry.post,
            now_ms,
        )
        self.links = QueueLinks(port)
        self.wait_ms = NO_LEADER_MS
        self.replies = ReplyQueues(
            port,
            find_vhost,
            lambda queue: InlineQueue(queue, reply_registry),
            lambda: secrets.token_urlsafe(16),
        )

    # --- queues -------------------------------------------------------------------------------------

    def reach(
        self, spec: QueueSpec, task: QueueTask | None, term: Callable[[], int]
    ) -> RemoteQueue | QueueTask:
        """Return the handle of a queue for sessions of this node and, if the queue is here, of other nodes.
        `task`: that of this node's member, or of the queue; None: it is elsewhere.
        """
        links, group = self.links, spec.number
        if spec.type == QUORUM.name:
            group_client = QueueLink(spec.name, group, links.port, wait_ms=self.wait_ms)
            if task is not None:
                self._serve_group(group, task, term)
            links.add_client(group_client)
            return RemoteQueue(group_client, task, self._name_of)
        if task is not None:
            server = HomeLinkServer(group, task.post_all, links.port)
            links.servers[group] = server
            task.notify = server.tell
            return task
        client = HomeLink(spec.name, group, spec.home, links.port)
        links.add_client(client)
        return RemoteQueue(client, None, self._name_of)

    def _serve_group(self, group: int, task: QueueTask, term: Callable[[], int]) -> None:
        backend = cast("QuorumInLog", task.backend)
        server = LinkServer(group, backend, cast("PostAll", task.post_all), self.links.port)
        self.links.servers[group] = server
        task.notify = server.tell
        backend.serve(
            lambda leads: server.lead(term()) if leads else server.follow(), server.refused, server.room
        )

    def make_volatile(
        self, vhost: VirtualHost, connection: object, allowed: Callable[[str], None]
    ) -> DeclaredQueue:
        """Make a queue as `sessions.context.MakeVolatile`, and announce it to the other nodes."""
        name = self.replies.new_name()
        allowed(name)
        gone = partial(self.replies.closed, vhost.name, name)
        queue = vhost.add_volatile(
            name, connection, InlineQueue(VolatileQueue(name), self._reply_registry, gone)
        )
        self.replies.opened(vhost.name, name)
        return queue

    def member_begun(self, group: int, queue: RemoteQueue, task: QueueTask, term: Callable[[], int]) -> None:
        """Note that this node has a member of a queue from now on; see `reach`."""
        self._serve_group(group, task, term)
        queue.member = task

    def member_gone(self, group: int, queue: RemoteQueue) -> QueueTask | None:
        """Drop all output of a removed member of this node."""
        task, queue.member = queue.member, None
        self.links.servers.pop(group, None)
        if task is not None:
            task.notify = lambda effects, index: None
        return task

    def sweep(self, declared: Collection[int]) -> None:
        """Remove queues that were deleted and had the time since the last call to send their last effects."""
        links = self.links
        gone = {group for group in (*links.servers, *links.clients) if group not in declared}
        for group in gone & self._gone:
            links.servers.pop(group, None)
            links.remove_client(group)
        self._gone = gone - self._gone

    # --- other nodes --------------------------------------------------------------------------------

    def frames(self, node: int, frames: Sequence[PeerFrame]) -> None:
        """Handle the frames of one read from the connection for commands; those of other kinds are ignored.
        Raises `BadBytes`; the connection must end.
        """
        received = self.links.received
        for frame in frames:
            if frame.kind in BODIES or frame.kind in REPLY_KINDS:
                try:
                    (received if frame.kind in BODIES else self.replies.received)(node, frame)
                except BadBytes as error:
                    _log.error("a node sent what cannot be read", node=self._name_of(node), reason=str(error))
                    raise

    def connected(self, node: int) -> None:
        self.links.connected(node)
        self.replies.connected(node)

    def disconnected(self, node: int) -> None:
        self.links.disconnected(node)
        self.replies.disconnected(node)

    async def run(self) -> None:
        """Handle what is due, until cancelled; sleep while no link waits for anything."""
        while True:
            if not self.links.port.stirred:
                stirred = trio.Event()
                self.links.port.on_stirred = stirred.set
                await stirred.wait()
            await trio.sleep(TICK_S)
            self.links.tick()


LOOK_EACH_S: Final = 1.0
TOLD_EACH_S: Final = 10.0
NAMES_MAX: Final = 5


class LeaderlessQueues:
    def __init__(self, catalog: Catalog, groups: Groups, name_of: Callable[[int], str]) -> None:
        self._catalog = catalog
        self._groups = groups
        self._name_of = name_of
        self._since: float | None = None
        self._told: float | None = None

    def found(self) -> Leaderless | None:
        """Return the queues without a leader; None if every queue with a member here has one."""
        groups = self._groups
        lacking = {member.group for member in groups if member.lacks_leader and member.group != SYSTEM_GROUP}
        if not lacking:
            return None
        stuck, missing = 0, set[int]()
        for group in lacking:
            member = groups.get(group)
            voters = () if member is None else member.raft.config.voters
            away = [node_of(voter) for voter in voters if node_of(voter) in groups.suspected]
            if 2 * (len(voters) - len(away)) <= len(voters):
                stuck += 1
                missing.update(away)
        named = (f"{queue.name} in {queue.vhost}" for queue in self._catalog if queue.number in lacking)
        return Leaderless(
            len(lacking),
            tuple(islice(named, NAMES_MAX)),
            stuck,
            tuple(map(self._name_of, sorted(missing))),
            groups.elections if groups.elects else None,
            0.0 if self._since is None else trio.current_time() - self._since,
        )

    async def run(self) -> None:
        """Log the beginning, duration and end of the condition, until cancelled."""
        while True:
            await trio.sleep(LOOK_EACH_S)
            self._look()

    def _look(self) -> None:
        now = trio.current_time()
        if not any(member.lacks_leader for member in self._groups):
            if self._since is not None and self._told is not None:
                _log.info("every queue here has a leader", after_s=round(now - self._since, 1))
            self._since = self._told = None
        elif self._since is None:
            self._since = now  # most elections are over at the next check
        elif (self._told is None or now - self._told >= TOLD_EACH_S) and (found := self.found()) is not None:
            self._told = now
            _log.warning(
                "queues have no leader",
                queues=found.queues,
                names=", ".join(found.names),
                reason=found.reason,
            )
