"""The members of the system group follow the nodes of the cluster."""

from __future__ import annotations

from amqp10broker.cluster.system import next_member_change
from amqp10broker.metadata.queue import NodeFacts
from amqp10broker.raft.entries import Add, Configuration, Promote, Remove
from amqp10broker.raft.ids import member_id

A, B, C = (member_id(number) for number in (1, 2, 3))


def node(number: int, incarnation: int = 1) -> NodeFacts:
    return NodeFacts("abcdefghij"[number - 1], number, "h", number, incarnation)


def test_a_new_node_is_a_learner_first() -> None:
    assert next_member_change(Configuration((A,)), [node(1), node(2, 0)], {}, 5) == Add(B)


def test_it_votes_when_it_has_caught_up_and_told_of_its_start() -> None:
    config = Configuration((A,), (B,))
    assert next_member_change(config, [node(1), node(2)], {B: 900}, 1000) is None
    assert next_member_change(config, [node(1), node(2, 0)], {B: 1000}, 1000) is None
    assert next_member_change(config, [node(1), node(2)], {B: 990}, 1000) == Promote(B)


def test_a_node_that_was_forgotten_goes_even_if_it_leads() -> None:
    assert next_member_change(Configuration((A, B, C)), [node(1), node(3)], {}, 5) == Remove(B)
    assert next_member_change(Configuration((A, B)), [node(2)], {}, 5) == Remove(A)
