"""Delayed messages in a quorum queue with several members (docs/queues.md)."""

from __future__ import annotations

from amqp10broker.queues.commands import Credit, Subscribe
from amqp10broker.queues.quorum.commands import INSTALLED
from tests.support.quorum_nodes import Node, World


def the_leader(world: World) -> Node:
    """When there is one, and all have heard of it."""
    world.settle_down(lambda: world.leader() is not None and world.even())
    leader = world.leader()
    assert leader is not None
    return leader


def waits(world: World, node: Node) -> None:
    ref = world.client.consumer()
    node.work(Subscribe(ref, False), Credit(ref, 0, 100, False, 0))
    world.settle_down(world.even)


def test_another_leader_delivers_at_the_time_and_not_before() -> None:
    """The leader's clock says when, by an entry: members that follow do nothing of their own."""
    world = World(1)
    leader = the_leader(world)
    waits(world, leader)
    world.publish(leader, 3, delay_ms=30_000)
    world.publish(leader, 1, delay_ms=60_000)
    due_ms = world.now + 30_000
    world.settle_down(lambda: len(world.confirmed) == 4 and world.even())
    assert [node.backend.queue.delayed for node in world.nodes.values()] == [4, 4, 4]
    world.crash(leader.number)
    world.settle_down(lambda: world.leader() is not None)
    other = world.leader()
    assert other is not None
    assert world.now < due_ms - 100
    world.settle_down(lambda: world.now >= due_ms - 25)
    assert world.keys == {}
    world.settle_down(lambda: len(world.keys) == 3)
    assert world.now - due_ms <= 100
    world.start(leader.number)
    world.settle_down(world.even)
    assert [node.backend.queue.delayed for node in world.nodes.values()] == [1, 1, 1]
    world.settle_down(lambda: len(world.keys) == 4, 90_000)
    assert [len(world.bodies(node)) for node in world.nodes.values()] == [4, 4, 4]


def test_what_is_due_while_nobody_leads_is_delivered_then() -> None:
    world = World(2)
    leader = the_leader(world)
    world.publish(leader, 2, delay_ms=1_000)
    world.settle_down(lambda: len(world.confirmed) == 2 and world.even())
    for number in list(world.nodes):
        world.crash(number)
    world.pass_time(5_000)
    for number in list(world.down):
        world.start(number)
    leader = the_leader(world)
    world.settle_down(lambda: leader.backend.queue.ready == 2)
    waits(world, leader)
    world.settle_down(lambda: len(world.keys) == 2)


def test_a_member_that_comes_back_with_a_state_has_them() -> None:
    """Its log was cleaned away at the others; their states are compared when it carries on."""
    world = World(3)
    leader = the_leader(world)
    world.publish(leader, 5, delay_ms=600_000)
    world.settle_down(world.even)
    follower = next(number for number, node in world.nodes.items() if node is not leader)
    world.crash(follower)
    for _ in range(200):
        world.publish(leader, 3, size=200)
        world.settle_down(world.even)
        leader.journal.clean(leader.store, lambda: None)
    world.start(follower)
    world.settle_down(world.even)
    again = world.nodes[follower]
    assert INSTALLED in {record.kind for record in again.journal.records}
    assert (again.backend.queue.delayed, again.backend.queue.ready) == (5, 600)
    world.pass_time(600_000)
    world.settle_down(lambda: world.even() and again.backend.queue.delayed == 0)
    assert world.bodies(again) == world.bodies(leader)
