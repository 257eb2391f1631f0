"""This node's part in a cluster: its connections to the other nodes, and the dispatch of their messages.

First the node finds its cluster (`forming`), before its data folder is used. Then it receives the metadata as
a member of the system group (`cluster.system`), and serves clients when it has all of it. It outlives all
other parts, so that their last messages still reach other nodes.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, cast

import trio

from amqp10broker import __version__
from amqp10broker.auth.tls import mutual_tls
from amqp10broker.cluster.bootstrap import (
    Address,
    ClusterIdentity,
    ClusterRefused,
    MemberAt,
    check_name,
    check_still_member,
    read_nodes,
)
from amqp10broker.cluster.hello import OTHER_VERSION, HelloRefused, Identity
from amqp10broker.cluster.membership import ByCount
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.system import System
from amqp10broker.cluster.transactions import used_version
from amqp10broker.cluster.wire import ConnectionPurpose, Document, FrameKind, PeerFrame
from amqp10broker.errors import BadRequest, BrokerError, ConfigError, RefusedError, Stopped, StorageError
from amqp10broker.layout import BadBytes
from amqp10broker.metadata.catalog import NodeDirectory
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts, QueueSpec
from amqp10broker.metadata.vhost_requests import ForgetNode, JoinNode, NodeStarted
from amqp10broker.queues.machine_version import carried_out, why_not
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.queues.quorum.state_transfer import Snapshots
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.runtime.admin.admin import AdminContext
from amqp10broker.runtime.cluster.forming import (
    FIRST,
    JOIN_S,
    LOOK_S,
    NAME_TAKEN,
    Former,
    declare_when_whole,
    let_in,
    prepare_folder,
    read_secret,
)
from amqp10broker.runtime.cluster.node_queues import LeaderlessQueues, NodeQueues
from amqp10broker.runtime.cluster.peer_link import Wires, bind_cluster
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.cluster.system_node import RaftNode, SystemNode
from amqp10broker.runtime.journal.data import Data
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor
from amqp10broker.runtime.queues.queue_task import QueueTask, RemoteQueue
from amqp10broker.runtime.queues.queues import Queues

_log = Log("amqp10broker.cluster")

SWEEP_EACH_S: Final = 30.0
"""The interval at which links to deleted queues are removed."""
FOR_STRANGERS: Final = ("look", "join")
"""The requests that a node may send which is not a member."""
Answer = Callable[[int, Document], Awaitable[Document]]
"""Answers a request of a node. The node is 0 if it is not a member yet."""


class Cluster:
    """This node's part in a cluster. `system`: the metadata's group; None before `begin`. `slow`: set when
    the disk is so slow that other nodes should lead; the reader replaces it.
    """

    membership: ClusterIdentity
    peers: Peers

    def __init__(self, node_context: AdminContext, data: Data, monitor: ResourceMonitor) -> None:
        config = node_context.config
        assert config.node_name is not None
        check_name(config.node_name)
        if config.cluster_secret_file is None:
            raise ConfigError(
                "cluster_secret_file",
                "is missing beside node_name",
                "make one with 'amqp10broker cluster new-secret FILE', and give the same to all nodes",
            )
        self.name = config.node_name
        self._node_context = node_context
        self._catalog = node_context.catalog
        self._data = data
        self.monitor = monitor
        self._listed = read_nodes(config.cluster_nodes or "")
        self._secret = read_secret(config.cluster_secret_file)
        self.facts: dict[int, Document] = {}
        self.slow = trio.Event()
        self.raft = RaftNode(self._send_to_group)
        self.raft.groups.lost = data.lost
        self.raft.groups.elects = False
        self.raft.on_failed = self._on_storage_failed
        self.leaderless = LeaderlessQueues(self._catalog, self.raft.groups, self._catalog.node_name)
        self.snapshots = Snapshots(self.raft.groups, self._send_state, random.random)
        self.raft.give_turns(lambda: self.snapshots.deadline, self.snapshots.tick)
        self.system: SystemNode | None = None
        self.queues: NodeQueues = None  # type: ignore[assignment]
        self._ending: set[int] = set()
        # For each node and queue, a frame that is sent only once, when the connection came up, and perhaps
        # before this node has links.
        self._early: dict[int, dict[int, PeerFrame]] | None = {}
        self._refusals: set[str] = set()
        """The refusals that were logged so far."""
        self.answers: dict[str, Answer] = {
            "look": self._looked_at,
            "join": self._let_in,
            "leave": self._let_go,
        }

    # --- life ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, host: str, port: int) -> AsyncIterator[None]:
        """Be reachable by other nodes, as a member of a cluster. Raises `ClusterRefused` if the node cannot
        be a member, and `Stopped` if the broker must end meanwhile.
        """
        config, data = self._node_context.config, self._data
        sockets = await bind_cluster(config, port)
        self.address = self._listed.get(self.name, Address(host, sockets[0].getsockname()[1]))
        known = data.membership
        self._stands_back = False
        self._used = used_version(data.catalog_log)
        self._check_version()
        # The start is durable before the first hello: others refuse a start that is not above the last one.
        data.catalog_log.sync()
        self.peers = Peers(
            self._identity(known),
            self._secret,
            self,
            sockets=sockets,
            wires=self._wires(),
            suspect_ms=config.cluster_suspect_ms,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.peers.run)
            if known is None:
                known = await self._formed()
            elif known.name != self.name:
                raise ConfigError(
                    "node_name",
                    f"is '{self.name}', and the data folder is that of node '{known.name}'",
                    "give the node its old name, or an empty folder",
                )
            elif config.discard_my_data:
                _log.warning(
                    "--discard-my-data does nothing: the folder is that of a member of a cluster; "
                    "'amqp10broker cluster reset' takes the node out of it and discards its data",
                    node=self.name,
                )
            prepare_folder(data, config, known)
            self._used = used_version(data.catalog_log)
            self.membership = known
            self.peers.become(self._identity(known))
            for member in known.members:
                self._know(member)
            nursery.start_soon(self.raft.run)
            self._nursery = nursery
            yield
            nursery.cancel_scope.cancel()

    async def _formed(self) -> ClusterIdentity:
        node_context, data = self._node_context, self._data
        former = Former(
            self.name,
            self.address,
            self._listed,
            self.peers.ask_address,
            lambda: secrets.token_hex(16),
            has_data=data.served and not node_context.config.discard_my_data,
        )
        membership: ClusterIdentity | None = None
        failure: BrokerError | None = None
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await node_context.over.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            try:
                membership = await former.find()
            except BrokerError as error:  # as itself, not in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if membership is None:
            raise Stopped("told to end before it was of a cluster")
        if membership.number != FIRST and data.served:
            data.discard("--discard-my-data was given, and the node joins a cluster")
        data.belong(membership)
        return membership

    def _identity(self, known: ClusterIdentity | None) -> Identity:
        incarnation = self._data.incarnation
        if known is None:
            return Identity(0, self.name, incarnation)
        return Identity(known.number, known.name, incarnation, known.cluster, self._used)

    def _wires(self) -> Wires:
        config = self._node_context.config
        return Wires(mutual_tls(config), plaintext=config.cluster_plaintext)

    def _leader_of(self, queue: DeclaredQueue) -> int | None:
        member = self.raft.groups.get(queue.number)
        if member is not None and member.raft.status.leader is None:
            return None
        return self.queues.links.leader_of(queue.number)

    def _last_leader_of(self, queue: DeclaredQueue) -> int | None:
        client = self.queues.links.clients.get(queue.number)
        return client.last_leader if isinstance(client, QueueLink) else None

    def _runs(self, node: int) -> bool:
        return node == self.membership.number or node in self.peers.liveness.hears

    def prepare(self) -> None:
        """Set up access to queues and their placement, before queues start."""
        node_context, number = self._node_context, self.membership.number
        reply_registry = node_context.reply_registry
        self.queues = NodeQueues(
            *(number, self.peers, reply_registry, node_context.clock.now_ms, self._catalog.node_name),
            self._catalog.vhosts.get,
        )
        self.queues.wait_ms = node_context.config.cluster_decide_ms
        config = node_context.config
        self._catalog.node_directory = NodeDirectory(
            self._leader_of, self._last_leader_of, self._runs, self.queues.replies.find
        )
        self._catalog.placement = ByCount(
            number,
            reply_registry.incarnation,
            random.randrange,
            runs=self._runs,
            leader_of=self._leader_of,
            group_size=config.quorum_initial_group_size,
            locator=config.queue_leader_locator,
        )
        self._nursery.start_soon(self.queues.run)
        self._nursery.start_soon(self._sweep)
        self._nursery.start_soon(self.leaderless.run)
        for member in self.membership.members:
            # They may have connected, or be known to be lost, before this.
            if self.peers.connected(member.number, ConnectionPurpose.COMMANDS):
                self.queues.connected(member.number)
            if member.number in self.raft.groups.suspected:
                self.queues.links.suspect(member.number)
        early, self._early = self._early or {}, None
        for node, said in early.items():
            # An unreadable one is in the log; the others count.
            with suppress(BadBytes):
                self.queues.frames(node, list(said.values()))

    def begin(self) -> System:
        """Join the system group. The catalog, which has the folder's state, follows its decisions."""
        node_context = self._node_context
        self.system = SystemNode(
            self.membership.number,
            node_context,
            node_context.passwords,
            self._data,
            self.raft,
            self._send_of_system,
        )
        system = self.system.system
        system.decided_within_ms = node_context.config.cluster_decide_ms
        system.is_open = lambda owner: owner.connection in node_context.connections
        self.queues.links.on_leader = system.leader_is
        system.has_leader = lambda queue: self.queues.links.leader_of(queue) is not None
        self._catalog.on_nodes = self._nodes_changed
        self._nodes_changed()
        return system

    def start_queue(
        self, spec: QueueSpec, start: Callable[[QueueSpec], QueueTask]
    ) -> RemoteQueue | QueueTask:
        """Start the part of a queue on this node, and return its handle (`metadata.queue.StartQueue`)."""
        me, group = self.membership.number, spec.number
        here = spec.home == me or me in map(node_of, spec.members)
        task = start(spec) if here else None
        return self.queues.reach(spec, task, lambda: self._term(group))

    def members_changed(self, queue: DeclaredQueue, queues: Queues) -> None:
        """Start or remove this node's member of a queue with changed members (`Catalog.on_members`)."""
        handle = queue.handle
        if not isinstance(handle, RemoteQueue):
            return
        me, group = self.membership.number, queue.number
        mine = next((member for member in queue.members if node_of(member) == me), None)
        if handle.member is None:
            if mine is not None and group not in self._ending:
                spec = replace(queue.spec, settings=queue.effective.settings)
                self.queues.member_begun(group, handle, queues.start(spec), lambda: self._term(group))
        elif cast("QuorumInLog", handle.member.backend).member_id != mine:
            if (vhost := self._catalog.vhosts.get(queue.vhost)) is not None:
                vhost.member_gone(queue)
            task = self.queues.member_gone(group, handle)
            assert task is not None
            self._ending.add(group)

            def ended() -> None:
                self._ending.discard(group)
                vhost = self._catalog.vhosts.get(queue.vhost)
                if vhost is not None and vhost.find(queue.name) is queue:
                    self.members_changed(queue, queues)

            queues.end_member(task, ended)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_EACH_S)
            self.queues.sweep({queue.number for queue in self._catalog})

    def _term(self, group: int) -> int:
        member = self.raft.groups.get(group)
        return 0 if member is None else member.raft.status.term

    async def elect(self, begun: Callable[[], Awaitable[None]]) -> None:
        """Let quorum queues elect leaders when the members on this node have started."""
        await begun()
        self.raft.groups.elects = True
        self.raft.groups.on_deadline()

    async def caught_up(self) -> None:
        """Wait until this node has all metadata declared before its start. Raises `BrokerError` if the
        cluster had no majority until the time limit.
        """
        assert self.system is not None
        at = self.address
        started = NodeStarted(self.name, self._data.incarnation, at.host, at.port, __version__, carried_out())
        await self.system.caught_up(started, self._missing, self._check_membership)
        if self.membership.number == FIRST:
            config, propose = self._node_context.config, self.system.propose
            self._nursery.start_soon(declare_when_whole, config, self._catalog, propose)

    async def let_in_by(self, written: str) -> ClusterIdentity:
        """Request that a node of another cluster lets this one in, which runs alone until then. `written`:
        the other's name, if the list of nodes has it, or ``NAME=HOST:PORT``. Returns the identity with which
        this node must start again. Raises `RefusedError` if it is not let in.
        """
        try:
            listed = read_nodes(written) if "=" in written else self._listed
        except ClusterRefused as error:
            raise BadRequest("node", str(error)) from error
        name = next(iter(listed)) if "=" in written else written.partition("@")[0]
        if name not in listed:
            raise BadRequest(
                "node",
                f"the list of nodes has no node '{name}': give it as NAME=HOST:PORT, with its cluster port",
            )
        stranger = Identity(0, self.name, self._data.incarnation)
        ask = partial(self.peers.ask_address, identity=stranger)
        return await let_in(ask, name, listed[name], self.name, self.address)

    async def leave_by(self, node: int) -> None:
        """Request that another node removes this one from the members. Raises `RefusedError` if that is not
        decided in time.
        """
        other = next(each for each in self.membership.members if each.number == node)
        at = self._listed.get(other.name, other.address)
        # The request has its own connection: those of a member end when it is removed.
        await self.peers.ask_address((at.host, at.port), {"what": "leave"}, JOIN_S)

    async def _check_membership(self) -> None:
        me = self.membership
        question = {"what": "look", "name": me.name}
        for member in me.members:
            if member.number == me.number:
                continue
            at = self._listed.get(member.name, member.address)
            try:
                answer = await self.peers.ask_address((at.host, at.port), question, LOOK_S)
            except HelloRefused as refusal:
                if refusal.reason.startswith(OTHER_VERSION):
                    raise ClusterRefused(str(refusal)) from refusal
                # It is only logged: that node may be in another cluster now, and the others continue.
                if str(refusal) not in self._refusals:
                    self._refusals.add(str(refusal))
                    _log.warning("a node of this cluster refuses this one", reason=str(refusal))
                continue
            except BrokerError:
                continue
            check_still_member(me, answer)

    def _missing(self) -> str:
        hears = self.peers.liveness.hears
        nodes = self._catalog.nodes.values() or self.membership.members
        silent = [each.name for each in nodes if each.number not in {*hears, self.membership.number}]
        return ", ".join(silent) or "a leader"

    # --- membership ---------------------------------------------------------------------------------

    def _know(self, member: MemberAt, incarnation: int = 0) -> None:
        at = self._listed.get(member.name, member.address)
        self.peers.know(member.number, member.name, (at.host, at.port), incarnation)

    def stand_back(self) -> None:
        """Let no member of this node lead any more, because it is about to stop."""
        self._stands_back = True
        self._nodes_changed()

    def _nodes_changed(self) -> None:
        self._use_version()
        nodes = self._catalog.nodes
        if not nodes:
            return
        here = nodes.get(self.name)
        self.raft.groups.backward = self._stands_back or (here is not None and here.draining)
        members = tuple(
            MemberAt(node.number, node.name, Address(node.host, node.port)) for node in nodes.values()
        )
        for member, node in zip(members, nodes.values(), strict=True):
            self._know(member, node.incarnation)
        self.queues.links.know({node.number: node.incarnation for node in nodes.values()})
        there = {member.number for member in members}
        for gone in [each for each in self.membership.members if each.number not in there]:
            self.peers.forget(gone.number)
            self._node_context.clock_watch.others.forget(gone.number)
        if members != self.membership.members:
            me = self.membership
            self.membership = ClusterIdentity(me.cluster, me.number, me.name, members)

    def _use_version(self) -> None:
        cluster = self._catalog.cluster
        if cluster is None or cluster.version == self._used:
            return
        self._used = cluster.version
        self.peers.become(replace(self.peers.identity, used=self._used))
        _log.info("the cluster uses another machine version", version=self._used)
        for member in self.raft.groups:
            if member.leads and member.group != SYSTEM_GROUP:
                cast("QuorumInLog", member.machine).wake()
        try:
            self._check_version()
        except ClusterRefused as refusal:
            self._node_context.failure = refusal
            self._node_context.over.set()

    def _check_version(self) -> None:
        reason = why_not(self.name, carried_out(), self._used) if self._used else None
        if reason is not None:
            raise ClusterRefused(reason)

    # --- questions of other nodes -------------------------------------------------------------------

    async def asked(self, node: int, question: Document) -> Document:
        what = question.get("what")
        answer = self.answers.get(what) if isinstance(what, str) else None
        if answer is None or (node == 0 and what not in FOR_STRANGERS):
            raise BadRequest("node", f"node '{self.name}' does not answer a question about {what!r}")
        return await answer(node, question)

    async def _looked_at(self, node: int, question: Document) -> Document:
        known = self._catalog.nodes.get(str(question.get("name")))
        return {
            "name": self.name,
            "cluster": self.peers.identity.cluster or None,
            "taken": known is not None and not _is_new(known),
            "names": list(self._catalog.nodes),
            "numbers": [node.number for node in self._catalog.nodes.values()],
            "highest": self._catalog.highest_node,
        }

    async def _let_go(self, node: int, question: Document) -> Document:
        assert self.system is not None, "it has members"
        leaving = self._catalog.node_of(node)
        if leaving is not None:
            await self.system.propose(ForgetNode(leaving.name))
        return {}

    async def _let_in(self, node: int, question: Document) -> Document:
        name, host, port = (question.get(key) for key in ("name", "host", "port"))
        if type(name) is not str or type(host) is not str or type(port) is not int:
            raise BadRequest("node", "a node must give its name, host and port")
        if self.system is None or not self.peers.identity.cluster:
            raise RefusedError("cluster", f"node '{self.name}' is in no cluster yet")
        known = self._catalog.nodes.get(name)
        if known is None:
            known = await self.system.propose(
                JoinNode(name, host, port, str(question.get("version", "")), _machines_of(question))
            )
        elif not _is_new(known):
            raise RefusedError(NAME_TAKEN, f"the cluster has a node '{name}' already")
        assert isinstance(known, NodeFacts)
        known = self._catalog.nodes.get(name, known)
        return ClusterIdentity(
            self.membership.cluster, known.number, name, self.membership.members
        ).document()

    # --- what other nodes tell ----------------------------------------------------------------------

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        try:
            self._frames(node, purpose, frames)
        except StorageError as error:  # this node's own disk has failed: the frames are valid
            self._on_storage_failed(error)

    def _frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        if purpose is ConnectionPurpose.RAFT:
            self.raft.received(node, frames)
        elif purpose is ConnectionPurpose.BULK:
            for frame in frames:
                if frame.group != SYSTEM_GROUP:
                    answer = frame.kind is FrameKind.SNAPSHOT_ANSWER
                    self.snapshots.received(node, frame.group, frame.body, answer)
                elif self.system is not None:
                    self.system.received(node, frame)
        else:
            if self._early is None:
                self.queues.frames(node, frames)
            else:
                said = {frame.group: frame for frame in frames if frame.kind is FrameKind.LEADER_IS}
                self._early.setdefault(node, {}).update(said)
            proposed = [frame.body for frame in frames if frame.kind is FrameKind.PROPOSE]
            if proposed and self.system is not None:
                self.system.system.proposed(node, proposed)

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        if purpose is ConnectionPurpose.COMMANDS and self.queues is not None:
            self.queues.connected(node)

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        if purpose is ConnectionPurpose.RAFT:
            self.raft.disconnected(node)
        elif purpose is ConnectionPurpose.BULK:
            self.snapshots.disconnected(node)
            if self.system is not None:
                self.system.disconnected(node)
        elif self._early is None:
            self.queues.disconnected(node)
        else:
            self._early.pop(node, None)

    def _on_storage_failed(self, error: StorageError) -> None:
        journal = self._node_context.journal_task
        if journal is None:
            raise error
        journal.failed(error)

    def suspected(self, node: int) -> None:
        try:
            self.raft.groups.suspect(node)
        except StorageError as error:
            self._on_storage_failed(error)
        self._hear(node, {})
        if self.queues is not None:
            self.queues.links.suspect(node)
        if self.system is not None:
            self.system.system.node_down(node)

    def heard(self, node: int, incarnation: int) -> None:
        try:
            self.raft.groups.heard(node)
        except StorageError as error:
            self._on_storage_failed(error)
        self._hear(node, self.facts.get(node, {}))
        if self.queues is not None:
            self.queues.links.heard(node, incarnation)
        if self.system is not None:
            self.system.system.node_up(node)

    def heartbeat(self) -> Document:
        """Return state that every node shares with the others: alarms, and counts against limits."""
        return {
            "alarms": sorted(self.monitor.alarms.names()),
            "usage": self._catalog.usage.limited(self._catalog.vhosts.values(), self._catalog.users),
        }

    def clock_ms(self) -> int:
        return self._node_context.clock.now_ms()

    def clock_compared(self, node: int, ahead_ms: int, within_ms: int) -> None:
        self._node_context.clock_watch.others.heard(node, ahead_ms, within_ms)

    def told(self, node: int, facts: Document) -> None:
        self.facts[node] = facts
        if node not in self.raft.groups.suspected:
            self._hear(node, facts)

    def _hear(self, node: int, facts: Document) -> None:
        # Facts of a node that cannot be reached are dropped.
        alarms, usage = facts.get("alarms"), facts.get("usage")
        known = [each for each in alarms if isinstance(each, str)] if isinstance(alarms, list) else []
        self.monitor.hear(node, frozenset(known))
        self._catalog.usage.hear(node, usage if isinstance(usage, dict) else {})

    def unsynced_ms(self) -> int:
        journal = self._node_context.journal_task
        began = None if journal is None else journal.committer.began
        return 0 if began is None else int((trio.current_time() - began) * 1000)

    def hand_over(self) -> None:
        self.slow.set()

    # --- ways to other nodes --------------------------------------------------------------------------

    def _send_to_group(self, node: int, group: int, message: bytes) -> None:
        self.peers.send(node, ConnectionPurpose.RAFT, FrameKind.RAFT, group, (message,))

    def _send_state(self, node: int, group: int, body: bytes, answer: bool) -> bool:
        kind = FrameKind.SNAPSHOT_ANSWER if answer else FrameKind.SNAPSHOT
        return self.peers.send(node, ConnectionPurpose.BULK, kind, group, (body,))

    def _send_of_system(self, node: int, purpose: ConnectionPurpose, kind: FrameKind, body: bytes) -> bool:
        return self.peers.send(node, purpose, kind, SYSTEM_GROUP, (body,))


def _machines_of(question: Document) -> tuple[int, int]:
    machines = question.get("machines")
    if not isinstance(machines, list) or [type(each) for each in machines] != [int, int]:
        raise BadRequest("node", "a node must say which machine versions it carries out")
    return machines[0], machines[1]


def _is_new(node: NodeFacts) -> bool:
    # It was let in, and has never started since: no data of it can be missing.
    return node.incarnation == 0
