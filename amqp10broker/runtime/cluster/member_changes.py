"""Changes of members of quorum queues, at the node that leads them, step by step.

`cluster.membership` chooses the next step; this module executes it in the catalog or the group, and looks
again. A look each second repairs changes that ended between two steps, and promotes members that have caught
up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from amqp10broker.cluster.membership import (
    Adding,
    DeclareMembers,
    Goal,
    Hand,
    MemberRole,
    MembershipAction,
    Moved,
    Removing,
    Step,
    is_promotable,
    new_member,
    next_step,
    nothing_to_repair,
    repair,
    standing_of,
)
from amqp10broker.errors import RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.node_requests import SetMembers
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.members import change_not_permitted, last_node, refused
from amqp10broker.raft.config import Add, Promote, Remove
from amqp10broker.raft.errors import ChangeRefused, NotLeader, NotReady
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import node_of
from amqp10broker.runtime.cluster.leader_changes import LOOK_S, MovedAway, hand_over, leading_member
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.members")

REPAIR_S: Final = 1.0
REPAIR_QUEUES: Final = 1_000
"""So many queues are looked at each time: where there are 10 000, each is looked at every ten seconds."""
TAKE_BACK_S: Final = 5.0
"""How long taking back a member may take that could not be added in time."""


Proposing = Callable[[CatalogRequest[Any]], Awaitable[Any]]
"""Has a request decided, and waits for it (`SystemNode.propose`)."""


class MemberChanges:
    def __init__(self, catalog: Catalog, groups: Groups, propose: Proposing) -> None:
        self._catalog = catalog
        self._groups = groups
        self._propose = propose
        self._under_way: set[int] = set()
        self._behind: set[int] = set()

    # --- what is asked ------------------------------------------------------------------------------

    async def add(
        self, queue: DeclaredQueue, node: int, membership: MemberRole, timeout_s: float, *, among_voters: bool
    ) -> int:
        """Add a member; see `ClusterNode.add_member`.

        Raises:
            MovedAway: this node does not lead the queue (any more).
            PreconditionFailed, Unavailable: see there.
        """
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
        """Remove a member; see `ClusterNode.delete_member`.

        Raises:
            MovedAway: this node does not lead the queue (any more).
            PreconditionFailed, Unavailable: see there.
        """
        member = leading_member(self._groups, queue)
        held = dict.fromkeys((*member.raft.config.members, *queue.members))
        with self._only(queue, member):
            for each in [each for each in held if node_of(each) == node]:
                await self._carried_out(queue, Removing(each), timeout_s)
        return len(queue.members)

    # --- steps --------------------------------------------------------------------------------------

    def _only(self, queue: DeclaredQueue, member: Member) -> _OneAtATime:
        if queue.number in self._under_way or not member.raft.settled:
            raise change_not_permitted(queue)
        return _OneAtATime(self._under_way, queue.number)

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
                if isinstance(step, Moved):
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
                    raise MovedAway  # the queue was deleted; its member ends in a moment
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
        """Repair what differs, again and again, until cancelled."""
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
        with _OneAtATime(self._under_way, queue.number):
            try:
                await self._made(queue, member, step)
            except (RefusedError, MovedAway) as error:
                _log.debug("members of a queue stay", queue=queue.name, reason=str(error))


class _OneAtATime:
    """A change of a queue's members is under way."""

    def __init__(self, under_way: set[int], number: int) -> None:
        self._under_way = under_way
        self._number = number

    def __enter__(self) -> None:
        self._under_way.add(self._number)

    def __exit__(self, *error: object) -> None:
        self._under_way.discard(self._number)
