"""Checks before a node is stopped, and taking it out of service."""

from __future__ import annotations

import pytest

from amqp10broker.errors import NotFound
from tests.support.declaring import add_vhost
from tests.unit.operations.test_members import World


@pytest.mark.rabbitmq("quorum_queue_SUITE", "node_removal_is_not_quorum_critical")
def test_a_node_that_can_be_spared_is_not_critical() -> None:
    world = World()
    world.cluster.declare("q", 1, 2, 3)
    assert world.run("check-if-node-is-quorum-critical")["result"] == "ok"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "node_removal_is_quorum_critical")
def test_a_node_whose_loss_ends_a_majority_is_critical() -> None:
    """L5: each group has a line; the metadata is one."""
    world = World()
    world.cluster.declare("here", 1, 2, 3)
    world.cluster.declare("elsewhere", 2, 3)
    world.cluster.down = {3}
    found = world.run("check-if-node-is-quorum-critical")
    assert found["result"] == "error"
    assert found["message"].splitlines() == [
        "the metadata store would lose its majority without node 'a'",
        "queue 'here' in vhost '/' would lose its majority without node 'a'",
    ]
    assert found["queues"][1] == {
        "readable_name": "queue 'here' in vhost '/'",
        "name": "here",
        "virtual_host": "/",
        "type": "quorum",
    }


def test_a_member_here_that_is_still_to_vote_counts() -> None:
    """L5: as if it were online; elsewhere it does not."""
    world = World()
    world.cluster.declare("q", 2, 3, 1)
    world.cluster.learners["q"] = (1,)
    assert world.run("check-if-node-is-quorum-critical")["result"] == "ok"
    world.cluster.declare("r", 1, 2, 3)
    world.cluster.learners["r"] = (3,)
    assert world.run("check-if-node-is-quorum-critical")["result"] == "error"


def test_the_check_does_not_apply_to_one_node_or_in_maintenance() -> None:
    alone = World(1)
    alone.cluster.declare("q", 1)
    assert "does not apply" in alone.run("check-if-node-is-quorum-critical")["message"]
    world = World()
    world.cluster.declare("q", 1)
    assert world.run("check-if-node-is-quorum-critical")["result"] == "error"
    world.run("drain")
    assert "maintenance" in world.run("check-if-node-is-quorum-critical")["message"]


def test_one_waits_until_nothing_is_critical() -> None:
    world = World()
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.down = {3}

    def back() -> None:
        if world.cluster.paused >= 2:
            world.cluster.down.clear()

    world.cluster.on_pause = back
    assert world.run("await-online-quorum-plus-one")["result"] == "ok"
    assert world.cluster.paused == 2
    world.cluster.down = {3}
    world.cluster.on_pause = lambda: None
    late = world.run("await-online-quorum-plus-one", timeout=3)
    assert late["result"] == "error"
    assert "queue 'q' in vhost '/' still needs node 'a' after 3 s" in late["message"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_health_check")
def test_queues_without_leader_are_found_by_pattern() -> None:
    world = World()
    add_vhost(world.catalog, "v")
    world.cluster.declare("with", 1, 2)
    world.cluster.declare("without", 2, 3)
    world.cluster.declare("other", 2, 3, vhost="v")
    operation = "check-for-quorum-queues-without-an-elected-leader"
    assert world.run(operation, pattern=".*", across_all_vhosts=True)["result"] == "ok"
    assert world.cluster.paused == 0
    world.cluster.leaders |= {"without": None, "other": None}
    found = world.run(operation, pattern=".*")
    assert found["message"] == "queue 'without' in vhost '/' has no elected leader"
    assert world.cluster.paused == 5
    assert len(world.run(operation, pattern=".*", across_all_vhosts=True)["queues"]) == 2
    assert len(world.run(operation, pattern=".*", vhost="v")["queues"]) == 1
    assert world.run(operation, pattern="^with$")["result"] == "ok"
    with pytest.raises(NotFound):
        world.run(operation, pattern=".*", vhost="no")


def test_members_of_a_queue_elsewhere_are_asked_whether_it_has_a_leader() -> None:
    """L6: one that had a leader when this node heard of it last may have none any more."""
    world = World()
    world.cluster.declare("elsewhere", 2, 3)
    operation = "check-for-quorum-queues-without-an-elected-leader"
    assert world.run(operation, pattern=".*")["result"] == "ok"
    world.cluster.leaders["elsewhere"] = None
    world.cluster.heard["elsewhere"] = 2
    assert "'elsewhere'" in world.run(operation, pattern=".*")["message"]


def test_members_here_that_are_still_to_catch_up_are_found() -> None:
    world = World()
    world.cluster.declare("q", 2, 1)
    operation = "check-if-new-quorum-queue-replicas-have-finished-initial-sync"
    assert world.run(operation)["result"] == "ok"
    world.cluster.learners["q"] = (1,)
    assert world.run(operation)["result"] == "error"
    world.cluster.learners["q"] = (2,)
    assert world.run(operation)["result"] == "ok"


def test_a_node_is_drained_and_revived() -> None:
    """V1, V3: the cluster knows it."""
    world = World()
    assert world.run("drain") == {"draining": True}
    assert world.catalog.nodes["a"].draining
    assert world.run("revive") == {"draining": False}
    assert not world.catalog.nodes["a"].draining


def test_alarms_are_listed_by_node() -> None:
    world = World()
    world.cluster.on = {2: ["memory"], 1: ["memory", "disk"], 3: []}
    assert world.run("list-alarms") == [
        {"node": "a", "alarm": "disk"},
        {"node": "a", "alarm": "memory"},
        {"node": "b", "alarm": "memory"},
    ]
