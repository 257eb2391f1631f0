"""Operations on clusters: nodes, members of queues, maintenance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.errors import NotFound, NotSupported, PreconditionFailed, Unavailable
from amqp10broker.metadata.queue import Placed
from amqp10broker.metadata.vhost_requests import SetDraining
from amqp10broker.operations.members import TIMED_OUT, change_not_permitted, last_node
from amqp10broker.operations.node import Leaderless
from amqp10broker.queues.queue_status import QueueStats
from amqp10broker.raft.ids import node_of
from tests.support.cluster_node import FakeNode
from tests.support.declaring import add_vhost, declare
from tests.support.managing import Broker


class Node:
    """The running node, as one of a cluster."""

    def __init__(self, cluster: FakeNode) -> None:
        self.cluster = cluster


class World(Broker):
    def __init__(self, count: int = 3, number: int = 1) -> None:
        super().__init__()
        self.cluster = FakeNode(self.catalog, count, number)
        self.node = Node(self.cluster)

    def run(self, operation: str, /, **given: Any) -> Any:
        named = {node.number: name for name, node in self.catalog.nodes.items()}
        caller = replace(self.caller(None), node_name=named.get(self.cluster.number, "alone"))
        return self.do(operation, caller=caller, **given)

    def nodes(self, name: str) -> list[int]:
        return sorted(map(node_of, self.vhost.lookup(name).members))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "add_member")
def test_a_member_is_added_on_a_node(world: World) -> None:
    world.cluster.declare("q", 1)
    assert world.run("add-member", name="q", node="b") == {"added": True, "size": 2}
    assert world.cluster.done == [("add", "q", 2, "promotable", 5, False)]
    assert world.run("add-member", name="q", node="c", membership="voter", timeout=20)["size"] == 3
    assert world.cluster.done[-1] == ("add", "q", 3, "voter", 20, False)
    assert world.nodes("q") == [1, 2, 3]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "add_member_already_a_member")
def test_a_member_that_is_there_is_not_added_again(world: World) -> None:
    world.cluster.declare("q", 1, 2)
    assert world.run("add-member", name="q", node="b@host") == {"added": False, "size": 2}
    assert world.cluster.done == []


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "delete_member_not_running",
    differs="of a node that the cluster does not know it says so; of one that is down it is removed",
)
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "add_member_classic",
    "add_member_not_found",
    "add_member_not_running",
    "add_member_wrong_type",
    "delete_member_classic",
    "delete_member_queue_not_found",
    "delete_member_wrong_type",
)
@pytest.mark.parametrize(
    ("operation", "name", "node", "error", "word"),
    [
        ("add-member", "q", "c", PreconditionFailed, "node_not_running"),
        ("add-member", "q", "z", PreconditionFailed, "node_not_running"),
        ("add-member", "classic", "b", NotSupported, "classic_queue_not_supported"),
        ("add-member", "s", "b", NotSupported, "not_quorum_queue"),
        ("add-member", "no", "b", NotFound, "no queue 'no'"),
        ("delete-member", "q", "z", NotFound, "no node 'z'"),
        ("delete-member", "classic", "a", NotSupported, "classic_queue_not_supported"),
        ("delete-member", "s", "a", NotSupported, "not_quorum_queue"),
        ("delete-member", "no", "a", NotFound, "no queue 'no'"),
    ],
)
def test_members_change_of_what_has_some_and_where_they_can_be(
    operation: str, name: str, node: str, error: Any, word: str
) -> None:
    world = World()
    world.cluster.down = {3}
    world.cluster.declare("q", 1)
    world.cluster.declare_at("classic", 1)
    declare(world.catalog, "/", "s", arguments={"x-queue-type": "stream"})
    with pytest.raises(error, match=word):
        world.run(operation, name=name, node=node)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "delete_member",
    "delete_member_member_already_deleted",
    "delete_member_not_a_member",
)
def test_a_member_is_removed_also_of_a_node_that_is_down(world: World) -> None:
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.down = {3}
    assert world.run("delete-member", name="q", node="c") == {"deleted": True, "size": 2}
    assert world.run("delete-member", name="q", node="c") == {"deleted": False, "size": 2}
    assert world.cluster.done == [("delete", "q", 3, 5)]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "force_shrink_members_to_local_member")
def test_a_queue_is_shrunk_by_force_to_the_member_that_is_here() -> None:
    world = World(number=2)
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare("elsewhere", 1, 3)
    world.cluster.down = {1, 3}
    assert world.run("force-shrink-member-to-current-member", name="q") == {"size": 1}
    assert world.nodes("q") == [2]
    with pytest.raises(PreconditionFailed, match="not_a_member"):
        world.run("force-shrink-member-to-current-member", name="elsewhere")


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "force_all_queues_shrink_member_to_current_member",
    "force_vhost_queues_shrink_member_to_current_member",
)
def test_all_queues_are_shrunk_by_force_to_the_members_that_are_here() -> None:
    world = World(number=2)
    add_vhost(world.catalog, "v")
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare("one", 2)
    world.cluster.declare("elsewhere", 1, 3)
    world.cluster.declare("q", 1, 2, 3, vhost="v")
    world.cluster.declare("r", 2, 3, vhost="v")
    world.cluster.down = {1, 3}
    operation = "force-all-queues-shrink-member-to-current-member"
    assert world.run(operation, vhost_pattern="^v$") == [
        {"vhost": "v", "name": "q", "size": 1, "result": "ok"},
        {"vhost": "v", "name": "r", "size": 1, "result": "ok"},
    ]
    assert world.nodes("q") == [1, 2, 3]
    world.cluster.refusals = [Unavailable("queue 'q'", "the member does not run here")]
    assert [(row["size"], row["result"]) for row in world.run(operation)] == [("?", f"error: {TIMED_OUT}")]
    assert world.run(operation, errors_only=True) == []
    assert (world.nodes("q"), world.nodes("elsewhere")) == ([2], [1, 3])
    assert world.run(operation) == []


@pytest.mark.rabbitmq("quorum_queue_SUITE", "status")
def test_each_member_has_a_row_in_the_status(world: World) -> None:
    """I1: a node that does not answer has the error in Raft State."""
    world.cluster.declare("q", 2, 1, 3)
    world.cluster.down = {3}
    rows = world.run("quorum-status", name="q")
    assert [(row["Node Name"], row["Raft State"], row["Membership"]) for row in rows] == [
        ("a", "follower", "voter"),
        ("b", "leader", "voter"),
        ("c", "nodedown", "unknown"),
    ]
    assert list(rows[0]) == [
        *("Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied"),
        *("Commit Index", "Snapshot Index", "Term", "Machine Version"),
    ]
    assert list(rows[0].values())[3:] == [7, 7, 6, 6, 0, 2, 1]
    world.cluster.declare_at("classic", 1)
    with pytest.raises(NotSupported, match="classic_queue_not_supported"):
        world.run("quorum-status", name="classic")


# --- many queues ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "grow_queue")
def test_grow_adds_a_member_to_every_queue_that_has_none_there(world: World) -> None:
    for name, nodes in (("one", (1,)), ("two", (1, 2)), ("there", (1, 3)), ("skipped", (1,))):
        world.cluster.declare(name, *nodes)
    rows = world.run("grow", node="c", strategy="all", queue_pattern="^[ot]")
    assert rows == [
        {"vhost": "/", "name": "one", "size": 2, "result": "ok"},
        {"vhost": "/", "name": "two", "size": 3, "result": "ok"},
    ]
    assert world.nodes("skipped") == [1]


def test_what_goes_wrong_stands_in_the_row_and_the_others_go_on(world: World) -> None:
    for name in ("a", "b", "c", "d"):
        world.cluster.declare(name, 1, 2)
    queue = world.vhost.lookup("b")
    world.cluster.refusals = [
        Unavailable("queue 'a'", "it took too long"),
        change_not_permitted(queue),
        last_node(queue),
    ]
    rows = world.run("grow", node="c", strategy="all")
    assert [(row["size"], row["result"].partition(" queue ")[0]) for row in rows] == [
        ("?", f"error: {TIMED_OUT}"),
        (2, "error: cluster_change_not_permitted:"),
        (2, "error: the last node cannot be removed"),
        (3, "ok"),
    ]
    world.cluster.refusals = [change_not_permitted(queue)]
    assert len(world.run("grow", node="c", strategy="all", errors_only=True)) == 1


def test_queues_grow_to_a_count() -> None:
    world = World(5)
    world.cluster.declare("one", 1)
    world.cluster.declare("two", 2, 3)
    world.cluster.declare("full", 1, 2, 3)
    rows = world.run("grow-to-count", count=3, strategy="all")
    assert [(row["name"], row["size"]) for row in rows] == [("one", 3), ("two", 3)]
    assert world.nodes("one") == [1, 4, 5]
    with pytest.raises(PreconditionFailed, match="node_not_running"):
        world.run("grow-to-count", count=6, strategy="all")


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_members")
def test_shrink_removes_what_is_on_a_node_but_the_last(world: World) -> None:
    world.cluster.declare("one", 3)
    world.cluster.declare("three", 1, 2, 3)
    world.cluster.declare("elsewhere", 1, 2)
    world.cluster.down = {3}
    assert world.run("shrink", node="c") == [
        {"vhost": "/", "name": "one", "size": 1, "result": "error: the last node cannot be removed"},
        {"vhost": "/", "name": "three", "size": 2, "result": "ok"},
    ]


def test_shrink_tries_again_where_another_change_was_under_way(world: World) -> None:
    """G1: it retries once, after 0.5 s."""
    queue = world.cluster.declare("q", 1, 2, 3)
    world.cluster.refusals = [change_not_permitted(queue)]
    assert world.run("shrink", node="c")[0]["result"] == "ok"
    assert world.cluster.paused == 0.5
    world.cluster.refusals = [change_not_permitted(queue)] * 2
    assert world.run("shrink", node="b")[0]["result"].startswith("error: cluster_change_not_permitted")


# --- leaders ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "rebalance")
def test_rebalance_moves_leaders_until_none_has_more_than_its_share(world: World) -> None:
    for number in range(6):
        world.cluster.declare(f"q{number}", 1, 2, 3)
    rows = world.run("rebalance", kind="all")
    assert rows == [
        {"Node name": name, "Number of quorum queues": 2, "Number of streams": 0} for name in ("a", "b", "c")
    ]
    assert [each[0] for each in world.cluster.done] == ["transfer"] * 4


def test_the_node_that_leads_the_metadata_rebalances() -> None:
    """So two requests at different nodes meet at one node."""
    world = World(number=2)
    world.cluster.there[1, "rebalance"] = ["rows"]
    given = {"kind": "all", "vhost_pattern": "v", "queue_pattern": "q"}
    assert world.run("rebalance", **given) == ["rows"]
    assert world.cluster.done == [("run_at", 1, "rebalance", given, None)]


# --- listings ---------------------------------------------------------------------------------------


def test_queues_of_all_nodes_are_listed_with_counts_of_their_leaders(world: World) -> None:
    """I2, I3: a queue whose leader does not answer has the catalog's facts."""
    world.cluster.declare("here", 1, 2)
    world.cluster.declare("there", 2, 3)
    world.cluster.declare("lost", 3, 2)
    world.cluster.leaders["lost"] = None
    world.cluster.down = {3}
    world.fill("here", 2)
    row = {"name": "there", "message_count": 7}
    world.cluster.there[2, "list-queues"] = [row, {"name": "of another that is gone"}]
    rows = {each["name"]: each for each in world.run("list-queues")}
    assert rows["there"] == row
    assert rows["here"]["message_count"] == 2
    assert rows["here"]["delivery_limit"] == 20
    assert rows["here"]["single_active_consumer_tag"] is None
    assert [rows["here"][each] for each in ("leader", "members", "online", "state")] == [
        *("a", ["a", "b"], ["a", "b"], "running")
    ]
    assert [rows["lost"][each] for each in ("leader", "members", "online", "state", "message_count")] == [
        *("c", ["c", "b"], ["b"], "minority", None)
    ]
    assert world.cluster.done == [("run_at_each", (2,), "list-queues", {"local": True}, "/")]


