"""Which nodes a new queue is at, and which of them shall lead: RabbitMQ's rules (Q1, Q2, Q3, K1).

The node of the client that declares is always a member. The others are those with the fewest members, running
ones before stopped ones. Counting that costs a look at every queue, so from a thousand on chance decides,
which is as even by then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.nodes import NodeFacts, Placed
from amqp10broker.metadata.queue import DeclaredQueue, QueueSpec, QueueType
from amqp10broker.raft.ids import member_id, node_of

COUNTED_MAX: Final = 1000
"""With as many queues members and leaders are not counted any more."""
GROUP_SIZE: Final = 3
"""Members of a quorum queue whose declaration does not say how many."""
CLIENT_LOCAL: Final = "client-local"
BALANCED: Final = frozenset({"balanced", "random", "least-leaders", "min-masters"})
"""All of these mean `balanced`; anything else, where the client is."""


@dataclass(eq=False)
class ByCount:
    _me: int
    _incarnation: int
    _choose: Callable[[int], int]
    runs: Callable[[int], bool]
    leader_of: Callable[[DeclaredQueue], int | None] = lambda queue: None
    group_size: int = GROUP_SIZE
    locator: str = CLIENT_LOCAL

    def __call__(
        self,
        wanted: QueueSpec,
        definition: Mapping[str, Any],
        nodes: Iterable[NodeFacts],
        queues: Iterable[DeclaredQueue],
        count: int,
    ) -> Placed:
        there = {node.number: node for node in nodes}
        of_kind = [queue for queue in queues if queue.type == wanted.type] if count < COUNTED_MAX else None
        given = definition.get("queue-leader-locator", definition.get("queue-master-locator"))
        locator = wanted.arguments.get("x-queue-leader-locator") if given is None else given
        if locator is None:
            locator = wanted.arguments.get("x-queue-master-locator", self.locator)
        if wanted.type == QueueType.QUORUM:
            members = self._members(wanted.arguments, there, of_kind)
            first = self._leader(locator, {number: there[number] for number in members}, of_kind)
            members.remove(first)
            return Placed(members=tuple(member_id(number) for number in (first, *members)))
        home = self._me if wanted.exclusive else self._leader(locator, there, of_kind)
        start = self._incarnation if home == self._me else there[home].incarnation
        return Placed(home, incarnation=0 if wanted.lasting else start)

    def _members(
        self,
        arguments: Mapping[str, Any],
        nodes: Mapping[int, NodeFacts],
        queues: list[DeclaredQueue] | None,
    ) -> list[int]:
        size = min(arguments.get("x-quorum-initial-group-size", self.group_size), len(nodes))
        others = [number for number in nodes if number != self._me]
        fewest = self._order(
            others, None if queues is None else (node_of(each) for queue in queues for each in queue.members)
        )
        fewest.sort(key=lambda number: not self.runs(number))
        return [self._me, *fewest[: size - 1]]

    def _leader(
        self, locator: str, nodes: Mapping[int, NodeFacts], queues: list[DeclaredQueue] | None
    ) -> int:
        fit = [number for number, node in nodes.items() if self.runs(number) and not node.draining]
        if not fit or (locator not in BALANCED and self._me in fit):
            return self._me
        return self._order(fit, None if queues is None else map(self._leads, queues))[0]

    def _leads(self, queue: DeclaredQueue) -> int:
        if not queue.members:
            return queue.home
        return self.leader_of(queue) or node_of(queue.members[0])

    def _order(self, numbers: list[int], taken: Iterable[int] | None) -> list[int]:
        left = list(numbers)
        mixed = [left.pop(self._choose(len(left))) for _ in numbers]
        if taken is not None:
            counts = Counter(taken)
            mixed.sort(key=lambda number: counts[number])
        return mixed


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
