"""Members of queues: where they are placed, how they are changed, who leads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amqp10broker.cluster import membership
from amqp10broker.cluster.membership import (
    Adding,
    BalancedQueue,
    ByCount,
    DeclareMembers,
    Goal,
    GroupState,
    Hand,
    MemberRole,
    MembershipAction,
    Move,
    Removing,
    Schedule,
    Step,
    is_critical,
    new_member,
    next_change,
    next_move,
    next_step,
    nothing_to_repair,
    repair,
    share,
    target_size,
)
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts, Placed, QueueSpec
from amqp10broker.raft.ids import member_id, node_of
from amqp10broker.raft.messages import Add, Configuration, Promote, Remove
from tests.support.queue_handles import FakeHandle
from tests.support.raft_group import Group, Node
from tests.support.raft_modules import raft_modules

A, B, C, D = (member_id(node, 1) for node in (1, 2, 3, 4))
THREE = GroupState(A, True, (A, B, C), Configuration((A, B, C)), reached=(B, C))
FOUR = replace(THREE, declared=(A, B, C, D))
LEARNING = replace(FOUR, config=Configuration((A, B, C), (D,)))
VOTING = replace(FOUR, config=Configuration((A, B, C, D)))


@pytest.mark.parametrize(
    ("goal", "standing", "step"),
    [
        (Adding(D), THREE, DeclareMembers((A, B, C, D))),
        (Adding(D), FOUR, Add(D)),
        (Adding(D), LEARNING, MembershipAction.DONE),
        (Adding(D, as_voter=True), LEARNING, MembershipAction.WAIT),
        (Adding(D, as_voter=True), replace(LEARNING, caught_up=(D,)), Promote(D)),
        (Adding(D, as_voter=True), VOTING, MembershipAction.DONE),
    ],
)
def test_a_member_is_declared_made_taught_and_votes(goal: Goal, standing: GroupState, step: Step) -> None:
    """The catalog is first: a member starts empty only if the catalog's entry made it."""
    assert next_step(goal, standing) == step


@pytest.mark.parametrize(
    ("goal", "standing", "step"),
    [
        (Removing(D), VOTING, Remove(D)),
        (Removing(D), LEARNING, Remove(D)),
        (Removing(D), FOUR, DeclareMembers((A, B, C))),
        (Removing(D), THREE, MembershipAction.DONE),
        # The leader hands over first, to a voter that can be reached.
        (Removing(A), THREE, Hand(B)),
        (Removing(A), replace(THREE, reached=(C,)), Hand(C)),
        (Removing(A), replace(THREE, reached=()), MembershipAction.WAIT),
        (Removing(A), replace(THREE, config=Configuration((A,))), MembershipAction.LAST_NODE),
        (Removing(A), replace(THREE, config=Configuration((A,), (D,))), MembershipAction.LAST_NODE),
    ],
)
def test_a_member_leaves_the_log_and_then_the_catalog(goal: Goal, standing: GroupState, step: Step) -> None:
    """So its node destroys it only when the other members no longer count it."""
    assert next_step(goal, standing) == step


@pytest.mark.parametrize("goal", [Adding(D), Removing(A), Removing(D)])
def test_only_the_leader_makes_a_step_and_one_change_is_under_way(goal: Goal) -> None:
    assert next_step(goal, replace(THREE, leads=False)) == MembershipAction.MOVED
    assert next_step(goal, replace(THREE, settled=False)) == MembershipAction.WAIT


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "repair_metadata_nodes_added_member",
    "repair_metadata_nodes_added_removed_member",
    "repair_metadata_nodes_removed_member",
)
@pytest.mark.parametrize(
    ("standing", "step"),
    [
        (THREE, MembershipAction.DONE),
        # A step further than the one that was declared was never made, or a member was taken out.
        (FOUR, DeclareMembers((A, B, C))),
        (replace(THREE, declared=(A, B)), DeclareMembers((A, B, C))),
        (replace(THREE, declared=(C, A, B)), MembershipAction.DONE),
        (replace(THREE, declared=(C, D, A)), DeclareMembers((C, A, B))),
        (LEARNING, MembershipAction.DONE),
        (replace(LEARNING, caught_up=(D,)), Promote(D)),
        (replace(FOUR, leads=False), MembershipAction.WAIT),
        (replace(FOUR, settled=False), MembershipAction.WAIT),
    ],
)
def test_the_catalog_follows_the_log(standing: GroupState, step: Step) -> None:
    """G4: the preferred leader keeps its place. A learner that has caught up votes from then on."""
    assert repair(standing) == step
    if nothing_to_repair(standing.config, standing.declared):
        assert step in (MembershipAction.DONE, MembershipAction.WAIT)


