"""Membership of the system group: every node of the cluster, one change at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from amqp10broker.metadata.nodes import NodeFacts
from amqp10broker.raft.config import Add, Change, Configuration, Promote, Remove
from amqp10broker.raft.ids import member_id

VOTERS_MAX: Final = 7
"""Further nodes get the log and do not vote: a majority of more is slower, and no safer."""
LAG_MAX: Final = 64
"""A learner whose log lacks no more entries has caught up."""


def next_change(
    config: Configuration, nodes: Iterable[NodeFacts], matches: Mapping[int, int], last: int
) -> Change | None:
    """Return the next change by the group's leader; None if all is done or a member still catches up.
    `matches`: up to which index the log of each other member is known to agree.
    """
    wanted = {member_id(node.number): node for node in nodes}
    for member in config.members:
        if member not in wanted and config.voters != (member,):
            return Remove(member)
    for member in wanted:
        if member not in config.members:
            return Add(member)
    if len(config.voters) < VOTERS_MAX:
        for member in config.learners:
            # One that has never told of a start may be an empty folder the next time.
            if wanted[member].incarnation > 0 and matches.get(member, 0) + LAG_MAX >= last:
                return Promote(member)
    return None
