"""Binding and unbinding, and asking for bindings."""

from __future__ import annotations

import pytest

from amqp10broker.errors import AccessRefused, NotFound
from amqp10broker.routing.exchange import Binding
from tests.support.topologies import Small, bind, exchange, queue


def test_arguments_are_part_of_a_binding() -> None:
    """The same key with other arguments is another binding; integers of another width are not."""

    class Int64(int):
        pass

    small = Small("q")
    first = small.bind("amq.direct", "q", "k", {"a": 1})
    second = small.bind("amq.direct", "q", "k", {"a": 1.0})
    assert first != second
    assert first == Binding("amq.direct", queue("q"), "k", {"a": Int64(1)})
    assert first != ("amq.direct", queue("q"), "k")
    assert small.topology.bindings("amq.direct") == [first, second]


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        (Small.binding("x", "q"), "no exchange 'x' in vhost '/'"),
        (Small.binding("amq.direct", "other"), "no queue 'other' in vhost '/'"),
        (Small.binding("amq.direct", exchange("x")), "no exchange 'x' in vhost '/'"),
        (Small.binding("x", exchange("y")), "no exchange 'x' in vhost '/'"),
    ],
)
def test_bind_wants_both_ends(binding: Binding, text: str) -> None:
    """A missing source or destination is not found; the source is looked for first."""
    with pytest.raises(NotFound) as refusal:
        bind(Small("q").topology, binding)
    assert refusal.value.description == text


@pytest.mark.parametrize(
    "binding", [Small.binding("", "q", "k"), Small.binding("amq.direct", exchange(""), "k")]
)
def test_default_exchange_is_not_bound(binding: Binding) -> None:
    """Its bindings are the queues' names, and nothing leads to it."""
    topology = Small("q").topology
    for attempt in (topology.plan_bind, topology.plan_unbind):
        with pytest.raises(AccessRefused) as refusal:
            attempt(binding)
        assert refusal.value.description == "operation not permitted on the default exchange"


@pytest.mark.rabbitmq("bindings_SUITE", "bind_and_unbind_direct_exchange", "bind_and_unbind_fanout_exchange")
@pytest.mark.rabbitmq(
    "bindings_SUITE", "list_for_destination", "list_for_source", "list_for_source_and_destination"
)
def test_bindings_are_found_by_source_destination_or_both() -> None:
    small = Small("q", "r")
    small.declare("x")
    one = small.bind("amq.direct", "q", "1")
    two = small.bind("amq.fanout", "q", "2")
    three = small.bind("amq.direct", "r", "3")
    four = small.bind("amq.direct", exchange("x"), "4")
    five = small.bind("amq.direct", "q", "5")
    topology = small.topology
    assert topology.bindings("amq.direct") == [one, three, four, five]
    assert topology.bindings("amq.direct", queue("q")) == [one, five]
    assert topology.bindings(destination=exchange("x")) == [four]
    assert topology.bindings("amq.fanout", exchange("x")) == []
    assert topology.bindings("nothing") == []
    assert set(topology.bindings()) == {one, two, three, four, five}


def test_binding_is_found_by_the_hash_of_its_arguments() -> None:
    """The path of a binding names it again."""
    small = Small("q")
    plain = small.bind("amq.headers", "q", "k")
    other = small.bind("amq.headers", "q", "k", {"a": 1, "x-match": "any"})
    find = small.topology.find_binding
    assert plain.arguments_hash == ""
    assert find("amq.headers", queue("q"), "k", "") == plain
    assert find("amq.headers", queue("q"), "k", other.arguments_hash) == other
    assert find("amq.headers", queue("q"), "l", "") is None
    assert find("amq.headers", queue("q"), "k", "AAAAAA") is None