def test_a_queue_says_who_leads_it_and_where_it_is(world: World) -> None:
    """Q8: names include nodes that are down; without a leader it is the last one, or the first member."""
    world.cluster.declare("q", 2, 3)
    world.cluster.down = {3}
    found = world.run("get-queue", name="q")
    assert (found["leader"], found["replicas"]) == ("b", ["b", "c"])
    world.cluster.leaders["q"] = None
    assert world.run("get-queue", name="q")["leader"] == "b"
    world.cluster.led["q"] = 3
    assert world.run("get-queue", name="q")["leader"] == "c"
    world.cluster.led["q"] = 1  # it has no member there any more
    assert world.run("get-queue", name="q")["leader"] == "b"
    world.cluster.declare_at("classic", 3)
    found = world.run("get-queue", name="classic")
    assert (found["leader"], found["replicas"]) == ("c", ["c"])


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ({"online": True}, ["here", "there"]),
        ({"offline": True}, ["gone", "lost"]),
        ({"local": True}, ["here"]),
    ],
)
def test_queues_are_listed_by_where_they_are(flag: dict[str, bool], wanted: list[str], world: World) -> None:
    world.cluster.declare("here", 1, 2)
    world.cluster.declare("there", 2, 3)
    world.cluster.declare("lost", 3, 2)
    world.cluster.leaders["lost"] = None
    world.cluster.declare_at("gone", 3)
    world.cluster.down = {3}
    assert sorted(each["name"] for each in world.run("list-queues", **flag)) == wanted


