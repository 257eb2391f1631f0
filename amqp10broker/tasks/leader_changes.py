"""Leaderships of quorum queues that this node hands over."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import trio

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.errors import RefusedError, Unavailable
from amqp10broker.management.members import change_not_permitted, refused
from amqp10broker.raft.errors import ChangeRefused, NotLeader, NotReady
from amqp10broker.replication.groups import Groups
from amqp10broker.replication.ids import node_of
from amqp10broker.replication.member import Member

LOOK_S: Final = 0.05
"""How often it is looked whether something has come about."""
TRANSFER_S: Final = 3.0
"""How long it is waited for a transfer, which the group itself gives up after 2 s."""


class MovedAway(Exception):
    """Another member leads now: it goes on there."""


def leading_member(groups: Groups, queue: DeclaredQueue) -> Member:
    """This node's member, which leads and takes proposals.

    Raises:
        MovedAway: it does not lead.
        PreconditionFailed: it has not committed anything of its own term yet.
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


async def hand_all_over(
    catalog: Catalog, groups: Groups, may_lead: Callable[[], Collection[int]]
) -> list[str]:
    """Hand over all leaderships of queues that another member can take, to the one that has the most.

    Args:
        catalog: of this node.
        groups: its members of groups.
        may_lead: tells the nodes that may.

    Returns:
        A line for each queue that is led here all the same.
    """
    kept = []
    for queue in list(catalog):
        member = groups.get(queue.number) if queue.members else None
        if member is None or not member.leads:
            continue
        matches, nodes = member.raft.matches(), may_lead()
        heirs = [each for each in matches if each in member.raft.config.voters and node_of(each) in nodes]
        try:
            if not heirs:
                raise refused(queue, "no_other_voter", "no other member of it can lead")
            await hand_over(queue, member, max(heirs, key=lambda each: matches[each]))
        except RefusedError as error:
            kept.append(error.description)
        except MovedAway:
            continue  # another leads already
    return kept
