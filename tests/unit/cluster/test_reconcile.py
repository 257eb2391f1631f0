"""Continuous reconciliation: rules G5 to G8, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster.membership import (
    Drop,
    Grow,
    NodeState,
    Schedule,
    next_change,
    target_size,
)
from amqp10broker.raft.ids import member_id, node_of

UP = NodeState()
DOWN = NodeState(running=False)
DRAINED = NodeState(draining=True)


def first() -> float:
    return 0.0


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
        ((1,), {1: UP, 2: UP, 3: UP}, 3, Grow(2)),
        ((1, 2), {1: UP, 2: UP, 3: UP}, 3, Grow(3)),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP}, 3, None),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP, 5: UP}, 3, None),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP, 5: UP}, 5, Grow(4)),
        # Without a target nothing is added.
        ((1, 2), {1: UP, 2: UP, 3: UP}, 0, None),
        # Also where it ends at an even number, and where there are fewer nodes than wanted.
        ((1,), {1: UP, 2: UP}, 3, Grow(2)),
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: UP}, 4, Grow(4)),
        ((1, 2, 3, 4), {1: UP, 2: UP, 3: UP, 4: UP}, 5, None),
        # Neither a stopped nor a drained node is taken.
        ((1, 2, 3), {1: UP, 2: UP, 3: UP, 4: DRAINED, 5: DOWN}, 5, None),
        ((1, 2), {1: UP, 2: UP, 3: DOWN, 4: DRAINED, 5: UP}, 3, Grow(5)),
        ((1, 2), {1: UP, 2: UP, 3: DOWN, 4: DRAINED}, 3, None),
        # A change could not be committed.
        ((1, 2), {1: UP, 2: DOWN, 3: UP}, 3, None),
        # Members on nodes that have left count as members.
        ((1, 2, 9), {1: UP, 2: UP, 3: UP, 4: UP}, 3, None),
    ],
)
def test_one_member_is_added_a_round_until_the_target_is_reached(
    held: tuple[int, ...], nodes: dict[int, NodeState], target: int, wanted: Grow | None
) -> None:
    assert next_change(members(*held), nodes, target, auto_remove=False, random_source=first) == wanted


def test_members_on_nodes_that_have_left_go_only_if_that_is_set() -> None:
    held, nodes = members(1, 2, 9), {1: UP, 2: DOWN, 3: UP}
    assert next_change(held, nodes, 3, auto_remove=False, random_source=first) is None
    assert next_change(held, nodes, 3, auto_remove=True, random_source=first) == Drop(members(9))
    assert next_change(members(9), nodes, 3, auto_remove=True, random_source=first) is None


@given(
    held=st.sets(st.integers(1, 7), min_size=1, max_size=5),
    states=st.lists(st.sampled_from([UP, DOWN, DRAINED]), min_size=7, max_size=7),
    target=st.integers(0, 9),
    random_source=st.floats(0, 1, exclude_max=True),
)
def test_what_is_added_is_wanted_and_can_be(
    held: set[int], states: list[NodeState], target: int, random_source: float
) -> None:
    """Whatever the cluster is like, a round adds a running node, to a group below its aim."""
    nodes = dict(enumerate(states, 1))
    change = next_change(members(*held), nodes, target, auto_remove=True, random_source=lambda: random_source)
    assert not isinstance(change, Drop)
    if change is not None:
        assert change.node not in held
        assert nodes[change.node] == UP
        assert len(held) < target


@given(size=st.integers(1, 9), target=st.integers(1, 9), numbers=st.integers(1, 9))
def test_rounds_end_at_the_target_or_where_no_node_is_left(size: int, target: int, numbers: int) -> None:
    """Rounds follow each other until nothing is left to do."""
    nodes = dict.fromkeys(range(1, max(size, numbers) + 1), UP)
    held = members(*range(1, size + 1))
    while (change := next_change(held, nodes, target, auto_remove=True, random_source=first)) is not None:
        assert isinstance(change, Grow)
        held = (*held, member_id(change.node))
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
