"""Continuous reconciliation of the number of members of quorum queues.

Only the node that leads a queue acts for it, and not while it is drained. A round changes each led queue at
most once; `membership` makes the change. The rules are RabbitMQ's
(`quorum_queue.continuous_membership_reconciliation.*`), with two exceptions: a queue without a majority gets
no member, since the change could not end; and an even target is reached, as its documentation states, where
RabbitMQ stops at the odd size below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.ids import node_of


@dataclass(frozen=True, slots=True)
class Reconciling:
    """The settings of reconciliation.

    Attributes:
        target_group_size: members that each queue should have; 0: only policies and arguments count.
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
    """Return the wanted number of members: the largest of the given sizes; 0 if none is given."""
    return max(setting or 0, policy or 0, argument or 0)


def next_change(
    members: Sequence[int],
    nodes: Mapping[int, NodeState],
    target: int,
    *,
    auto_remove: bool,
    random_source: Callable[[], float],
) -> Grow | Drop | None:
    """Return the change of one round for a queue that is led here; None if there is none. `random_source`:
    gives numbers from 0 to below 1.
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
    return Grow(candidates[int(random_source() * len(candidates))])


class Schedule:
    """When the next round comes. `due_ms`: then; None: reconciliation is off."""

    def __init__(self, settings: Reconciling, now_ms: int) -> None:
        self._settings = settings
        self.due_ms = now_ms + settings.interval_ms if settings.enabled else None

    def trigger(self, now_ms: int) -> None:
        """A node has come up or left for good, a queue was declared, a policy set. A failure is none."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms + self._settings.trigger_interval_ms)

    def ran(self, now_ms: int, *, unfinished: bool) -> None:
        """A round is over. `unfinished`: it changed something, or could not: there may be more to do."""
        if self.due_ms is not None:
            settings = self._settings
            self.due_ms = now_ms + (settings.trigger_interval_ms if unfinished else settings.interval_ms)
