"""The members of queues: on which nodes a new queue has them, and how they change, in small steps from the
present state.

A change has two places, the catalog and the group's log, and a node may fail between any two steps. So no
step relies on an earlier one: `next_step` derives the next action from both, and `repair` resolves a
difference without a change under way.

- A member is added to the catalog first: its node makes it, empty, only because the catalog's entry requires
it.
  Then it becomes a learner of the group, and a voter when it has caught up.
- A member leaves the log first, and the catalog when that is committed: then its node destroys it.
- A leader that must leave hands over first, and the change continues where the next one leads.
- Where log and catalog differ and no change is under way, the catalog follows the log.

Placement (`ByCount`; Q1, Q2, Q3, K1) and continuous reconciliation (`next_change`, `Schedule`) follow
RabbitMQ, with two exceptions: a queue without a majority gets no member, because the change could not end;
and an even target is reached, as its documentation states, where RabbitMQ stops at the odd size below.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts, Placed, QueueSpec
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.raft.ids import member_id, node_of
from amqp10broker.raft.messages import Add, Change, Configuration, Promote, Remove

if TYPE_CHECKING:
    from amqp10broker.raft.groups import Member


class MemberRole(enum.StrEnum):
    """The role of a member to add. PROMOTABLE: a learner, which becomes a voter when it has caught up. VOTER:
    the same, and the change is over when it is one.
    """

    PROMOTABLE = "promotable"
    VOTER = "voter"
    NON_VOTER = "non_voter"


_STAYS_LEARNER: Final = 1 << 31
"""Set in the serial of a member that never becomes a voter, so that log and catalog need no field for it."""


def new_member(node: int, last_index: int, membership: MemberRole) -> int:
    """Return an id that no member of the group has had. `last_index`: that of the leader's log."""
    serial = last_index % _STAYS_LEARNER
    return member_id(node, serial | _STAYS_LEARNER if membership is MemberRole.NON_VOTER else serial)


def is_promotable(member: int) -> bool:
    """Whether a learner becomes a voter when it has caught up."""
    return not member & _STAYS_LEARNER


@dataclass(frozen=True, slots=True)
class Adding:
    """Add a member. `as_voter`: the change ends when it is a voter; else when it is a learner."""

    member: int
    as_voter: bool = False


@dataclass(frozen=True, slots=True)
class Removing:
    member: int


