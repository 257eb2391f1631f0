"""Leaderships that this node hands over."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import trio

from amqp10broker.errors import Unavailable
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.members import change_not_permitted, refused
from amqp10broker.raft.errors import ChangeRefused, NotLeader, NotReady
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of

LOOK_S: Final = 0.05
"""How often it is looked whether something has come about."""
BATCH: Final = 64
"""Leaderships that are handed over without a pause for others."""
TRANSFER_S: Final = 3.0
"""How long it is waited for a transfer, which the group itself gives up after 2 s."""


class MovedAway(Exception):
    """Another member leads now: it goes on there."""


def leading_member(groups: Groups, queue: DeclaredQueue) -> Member:
    """This node's member, which leads and takes proposals. Raises `MovedAway` if it does not lead, and
    `PreconditionFailed` if it has not committed anything of its own term yet.
    """
    member = groups.get(queue.number)
    if member is None or member.raft.status.leader != member.me:
        raise MovedAway
    if not member.leads:
        raise change_not_permitted(queue)
    return member


async def transfer(groups: Groups, queue: DeclaredQueue, node: int) -> None:
    """Hand a leadership to the member on a node; see `ClusterNode.transfer`.

    Raises:
        MovedAway: this node does not lead the queue (any more).
        PreconditionFailed, Unavailable: see there.
    """
    member = leading_member(groups, queue)
    heirs = [each for each in member.raft.config.voters if node_of(each) == node]
    if not heirs:
        raise refused(queue, "not_a_voter", "the node has no member of it that votes")
    await hand_over(queue, member, heirs[0])


async def hand_over(queue: DeclaredQueue, member: Member, to: int) -> None:
    """Hand a leadership to a member, and wait until that leads.

    Raises:
        MovedAway: this node does not lead the queue (any more).
        PreconditionFailed: it cannot be handed to that.
        Unavailable: that has not come to lead in time.
    """
    try:
        member.transfer(to)
    except NotLeader as error:
        raise MovedAway from error
    except (ChangeRefused, NotReady) as error:
        raise refused(queue, "not_transferred", str(error)) from error
    member.advance()
    with trio.move_on_after(TRANSFER_S):
        while True:
            # Until the other is known to lead: what is asked next is asked of it.
            if member.stopped or member.raft.status.leader not in (None, member.me):
                return
            await trio.sleep(LOOK_S)
    text = f"queue '{queue.name}': its leader could not hand over in time"
    raise Unavailable(f"queue '{queue.name}'", text)


class Leaderships:
    """Those of this node, all of which another is to have: it is drained, slow, or about to stop."""

    def __init__(self, me: int, catalog: Catalog, groups: Groups) -> None:
        self._me = me
        self._catalog = catalog
        self._groups = groups

    async def hand_over(self, patience_s: float = TRANSFER_S) -> list[str]:
        """Hand over what another member can lead, to the one that has the most of its log; all at once.
        Returns a line for each queue that is led here all the same.
        """
        may = self._may_lead()
        kept: list[str] = []
        handed: list[tuple[DeclaredQueue | None, Member]] = []
        system = self._groups.get(SYSTEM_GROUP)
        if system is not None and system.leads and self._handed(None, system, may, []):
            handed.append((None, system))
        for place, queue in enumerate(list(self._catalog), 1):
            if not place % BATCH:
                await trio.lowlevel.checkpoint()
            member = self._groups.get(queue.number) if queue.members else None
            if member is not None and member.leads and self._handed(queue, member, may, kept):
                handed.append((queue, member))
        with trio.move_on_after(patience_s):
            while any(_leads_still(member) for _, member in handed):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        late = [queue for queue, member in handed if queue is not None and _leads_still(member)]
        return [*kept, *(f"queue '{queue.name}': its leader could not hand over in time" for queue in late)]

    def _handed(
        self, queue: DeclaredQueue | None, member: Member, may: Collection[int], kept: list[str]
    ) -> bool:
        # Begin to hand one over; else the reason is noted.
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

    def _may_lead(self) -> Collection[int]:
        suspected = self._groups.suspected
        return {
            node.number
            for node in self._catalog.nodes.values()
            if not node.draining and node.number not in suspected and node.number != self._me
        }


def _leads_still(member: Member) -> bool:
    return not member.stopped and member.raft.status.leader in (None, member.me)