# --- a node in no cluster ----------------------------------------------------------------------------


def test_alone_a_queue_has_one_member_which_leads() -> None:
    """Without a cluster the existing member can be added again, and no other."""
    world = World(0)
    world.catalog.node_directory = None
    world.cluster.number = 0
    declare(world.catalog, "/", "q", arguments={"x-queue-type": "quorum"})
    name = "alone"
    assert world.run("add-member", name="q", node=name) == {"added": False, "size": 1}
    with pytest.raises(PreconditionFailed, match="node_not_running"):
        world.run("add-member", name="q", node="other")
    with pytest.raises(PreconditionFailed, match="last_node"):
        world.run("delete-member", name="q", node=name)
    with pytest.raises(PreconditionFailed, match="already_leader"):
        world.run("transfer-leadership", name="q", node=name)
    assert world.run("shrink", node=name)[0]["result"] == "error: the last node cannot be removed"
    assert world.run("grow", node=name, strategy="all") == []
    assert world.run("rebalance", kind="all")[0]["Number of quorum queues"] == 1
    assert [each["leader"] for each in world.run("list-queues")] == [name]


def test_the_status_has_members_and_those_that_run(world: World) -> None:
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


def test_the_status_says_which_queues_have_no_leader_and_why(world: World) -> None:
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


