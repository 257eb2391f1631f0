"""How a node finds its cluster (rules F1, F3, F5, N2, Z4, J1, J8 of the cluster's behaviour)."""

from __future__ import annotations

import pytest

from amqp10broker.cluster.bootstrap import (
    Address,
    ClusterIdentity,
    ClusterRefused,
    FoundCluster,
    Join,
    MemberAt,
    NodeAnswer,
    WaitForNodes,
    check_name,
    check_still_member,
    founded,
    next_step,
    read_nodes,
)
from amqp10broker.metadata.entry_codec import decoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts
from amqp10broker.raft.ids import member_id

LIST = ("a", "b", "c")


def heard(*nodes: NodeAnswer) -> dict[str, NodeAnswer]:
    return {each.name: each for each in nodes}


def alone(*names: str) -> dict[str, NodeAnswer]:
    return heard(*(NodeAnswer(name, None) for name in names))


# --- founding -------------------------------------------------------------------------------------


def test_the_first_of_the_list_founds_when_a_majority_of_it_has_no_cluster() -> None:
    waits = next_step("a", LIST, {}, has_data=False)
    assert isinstance(waits, WaitForNodes)
    assert waits.names == ("b", "c")
    assert waits.why == "2 of 3 nodes of the list must be up to found a cluster"
    assert next_step("a", LIST, alone("c"), has_data=False) == FoundCluster()


@pytest.mark.parametrize("listed", [(), ("a",)])
def test_a_node_alone_is_a_cluster_at_once(listed: tuple[str, ...]) -> None:
    assert next_step("a", listed, {}, has_data=True) == FoundCluster()


def test_no_other_node_ever_founds() -> None:
    waits = next_step("b", LIST, alone("c"), has_data=False)
    assert waits == WaitForNodes(("a",), "node 'a', the first of the list, founds the cluster")
    waits = next_step("b", LIST, alone("a", "c"), has_data=False)
    assert waits == WaitForNodes(("a",), "node 'a', the first of the list, has no cluster yet")


def test_a_founder_whose_disk_is_new_joins_the_cluster_that_there_is() -> None:
    cluster = heard(NodeAnswer("b", "id"), NodeAnswer("c", None))
    assert next_step("a", LIST, cluster, has_data=False) == Join("b")


# --- joining --------------------------------------------------------------------------------------


def test_a_node_that_is_not_in_its_list_joins_by_it() -> None:
    assert next_step("d", LIST, heard(NodeAnswer("b", "id")), has_data=False) == Join("b")
    assert isinstance(next_step("d", LIST, alone("a", "b", "c"), has_data=False), WaitForNodes)


def test_a_joiner_with_data_is_refused_and_hears_what_to_do() -> None:
    with pytest.raises(ClusterRefused, match="start it once with --discard-my-data"):
        next_step("c", LIST, heard(NodeAnswer("a", "id")), has_data=True)


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_emptied_node_under_its_old_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterRefused, match=f"cluster forget-node {name}' at node 'c'"):
        next_step(name, LIST, heard(NodeAnswer("c", "id", taken=True)), has_data=False)


# --- what is written by people, and into the folder -----------------------------------------------


def test_a_list_keeps_its_order() -> None:
    nodes = read_nodes("b=10.0.0.1:25672, a=[::1]:25673,")
    assert list(nodes.items()) == [("b", Address("10.0.0.1", 25672)), ("a", Address("::1", 25673))]
    assert [str(each) for each in nodes.values()] == ["10.0.0.1:25672", "[::1]:25673"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a", "write each as NAME=HOST:PORT"),
        ("a=host", "write each as NAME=HOST:PORT"),
        ("a=host:0", "write each as NAME=HOST:PORT"),
        ("a=:5", "write each as NAME=HOST:PORT"),
        ("a=h:1,a=h:2", "node 'a' twice"),
        ("a=h:1,b=h:1", "address h:1 twice"),
        ("/=h:1", "cannot be the name of a node"),
    ],
)
def test_a_list_that_cannot_be_understood_is_refused(written: str, text: str) -> None:
    with pytest.raises(ClusterRefused, match=text):
        read_nodes(written)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ü", "x" * 65])
def test_a_name_is_one_of_a_folder(name: str) -> None:
    with pytest.raises(ClusterRefused, match="1 to 64 letters"):
        check_name(name)


def test_a_membership_comes_back_from_the_folder() -> None:
    members = (MemberAt(1, "a", Address("h", 1)), MemberAt(2, "b", Address("h", 2)))
    membership = ClusterIdentity("id", 2, "b", members)
    assert ClusterIdentity.of(membership.document()) == membership


def test_a_founder_keeps_its_queues_which_are_at_its_node_then() -> None:
    def queue(kind: str) -> dict[str, object]:
        return {"type": kind, "durable": True, "auto_delete": False, "arguments": {}, "number": 7}

    node, cluster = NodeFacts("a", 1, "h", 5), ClusterFacts("id", "a")
    entries = founded(
        [
            (("vhost", "/"), {}),
            (("queue", "/", "c"), queue("classic")),
            (("queue", "/", "q"), queue("quorum")),
        ],
        node,
        cluster,
    )
    records = {key: decoded(key, value) for key, value in entries if key[0] != "vhost"}
    assert (records["queue", "/", "c"].home, records["queue", "/", "c"].members) == (1, ())
    assert (records["queue", "/", "q"].home, records["queue", "/", "q"].members) == (0, (member_id(1),))
    assert (records["node", "a"], records[CLUSTER], records[NODE_NUMBERS]) == (node, cluster, 1)
    assert entries[0] == (("vhost", "/"), {})


def test_a_forgotten_node_finds_out_and_a_node_that_others_do_not_know_yet_waits() -> None:
    me = ClusterIdentity("id", 3, "c", ())
    told = {"cluster": "id", "name": "a", "numbers": [1, 2], "highest": 3}
    with pytest.raises(ClusterRefused, match="it was forgotten; give it an empty folder"):
        check_still_member(me, told)
    check_still_member(me, {**told, "numbers": [1, 2, 3]})
    check_still_member(me, {**told, "highest": 2})
    check_still_member(me, {**told, "cluster": None})
