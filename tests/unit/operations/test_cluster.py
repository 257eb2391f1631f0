"""Operations on the cluster as a whole: L1 to L3, N7, J6, J7."""

from __future__ import annotations

import pytest

from amqp10broker.errors import NotFound, PreconditionFailed, Unavailable
from amqp10broker.metadata.node_requests import SetDraining
from amqp10broker.operations.node import Leaderless
from tests.unit.operations.test_members import World


def test_the_status_has_members_and_those_that_run() -> None:
    """L1, L2: with RabbitMQ's keys."""
    world = World()
    world.cluster.down = {3}
    world.cluster.on = {2: ["memory"]}
    world.catalog.propose(SetDraining("b", True))
    there = [{"node": "b", "port": 7}]
    world.cluster.there = {(2, "list-listeners"): there}
    status = world.run("cluster-status")
    assert list(status) == [
        *("cluster_name", "cluster_tags", "disk_nodes", "running_nodes", "versions", "alarms", "partitions"),
        *("listeners", "maintenance_status", "feature_flags", "queues_without_leader"),
    ]
    assert status["queues_without_leader"] == {}
    assert status["disk_nodes"] == ["a", "b", "c"]
    assert status["running_nodes"] == ["a", "b"] == list(status["versions"]) == list(status["listeners"])
    assert status["listeners"]["b"] == there
    assert status["listeners"]["a"] == [
        {"node": "a", "interface": "::1", "port": 5, "protocol": "amqp", "purpose": "AMQP 0-9-1 and AMQP 1.0"}
    ]
    assert status["alarms"] == [{"node": "b", "alarm": "memory"}]
    assert status["partitions"] == {}
    assert status["maintenance_status"] == {
        "a": "not under maintenance",
        "b": "under maintenance",
        "c": "not under maintenance",
    }


def test_the_status_says_which_queues_have_no_leader_and_why() -> None:
    world = World()
    world.cluster.lacking = Leaderless(8_298, ("q1 in /", "q2 in /"), 0, (), 32, 5.0)
    assert world.run("cluster-status")["queues_without_leader"] == {
        "queues": 8_298,
        "names": ["q1 in /", "q2 in /"],
        "reason": "8298 elect one, 32 at a time from here",
    }
    world.cluster.lacking = Leaderless(3, ("q1 in /",), 2, ("b", "c"), 1, 5.0)
    assert world.run("cluster-status")["queues_without_leader"]["reason"] == (
        "2 have no majority without b, c: start these nodes; 1 elect one, 1 at a time from here"
    )


def test_members_of_the_metadata_are_shown_with_those_that_do_not_answer() -> None:
    world = World()
    world.cluster.down = {3}
    rows = world.run("metadata-store-status")
    assert [row["Node Name"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["Membership"] == "voter"
    assert rows[2]["Term"] is None


def test_one_waits_until_as_many_nodes_run() -> None:
    world = World()
    world.cluster.down = {2, 3}
    assert world.run("await-online-nodes", count=1) == {"running": 1}

    def back() -> None:
        if world.cluster.paused >= 2:
            world.cluster.down.clear()

    world.cluster.on_pause = back
    assert world.run("await-online-nodes", count=3) == {"running": 3}
    world.cluster.on_pause = lambda: None
    with pytest.raises(PreconditionFailed, match="Not enough nodes joined"):
        world.run("await-online-nodes", count=4, timeout=2)


def test_a_cluster_is_whole_when_as_many_run_as_shall() -> None:
    world = World()
    check = "has-reached-target-cluster-size"
    assert world.run(check)["result"] == "ok"
    world.cluster.down = {3}
    assert world.run(check) == {
        "result": "error",
        "message": "Target cluster size on node a has not been reached: 2 of 3 nodes are online",
        "online": 2,
        "target": 3,
    }
    world.cluster.target_size = 2
    assert world.run(check)["result"] == "ok"
    assert World(0, 0).run(check)["result"] == "ok"


def test_the_cluster_is_called_otherwise() -> None:
    world = World()
    assert world.run("set-cluster-name", name="shop") == {"name": "shop"}
    assert world.run("cluster-status")["cluster_name"] == "shop"


def test_a_node_is_forgotten_with_what_was_there_only() -> None:
    """J6, J7: its members of quorum queues are removed before."""
    world = World()
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare_at("there", 3)
    world.cluster.declare_at("here", 1)
    world.cluster.down = {3}
    assert world.run("forget-cluster-node", node="c@host") == {"node": "c", "failed": []}
    assert list(world.catalog.nodes) == ["a", "b"]
    assert world.nodes("q") == [1, 2]
    assert world.vhost.find("there") is None
    assert world.vhost.find("here") is not None


def test_a_node_that_runs_is_not_forgotten() -> None:
    """J6; nor the one that is asked."""
    world = World()
    for node in ("a", "b"):
        with pytest.raises(PreconditionFailed, match="stop it first"):
            world.run("forget-cluster-node", node=node)
    with pytest.raises(NotFound, match="its nodes are: a, b, c"):
        world.run("forget-cluster-node", node="z")


def test_a_node_that_is_alone_joins_the_cluster_of_another() -> None:
    """J1: it is let in first, and begins anew as what it was let in as."""
    world = World(1)
    assert world.run("join-cluster", node="x=::1:5") == {"node": "x", "joined": True}
    assert world.cluster.done == [("let_in_by", "x=::1:5"), ("begin_anew", 4)]


def test_a_node_that_cannot_join_stays_as_it_was() -> None:
    world = World()
    assert world.run("join-cluster", node="b@host") == {"node": "b", "joined": False}
    with pytest.raises(PreconditionFailed, match="cannot cluster node with itself: a"):
        world.run("join-cluster", node="a")
    with pytest.raises(PreconditionFailed, match="node 'a' is in a cluster with b, c: .*reset"):
        world.run("join-cluster", node="x")
    assert not world.cluster.done
    alone = World(1)
    alone.cluster.refusals = [Unavailable("cluster", "the operation timed out")]
    with pytest.raises(Unavailable):
        alone.run("join-cluster", node="x")
    assert alone.cluster.done == [("let_in_by", "x")]


def test_a_node_leaves_with_its_members_and_is_blank() -> None:
    """J5: another node sees to it, that of the leader of the metadata if it is another."""
    world = World(number=2)
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare("only", 2)
    done = world.run("reset")
    assert [row["name"] for row in done["failed"]] == ["only"]
    assert [each[0] for each in world.cluster.done] == ["leave", "delete", "leave_by", "begin_anew"]
    assert world.cluster.done[2:] == [("leave_by", world.cluster.chief()), ("begin_anew", None)]
    assert world.nodes("q") == [1, 3]


def test_a_node_cannot_leave_in_minority_unless_by_force() -> None:
    """J5: an error, and it is a member still. The last node needs no other."""
    world = World()
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.down = {2, 3}
    with pytest.raises(Unavailable, match="node 'a' is a member still"):
        world.run("reset")
    assert not world.cluster.done
    assert world.run("force-reset") == {"node": "a", "failed": []}
    assert world.cluster.done == [("begin_anew", None)]
    alone = World(1)
    alone.cluster.declare("q", 1)
    assert alone.run("reset") == {"node": "a", "failed": []}
    assert alone.cluster.done == [("begin_anew", None)]
