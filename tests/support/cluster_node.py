"""A cluster as operations see it: nodes that run or not, and changes that are made at once, or refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import trio

from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
from amqp10broker.cluster.membership import MemberRole
from amqp10broker.errors import RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import CLUSTER, Put
from amqp10broker.metadata.queue import ClusterFacts, DeclaredQueue, Placed
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.metadata.vhost_requests import JoinNode, SetDraining, SetMembers
from amqp10broker.operations.node import GroupSeen, Leaderless, MemberState
from amqp10broker.raft.ids import member_id, node_of
from tests.support.declaring import declare

NAMES = ("a", "b", "c", "d", "e")


class FakeNode:
    """A `ClusterNode` that is also the catalog's `NodeDirectory` and `Placement`.

    Attributes:
        down: numbers of nodes that cannot be reached.
        leaders: node by queue; None: without leader.
        led: node by queue that led it last.
        heard: node by queue that leads it as this node believes, if that is another one.
        learners: nodes by queue whose members are to become voters.
        refusals: what the next changes of members are refused with; then they are made.
        done: what was asked for.
        paused: seconds waited for in all.
        on_pause: called at each wait.
        there: what other nodes answer, by node and operation.
    """

    def __init__(self, catalog: Catalog, count: int = 3, number: int = 1) -> None:
        self.number = number
        self.target_size = max(1, count)
        self.rebalancing = False
        self.down: set[int] = set()
        self.leaders: dict[str, int | None] = {}
        self.led: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.learners: dict[str, tuple[int, ...]] = {}
        self.refusals: list[RefusedError] = []
        self.done: list[tuple[Any, ...]] = []
        self.paused = 0.0
        self.on_pause: Callable[[], None] = lambda: None
        self.there: dict[tuple[int, str], Any] = {}
        self.on: dict[int, list[str]] = {}
        self.lacking: Leaderless | None = None
        self._catalog = catalog
        self._placed = Placed()
        if count:
            catalog.apply([Put(CLUSTER, ClusterFacts("id", "name"))])
        for name in NAMES[:count]:
            catalog.propose(JoinNode(name, "host", 1))
        catalog.node_directory = self
        catalog.placement = self.place

    # --- the catalog's

    def leader(self, queue: DeclaredQueue) -> int | None:
        return self.heard.get(queue.name, self.leaders.get(queue.name))

    def last_leader(self, queue: DeclaredQueue) -> int | None:
        return self.led.get(queue.name)

    def runs(self, node: int) -> bool:
        return node not in self.down

    def reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        return None

    def place(self, *wanted: object) -> Placed:
        return self._placed

    def declare(self, name: str, *nodes: int, vhost: str = "/", leader: int | None = None) -> DeclaredQueue:
        """Declare a quorum queue with these members; the first one leads."""
        self._placed = Placed(members=tuple(member_id(node, 1) for node in nodes))
        queue, _ = declare(self._catalog, vhost, name, arguments={"x-queue-type": "quorum"})
        self.leaders[name] = nodes[0] if leader is None else leader
        return queue

    def declare_at(self, name: str, node: int) -> DeclaredQueue:
        self._placed = Placed(node)
        return declare(self._catalog, "/", name)[0]

    # --- operations'

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        if queue is None:
            return GroupSeen(tuple(node.number for node in self._catalog.nodes.values()))
        nodes = tuple(map(node_of, queue.members))
        learners = self.learners.get(queue.name, ())
        if self.number not in nodes:
            return None
        return GroupSeen(tuple(node for node in nodes if node not in learners), learners)

    def chief(self) -> int | None:
        return 1 if self._catalog.nodes else None

    def leaderless(self) -> Leaderless | None:
        return self.lacking

    def alarms(self) -> Mapping[int, Collection[str]]:
        return self.on

    def listeners(self) -> Sequence[tuple[str, str, int]]:
        return [("amqp", "::1", 5)]

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: MemberRole,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        self._note("add", queue.name, node, str(membership), timeout_s, among_voters)
        return self._set(queue, (*queue.members, member_id(node, 2)))

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        self._note("delete", queue.name, node, timeout_s)
        return self._set(queue, tuple(each for each in queue.members if node_of(each) != node))

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        self._note("transfer", queue.name, node)
        self.leaders[queue.name] = node

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        self._note("shrink", queue.name)
        self._set(queue, tuple(each for each in queue.members if node_of(each) == self.number))

    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        return {node: self._state(queue, node) for node in nodes}

    def _state(self, queue: DeclaredQueue | None, node: int) -> MemberState:
        if node in self.down:
            return MemberState("nodedown")
        leader = self.number if queue is None else self.leaders.get(queue.name)
        state = "leader" if leader == node else "follower"
        return MemberState(state, "voter", 7, 7, 6, 6, 0, 2, 1)

    async def drain(self) -> None:
        self._note("drain")
        self._catalog.propose(SetDraining(NAMES[self.number - 1], True))

    async def revive(self) -> None:
        self._note("revive")
        self._catalog.propose(SetDraining(NAMES[self.number - 1], False))

    async def let_in_by(self, node: str) -> OfCluster:
        self._note("let_in_by", node)
        return OfCluster("id", 4, "a", ())

    async def leave_by(self, node: int) -> None:
        self._note("leave_by", node)

    async def leave(self) -> None:
        self._note("leave")

    def begin_anew(self, as_: OfCluster | None) -> None:
        self._note("begin_anew", None if as_ is None else as_.number)

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        self._note("run_at", node, operation, dict(given), vhost)
        if (node, operation) not in self.there:
            raise Unavailable(f"node {node}", "it does not answer")
        return self.there[node, operation]

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        self._note("run_at_each", tuple(nodes), operation, dict(given), vhost)
        return {node: self.there[node, operation] for node in nodes if (node, operation) in self.there}

    async def pause(self, seconds: float) -> None:
        self.paused += seconds
        self.on_pause()
        await trio.lowlevel.checkpoint()

    def _note(self, *what: Any) -> None:
        self.done.append(what)
        if self.refusals:
            raise self.refusals.pop(0)

    def _set(self, queue: DeclaredQueue, members: tuple[int, ...]) -> int:
        self._catalog.propose(SetMembers(queue.vhost, queue.name, queue.number, members))
        return len(members)
