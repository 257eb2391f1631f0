"""Leaders in equal parts, one transfer at a time; and whether a node can be spared."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amqp10broker.cluster.membership import BalancedQueue, Move, is_critical, next_move, share


def balanced(queues: list[BalancedQueue], nodes: set[int]) -> tuple[list[BalancedQueue], int]:
    """Make the transfers that are planned; the queues then, and how many there were."""
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
    """No node that runs and is not drained leads more than its share."""
    queues = [BalancedQueue(group, 1, (2, 3)) for group in range(1, 8)]
    moved, count = balanced(queues, {1, 2, 3})
    assert [leaders(moved, node) for node in (1, 2, 3)] == [3, 2, 2]
    assert count == 4


def test_a_drained_node_gives_away_all_that_others_can_take() -> None:
    queues = [BalancedQueue(1, 1, (2, 3)), BalancedQueue(2, 1, (2,)), BalancedQueue(3, 1, ())]
    moved, _ = balanced(queues, {2, 3})
    assert leaders(moved, 1) == 1, "of which it is the only member"


def test_another_queue_goes_on_first_where_that_is_the_only_way() -> None:
    """Node 1 can only give to node 2, which has its share, and can give to node 3."""
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
    """No node is above the share unless its queues have nowhere to go (Hall's condition, by trying)."""
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
    """L5: online voters <= majority."""
    assert is_critical(online, voters) is critical
