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
