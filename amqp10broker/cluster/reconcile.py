"""Continuous reconciliation: how many members a quorum queue should have, and what to do about it.

Only the node that leads a queue acts for it, and not while it is drained. A round looks at all queues that
the node leads and makes at most one change to each. What one round is, and when the next one comes, is said
here; the change itself is `membership`'s.

The rules are RabbitMQ's (`quorum_queue.continuous_membership_reconciliation.*`), but for two: nothing is
added to a queue whose members have no majority, since such a change could not end; and a target that is even
is reached, as its documentation says, where RabbitMQ stops at the odd size below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from amqp10broker.cluster.ids import node_of
from amqp10broker.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Reconciling:
    """The settings.

    Attributes:
        target_group_size: members that each queue should have; 0: no more than policies and arguments say.
        auto_remove: members on nodes that are not in the cluster any more are removed.
        trigger_interval_ms: from a trigger, or a round that had something to do, to the next round.
    """

    enabled: bool = False
    target_group_size: int = 0
    auto_remove: bool = False
    interval_ms: int = 3_600_000
    trigger_interval_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of the cluster, as others see it."""

    running: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Grow:
    """A member is to be added on a node."""

    node: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Members, by id, are to be removed: their nodes are gone."""

    members: tuple[int, ...]


def target_size(setting: int | None, policy: int | None, argument: int | None) -> int:
    """How many members a queue should have: the largest of what is said; 0 if nothing is."""
    return max(setting or 0, policy or 0, argument or 0)


def next_change(
    members: Sequence[int],
    nodes: Mapping[int, NodeState],
    target: int,
    *,
    auto_remove: bool,
    chance: Callable[[], float],
) -> Grow | Drop | None:
    """What a round does to one queue that is led here; None: nothing.

    Args:
        chance: gives numbers from 0 to below 1.
    """
    gone = tuple(member for member in members if node_of(member) not in nodes)
    if gone and auto_remove and len(gone) < len(members):
        return Drop(gone)
    held = {node_of(member) for member in members}
    running = sum(node in nodes and nodes[node].running for node in held)
    candidates = sorted(
        number for number, node in nodes.items() if number not in held and node.running and not node.draining
    )
    if len(members) >= target or not candidates or running < len(members) // 2 + 1:
        return None
    return Grow(candidates[int(chance() * len(candidates))])


class Schedule:
    """When the next round comes.

    Attributes:
        due_ms: then; None: reconciliation is off.
    """

    def __init__(self, settings: Reconciling, now_ms: int) -> None:
        self._settings = settings
        self.due_ms = now_ms + settings.interval_ms if settings.enabled else None

    def trigger(self, now_ms: int) -> None:
        """A node has come up or left for good, a queue was declared, a policy set. A failure is none."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms + self._settings.trigger_interval_ms)

    def ran(self, now_ms: int, *, unfinished: bool) -> None:
        """A round is over.

        Args:
            unfinished: it changed something, or could not: there may be more to do.
        """
        if self.due_ms is not None:
            settings = self._settings
            self.due_ms = now_ms + (settings.trigger_interval_ms if unfinished else settings.interval_ms)
