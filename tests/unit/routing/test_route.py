"""The way of a message: default exchange, several keys, exchange to exchange, alternates."""

from __future__ import annotations

from collections.abc import Mapping

from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, exchange


def test_miss_at_the_default_exchange_is_not_cacheable() -> None:
    """A queue that is declared later changes nothing in the topology."""
    small = Small("q")
    assert small.route_with_cacheable("", "q") == (("q",), True)
    assert small.route_with_cacheable("", "new") == ((), False)
    assert small.route_with_cacheable("", "q", "new") == (("q",), False)
    small.queues.add("new")
    assert small.route_with_cacheable("", "q", "new") == (("q", "new"), True)


def test_order_of_queues_is_the_order_of_binding() -> None:
    """Not one that changes from process to process."""
    names = [f"q{number}" for number in (5, 3, 9, 1, 7, 0)]
    small = Small(*names)
    for name in names:
        small.bind("amq.fanout", name)
    assert list(small.route("amq.fanout")) == names


def test_alternates_form_chains_and_cycles() -> None:
    """An alternate has its own alternate; a circle of them ends."""
    small = Small("rest")
    small.declare("x", alternate_exchange="y")
    small.declare("y", alternate_exchange="z")
    small.declare("z", alternate_exchange="x")
    small.declare("self", alternate_exchange="self")
    assert small.route("x", "k") == ()
    assert small.route("self", "k") == ()
    small.bind("z", "rest", "k")
    assert small.route("x", "k") == ("rest",)


def test_alternate_of_an_exchange_that_was_reached_by_a_binding() -> None:
    """Each exchange on the way has its own alternate."""
    small = Small("first", "rest")
    small.declare("ae", "fanout")
    small.bind("ae", "rest")
    small.declare("inner", alternate_exchange="ae")
    small.declare("outer", "fanout")
    small.bind("outer", exchange("inner"))
    small.bind("outer", "first")
    assert set(small.route("outer", "k")) == {"first", "rest"}


def test_destination_that_leads_nowhere_needs_no_alternate() -> None:
    """An exchange with a matching binding has routed, even if nothing comes of it."""
    small = Small("rest")
    small.declare("ae", "fanout")
    small.bind("ae", "rest")
    small.declare("empty")
    small.declare("x", "fanout", alternate_exchange="ae")
    small.bind("x", exchange("empty"))
    assert small.route("x", "k") == ()


def test_way_is_cacheable_if_every_exchange_on_it_is() -> None:
    """A headers exchange reached by a binding or as alternate makes it not so."""
    small = Small("q")
    small.declare("x", "topic", alternate_exchange="amq.headers")
    small.bind("x", "q", "a.#")
    small.bind("x", exchange("amq.headers"), "b")
    assert small.route_with_cacheable("x", "a") == (("q",), True)
    assert small.route_with_cacheable("x", "b") == ((), False)
    assert small.route_with_cacheable("x", "c") == ((), False)


def test_headers_reach_an_inner_headers_exchange() -> None:
    """They are asked for only when one is on the way."""
    asked = []

    def headers() -> Mapping[str, object]:
        asked.append(1)
        return {"a": 1}

    topology = Topology("/", lambda name: True)
    bind(topology, Small.binding("amq.fanout", exchange("amq.headers")))
    bind(topology, Small.binding("amq.headers", "q", "", {"a": 1}))
    bind(topology, Small.binding("amq.direct", "r", "k"))
    assert topology.route(topology.lookup_exchange("amq.direct"), ("k",), headers) == (("r",), True)
    assert asked == []
    assert topology.route(topology.lookup_exchange("amq.fanout"), ("k",), headers) == (("q",), False)
    assert asked == [1]