def test_members_of_the_metadata_are_shown_with_those_that_do_not_answer(world: World) -> None:
    world.cluster.down = {3}
    rows = world.run("metadata-store-status")
    assert [row["Node Name"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["Membership"] == "voter"
    assert rows[2]["Term"] is None


def test_one_waits_until_as_many_nodes_run(world: World) -> None:
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


def test_a_cluster_is_whole_when_as_many_run_as_shall(world: World) -> None:
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


def test_the_cluster_is_called_otherwise(world: World) -> None:
    assert world.run("set-cluster-name", name="shop") == {"name": "shop"}
    assert world.run("cluster-status")["cluster_name"] == "shop"


def test_a_node_is_forgotten_with_what_was_there_only(world: World) -> None:
    """J6, J7: its members of quorum queues are removed first."""
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare_at("there", 3)
    world.cluster.declare_at("here", 1)
    world.cluster.down = {3}
    assert world.run("forget-cluster-node", node="c@host") == {"node": "c", "failed": []}
    assert list(world.catalog.nodes) == ["a", "b"]
    assert world.nodes("q") == [1, 2]
    assert world.vhost.find("there") is None
    assert world.vhost.find("here") is not None


def test_a_node_that_runs_is_not_forgotten(world: World) -> None:
    """J6: the local node is kept as well."""
    for node in ("a", "b"):
        with pytest.raises(PreconditionFailed, match="stop it first"):
            world.run("forget-cluster-node", node=node)
    with pytest.raises(NotFound, match="its nodes are: a, b, c"):
        world.run("forget-cluster-node", node="z")


def test_a_node_that_is_alone_joins_the_cluster_of_another() -> None:
    """J1: it is let in first, and then starts anew with the number that it got."""
    world = World(1)
    assert world.run("join-cluster", node="x=::1:5") == {"node": "x", "joined": True}
    assert world.cluster.done == [("let_in_by", "x=::1:5"), ("begin_anew", 4)]


def test_a_node_that_cannot_join_stays_as_it_was(world: World) -> None:
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
    """J5: another node carries it out, and it is the metadata's leader unless that is the node itself."""
    world = World(number=2)
    world.cluster.declare("q", 1, 2, 3)
    world.cluster.declare("only", 2)
    done = world.run("reset")
    assert [row["name"] for row in done["failed"]] == ["only"]
    assert [each[0] for each in world.cluster.done] == ["leave", "delete", "leave_by", "begin_anew"]
    assert world.cluster.done[2:] == [("leave_by", world.cluster.chief()), ("begin_anew", None)]
    assert world.nodes("q") == [1, 3]


def test_a_node_cannot_leave_in_minority_unless_by_force(world: World) -> None:
    """J5: the operation fails and the node stays a member. The last node needs no other."""
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


@pytest.mark.rabbitmq("quorum_queue_SUITE", "node_removal_is_not_quorum_critical")
def test_a_node_that_can_be_spared_is_not_critical(world: World) -> None:
    world.cluster.declare("q", 1, 2, 3)
    assert world.run("check-if-node-is-quorum-critical")["result"] == "ok"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "node_removal_is_quorum_critical")
def test_a_node_whose_loss_ends_a_majority_is_critical(world: World) -> None:
    """L5: each group has a line, and so has the metadata."""
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


def test_a_member_here_that_is_still_to_vote_counts(world: World) -> None:
    """L5: it counts as if online; a member elsewhere does not."""
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


def test_one_waits_until_nothing_is_critical(world: World) -> None:
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
def test_queues_without_leader_are_found_by_pattern(world: World) -> None:
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


def test_members_of_a_queue_elsewhere_are_asked_whether_it_has_a_leader(world: World) -> None:
    """L6: a queue that had a leader at this node's last news may have lost it since."""
    world.cluster.declare("elsewhere", 2, 3)
    operation = "check-for-quorum-queues-without-an-elected-leader"
    assert world.run(operation, pattern=".*")["result"] == "ok"
    world.cluster.leaders["elsewhere"] = None
    world.cluster.heard["elsewhere"] = 2
    assert "'elsewhere'" in world.run(operation, pattern=".*")["message"]


def test_members_here_that_are_still_to_catch_up_are_found(world: World) -> None:
    world.cluster.declare("q", 2, 1)
    operation = "check-if-new-quorum-queue-replicas-have-finished-initial-sync"
    assert world.run(operation)["result"] == "ok"
    world.cluster.learners["q"] = (1,)
    assert world.run(operation)["result"] == "error"
    world.cluster.learners["q"] = (2,)
    assert world.run(operation)["result"] == "ok"


def test_a_node_is_drained_and_revived(world: World) -> None:
    assert world.run("drain") == {"draining": True}
    assert world.catalog.nodes["a"].draining
    assert world.run("revive") == {"draining": False}
    assert not world.catalog.nodes["a"].draining


def test_alarms_are_listed_by_node(world: World) -> None:
    world.cluster.on = {2: ["memory"], 1: ["memory", "disk"], 3: []}
    assert world.run("list-alarms") == [
        {"node": "a", "alarm": "disk"},
        {"node": "a", "alarm": "memory"},
        {"node": "b", "alarm": "memory"},
    ]


@pytest.fixture
def streams(world: World) -> World:
    for name, node in (("here", 1), ("there", 2)):
        world.cluster._placed = Placed(node)
        declare(world.catalog, "/", name, arguments={"x-queue-type": "stream", "x-initial-cluster-size": 3})
    world.cluster.declare("quorum", 1, 2)
    return world


def test_a_stream_has_one_replica_whatever_size_was_asked_for(
    streams: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has RabbitMQ's columns; a stream elsewhere is asked of its node."""
    figures = QueueStats(consumers=2, first_offset=3, next_offset=10, segments=4)
    monkeypatch.setattr(streams.vhost.lookup("here").handle, "figures", lambda: figures)
    row = {
        "role": "leader", "node": "a", "epoch": 1, "offset": 9, "committed_offset": 9,
        "committed_chunk_id": None, "first_offset": 3, "readers": 2, "segments": 4,
    }  # fmt: skip
    assert streams.run("stream-status", name="here") == [row]
    streams.cluster.there = {(2, "stream-status"): [{**row, "node": "b"}]}
    assert streams.run("stream-status", name="there") == [{**row, "node": "b"}]


def test_only_a_stream_has_a_status_of_one(streams: World) -> None:
    with pytest.raises(NotSupported, match="is no stream"):
        streams.run("stream-status", name="quorum")
    with pytest.raises(NotFound, match="no queue 'no'"):
        streams.run("stream-status", name="no")


def test_a_stream_whose_node_is_down_cannot_be_asked(streams: World) -> None:
    streams.vhost.lookup("there").handle.down = "b"
    with pytest.raises(NotFound, match="home node 'b' of durable queue 'there' .* is down or inaccessible"):
        streams.run("stream-status", name="there")
