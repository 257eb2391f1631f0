"""The running node to operations on the cluster (`management.cluster_node`), as one of several.

What is about a queue is done at the node that leads it, which is asked (`node_answers`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol

import trio

from amqp10broker.catalog.catalog import Catalog, Request
from amqp10broker.catalog.node_requests import SetDraining, SetMembers
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.errors import PeerUnreachable, Unavailable
from amqp10broker.management.cluster_node import GroupSeen, MemberState
from amqp10broker.raft.errors import ChangeRefused, NotLeader, NotReady
from amqp10broker.replication.asking import Document
from amqp10broker.replication.groups import Groups
from amqp10broker.replication.ids import node_of
from amqp10broker.replication.member import Member
from amqp10broker.replication.membership import Membership, is_promotable
from amqp10broker.tasks.cluster_node import Served, serve_again, stop_serving
from amqp10broker.tasks.leader_changes import hand_all_over
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.member_changes import TAKE_BACK_S, MemberChanges
from amqp10broker.tasks.node_answers import Answer, NodeAnswers
from amqp10broker.tasks.node_news import NodeNews

_log = Log("amqp10broker.cluster")

STATE_S: Final = 1.0
"""How long a node may take to say how its member stands."""
OPERATION_S: Final = 5.0
LONG_S: Final[Mapping[str, float]] = {"rebalance": 3_600.0}
"""How long another node may take for an operation."""
AGAIN_S: Final = 0.1
"""Between two attempts to find the leader of a queue."""
TRANSFER_S: Final = 10.0
DRAIN_AGAIN_S: Final = 1.0


class Parts(Protocol):
    """What of the cluster is used (`tasks.cluster.Cluster`).

    Attributes:
        name: of this node.
        groups: its members of groups.
        member: that of the system group.
        answers: by what is asked, who answers other nodes.
    """

    name: str
    groups: Groups
    member: Member
    answers: dict[str, Answer]

    async def propose(self, request: Request[Any]) -> Any:
        """Have a request decided, and wait for it."""

    async def call(self, node: int, question: Document, timeout_s: float) -> Document:
        """Ask another node."""


class NodeOfCluster:
    """A `ClusterNode`.

    Attributes:
        changes: makes changes of members of queues that are led here.
    """

    def __init__(
        self,
        number: int,
        broker: Served,
        catalog: Catalog,
        parts: Parts,
        news: NodeNews,
        run: Callable[[str, Mapping[str, Any], str | None], Awaitable[Any]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer other nodes from now on.

        Args:
            number: of this node.
            broker: whose sockets and connections are.
            catalog: of this node.
            parts: the cluster.
            news: has the alarms.
            run: carries out an operation here.
            on_change: called when a queue that is led here has other members.
        """
        self.number = number
        self.rebalancing = False
        self.changes = MemberChanges(catalog, parts.groups, parts.propose, on_change)
        self._broker = broker
        self._catalog = catalog
        self._parts = parts
        self._news = news
        self._answers = NodeAnswers(catalog, parts.groups, self.changes, run)
        parts.answers |= self._answers.by_what

    # --- looking ------------------------------------------------------------------------------------

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        """See `ClusterNode.group`."""
        member = self._parts.member if queue is None else self._parts.groups.get(queue.number)
        if member is None:
            return None
        config = member.raft.config
        learners = [(node_of(each), is_promotable(each)) for each in config.learners]
        return GroupSeen(
            tuple(map(node_of, config.voters)),
            tuple(node for node, promotable in learners if promotable),
            tuple(node for node, promotable in learners if not promotable),
        )

    def chief(self) -> int | None:
        """See `ClusterNode.chief`."""
        return self._parts.member.leader_node

    def alarms(self) -> Mapping[int, Collection[str]]:
        """See `ClusterNode.alarms`."""
        return self._news.alarms(self.number)

    async def member_state(self, queue: DeclaredQueue, node: int) -> MemberState:
        """See `ClusterNode.member_state`."""
        question = {"what": "member-state", "group": queue.number}
        return MemberState(**await self._asked(node, question, STATE_S))

    # --- changing -----------------------------------------------------------------------------------

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: Membership,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        """See `ClusterNode.add_member`."""
        wanted = {"change": "add", "membership": membership.value, "among_voters": among_voters}
        return int((await self._at_leader(queue, node, wanted, timeout_s))["size"])

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        """See `ClusterNode.delete_member`."""
        return int((await self._at_leader(queue, node, {"change": "remove"}, timeout_s))["size"])

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        """See `ClusterNode.transfer`."""
        await self._at_leader(queue, node, {"change": "transfer"}, TRANSFER_S)

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        """See `ClusterNode.shrink_to_here`."""
        member = self._parts.groups.get(queue.number)
        if member is None:
            raise Unavailable(
                f"queue '{queue.name}'", f"the member of queue '{queue.name}' does not run here"
            )
        member.force_alone()
        await self._parts.propose(SetMembers(queue.vhost, queue.name, queue.number, (member.me,)))

    async def _at_leader(
        self, queue: DeclaredQueue, node: int, wanted: Document, timeout_s: float
    ) -> Document:
        """Have the node that leads a queue do something, whoever that comes to be."""
        number = queue.number
        question = {"what": "change-members", "queue": number, "node": node, "timeout_s": timeout_s, **wanted}
        with trio.move_on_after(timeout_s + 2 * TAKE_BACK_S):
            while True:
                leader = self._catalog.leader_of(queue)
                if leader is not None:
                    answer = await self._asked(leader.number, question, timeout_s + TAKE_BACK_S)
                    if "moved" not in answer:
                        return answer
                await trio.sleep(AGAIN_S)
        raise Unavailable(
            f"queue '{queue.name}'", f"queue '{queue.name}' in vhost '{queue.vhost}' has no leader"
        )

    # --- maintenance --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """See `ClusterNode.drain`; the steps are RabbitMQ's, in its order."""
        await self._parts.propose(SetDraining(self._parts.name, True))
        self._parts.groups.backward = True
        stop_serving(self._broker)
        self._hand_metadata_over()
        for line in await hand_all_over(self._catalog, self._parts.groups, self._may_lead):
            _log.warning("a drained node still leads", reason=line)

    async def revive(self) -> None:
        """See `ClusterNode.revive`."""
        await self._parts.propose(SetDraining(self._parts.name, False))
        self._parts.groups.backward = False
        await serve_again(self._broker)

    async def run(self) -> None:
        """Keep members right, and a drained node from leading, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.changes.run)
            while True:
                await trio.sleep(DRAIN_AGAIN_S)
                if self._parts.groups.backward:
                    self._hand_metadata_over()
                    await hand_all_over(self._catalog, self._parts.groups, self._may_lead)

    def _may_lead(self) -> Collection[int]:
        suspected = self._parts.groups.suspected
        return {
            node.number
            for node in self._catalog.nodes.values()
            if not node.draining and node.number not in suspected and node.number != self.number
        }

    def _hand_metadata_over(self) -> None:
        member, may = self._parts.member, self._may_lead()
        heirs = [each for each in member.raft.matches() if node_of(each) in may]
        heirs = [each for each in heirs if each in member.raft.config.voters]
        if not member.leads or not heirs:
            return
        try:
            member.transfer(heirs[0])
        except (ChangeRefused, NotLeader, NotReady) as error:
            _log.info("the metadata is still led by a drained node", reason=str(error))
        member.advance()

    # --- other nodes --------------------------------------------------------------------------------

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        """See `ClusterNode.run_at`."""
        question = {"what": "operation", "name": operation, "given": dict(given), "vhost": vhost}
        return (await self._asked(node, question, LONG_S.get(operation, OPERATION_S)))["result"]

    async def pause(self, seconds: float) -> None:
        """See `ClusterNode.pause`."""
        await trio.sleep(seconds)

    async def _asked(self, node: int, question: Document, timeout_s: float) -> Document:
        if node == self.number:
            return await self._answers.by_what[question["what"]](node, question)
        try:
            return await self._parts.call(node, question, timeout_s)
        except PeerUnreachable as error:
            raise Unavailable(f"node {node}", str(error)) from error
