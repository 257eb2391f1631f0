"""Addresses, declarations, bindings and routes."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pytest

from amqp10broker.errors import AccessRefused, Inequivalent, InvalidArgument
from amqp10broker.routing.address import BadAddress, ExchangeAddress, QueueAddress, parse, queue_address
from amqp10broker.routing.exchange import Binding, canonical, hash64, table_hash, type_name
from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, declare_exchange, exchange, queue


def test_miss_at_the_default_exchange_is_not_cacheable() -> None:
    """A queue that is declared later changes nothing in the topology."""
    small = Small("q")
    assert small.route_with_cacheable("", "q") == (("q",), True)
    assert small.route_with_cacheable("", "new") == ((), False)
    assert small.route_with_cacheable("", "q", "new") == (("q",), False)
    small.queues.add("new")
    assert small.route_with_cacheable("", "q", "new") == (("q", "new"), True)


def test_way_is_cacheable_if_every_exchange_on_it_is() -> None:
    """A headers exchange reached by a binding or as alternate makes the way not cacheable."""
    small = Small("q")
    small.declare("x", "topic", alternate_exchange="amq.headers")
    small.bind("x", "q", "a.#")
    small.bind("x", exchange("amq.headers"), "b")
    assert small.route_with_cacheable("x", "a") == (("q",), True)
    assert small.route_with_cacheable("x", "b") == ((), False)
    assert small.route_with_cacheable("x", "c") == ((), False)


def test_headers_reach_an_inner_headers_exchange() -> None:
    """The headers are decoded only when needed."""
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


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("orders", QueueAddress("orders", declare=True)),
        ("/queues/a%2Fb%20c%25", QueueAddress("a/b c%")),
        ("/exchanges/x", ExchangeAddress("x", "")),
        ("/exchanges/x/", ExchangeAddress("x", "")),
        ("/exchanges/x/a%2Fb", ExchangeAddress("x", "a/b")),
    ],
)
def test_an_address_names_a_queue_or_an_exchange(address: str, named: object) -> None:
    """Segments are percent-decoded, a bare name is taken as it is."""
    assert parse(address) == named


@pytest.mark.parametrize("name", ["q\n1", "q1\r", "\r\n"])
def test_a_line_end_in_a_bare_name_is_refused(name: str) -> None:
    """A declaration drops line ends: the queue would be another one than permissions were checked for."""
    with pytest.raises(BadAddress, match="line end"):
        parse(name)


def test_the_address_of_a_queue_is_read_back() -> None:
    assert parse(queue_address("a/b c%\n")) == QueueAddress("a/b c%\n")


class UInt8(int):
    """As a protocol's own integer."""


class Float32(float):
    """As a protocol's own float."""


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (5, UInt8(5)),
        ("é", "é".encode()),
        (b"\xff", bytearray(b"\xff")),
        (1.5, Float32(1.5)),
        ([1, "a"], (UInt8(1), b"a")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, None),
    ],
)
def test_values_of_one_kind_and_content_are_equal(left: object, right: object) -> None:
    """Widths of numbers, text or bytes, and the order of keys do not count."""
    assert canonical(left) == canonical(right)
    assert hash64(left) == hash64(right)
    assert table_hash({"k": left}, 4) == table_hash({"k": right}, 4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (1.0, True),
        (0, False),
        (1, "1"),
        (b"\xff", "\xff"),
        (None, ""),
        (Decimal(1), 1),
        ([1], [True]),
        ({"a": 1}, {"a": 1.0}),
        (["ab"], ["a", "b"]),
    ],
)
def test_values_of_different_kind_or_content_differ(left: object, right: object) -> None:
    """An integer, a float, a boolean and a text are never equal, also inside arrays and tables."""
    assert canonical(left) != canonical(right)
    assert hash64(left) != hash64(right)
    assert table_hash({"k": left}, 4) != table_hash({"k": right}, 4)


def test_arguments_hash_keeps_its_value() -> None:
    """The figures are part of the interface: a change breaks paths that clients hold."""
    assert table_hash({"x-match": "all", "number": 1}, 4) == "Qrjc8A"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a", "longstr"),
        (b"a", "longstr"),
        (True, "bool"),
        (1, "signedint"),
        (2**40, "long"),
        (UInt8(1), "unsignedbyte"),
        (Float32(1), "float"),
        (1.0, "double"),
        (None, "void"),
        ([], "array"),
        ({}, "table"),
        (Decimal(1), "decimal"),
        (object(), "binary"),
    ],
)
def test_type_names_are_those_of_field_tables(value: object, name: str) -> None:
    """Errors name the type as RabbitMQ does."""
    assert type_name(value) == name


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


AE = "alternate-exchange"


@pytest.mark.parametrize(
    ("changed", "argument", "told"),
    [
        ({"type": "fanout"}, "type", "received 'fanout' but current is 'direct'"),
        ({"durable": False}, "durable", "received 'false' but current is 'true'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        ({"arguments": {}}, AE, "received none but current is the value 'ae' of type 'longstr'"),
        ({"arguments": {AE: "other"}}, AE, "received 'other' but current is 'ae'"),
    ],
)
def test_different_redeclaration_is_refused(changed: dict[str, object], argument: str, told: str) -> None:
    """The error has the first difference, and the exchange stays as it was."""
    small = Small()
    small.declare("x", alternate_exchange="ae")
    with pytest.raises(Inequivalent) as refusal:
        declare_exchange(small.topology, "x", **{"arguments": {AE: "ae"}, **changed})  # type: ignore[arg-type]
    assert refusal.value.description == (
        f"inequivalent arg '{argument}' for exchange 'x' in vhost '/': {told}"
    )
    assert small.topology.lookup_exchange("x").alternate == "ae"


def test_alternate_must_be_text() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        declare_exchange(Small().topology, "x", arguments={"alternate-exchange": 5})
    assert refusal.value.description == (
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )
