"""Operations on the cluster at one of several nodes (`operations.node`).

Operations on a queue are executed by the node that leads it, which the others ask.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import trio

from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
from amqp10broker.cluster.bootstrap import target_size
from amqp10broker.cluster.membership import MemberRole, is_promotable
from amqp10broker.cluster.wire import Document
from amqp10broker.errors import PeerUnreachable, RefusedError, Unavailable
from amqp10broker.metadata.node_requests import SetDraining, SetMembers
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.node import GroupSeen, Leaderless, MemberState
from amqp10broker.operations.registry import OPERATIONS
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.admin.operations import run_operation
from amqp10broker.runtime.cluster.cluster import Cluster
from amqp10broker.runtime.cluster.cluster_node import ServingNode, state_of
from amqp10broker.runtime.cluster.member_changes import (
    TAKE_BACK_S,
    MemberChanges,
    MovedAway,
    Reconciler,
    hand_all_over,
    transfer,
)
from amqp10broker.runtime.journal.data import Afterwards
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.cluster")

STATE_S: Final = 1.0
"""How long a node may take to say how its member stands."""
OPERATION_S: Final = 5.0
"""How long another node may take for an operation that does not take longer by itself."""
AGAIN_S: Final = 0.1
"""Between two attempts to find the leader of a queue."""
TRANSFER_S: Final = 10.0
LOOK_AGAIN_S: Final = 1.0
LEAVE_S: Final = 2.0
"""How long a stop may be held up until others lead."""


class NodeOfCluster(ServingNode):
    def __init__(self, broker: Administered, cluster: Cluster) -> None:
        assert cluster.system is not None, "it has begun"
        self.number = cluster.membership.number
        config = broker.config
        self.target_size = target_size(config.cluster_target_size, config.cluster_nodes)
        self.rebalancing = False
        super().__init__(broker)
        self._catalog = broker.catalog
        self._cluster = cluster
        self._groups = cluster.raft.groups
        self._system = cluster.system
        self.changes = MemberChanges(self._catalog, self._groups, self._system.propose)
        self._reconciler = Reconciler(self.number, self._catalog, self._groups, self.changes, config)
        self._catalog.on_sizes = self._reconciler.trigger
        self._answers = {
            "change-members": self._change_members,
            "member-state": self._member_state,
            "operation": self._operation,
        }
        cluster.answers |= self._answers

    # --- looking ------------------------------------------------------------------------------------

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        member = self._system.member if queue is None else self._groups.get(queue.number)
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
        return self._system.member.leader_node

    def leaderless(self) -> Leaderless | None:
        return self._cluster.leaderless.found()

    def alarms(self) -> Mapping[int, Collection[str]]:
        return self._cluster.notifications.alarms(self.number)

    def listeners(self) -> Sequence[tuple[str, str, int]]:
        at = self._cluster.address
        return [*super().listeners(), ("clustering", at.host, at.port)]

    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        group = SYSTEM_GROUP if queue is None else queue.number
        question = {"what": "member-state", "group": group}
        answers = await self._asked_each(nodes, question, STATE_S)
        return {
            node: MemberState(answer.description)
            if isinstance(answer, RefusedError)
            else MemberState(**answer)
            for node, answer in answers.items()
        }

    # --- changing -----------------------------------------------------------------------------------

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: MemberRole,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        wanted = {"change": "add", "membership": membership.value, "among_voters": among_voters}
        return int((await self._at_leader(queue, node, wanted, timeout_s))["size"])

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        return int((await self._at_leader(queue, node, {"change": "remove"}, timeout_s))["size"])

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        await self._at_leader(queue, node, {"change": "transfer"}, TRANSFER_S)

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        member = self._groups.get(queue.number)
        if member is None:
            raise Unavailable(
                f"queue '{queue.name}'", f"the member of queue '{queue.name}' does not run here"
            )
        member.force_alone()
        await self._system.propose(SetMembers(queue.vhost, queue.name, queue.number, (member.me,)))

    async def _at_leader(
        self, queue: DeclaredQueue, node: int, wanted: Document, timeout_s: float
    ) -> Document:
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
        await self._system.propose(SetDraining(self._cluster.name, True))
        await super().drain()
        for line in await hand_all_over(self.number, self._catalog, self._groups):
            _log.warning("a drained node still leads", reason=line)

    async def revive(self) -> None:
        await self._system.propose(SetDraining(self._cluster.name, False))
        await super().revive()

    async def leave(self) -> None:
        """Transfer this node's leaderships before a stop, so that clients need not wait for elections.

        It takes no longer than `LEAVE_S`; the remaining groups elect a leader.
        """
        self._cluster.stand_back()
        kept = await hand_all_over(self.number, self._catalog, self._groups, LEAVE_S)
        _log.info("leaderships were handed over", kept=len(kept))
        for line in kept:
            _log.debug("not handed over", reason=line)

    async def run(self) -> None:
        """Keep members as they should be, and a drained node from leading, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.changes.run)
            nursery.start_soon(self._reconciler.run)
            running: set[int] = set()
            while True:
                now = {
                    node.number for node in self._catalog.nodes.values() if self._catalog.runs(node.number)
                }
                if now - running:
                    self._reconciler.trigger()
                running = now
                slow = self._cluster.slow
                if slow.is_set():
                    self._cluster.slow = trio.Event()
                if self._groups.backward or slow.is_set():
                    await hand_all_over(self.number, self._catalog, self._groups)
                with trio.move_on_after(LOOK_AGAIN_S):
                    await self._cluster.slow.wait()

    # --- coming and going ---------------------------------------------------------------------------

    async def let_in_by(self, node: str) -> OfCluster:
        return await self._cluster.let_in_by(node)

    async def leave_by(self, node: int) -> None:
        await self._cluster.leave_by(node)

    def begin_anew(self, as_: OfCluster | None) -> None:
        self._broker.afterwards = Afterwards(as_)
        self._broker.over.set()

    # --- other nodes --------------------------------------------------------------------------------

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        question = {"what": "operation", "name": operation, "given": dict(given), "vhost": vhost}
        return (await self._asked(node, question, OPERATIONS[operation].takes_s or OPERATION_S))["result"]

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        question = {"what": "operation", "name": operation, "given": dict(given), "vhost": vhost}
        answers = await self._asked_each(nodes, question, OPERATION_S)
        return {node: each["result"] for node, each in answers.items() if not isinstance(each, RefusedError)}

    async def _asked_each(
        self, nodes: Collection[int], question: Document, timeout_s: float
    ) -> dict[int, Document | RefusedError]:
        found: dict[int, Document | RefusedError] = {}

        async def ask(node: int) -> None:
            try:
                found[node] = await self._asked(node, question, timeout_s)
            except RefusedError as refusal:
                found[node] = refusal

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        return {node: found[node] for node in nodes}

    async def _asked(self, node: int, question: Document, timeout_s: float) -> Document:
        if node == self.number:
            return await self._answers[question["what"]](node, question)
        try:
            return await self._cluster.peers.call(node, question, timeout_s)
        except PeerUnreachable as error:
            raise Unavailable(f"node '{self._catalog.node_name(node)}'", str(error)) from error

    # --- questions of other nodes -------------------------------------------------------------------

    async def _change_members(self, node: int, question: Document) -> Document:
        queue = next((each for each in self._catalog if each.number == question["queue"]), None)
        if queue is None:
            return {"moved": True}  # it is not known here yet, or not any more
        where, timeout_s = int(question["node"]), float(question["timeout_s"])
        try:
            match question["change"]:
                case "add":
                    size = await self.changes.add(
                        queue,
                        where,
                        MemberRole(question["membership"]),
                        timeout_s,
                        among_voters=bool(question["among_voters"]),
                    )
                case "remove":
                    size = await self.changes.remove(queue, where, timeout_s)
                case _:
                    await transfer(self._groups, queue, where)
                    size = len(queue.members)
        except MovedAway:
            return {"moved": True}
        return {"size": size}

    async def _member_state(self, node: int, question: Document) -> Document:
        return asdict(state_of(self._groups.get(int(question["group"]))))

    async def _operation(self, node: int, question: Document) -> Document:
        name = question["name"]
        if name not in OPERATIONS:
            raise RefusedError("operation", f"this node knows no operation '{name}'")
        result = await run_operation(self._broker, name, question["given"], question["vhost"])
        # As the door of the administration socket would write it: some values have no form in JSON.
        return {"result": json.loads(json.dumps(result, default=str))}