# --- whole changes ---------------------------------------------------------------------------------


class Queue:
    """A group with its entry in the catalog, and steps that are carried out as a node would."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.room = raft_modules()
        first = tuple(member_id(node, 1) for node in range(1, count + 1))
        self.group = Group(self.room, first, Random(seed).random)
        self.declared = first
        self.node(first[0]).raft.campaign(0)
        self.settle()

    def node(self, member: int) -> Node:
        return self.group.nodes[member]

    @property
    def leader(self) -> Node:
        leader = self.group.leader()
        assert leader is not None
        return leader

    def settle(self) -> None:
        """Run until every write is durable, every message has arrived, and nothing is due."""
        group = self.group
        for node in list(group.up()):
            node.turn()
        while group.network or any(node.disk.writes for node in group.up()):
            for node in list(group.up()):
                node.persist(len(node.disk.writes))
            for message in group.network[: len(group.network)]:
                group.network.remove(message)
                group.deliver(message)

    def wait(self, ms: int) -> None:
        self.group.now += ms
        for node in list(self.group.up()):
            if node.raft.deadline is not None and node.raft.deadline <= self.group.now:
                node.raft.tick(self.group.now)
                node.turn()
        self.settle()

    def standing(self, node: Node) -> GroupState:
        raft, status = node.raft, node.raft.status
        matches = raft.matches()
        return GroupState(
            me=node.me,
            leads=status.open,
            declared=self.declared,
            config=raft.config,
            settled=raft.point(raft.hard.commit).config == raft.config,
            caught_up=[each for each in raft.config.learners if matches.get(each, 0) >= raft.hard.commit],
            reached=[each for each in matches if self.node(each).up],
        )

    def carry_out(self, step: Step, node: Node) -> None:
        now = self.group.now
        match step:
            case DeclareMembers(members):
                for member in set(members) - set(self.declared):
                    self.group.add(member, self.room.new_group(self.room.Configuration(())))
                for member in set(self.declared) - set(members):
                    self.node(member).crash()
                self.declared = members
            case Hand(to):
                node.transfer(to)
            case Add() | Promote() | Remove():
                node.raft.change(step, now)
            case _:
                assert step in (MembershipAction.WAIT, MembershipAction.MOVED)

    def change(self, goal: Goal, stop_after: int = 1_000) -> int:
        """Make a change, or so many steps of it; return the number of steps."""
        for count in range(stop_after):
            node = self.leader
            step = next_step(goal, self.standing(node))
            if step is MembershipAction.DONE:
                return count
            self.carry_out(step, node)
            self.settle()
            if isinstance(step, MembershipAction):
                self.wait(100)
            assert count < 50, step
        return stop_after

    def repair(self) -> None:
        while (step := repair(self.standing(self.leader))) is not MembershipAction.DONE:
            self.carry_out(step, self.leader)
            self.settle()
            if step is MembershipAction.WAIT:
                self.wait(100)

    def propose(self, count: int) -> None:
        self.leader.raft.propose([f"m{number}".encode() for number in range(count)])
        self.settle()


@pytest.fixture
def queue() -> Queue:
    return Queue(3)


def test_a_queue_grows_with_what_it_had(queue: Queue) -> None:
    """The new member has every entry and counts for the majority."""
    queue.propose(5)
    queue.change(Adding(D, as_voter=True))
    assert queue.declared == (A, B, C, D)
    assert queue.leader.raft.config == queue.room.Configuration((A, B, C, D))
    assert queue.node(D).state == queue.leader.state
    queue.propose(1)
    assert queue.node(D).state == queue.leader.state


@pytest.mark.parametrize("member", [A, B])
def test_a_queue_shrinks_to_one(member: int, queue: Queue) -> None:
    queue.propose(3)
    for goes in [each for each in (B, A, C) if each != member]:
        queue.change(Removing(goes))
        queue.propose(1)
    assert queue.declared == (member,)
    assert queue.leader.me == member
    assert next_step(Removing(member), queue.standing(queue.leader)) is MembershipAction.LAST_NODE


def test_a_member_that_is_down_can_be_removed(queue: Queue) -> None:
    """G3: both of the remaining two are needed."""
    queue.node(C).crash()
    queue.leader.raft.suspect(C, queue.group.now)
    queue.change(Removing(C))
    assert queue.declared == (A, B)
    assert queue.leader.raft.config.majority == 2


@pytest.mark.parametrize("steps", range(1, 5))
@pytest.mark.parametrize("goal", [Adding(D, as_voter=True), Removing(C), Removing(A)])
def test_a_change_may_end_between_any_two_steps(goal: Goal, steps: int, queue: Queue) -> None:
    """The catalog agrees with the log afterwards, and the change can be made again."""
    queue.propose(2)
    queue.change(goal, stop_after=steps)
    queue.repair()
    assert set(queue.declared) == set(queue.leader.raft.config.members)
    assert next_step(goal, queue.standing(queue.leader)) in (MembershipAction.DONE, *_fresh(goal, queue))
    if isinstance(goal, Adding) and goal.member not in queue.declared:
        goal = Adding(new_member(4, queue.leader.raft.last, MemberRole.VOTER), as_voter=True)
    queue.change(goal)
    wanted = {1, 2, 3, 4} if isinstance(goal, Adding) else {1, 2, 3} - {node_of(goal.member)}
    assert {node_of(member) for member in queue.declared} == wanted
    queue.propose(1)


def _fresh(goal: Goal, queue: Queue) -> list[Step]:
    """Return the first steps of the change, as if nothing had been done."""
    if isinstance(goal, Adding):
        return [DeclareMembers((*queue.declared, goal.member))]
    return [Remove(goal.member), *(Hand(member) for member in (B, C))]


# --- what a person decides --------------------------------------------------------------------------


def test_a_member_is_made_all_of_its_group_by_force(queue: Queue) -> None:
    """Z2: its entries are kept, and the group continues; then it grows again."""
    queue.propose(5)
    for lost in (B, C):
        queue.node(lost).crash()
        queue.node(A).raft.suspect(lost, queue.group.now)
    queue.wait(2_000)
    assert queue.group.leader() is None
    state = queue.node(A).state
    queue.node(A).raft.force_alone(queue.group.now)
    queue.settle()
    assert queue.leader.me == A
    assert queue.leader.raft.config == queue.room.Configuration((A,))
    queue.repair()
    assert queue.declared == (A,)
    queue.propose(1)
    assert queue.node(A).state != state
    queue.change(Adding(D, as_voter=True))
    assert queue.node(D).state == queue.node(A).state


def test_a_member_of_a_drained_node_takes_over_from_no_leader(queue: Queue) -> None:
    """V2: it follows and is not a candidate."""
    queue.node(B).raft.backward = True
    queue.leader.transfer(B)
    queue.settle()
    queue.wait(2_000)
    assert queue.leader.me == A
    queue.propose(1)
    assert queue.node(B).state == queue.leader.state


def test_a_member_of_a_drained_node_leads_only_if_no_other_can(queue: Queue) -> None:
    """V2: of the two that remain the other leads, unless it lacks committed entries."""
    queue.node(B).raft.backward = True
    queue.node(A).crash()
    for node in (B, C):
        queue.node(node).raft.suspect(A, queue.group.now)
    for _ in range(20):
        queue.wait(50)
        if queue.group.leader() is not None:
            break
    assert queue.leader.me == C


def test_without_any_other_a_drained_member_leads(queue: Queue) -> None:
    """Otherwise a living majority would have no leader."""
    queue.node(B).raft.backward = True
    queue.node(C).crash()
    queue.leader.raft.suspect(C, queue.group.now)
    queue.propose(3)
    queue.node(A).crash()
    queue.node(C).start()
    for node in (B, C):
        queue.node(node).raft.suspect(A, queue.group.now)
    for _ in range(200):
        queue.wait(50)
    assert queue.leader.me == B
    queue.propose(1)


LOCAL = {"x-queue-leader-locator": "client-local"}
EVEN = {"x-queue-leader-locator": "balanced"}


class Cluster:
    """Five nodes, and what is declared at the first."""

    def __init__(self, nodes: int = 5, **options: Any) -> None:
        self.down: set[int] = set()
        self.draining: set[int] = set()
        self.queues: list[DeclaredQueue] = []
        self._count = nodes
        self._placement = ByCount(
            1, 7, random.Random(1).randrange, runs=lambda node: node not in self.down, **options
        )

    def place(
        self,
        kind: str = "quorum",
        arguments: dict[str, Any] | None = None,
        definition: dict[str, Any] | None = None,
        *,
        exclusive: bool = False,
        lasting: bool = True,
    ) -> Placed:
        nodes = [
            NodeFacts(chr(96 + n), n, "h", n, incarnation=10 + n, draining=n in self.draining)
            for n in range(1, self._count + 1)
        ]
        owner = 1 if exclusive else None
        wanted = QueueSpec("/", "q", kind, lasting, False, arguments or {}, owner=owner)
        found = self._placement(wanted, definition or {}, nodes, self.queues, len(self.queues))
        self.add(kind, found)
        return found

    def add(self, kind: str, placed: Placed) -> None:
        number = len(self.queues) + 1
        self.queues.append(
            DeclaredQueue(
                *(str(number), "/", kind, True, None, False, {}, FakeHandle()),
                number=number,
                home=placed.home,
                members=placed.members,
            )
        )

    def members(self, size: int, **options: Any) -> list[int]:
        return [
            node_of(each)
            for each in self.place(arguments={"x-quorum-initial-group-size": size}, **options).members
        ]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_client_local", "quorum_cluster_size_3")
def test_a_quorum_queue_has_three_members_and_leads_where_it_is_declared() -> None:
    placed = Cluster().place()
    assert len(set(placed.members)) == 3
    assert placed.members[0] == member_id(1)
    assert (placed.home, placed.incarnation) == (0, 0)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "quorum_cluster_size_7")
@pytest.mark.parametrize(("size", "members"), [(1, 1), (2, 2), (5, 5), (9, 5)])
def test_the_group_is_never_larger_than_the_cluster(size: int, members: int) -> None:
    assert len(Cluster().members(size)) == members


@pytest.mark.rabbitmq("quorum_queue_SUITE", "select_nodes_with_least_replicas")
def test_the_others_are_the_nodes_with_the_fewest_members() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.add("quorum", Placed(members=(member_id(2), member_id(3))))
    cluster.add("quorum", Placed(members=(member_id(4),)))
    cluster.add("classic", Placed(5))  # another kind does not count
    assert cluster.members(2) == [1, 5]
    assert set(cluster.members(3)) == {1, 4, 5}


@pytest.mark.rabbitmq("quorum_queue_SUITE", "select_nodes_with_least_replicas_node_down")
def test_running_nodes_come_before_stopped_ones_which_are_taken_when_there_are_too_few() -> None:
    cluster = Cluster()
    cluster.down = {2, 3}
    cluster.add("quorum", Placed(members=(member_id(4), member_id(5))))
    assert set(cluster.members(3)) == {1, 4, 5}
    assert set(cluster.members(4)) > {1, 4, 5}


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_balanced")
def test_a_balanced_leader_is_where_the_fewest_are() -> None:
    cluster = Cluster(3)
    leaders = [node_of(cluster.place(arguments=EVEN).members[0]) for _ in range(6)]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_policy")
@pytest.mark.rabbitmq("classic_queue_SUITE", "leader_locator_balanced", "leader_locator_client_local")
def test_the_policy_counts_before_the_argument_and_this_before_the_configuration() -> None:
    cluster = Cluster(3, locator="balanced")
    for _ in range(5):
        cluster.add("classic", Placed(1))
    assert cluster.place("classic").home != 1
    assert cluster.place("classic", LOCAL).home == 1
    assert cluster.place("classic", LOCAL, {"queue-leader-locator": "balanced"}).home != 1
    assert cluster.place("classic", EVEN, {"queue-leader-locator": "client-local"}).home == 1
    assert cluster.place("classic", EVEN, {"queue-leader-locator": "no-such"}).home == 1


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "leader_locator_balanced_maintenance", "leader_locator_balanced_random_maintenance"
)
def test_stopped_and_drained_nodes_lead_only_if_there_is_no_other() -> None:
    cluster = Cluster(3)
    cluster.down, cluster.draining = {2}, {3}
    assert {node_of(cluster.place(arguments=EVEN).members[0]) for _ in range(5)} == {1}
    cluster.draining = {1, 3}
    assert node_of(cluster.place().members[0]) == 1
    cluster.draining = {1}
    assert node_of(cluster.place().members[0]) == 3, "this node is drained, and another one is not"


def test_an_exclusive_queue_is_at_its_connections_node_and_ends_with_its_start() -> None:
    cluster = Cluster(locator="balanced")
    for _ in range(3):
        assert cluster.place("classic", exclusive=True, lasting=False) == Placed(1, incarnation=7)


def test_a_transient_queue_elsewhere_ends_with_the_start_of_that_node() -> None:
    cluster = Cluster(2)
    cluster.add("classic", Placed(1))
    assert cluster.place("classic", EVEN, lasting=False) == Placed(2, incarnation=12)


def test_with_a_thousand_queues_chance_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "COUNTED_MAX", 4)
    cluster = Cluster()
    for _ in range(4):
        cluster.add("quorum", Placed(members=(member_id(2), member_id(3), member_id(4))))
    drawn = {tuple(sorted(cluster.members(2))) for _ in range(40)}
    assert drawn == {(1, 2), (1, 3), (1, 4), (1, 5)}
    cluster.down = {2, 3, 4}
    assert {tuple(sorted(cluster.members(2))) for _ in range(10)} == {(1, 5)}


def balanced(queues: list[BalancedQueue], nodes: set[int]) -> tuple[list[BalancedQueue], int]:
    """Make the planned transfers; return the queues and the number of transfers."""
    count = 0
    while (move := next_move(queues, nodes)) is not None:
        at = next(place for place, queue in enumerate(queues) if queue.group == move.group)
        queue = queues[at]
        assert move.to in queue.others
        assert move.to in nodes
        others = tuple(node for node in (*queue.others, queue.leader) if node != move.to)
        queues[at] = replace(queue, leader=move.to, others=others)
        count += 1
        assert count <= 200, "it does not end"
    return queues, count


def leaders(queues: list[BalancedQueue], node: int) -> int:
    return sum(queue.leader == node for queue in queues)


def test_a_crowded_node_gives_away_what_is_above_its_share() -> None:
    """No running node that is not drained leads more than its share."""
    queues = [BalancedQueue(group, 1, (2, 3)) for group in range(1, 8)]
    moved, count = balanced(queues, {1, 2, 3})
    assert [leaders(moved, node) for node in (1, 2, 3)] == [3, 2, 2]
    assert count == 4


def test_a_drained_node_gives_away_all_that_others_can_take() -> None:
    queues = [BalancedQueue(1, 1, (2, 3)), BalancedQueue(2, 1, (2,)), BalancedQueue(3, 1, ())]
    moved, _ = balanced(queues, {2, 3})
    assert leaders(moved, 1) == 1, "of which it is the only member"


def test_another_queue_goes_on_first_where_that_is_the_only_way() -> None:
    """Node 1 can give only to node 2, which has its share and can give to node 3."""
    queues = [BalancedQueue(1, 1, (2,)), BalancedQueue(2, 1, (2,)), BalancedQueue(3, 2, (3,))]
    assert next_move(queues, {1, 2, 3}) == Move(3, 3)
    moved, count = balanced(queues, {1, 2, 3})
    assert [leaders(moved, node) for node in (1, 2, 3)] == [1, 1, 1]
    assert count == 2


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BalancedQueue], set[int]]:
    count = draw(st.integers(1, 5))
    numbers = range(1, count + 1)
    queues = []
    for group in range(draw(st.integers(0, 12))):
        held = draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True))
        queues.append(BalancedQueue(group, held[0], tuple(held[1:])))
    return queues, set(draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True)))


@given(clusters())
def test_it_ends_as_equal_as_it_can_be(cluster: tuple[list[BalancedQueue], set[int]]) -> None:
    """No node is above its share unless its queues have no other place (Hall's condition, by search)."""
    queues, nodes = cluster
    assume(all(queue.leader in nodes for queue in queues))
    moved, _ = balanced(list(queues), nodes)
    limit = share(len(queues), len(nodes))
    if any(leaders(moved, node) > limit for node in nodes):
        # Then some nodes together must lead more than their shares, whoever leads what.
        assert any(
            sum(not ({queue.leader, *queue.others} & nodes) - set(few) for queue in queues) > limit * size
            for size in range(1, len(nodes) + 1)
            for few in combinations(sorted(nodes), size)
        )


@pytest.mark.parametrize(
    ("online", "voters", "critical"),
    [(3, 3, False), (2, 3, True), (1, 3, True), (1, 1, True), (2, 2, True), (4, 5, False), (3, 5, True)],
)
def test_a_group_is_critical_when_one_more_loss_ends_its_majority(
    online: int, voters: int, critical: bool
) -> None:
    """L5: this is online voters <= majority."""
    assert is_critical(online, voters) is critical


UP, DOWN, DRAINED = "up", "down", "drained"


def change_of(
    held: tuple[int, ...],
    nodes: dict[int, str],
    target: int,
    *,
    auto_remove: bool,
    random_source: float = 0.0,
) -> tuple[bool, list[int]]:
    return next_change(
        held,
        [NodeFacts(f"n{node}", node, "h", 1, draining=state == DRAINED) for node, state in nodes.items()],
        lambda node: nodes[node] != DOWN,
        target,
        auto_remove=auto_remove,
        random_source=lambda: random_source,
    )


def members(*nodes: int) -> tuple[int, ...]:
    return tuple(member_id(node, 7) for node in nodes)


@pytest.mark.parametrize(
    ("setting", "policy", "argument", "wanted"),
    [(0, None, None, 0), (3, None, None, 3), (3, 5, None, 5), (3, 5, 7, 7), (9, 5, 7, 9), (0, None, 5, 5)],
)
def test_the_largest_target_counts(
    setting: int, policy: int | None, argument: int | None, wanted: int
) -> None:
    assert target_size(setting, policy, argument) == wanted


@pytest.mark.parametrize(
    ("held", "nodes", "target", "wanted"),
    [
        ((1,), {1: UP, 2: UP, 3: UP}, 3, 2),
        ((1, 2), {1: UP, 2: UP, 3: UP}, 3, 3),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP}, 3, None),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP, 5: UP}, 3, None),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP, 5: UP}, 5, 4),
        # Without a target nothing is added.
        ((1, 2), {1: UP, 2: UP, 3: UP}, 0, None),
        # Also where it ends at an even number, and where there are fewer nodes than wanted.
        ((1,), {1: UP, 2: UP}, 3, 2),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP}, 4, 4),
        ((1, 2, 3, 4), {1: UP, 2: UP, 3: UP, 4: UP}, 5, None),
        # Neither a stopped nor a drained node is taken.
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: DRAINED, 5: DOWN}, 5, None),
        ((1, 2), {1: UP, 2: UP, 3: DOWN, 4: DRAINED, 5: UP}, 3, 5),
        ((1, 2), {1: UP, 2: UP, 3: DOWN, 4: DRAINED}, 3, None),
        # A change could not be committed.
        ((1, 2), {1: UP, 2: DOWN, 3: UP}, 3, None),
        # Members on nodes that have left count as members.
        ((1, 2, 9), {1: UP, 2: UP, 3: UP, 4: UP}, 3, None),
    ],
)
def test_one_member_is_added_a_round_until_the_target_is_reached(
    held: tuple[int, ...], nodes: dict[int, str], target: int, wanted: int | None
) -> None:
    places = [] if wanted is None else [wanted]
    assert change_of(members(*held), nodes, target, auto_remove=False) == (True, places)


