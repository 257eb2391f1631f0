"""The way of a message: default exchange, several keys, exchange to exchange, alternates."""

from __future__ import annotations

from collections.abc import Mapping

from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, delete_exchange, exchange


def test_default_exchange_routes_to_the_queue_of_that_name() -> None:
    """Every queue is bound to it by its name; other keys lead nowhere."""
    small = Small("q")
    assert small.route("", "q") == ("q",)
    assert small.route("", "other") == ()
    assert small.route("", "q", "other", "q") == ("q",)


def test_miss_at_the_default_exchange_is_not_cacheable() -> None:
    """A queue that is declared later changes nothing in the topology."""
    small = Small("q")
    assert small.route_with_cacheable("", "q") == (("q",), True)
    assert small.route_with_cacheable("", "new") == ((), False)
    assert small.route_with_cacheable("", "q", "new") == (("q",), False)
    small.queues.add("new")
    assert small.route_with_cacheable("", "q", "new") == (("q", "new"), True)


def test_several_keys_give_one_copy_for_a_queue() -> None:
    """Each key of CC and BCC routes too; a queue gets the message once, in the order of the keys."""
    small = Small("a", "b", "c")
    for key, name in (("1", "a"), ("2", "b"), ("2", "a"), ("3", "c")):
        small.bind("amq.direct", name, key)
    assert small.route("amq.direct", "2", "1") == ("b", "a")
    assert small.route("amq.direct", "1", "2") == ("a", "b")
    assert small.route("amq.direct", "3", "nothing") == ("c",)


def test_order_of_queues_is_the_order_of_binding() -> None:
    """Not one that changes from process to process."""
    names = [f"q{number}" for number in (5, 3, 9, 1, 7, 0)]
    small = Small(*names)
    for name in names:
        small.bind("amq.fanout", name)
    assert list(small.route("amq.fanout")) == names


def test_exchange_to_exchange() -> None:
    """A message goes on by each exchange's own rules, with the same key."""
    small = Small("a", "b")
    small.declare("first", "topic")
    small.declare("second", "direct")
    small.bind("first", exchange("second"), "x.#")
    small.bind("first", "a", "*.y")
    small.bind("second", "b", "x.y")
    assert set(small.route("first", "x.y")) == {"a", "b"}
    assert small.route("first", "x.z") == ()
    assert small.route("first", "z.y") == ("a",)


def test_queue_reached_by_two_ways_gets_one_copy() -> None:
    """However many exchanges lead there."""
    small = Small("q")
    for name in ("a", "b", "c"):
        small.declare(name, "fanout")
        small.bind(name, "q")
    small.bind("a", exchange("b"))
    small.bind("a", exchange("c"))
    assert small.route("a") == ("q",)


def test_cycles_come_to_an_end() -> None:
    """Exchanges may be bound in a circle, and to themselves."""
    small = Small("p", "q", "r")
    for name, bound in (("a", "p"), ("b", "q"), ("c", "r")):
        small.declare(name, "fanout")
        small.bind(name, bound)
    for source, target in (("a", "b"), ("b", "c"), ("c", "a"), ("b", "b")):
        small.bind(source, exchange(target))
    assert sorted(small.route("b")) == ["p", "q", "r"]


def test_alternate_gets_what_has_no_destination() -> None:
    """And nothing else."""
    small = Small("hit", "rest")
    small.declare("ae", "fanout")
    small.bind("ae", "rest")
    small.declare("x", alternate_exchange="ae")
    small.bind("x", "hit", "k")
    assert small.route("x", "k") == ("hit",)
    assert small.route("x", "other") == ("rest",)
    assert small.route("x", "other", "k") == ("hit",)


def test_missing_alternate_is_ignored() -> None:
    """It need not exist, may come later and may go again."""
    small = Small("rest")
    small.declare("x", alternate_exchange="ae")
    assert small.route_with_cacheable("x", "k") == ((), True)
    version = small.topology.version
    small.declare("ae", "fanout")
    small.bind("ae", "rest")
    assert small.topology.version > version
    assert small.route("x", "k") == ("rest",)
    delete_exchange(small.topology, "ae")
    assert small.route("x", "k") == ()


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


def test_default_exchange_as_alternate() -> None:
    """What has no destination goes to the queue of that name."""
    small = Small("q")
    small.declare("x", alternate_exchange="")
    assert small.route_with_cacheable("x", "q") == (("q",), True)
    assert small.route_with_cacheable("x", "other") == ((), False)


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


def test_internal_exchanges_route_like_others() -> None:
    """Whether a client may publish there is decided elsewhere."""
    small = Small("q")
    small.declare("x", internal=True)
    small.bind("x", "q", "k")
    assert small.route("x", "k") == ("q",)
