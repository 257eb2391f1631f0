"""The operation `doctor`: what it asks of the node, of the catalog and of other nodes."""

from __future__ import annotations

from typing import Any

from amqp10broker.operations.node import Leaderless
from amqp10broker.operations.snapshot import Inspection
from tests.support.declaring import declare
from tests.unit.operations.test_checklist import NOW_MS, node, seen
from tests.unit.operations.test_members import World as Cluster


class Node:
    """A running node whose time goes on by 10 ms each time that it is asked for."""

    def __init__(self, cluster: Any, found: Inspection) -> None:
        self.cluster = cluster
        self.found = found
        self.time_ms = NOW_MS

    def now_ms(self) -> int:
        self.time_ms += 10
        return self.time_ms

    async def inspect(self) -> Inspection:
        return self.found


def world(count: int = 3, **changes: Any) -> Cluster:
    """A cluster whose first node finds itself in order but for what is changed."""
    made = Cluster(count, 1 if count else 0)
    made.node = Node(made.cluster, seen(**changes))
    return made


def rows(world: Cluster, **given: Any) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["state"], row["evidence"]) for row in world.run("doctor", **given)["checks"]}


def answers(world: Cluster, **at_ms: int) -> None:
    """The times that other nodes say it is; they are on other machines."""
    world.cluster.there = {
        ("abc".index(name) + 1, "doctor"): {"at_ms": at, "boot_id": f"boot-{name}"}
        for name, at in at_ms.items()
    }


def test_other_nodes_are_asked_what_they_say_of_themselves() -> None:
    """Their times are compared with ours before and after: what the way may have taken is no difference."""
    made = world()
    answers(made, b=NOW_MS + 10, c=NOW_MS + 20)
    found = rows(made)
    assert found["cluster-clocks"] == ("ok", "no difference of 1 s between the nodes can be seen")
    assert found["cluster-machines"][0] == "ok"
    made = world()
    answers(made, b=NOW_MS + 20 + 2500, c=NOW_MS + 10 - 31_000)
    state, evidence = rows(made)["cluster-clocks"]
    assert state == "bad"
    assert "b is at least 2.5 s ahead, that of c is at least 31.0 s behind" in evidence


def test_a_node_by_itself_asks_no_other() -> None:
    """So do nodes that are asked: else they would ask each other for ever."""
    made = world()
    answers(made, b=NOW_MS, c=NOW_MS)
    found = rows(made, by_itself=True)
    assert found["cluster-clocks"] == ("unknown", "not known of b, c: they were not asked")


def test_the_catalog_says_what_is_durable_and_critical() -> None:
    """Exclusive queues go with their connection, durable or not."""
    made = world(node=node(data_dir=None))
    declare(made.catalog, "/", "gone", durable=False)
    made.cluster.declare("q", 1, 2, 3)
    made.cluster.down = {3}
    made.cluster.on = {2: ["memory"]}
    answers(made, b=NOW_MS)
    found = rows(made)
    assert found["data-folder"][1].startswith("1 queue is declared durable")
    assert found["cluster-quorum"][0] == "bad"
    assert "queue 'q' in vhost '/'" in found["cluster-quorum"][1]
    assert found["cluster-nodes"] == ("bad", "3 nodes: a, b, c; not reached: c")
    assert found["alarms"] == ("bad", "publishers are held back by alarms: memory at node 'b'")


def test_queues_without_a_leader_are_bad_if_they_lack_nodes_and_pass_if_not() -> None:
    made = world()
    answers(made, b=NOW_MS, c=NOW_MS)
    assert rows(made)["cluster-leaders"] == ("ok", "every quorum queue with a member here has a leader")
    made.cluster.lacking = Leaderless(2_500, ("q in /",), 0, (), 32, 5.0)
    assert rows(made)["cluster-leaders"] == (
        "warn",
        "2500 queues have no leader, q in / among them: 2500 elect one, 32 at a time from here",
    )
    made.cluster.lacking = Leaderless(1, ("q in /",), 1, ("b", "c"), 0, 5.0)
    assert rows(made)["cluster-leaders"][0] == "bad"