Goal = Adding | Removing


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group at one of its members."""

    me: int
    leads: bool
    declared: tuple[int, ...]
    config: Configuration
    settled: bool = True
    caught_up: Collection[int] = ()
    reached: Collection[int] = ()


def standing_of(member: Member, declared: tuple[int, ...], suspected: Collection[int]) -> GroupState:
    """Return the state of a group. Every declared member counts as existing: a node without its member
    reports that to the leader, which suspects the member until it exists.
    """
    raft = member.raft
    config, matches, commit = raft.config, raft.matches(), raft.hard.commit
    return GroupState(
        me=member.me,
        leads=member.leads,
        declared=declared,
        config=config,
        settled=raft.settled,
        caught_up=[each for each in config.learners if matches.get(each, 0) >= commit],
        reached=[each for each in matches if node_of(each) not in suspected],
    )


@dataclass(frozen=True, slots=True)
class DeclareMembers:
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hand:
    to: int


class MembershipAction(enum.Enum):
    """Actions without a step here. MOVED: this member does not lead: continue where one does. LAST_NODE:
    refused, because a queue has at least one voter.
    """

    WAIT = "wait"
    DONE = "done"
    MOVED = "moved"
    LAST_NODE = "last_node"


Step = DeclareMembers | Hand | Change | MembershipAction


def next_step(goal: Goal, standing: GroupState) -> Step:
    if not standing.leads:
        return MembershipAction.MOVED
    if not standing.settled:
        return MembershipAction.WAIT
    if isinstance(goal, Adding):
        return _adding(goal, standing)
    return _removing(goal.member, standing)


def _adding(goal: Adding, standing: GroupState) -> Step:
    member, config = goal.member, standing.config
    if member not in standing.declared:
        return DeclareMembers((*standing.declared, member))
    if member in config.voters:
        return MembershipAction.DONE
    if member not in config.learners:
        return Add(member)
    if not goal.as_voter:
        return MembershipAction.DONE
    return Promote(member) if member in standing.caught_up else MembershipAction.WAIT


def _removing(member: int, standing: GroupState) -> Step:
    config = standing.config
    if config.voters == (member,):
        return MembershipAction.LAST_NODE
    if member in config.members:
        if member != standing.me:
            return Remove(member)
        heir = next((voter for voter in config.voters if voter in standing.reached), None)
        return MembershipAction.WAIT if heir is None else Hand(heir)
    if member in standing.declared:
        return DeclareMembers(tuple(each for each in standing.declared if each != member))
    return MembershipAction.DONE


def repair(standing: GroupState) -> Step:
    """Return the action for a group without a change under way; only the leader acts."""
    if not standing.leads or not standing.settled:
        return MembershipAction.WAIT
    for learner in standing.config.learners:
        if is_promotable(learner) and learner in standing.caught_up:
            return Promote(learner)
    members = standing.config.members
    kept = tuple(member for member in standing.declared if member in members)
    wanted = (*kept, *(member for member in members if member not in kept))
    return MembershipAction.DONE if wanted == standing.declared else DeclareMembers(wanted)


def nothing_to_repair(config: Configuration, declared: Collection[int]) -> bool:
    """Return whether `repair` finds nothing, in any other state of the group: a cheaper check."""
    voters = config.voters
    return not config.learners and len(voters) == len(declared) and all(map(declared.__contains__, voters))


def target_size(setting: int, policy: int | None, argument: int | None) -> int:
    return max(setting, policy or 0, argument or 0)


def next_change(
    members: Sequence[int],
    nodes: Iterable[NodeFacts],
    runs: Callable[[int], bool],
    target: int,
    *,
    auto_remove: bool,
    random_source: Callable[[], float],
) -> tuple[bool, list[int]]:
    """Return the change of one round for a queue with a leader here: whether members are added, and on which
    nodes they are added or removed. `random_source`: returns numbers from 0 to below 1.
    """
    held = [node_of(member) for member in members]
    draining = {node.number: node.draining for node in nodes}
    gone = [node for node in held if node not in draining]
    if gone and auto_remove and len(gone) < len(members):
        return False, gone
    running = [node for node in draining if runs(node)]
    candidates = sorted(node for node in running if node not in held and not draining[node])
    majority = len(members) // 2 + 1
    if len(members) >= target or not candidates or len({*held}.intersection(running)) < majority:
        return True, []
    return True, [candidates[int(random_source() * len(candidates))]]


class Schedule:
    """The time of the next round. `interval_ms`: between two rounds. `trigger_interval_ms`: from a trigger,
    or a round that found a change, to the next round.
    """

    def __init__(self, interval_ms: int, trigger_interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._trigger_interval_ms = trigger_interval_ms
        self.due_ms = now_ms + interval_ms

    def trigger(self, now_ms: int) -> None:
        """Note that a node has started or was removed, a queue was declared, or a policy set. The failure of
        a node is not a trigger.
        """
        self.due_ms = min(self.due_ms, now_ms + self._trigger_interval_ms)

    def ran(self, now_ms: int, *, unfinished: bool) -> None:
        """Note that a round has ended. `unfinished`: it found a change, so there may be another one."""
        self.due_ms = now_ms + (self._trigger_interval_ms if unfinished else self._interval_ms)


COUNTED_MAX: Final = 1000
"""With this number of queues, members and leaders are not counted any more."""
GROUP_SIZE: Final = 3
"""The number of members of a quorum queue that is declared without a size."""
CLIENT_LOCAL: Final = "client-local"
BALANCED: Final = frozenset({"balanced", "random", "least-leaders", "min-masters"})
"""The names that mean `balanced`; all others mean the client's node."""


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
    group: int
    leader: int
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer of a queue's leadership to a node."""

    group: int
    to: int


def share(queues: int, nodes: int) -> int:
    return -(-queues // nodes) if nodes else 0


def next_move(
    queues: Sequence[BalancedQueue], nodes: Collection[int], stuck: Collection[int] = ()
) -> Move | None:
    """Return the next transfer, so that no node leads more than its share; None if no transfer helps.

    It is the last step of the shortest path from a node with too many leaders to a node with room. Each
    transfer lowers the number of leaders above the share, so repeated calls end.
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
        # The search is breadth-first; `steps` has the step that leads to each node.
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
    """Whether a group loses its majority with one more of its members. Both counts include learners that are
    about to become voters: of `voters` all, of `online_voters` this node's.
    """
    return online_voters <= voters // 2 + 1
