"""Operations on the cluster at one of several nodes (`operations.node`), and changes of members.

Operations on a queue are executed by the node that leads it; the others send them there. `cluster.membership`
chooses the next step of a change; this module executes it in the catalog or the group, and checks again. A
check each second repairs changes that ended between two steps, and promotes members that have caught up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import trio

from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
from amqp10broker.cluster.bootstrap import target_nodes
from amqp10broker.cluster.membership import (
    Adding,
    DeclareMembers,
    Goal,
    Hand,
    MemberRole,
    MembershipAction,
    Removing,
    Schedule,
    Step,
    is_promotable,
    new_member,
    next_change,
    next_step,
    nothing_to_repair,
    repair,
    standing_of,
    target_size,
)
from amqp10broker.cluster.wire import Document
from amqp10broker.config import Config
from amqp10broker.errors import PeerUnreachable, RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost_requests import SetDraining, SetMembers
from amqp10broker.operations.members import change_not_permitted, last_node, refused
from amqp10broker.operations.node import GroupSeen, Leaderless, MemberState
from amqp10broker.operations.registry import OPERATIONS
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.raft.messages import Add, ChangeRefused, NotLeader, NotReady, Promote, Remove
from amqp10broker.runtime.admin.admin import run_operation
from amqp10broker.runtime.admin.serving_node import ServingContext, ServingNode, state_of
from amqp10broker.runtime.cluster.cluster import Cluster
from amqp10broker.runtime.cluster.system_node import now_ms
from amqp10broker.runtime.journal.data import Afterwards
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.members")
_node_log = Log("amqp10broker.cluster")

REPAIR_S: Final = 1.0
REPAIR_QUEUES: Final = 1_000
"""The number of queues in each check: of 10 000 queues, each is checked every ten seconds."""
TAKE_BACK_S: Final = 5.0
"""The time limit for taking back a member that could not be added in time."""
LOOK_S: Final = 0.05
"""The interval of checks whether a change has taken effect."""
BATCH: Final = 64
"""The number of leaderships that are handed over before other tasks run."""
TRANSFER_EACH_S: Final = 3.0
"""The time limit for a transfer, which the group itself gives up after 2 s."""
CHANGE_S: Final = 20.0
"""The time limit for one change (T5)."""


Proposing = Callable[[CatalogRequest[Any]], Awaitable[Any]]
"""Has a request decided, and waits for it (`SystemNode.propose`)."""


class MovedAway(Exception):
    """Another member leads now, so the operation must continue there."""


class MemberChanges:
    """Requested changes of members, repairs, and reconciliation of the queues with a leader on this node."""

    def __init__(self, me: int, catalog: Catalog, groups: Groups, propose: Proposing, config: Config) -> None:
        self._me = me
        self._catalog = catalog
        self._groups = groups
        self._propose = propose
        self._config = config
        self._schedule = Schedule(
            config.quorum_reconciliation_interval_ms,
            config.quorum_reconciliation_trigger_interval_ms,
            now_ms(),
        )
        self._under_way: set[int] = set()
        self._behind: set[int] = set()

    # --- what is asked ------------------------------------------------------------------------------

    async def add(
        self, queue: DeclaredQueue, node: int, membership: MemberRole, timeout_s: float, *, among_voters: bool
    ) -> int:
        """Add a member, as `ClusterNode.add_member`. Raises `MovedAway` if this node does not lead it."""
        member = leading_member(self._groups, queue)
        learners = [each for each in member.raft.config.learners if is_promotable(each)]
        if among_voters and learners:
            raise refused(queue, "non_voters_found", "a member of it is still to become a voter")
        there = [each for each in (*queue.members, *member.raft.config.members) if node_of(each) == node]
        wanted = there[0] if there else new_member(node, member.raft.last, membership)
        goal = Adding(wanted, as_voter=membership is MemberRole.VOTER)
        with self._only(queue, member):
            try:
                await self._carried_out(queue, goal, timeout_s)
            except Unavailable:
                try:
                    await self._carried_out(queue, Removing(wanted), TAKE_BACK_S)
                except (RefusedError, MovedAway) as error:
                    _log.warning("a member was not taken back", queue=queue.name, reason=str(error))
                raise
        return len(queue.members)

    async def remove(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        """Remove a member, as `ClusterNode.delete_member`. Raises `MovedAway` likewise."""
        member = leading_member(self._groups, queue)
        held = dict.fromkeys((*member.raft.config.members, *queue.members))
        with self._only(queue, member):
            for each in [each for each in held if node_of(each) == node]:
                await self._carried_out(queue, Removing(each), timeout_s)
        return len(queue.members)

    # --- steps --------------------------------------------------------------------------------------

    @contextmanager
    def _only(self, queue: DeclaredQueue, member: Member) -> Iterator[None]:
        if queue.number in self._under_way or not member.raft.settled:
            raise change_not_permitted(queue)
        self._under_way.add(queue.number)
        try:
            yield
        finally:
            self._under_way.discard(queue.number)

    async def _carried_out(self, queue: DeclaredQueue, goal: Goal, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            while True:
                member = self._groups.get(queue.number)
                if member is None:
                    raise MovedAway
                step = next_step(goal, standing_of(member, queue.members, self._groups.suspected))
                if step is MembershipAction.DONE:
                    return
                if step is MembershipAction.LAST_NODE:
                    raise last_node(queue)
                if step is MembershipAction.MOVED:
                    raise MovedAway
                await self._made(queue, member, step)
        raise Unavailable(
            f"queue '{queue.name}'", f"queue '{queue.name}': its members could not be changed in time"
        )

    async def _made(self, queue: DeclaredQueue, member: Member, step: Step) -> None:
        match step:
            case DeclareMembers(members):
                request = SetMembers(queue.vhost, queue.name, queue.number, members)
                if not await self._propose(request):
                    raise MovedAway  # the queue was deleted; its member ends soon
                return
            case Hand(to):
                await hand_over(queue, member, to)
                raise MovedAway
            case Add() | Promote() | Remove():
                try:
                    member.change(step)
                    member.advance()
                except NotLeader as error:
                    raise MovedAway from error
                except (ChangeRefused, NotReady) as error:
                    _log.debug("a change of members waits", queue=queue.name, reason=str(error))
            case _:
                pass
        await trio.sleep(LOOK_S)

    # --- what nobody asks for -----------------------------------------------------------------------

    async def run(self) -> None:
        """Repair differences, again and again, until cancelled."""
        end = 0
        while True:
            await trio.sleep(REPAIR_S)
            queues = list(self._catalog)
            begin = end if end < len(queues) else 0
            end = begin + REPAIR_QUEUES
            for queue in queues[begin:end]:
                member = self._groups.get(queue.number) if queue.members else None
                if member is not None and member.machine.newer:
                    self._stands_back(queue, member)
                if member is None or not member.leads or queue.number in self._under_way:
                    continue
                if not nothing_to_repair(member.raft.config, queue.members):
                    await self._repaired(queue, member)

    def _stands_back(self, queue: DeclaredQueue, member: Member) -> None:
        member.raft.backward = True
        if queue.number not in self._behind:
            self._behind.add(queue.number)
            _log.error(
                "a member of a queue stays behind: install a newer broker",
                queue=queue.name,
                vhost=queue.vhost,
                machine_version=member.machine.newer,
            )

    async def _repaired(self, queue: DeclaredQueue, member: Member) -> None:
        step = repair(standing_of(member, queue.members, self._groups.suspected))
        if isinstance(step, MembershipAction):
            return
        _log.info("members of a queue are put right", queue=queue.name, vhost=queue.vhost, step=str(step))
        with self._only(queue, member):
            try:
                await self._made(queue, member, step)
            except (RefusedError, MovedAway) as error:
                _log.debug("members of a queue stay", queue=queue.name, reason=str(error))

    # --- reconciliation -----------------------------------------------------------------------------

    def trigger(self) -> None:
        """Note that a node has started or left for good, a queue was declared, or a policy set."""
        self._schedule.trigger(now_ms())

    async def reconcile(self) -> None:
        """Make rounds when they are due, until cancelled."""
        while self._config.quorum_reconciliation:
            due_ms = self._schedule.due_ms
            if due_ms <= now_ms():
                self._schedule.ran(now_ms(), unfinished=await self.round())
            await trio.sleep(min(LOOK_S, max(0.01, due_ms / 1000 - trio.current_time())))

    async def round(self) -> bool:
        """Check every queue with a leader on this node; return whether there may be more to do."""
        unfinished = False
        short: list[DeclaredQueue] = []
        for queue in list(self._catalog):
            member = self._groups.get(queue.number) if queue.members else None
            if member is None or not member.leads or self._groups.backward:
                continue
            target = self._target(queue)
            grow, places = next_change(
                queue.members,
                self._catalog.nodes.values(),
                lambda node: node == self._me or node not in self._groups.suspected,
                target,
                auto_remove=self._config.quorum_reconciliation_auto_remove,
                random_source=random.random,
            )
            if not places and len(queue.members) < target:
                short.append(queue)
            for node in places:
                unfinished = True
                await self._change(queue, node, grow=grow)
        if short:
            _log.warning(
                "queues have fewer members than their target",
                queues=len(short),
                one_of_them=short[0].name,
                vhost=short[0].vhost,
                members=len(short[0].members),
                target=self._target(short[0]),
                reason="no other node of the cluster runs and may be given more, or most members do not run",
            )
        return unfinished

    async def _change(self, queue: DeclaredQueue, node: int, *, grow: bool) -> None:
        try:
            if grow:
                kind = MemberRole.PROMOTABLE
                await self.add(queue, node, kind, CHANGE_S, among_voters=True)
            else:
                await self.remove(queue, node, CHANGE_S)
        except (RefusedError, MovedAway) as error:
            _log.info("reconciliation is put off", queue=queue.name, vhost=queue.vhost, reason=str(error))
            return
        done = "member added" if grow else "member removed"
        _log.info(
            f"{done} by reconciliation",
            queue=queue.name,
            vhost=queue.vhost,
            node=self._catalog.node_name(node),
        )

    def _target(self, queue: DeclaredQueue) -> int:
        return target_size(
            self._config.quorum_reconciliation_target_group_size,
            queue.effective.definition.get("target-group-size"),
            queue.arguments.get("x-quorum-target-group-size"),
        )


def leading_member(groups: Groups, queue: DeclaredQueue) -> Member:
    """Return this node's member. Raises `MovedAway` if it does not lead, and `PreconditionFailed` if it has
    not committed an entry of its term.
    """
    member = groups.get(queue.number)
    if member is None or member.raft.status.leader != member.me:
        raise MovedAway
    if not member.leads:
        raise change_not_permitted(queue)
    return member


async def transfer(groups: Groups, queue: DeclaredQueue, node: int) -> None:
    """Hand a leadership to the member on a node, as `ClusterNode.transfer`. Raises `MovedAway` likewise."""
    member = leading_member(groups, queue)
    heirs = [each for each in member.raft.config.voters if node_of(each) == node]
    if not heirs:
        raise refused(queue, "not_a_voter", "the node has no member of it that votes")
    await hand_over(queue, member, heirs[0])


async def hand_over(queue: DeclaredQueue, member: Member, to: int) -> None:
    """Hand a leadership to a member, and wait until that member leads. Raises `MovedAway` likewise,
    `PreconditionFailed` if the member cannot lead, and `Unavailable` if it takes too long.
    """
    try:
        member.transfer(to)
    except NotLeader as error:
        raise MovedAway from error
    except (ChangeRefused, NotReady) as error:
        raise refused(queue, "not_transferred", str(error)) from error
    member.advance()
    with trio.move_on_after(TRANSFER_EACH_S):
        while True:
            # Wait until the other is known to lead: later requests are sent to it.
            if not _leads_still(member):
                return
            await trio.sleep(LOOK_S)
    text = f"queue '{queue.name}': its leader could not hand over in time"
    raise Unavailable(f"queue '{queue.name}'", text)


async def hand_all_over(
    me: int, catalog: Catalog, groups: Groups, patience_s: float = TRANSFER_EACH_S
) -> list[str]:
    """Hand over all leaderships, each to the member on another node with the most of the log, all at once.
    Returns a line for each queue that is still led here.
    """
    may = {
        node.number
        for node in catalog.nodes.values()
        if not node.draining and node.number not in groups.suspected and node.number != me
    }
    kept: list[str] = []
    handed: list[tuple[DeclaredQueue | None, Member]] = []
    system = groups.get(SYSTEM_GROUP)
    if system is not None and system.leads and _handed(None, system, may, []):
        handed.append((None, system))
    for place, queue in enumerate(list(catalog), 1):
        if not place % BATCH:
            await trio.lowlevel.checkpoint()
        member = groups.get(queue.number) if queue.members else None
        if member is not None and member.leads and _handed(queue, member, may, kept):
            handed.append((queue, member))
    with trio.move_on_after(patience_s):
        while any(_leads_still(member) for _, member in handed):  # noqa: ASYNC110
            await trio.sleep(LOOK_S)
    late = [queue for queue, member in handed if queue is not None and _leads_still(member)]
    return [*kept, *(f"queue '{queue.name}': its leader could not hand over in time" for queue in late)]


def _handed(queue: DeclaredQueue | None, member: Member, may: Collection[int], kept: list[str]) -> bool:
    # Begin to hand one over, or note the reason why that is not possible.
    matches, voters = member.raft.matches(), member.raft.config.voters
    heirs = [each for each in matches if each in voters and node_of(each) in may]
    told = "the metadata" if queue is None else f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if not heirs:
        kept.append(f"{told}: no other member of it can lead")
        return False
    try:
        member.transfer(max(heirs, key=lambda each: matches[each]))
    except NotLeader:
        return False  # another leads already
    except (ChangeRefused, NotReady) as error:
        kept.append(f"{told}: {error}")
        return False
    member.advance()
    return True


def _leads_still(member: Member) -> bool:
    return not member.stopped and member.raft.status.leader in (None, member.me)


STATE_S: Final = 1.0
"""The time limit for a node's report on its member."""
OPERATION_S: Final = 5.0
"""The time limit of another node for an operation that does not take longer by itself."""
AGAIN_S: Final = 0.1
"""The pause between two attempts to find the leader of a queue."""
TRANSFER_OF_LEADER_S: Final = 10.0
LOOK_AGAIN_S: Final = 1.0
LEAVE_S: Final = 2.0
"""How long a stop waits until others lead."""


