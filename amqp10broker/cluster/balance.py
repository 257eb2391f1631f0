"""Plans that balance leaders over nodes, and checks whether a node can be spared."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from amqp10broker.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BalancedQueue:
    """A queue as balancing sees it."""

    group: int
    leader: int
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """The leadership of a queue goes to a node."""

    group: int
    to: int


def share(queues: int, nodes: int) -> int:
    """How many queues a node should lead at most: the queues in equal parts, rounded up."""
    return -(-queues // nodes) if nodes else 0


def next_move(
    queues: Sequence[BalancedQueue], nodes: Collection[int], stuck: Collection[int] = ()
) -> Move | None:
    """Return the transfer to make next, so that no node leads more than its share; None if no transfer helps.

    Where a queue of a crowded node can only move to nodes at their share, a queue of those is moved first:
    the first step of the shortest path from a crowded node to one with room. Each transfer lowers the number
    of leaders above the share, so repeated calls end.
    """
    limit = share(len(queues), len(nodes))
    led: dict[int, list[BalancedQueue]] = {node: [] for node in sorted(nodes)}
    for queue in queues:
        led.setdefault(queue.leader, []).append(queue)
    crowded = sorted(
        (node for node in led if len(led[node]) > (limit if node in nodes else 0)),
        key=lambda node: (-len(led[node]), node),
    )
    for start in crowded:
        # Breadth first; by each node is kept the step that leads there.
        steps: dict[int, Move] = {}
        seen, waiting = {start}, deque([start])
        while waiting:
            for queue in led[waiting.popleft()]:
                if queue.group in stuck:
                    continue
                for node in sorted(queue.others, key=lambda each: (len(led.get(each, ())), each)):
                    if node in seen or node not in nodes:
                        continue
                    seen.add(node)
                    steps[node] = Move(queue.group, node)
                    if len(led[node]) < limit:
                        return steps[node]
                    waiting.append(node)
    return None


def is_critical(online_voters: int, voters: int) -> bool:
    """Whether a group loses its majority with one more of its members. `online_voters`: members that vote and
    run; also this node's, if it is about to become a voter. `voters`: members that vote, or are about to,
    whether they run or not.
    """
    return online_voters <= voters // 2 + 1
