"""Changes of members: what the next step is, however things stand, and whole changes in a simulated group."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from amqp10broker.cluster.membership import (
    Adding,
    DeclareMembers,
    Goal,
    GroupState,
    Hand,
    MemberRole,
    MembershipAction,
    Removing,
    Step,
    new_member,
    next_step,
    nothing_to_repair,
    repair,
)
from amqp10broker.raft.entries import Add, ChangeRefused, Configuration, NotReady, Promote, Remove
from amqp10broker.raft.ids import member_id, node_of
from tests.support.raft_group import Group, Node
from tests.support.raft_room import the_room

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
    """The catalog first: a member begins empty only because the catalog's entry made it."""
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
    """So its node destroys it when the others count on it no more."""
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
    """G4; the preferred leader keeps its place. A learner that has caught up votes from then on."""
    assert repair(standing) == step
    if nothing_to_repair(standing.config, standing.declared):
        assert step in (MembershipAction.DONE, MembershipAction.WAIT)


# --- whole changes ---------------------------------------------------------------------------------


class Queue:
    """A group with its entry in the catalog, and steps that are carried out as a node would."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.room = the_room()
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
        """Everything written is durable, everything sent arrives, and what is due is done."""
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
        """Make a change, or so many steps of it; how many it took."""
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


def test_a_queue_grows_with_what_it_had() -> None:
    """The new member has everything, and counts for the majority."""
    queue = Queue(3)
    queue.propose(5)
    queue.change(Adding(D, as_voter=True))
    assert queue.declared == (A, B, C, D)
    assert queue.leader.raft.config == queue.room.Configuration((A, B, C, D))
    assert queue.node(D).state == queue.leader.state
    queue.propose(1)
    assert queue.node(D).state == queue.leader.state


@pytest.mark.parametrize("member", [A, B])
def test_a_queue_shrinks_to_one(member: int) -> None:
    """The last is kept, whether the leader goes or another."""
    queue = Queue(3)
    queue.propose(3)
    for goes in [each for each in (B, A, C) if each != member]:
        queue.change(Removing(goes))
        queue.propose(1)
    assert queue.declared == (member,)
    assert queue.leader.me == member
    assert next_step(Removing(member), queue.standing(queue.leader)) is MembershipAction.LAST_NODE


def test_a_member_that_is_down_can_be_removed() -> None:
    """G3: of the two that are left both are needed."""
    queue = Queue(3)
    queue.node(C).crash()
    queue.leader.raft.suspect(C, queue.group.now)
    queue.change(Removing(C))
    assert queue.declared == (A, B)
    assert queue.leader.raft.config.majority == 2


@pytest.mark.parametrize("steps", range(1, 5))
@pytest.mark.parametrize("goal", [Adding(D, as_voter=True), Removing(C), Removing(A)])
def test_a_change_may_end_between_any_two_steps(goal: Goal, steps: int) -> None:
    """The catalog agrees with the log afterwards, and the change can be made again."""
    queue = Queue(3)
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
    """First steps of the change: it is as if nothing had been done."""
    if isinstance(goal, Adding):
        return [DeclareMembers((*queue.declared, goal.member))]
    return [Remove(goal.member), *(Hand(member) for member in (B, C))]


def test_a_second_change_waits_for_the_first() -> None:
    """G1: the group itself refuses it."""
    queue = Queue(3)
    leader = queue.leader
    leader.raft.change(Remove(C), 0)
    standing = queue.standing(leader)
    assert not standing.settled
    assert next_step(Adding(D), standing) is MembershipAction.WAIT
    with pytest.raises(ChangeRefused):
        leader.raft.change(Remove(B), 0)


def test_a_leader_that_hands_over_takes_no_change() -> None:
    """It is tried again where the next one leads."""
    queue = Queue(3)
    leader = queue.leader
    leader.transfer(B)
    with pytest.raises(NotReady):
        leader.raft.change(Remove(C), 0)
    queue.settle()
    assert next_step(Removing(C), queue.standing(leader)) == MembershipAction.MOVED
    queue.change(Removing(C))
    assert queue.declared == (A, B)


# --- what a person decides --------------------------------------------------------------------------


def test_a_member_is_made_all_of_its_group_by_force() -> None:
    """Z2: what it has is kept, and the group goes on; then it grows again."""
    queue = Queue(3)
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


def test_a_member_of_a_drained_node_takes_over_from_no_leader() -> None:
    """V2: it follows, and is no heir."""
    queue = Queue(3)
    queue.node(B).raft.backward = True
    queue.leader.transfer(B)
    queue.settle()
    queue.wait(2_000)
    assert queue.leader.me == A
    queue.propose(1)
    assert queue.node(B).state == queue.leader.state


def test_a_member_of_a_drained_node_leads_only_if_no_other_can() -> None:
    """V2: of two that are left the other one does, unless it lacks what was committed."""
    queue = Queue(3)
    queue.node(B).raft.backward = True
    queue.node(A).crash()
    for node in (B, C):
        queue.node(node).raft.suspect(A, queue.group.now)
    for _ in range(20):
        queue.wait(50)
        if queue.group.leader() is not None:
            break
    assert queue.leader.me == C


def test_without_any_other_a_drained_member_leads() -> None:
    """Else a majority that lives would be without leader."""
    queue = Queue(3)
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