class NodeOfCluster(ServingNode):
    def __init__(self, broker: ServingContext, cluster: Cluster) -> None:
        assert cluster.system is not None, "it has begun"
        self.number = cluster.membership.number
        config = broker.config
        self.target_size = target_nodes(config.cluster_target_size, config.cluster_nodes)
        self.rebalancing = False
        super().__init__(broker)
        self._catalog = broker.catalog
        self._cluster = cluster
        self._groups = cluster.raft.groups
        self._system = cluster.system
        self.changes = MemberChanges(self.number, self._catalog, self._groups, self._system.propose, config)
        self._catalog.on_sizes = self.changes.trigger
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
        return GroupSeen(
            tuple(map(node_of, config.voters)),
            tuple(node_of(each) for each in config.learners if is_promotable(each)),
        )

    def chief(self) -> int | None:
        return self._system.member.leader_node

    def leaderless(self) -> Leaderless | None:
        return self._cluster.leaderless.found()

    def alarms(self) -> Mapping[int, Collection[str]]:
        monitor = self._cluster.monitor
        return {self.number: monitor.alarms.names(), **monitor.elsewhere}

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
        await self._at_leader(queue, node, {"change": "transfer"}, TRANSFER_OF_LEADER_S)

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
        """Drain the node, in the order of RabbitMQ's steps."""
        await self._system.propose(SetDraining(self._cluster.name, True))
        await super().drain()
        for line in await hand_all_over(self.number, self._catalog, self._groups):
            _node_log.warning("a drained node still leads", reason=line)

    async def revive(self) -> None:
        await self._system.propose(SetDraining(self._cluster.name, False))
        await super().revive()

    async def leave(self) -> None:
        """Transfer this node's leaderships before a stop, so that clients need not wait for elections."""
        self._cluster.stand_back()
        kept = await hand_all_over(self.number, self._catalog, self._groups, LEAVE_S)
        _node_log.info("leaderships were handed over", kept=len(kept))
        for line in kept:
            _node_log.debug("not handed over", reason=line)

    async def run(self) -> None:
        """Repair members, and prevent a drained node from leading, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.changes.run)
            nursery.start_soon(self.changes.reconcile)
            running: set[int] = set()
            while True:
                now = {
                    node.number for node in self._catalog.nodes.values() if self._catalog.runs(node.number)
                }
                if now - running:
                    self.changes.trigger()
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
            return {"moved": True}  # this node does not have it yet, or not any more
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
        # Encode it as the administration socket would: some values have no form in JSON.
        return {"result": json.loads(json.dumps(result, default=str))}
