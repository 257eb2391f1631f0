"""Nodes without a cluster find one: founders, joiners, and who is refused, on a clock that jumps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import pytest
import trio

from amqp10broker.cluster.bootstrap import Address, ClusterIdentity, ClusterRefused, MemberAt
from amqp10broker.cluster.hello import WRONG_SECRET, HelloRefused
from amqp10broker.errors import BrokerError, PreconditionFailed, RefusedError, Unavailable
from amqp10broker.runtime.cluster.forming import NAME_TAKEN, Former, let_in

AT = {name: Address("127.0.0.1", 25672 + place) for place, name in enumerate("abc")}

Answers = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Wires:
    """Nodes by address: each answers by a function, or is not there."""

    def __init__(self, **nodes: Answers) -> None:
        self.nodes = nodes
        self.asked = 0

    async def __call__(
        self, address: tuple[str, int], question: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        self.asked += 1
        name = next(name for name, at in AT.items() if at.port == address[1])
        if name not in self.nodes:
            raise BrokerError("nobody is there")
        return await self.nodes[name](question)


def alone(name: str) -> Answers:
    async def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        assert question["what"] == "look"
        return {"name": name, "cluster": None, "taken": False, "names": []}

    return answer


def member(name: str, *, taken: bool = False, refusals: list[RefusedError] | None = None) -> Answers:
    async def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        if question["what"] == "look":
            return {"name": name, "cluster": "id", "taken": taken, "names": [name]}
        assert question["what"] == "join"
        if refusals:
            raise refusals.pop(0)
        at = MemberAt(1, name, AT[name])
        new = MemberAt(2, question["name"], Address(question["host"], question["port"]))
        return ClusterIdentity("id", 2, question["name"], (at, new)).document()

    return answer


def former(name: str, wires: Wires, *, has_data: bool = False) -> Former:
    ids = count(1)
    return Former(name, AT[name], AT, wires, lambda: f"new-{next(ids)}", has_data=has_data)


async def test_the_founder_waits_for_a_majority_and_founds() -> None:
    wires = Wires()
    found: list[ClusterIdentity] = []

    async def find() -> None:
        found.append(await former("a", wires).find())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(find)
        await trio.sleep(5)
        assert not found
        wires.nodes["c"] = alone("c")
    assert found == [ClusterIdentity("new-1", 1, "a", (MemberAt(1, "a", AT["a"]),))]


async def test_a_joiner_waits_for_the_founder_and_is_let_in() -> None:
    wires = Wires(c=alone("c"))
    found: list[ClusterIdentity] = []

    async def find() -> None:
        found.append(await former("b", wires).find())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(find)
        await trio.sleep(1)
        wires.nodes["a"] = alone("a")
        await trio.sleep(1)
        assert not found
        wires.nodes["a"] = member("a")
    assert (found[0].cluster, found[0].number, found[0].name) == ("id", 2, "b")
    assert found[0].members[1].address == AT["b"]


async def test_a_cluster_in_minority_is_asked_again() -> None:
    wires = Wires(a=member("a", refusals=[RefusedError("cluster", "no majority")] * 3))
    assert (await former("b", wires).find()).number == 2


async def test_a_name_that_is_taken_ends_the_start() -> None:
    with pytest.raises(ClusterRefused, match="'amqp10broker cluster forget-node b' at node 'a'"):
        await former("b", Wires(a=member("a", taken=True))).find()
    raced = member("a", refusals=[RefusedError(NAME_TAKEN, "it is taken")])
    with pytest.raises(ClusterRefused, match="cluster forget-node b"):
        await former("b", Wires(a=raced)).find()


async def test_a_wrong_secret_ends_the_start() -> None:
    async def refuse(question: Mapping[str, Any]) -> dict[str, Any]:
        raise HelloRefused(WRONG_SECRET, by_peer=True)

    with pytest.raises(ClusterRefused, match=r"node 'a' at 127.0.0.1:25672: refused .* wrong secret"):
        await former("b", Wires(a=refuse)).find()


async def test_a_list_with_wrong_addresses_ends_the_start() -> None:
    with pytest.raises(ClusterRefused, match="where node 'c' is: correct cluster_nodes"):
        await former("b", Wires(a=alone("c"))).find()


async def test_seeds_that_are_not_there_are_named_in_the_end() -> None:
    wires = Wires()
    with pytest.raises(ClusterRefused, match="waited for a, c: start them, or correct cluster_nodes"):
        await former("b", wires).find()
    assert wires.asked > 100


async def test_data_is_not_given_up_unasked() -> None:
    with pytest.raises(ClusterRefused, match="--discard-my-data"):
        await former("b", Wires(a=member("a")), has_data=True).find()
    assert (await former("a", Wires(b=alone("b")), has_data=True).find()).number == 1


# --- a node that runs alone asks to be let in -----------------------------------------------------


async def letting_in(wires: Wires, by: str = "a") -> ClusterIdentity:
    return await let_in(wires, by, AT["a"], "c", AT["c"])


@pytest.mark.real_clock
async def test_a_node_is_let_in_and_nothing_is_changed_before() -> None:
    """J1: it gets its number."""
    assert (await letting_in(Wires(a=member("a")))).number == 2


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("wires", "by", "kind", "said"),
    [
        (Wires(), "a", PreconditionFailed, "nobody is there"),
        (Wires(a=member("b")), "a", PreconditionFailed, "node 'b' is at 127.0.0.1:25672, not node 'a'"),
        (Wires(a=member("a", taken=True)), "a", PreconditionFailed, "has a node 'c' already"),
        (Wires(a=alone("a")), "a", Unavailable, "in no cluster yet"),
        (
            Wires(a=member("a", refusals=[Unavailable("cluster", "no majority")])),
            "a",
            Unavailable,
            "no majority",
        ),
    ],
)
async def test_a_node_that_is_not_let_in_hears_why(
    wires: Wires, by: str, kind: type[RefusedError], said: str
) -> None:
    """J2, J3: a node in a minority may try again."""
    with pytest.raises(kind, match=said):
        await letting_in(wires, by)


@pytest.mark.real_clock
async def test_a_secret_that_differs_is_said() -> None:
    async def refuse(question: Mapping[str, Any]) -> dict[str, Any]:
        raise HelloRefused(WRONG_SECRET, by_peer=True)

    with pytest.raises(PreconditionFailed, match="wrong secret"):
        await letting_in(Wires(a=refuse))
