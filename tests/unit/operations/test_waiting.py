"""What waits at all nodes of a cluster, and watches at the node that has the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.errors import NotFound, Unavailable
from amqp10broker.operations.snapshot import SummaryView, WaitingView, WaitView, document
from tests.support.cluster_node import FakeNode
from tests.support.managing import Broker

NOTHING = SummaryView(False, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, 0, 0, ())


def line(name: str, seconds: float, *, idle: bool = False) -> WaitingView:
    wait = WaitView("queue-empty" if idle else "no-credit-used-up", "why", seconds)
    return WaitingView("link", 4, "u", "/", "p:1", "l:2", 0, name, "receiver", "q", wait, "do", idle)


class Looked:
    """The running node, with what its own clients wait for."""

    def __init__(self, cluster: FakeNode) -> None:
        self.cluster = cluster
        self.asked: list[tuple[dict[str, Any], bool]] = []
        self.summary, self.lines = NOTHING, [line("x", 5.0)]

    def clock_notes(self) -> list[str]:
        return ["the clock is wrong"]

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        self.asked.append((dict(choose), queues))
        return self.summary, self.lines


class World(Broker):
    """Three nodes, of which the first is asked."""

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.cluster = FakeNode(self.catalog, 3, number)
        self.node = Looked(self.cluster)

    def run(self, operation: str, /, **given: Any) -> Any:
        return self.do(operation, caller=replace(self.caller(None), node_name="a"), **given)


def told(summary: SummaryView, *lines: WaitingView) -> dict[str, Any]:
    rows = [document(each) | {"node": "b"} for each in lines]
    notes = ["b: the clock is wrong, too"]
    return {"summary": document(summary), "waiting": rows, "unreached": [], "nodes": 1, "notes": notes}


def test_what_waits_at_all_nodes_is_one_list_the_longest_first() -> None:
    """Idle ones last; counts are sums; nodes that do not answer are named."""
    world = World()
    own = {"connections": 2, "waiting": 1, "reasons": {"no-credit-used-up": 1, "queue-empty": 1}}
    world.node.summary = replace(NOTHING, **own, idle_reasons=("queue-empty",), queues=7, queues_full=1)
    world.node.lines = [line("x", 5.0), line("idle", 99.0, idle=True)]
    theirs = replace(NOTHING, connections=3, waiting=2, reasons={"no-credit-used-up": 2})
    world.cluster.there[2, "waiting"] = told(theirs, line("y", 9.0), line("z", 1.0))
    found = world.run("waiting")
    assert [(each["node"], each["name"]) for each in found["waiting"]] == [
        ("b", "y"),
        ("a", "x"),
        ("b", "z"),
        ("a", "idle"),
    ]
    summary = found["summary"]
    assert (summary["connections"], summary["waiting"], summary["queues_full"]) == (5, 3, 1)
    assert summary["reasons"] == {"no-credit-used-up": 3, "queue-empty": 1}
    assert summary["idle_reasons"] == ["queue-empty"]
    assert (found["unreached"], found["nodes"], found["queues_without_leader"]) == (["c"], 3, {})
    assert found["notes"] == ["a: the clock is wrong", "b: the clock is wrong, too"]
    assert len(world.run("waiting", limit=2)["waiting"]) == 2
    verb, _, operation, given, _ = world.cluster.done[-1]
    assert (verb, operation) == ("run_at_each", "waiting")
    assert (given["node"], given["limit"], given["queues"]) == ("", 2, False)


def test_a_connection_is_meant_by_its_number_at_the_node_that_is_asked() -> None:
    world = World()
    for given in ({"connection": 4}, {"node": ""}, {"node": "a"}, {"node": "a@host", "connection": 4}):
        assert [each["name"] for each in world.run("waiting", **given)["waiting"]] == ["x"]
    assert world.cluster.done == []
    world.cluster.there[2, "waiting"] = told(NOTHING, line("y", 9.0))
    assert [each["name"] for each in world.run("waiting", node="b", connection=4)["waiting"]] == ["y"]
    assert world.cluster.done[-1][:3] == ("run_at", 2, "waiting")
    with pytest.raises(Unavailable, match="does not answer"):
        world.run("waiting", node="c")
    with pytest.raises(NotFound, match="no node 'd'"):
        world.run("waiting", node="d")


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("watch-link", {"connection": 4, "link": "l", "channel": 1, "role": "sender"}),
        ("unwatch-link", {"watch": 3, "user": "ann"}),
        ("timeline", {"watch": 3, "since": 7, "limit": 10, "frames": False, "user": "ann"}),
    ],
)
def test_a_link_is_watched_at_the_node_that_has_it(operation: str, given: dict[str, Any]) -> None:
    world = World()
    world.cluster.there[2, operation] = {"node": "b"}
    assert world.run(operation, node="b", **given) == {"node": "b"}
    assert world.cluster.done == [("run_at", 2, operation, given, None)]