def test_members_on_nodes_that_have_left_go_only_if_that_is_set() -> None:
    held, nodes = members(1, 2, 9), {1: UP, 2: DOWN, 3: UP}
    assert change_of(held, nodes, 3, auto_remove=False) == (True, [])
    assert change_of(held, nodes, 3, auto_remove=True) == (False, [9])
    assert change_of(members(9), nodes, 3, auto_remove=True) == (True, [])


@given(
    held=st.sets(st.integers(1, 7), min_size=1, max_size=5),
    states=st.lists(st.sampled_from([UP, DOWN, DRAINED]), min_size=7, max_size=7),
    target=st.integers(0, 9),
    random_source=st.floats(0, 1, exclude_max=True),
)
def test_what_is_added_is_wanted_and_can_be(
    held: set[int], states: list[str], target: int, random_source: float
) -> None:
    """In any cluster, a round adds a running node to a group below its target."""
    nodes = dict(enumerate(states, 1))
    grow, places = change_of(members(*held), nodes, target, auto_remove=True, random_source=random_source)
    assert grow
    assert len(places) <= 1
    for node in places:
        assert node not in held
        assert nodes[node] == UP
        assert len(held) < target


@given(size=st.integers(1, 9), target=st.integers(1, 9), numbers=st.integers(1, 9))
def test_rounds_end_at_the_target_or_where_no_node_is_left(size: int, target: int, numbers: int) -> None:
    nodes = dict.fromkeys(range(1, max(size, numbers) + 1), UP)
    held = members(*range(1, size + 1))
    while (change := change_of(held, nodes, target, auto_remove=True)) != (True, []):
        grow, (node,) = change
        assert grow
        held = (*held, member_id(node))
        assert len({node_of(each) for each in held}) == len(held)
    assert len(held) == max(size, min(target, len(nodes)))


def test_a_round_comes_at_its_interval_and_sooner_after_a_trigger() -> None:
    schedule = Schedule(1_000, 10, 5)
    assert schedule.due_ms == 1_005
    schedule.trigger(100)
    assert schedule.due_ms == 110
    schedule.trigger(105)
    assert schedule.due_ms == 110, "triggers do not put a round off"
    schedule.ran(110, unfinished=True)
    assert schedule.due_ms == 120
    schedule.ran(120, unfinished=False)
    assert schedule.due_ms == 1_120
