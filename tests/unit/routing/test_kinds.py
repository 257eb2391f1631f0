"""Kinds of exchanges."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from amqp10broker.errors import InvalidArgument, PreconditionFailed
from amqp10broker.routing import exchange_types
from amqp10broker.routing.exchange import NOTHING, Binding, Choose
from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, declare_exchange, exchange, queue, remove_queue, unbind


@pytest.mark.rabbitmq("bindings_SUITE", "binding_args_direct_exchange", "binding_args_fanout_exchange")
@pytest.mark.parametrize("kind", ["amq.direct", "amq.fanout", "amq.topic"])
def test_bindings_that_differ_in_arguments_give_one_copy(kind: str) -> None:
    """Two bindings of one queue deliver once, and the queue is bound until both are gone."""
    small = Small("a")
    first = small.bind(kind, "a", "k", {"n": 1})
    second = small.bind(kind, "a", "k", {"n": 2})
    assert small.route(kind, "k") == ("a",)
    assert unbind(small.topology, first)
    assert small.route(kind, "k") == ("a",)
    assert unbind(small.topology, second)
    assert small.route(kind, "k") == ()


@pytest.mark.rabbitmq("bindings_SUITE", "topic_exchange_zero_words")
def test_topic_empty_key_has_zero_words() -> None:
    """Only the empty pattern and `#` match the empty key; `*` does not."""
    assert exchange_types.words_of("") == []
    assert exchange_types.words_of(".") == ["", ""]
    small = Small("empty", "star", "hash")
    small.bind("amq.topic", "empty", "")
    small.bind("amq.topic", "star", "*")
    small.bind("amq.topic", "hash", "#")
    assert set(small.route("amq.topic", "")) == {"empty", "hash"}
    assert set(small.route("amq.topic", "a")) == {"star", "hash"}


def test_topic_work_does_not_grow_with_bindings() -> None:
    """The number of tree nodes that a key visits is the same among 10 bindings and among 2 000."""

    class Counting(list[str]):
        looks = 0

        def __getitem__(self, index: object) -> str:  # type: ignore[override]
            Counting.looks += 1
            return super().__getitem__(index)  # type: ignore[index]

    looks = []
    for count in (10, 2_000):
        table = exchange_types.TopicExchange()
        for number in range(count):
            for pattern in ("a.w{}.*", "*.w{}.c", "#.w{}", "w{}.#", "#.w{}.#"):
                table.add(Binding("t", queue(f"q{number}"), pattern.format(number)))
        Counting.looks = 0
        assert len(table._matching(Counting(["a", "w5", "c"]))) == 3
        looks.append(Counting.looks)
    assert looks[0] == looks[1]


@pytest.mark.parametrize(
    ("kind", "cacheable"),
    [
        ("direct", True),
        ("fanout", True),
        ("topic", True),
        ("headers", False),
        ("x-consistent-hash", True),
        ("x-modulus-hash", True),
        ("x-local-random", False),
    ],
)
def test_cacheable_means_that_key_and_bindings_decide(kind: str, cacheable: bool) -> None:
    """A kind that looks at headers or leaves something to chance is not cacheable."""
    assert exchange_types.REGISTRY.create(kind, NOTHING, lambda count: 0).cacheable is cacheable


KEYS = [f"key-{number}" for number in range(20_000)]


def hashing(weights: dict[str, str], **arguments: object) -> Small:
    small = Small(*weights)
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    declare_exchange(small.topology, "h", "x-consistent-hash", arguments=named)
    for name, weight in weights.items():
        small.bind("h", name, weight)
    return small


def test_consistent_hash_picks_one_queue_near_the_weights() -> None:
    """Each message goes to one queue, and queues share as their weights say."""
    small = hashing({"a": "1", "b": "2", "c": "5"})
    counts = Counter(small.route("h", key) for key in KEYS)
    for name, weight in {"a": 1, "b": 2, "c": 5}.items():
        assert counts[(name,)] / len(KEYS) == pytest.approx(weight / 8, rel=0.06)


def test_consistent_hash_does_not_depend_on_the_order_of_binding() -> None:
    """A broker that reads its bindings in another order routes alike."""
    one, other = hashing({"a": "1", "b": "3"}), hashing({"b": "3", "a": "1"})
    assert [one.route("h", key) for key in KEYS[:500]] == [other.route("h", key) for key in KEYS[:500]]


def test_consistent_hash_keeps_its_choice_in_every_process() -> None:
    """The choice is part of the interface: these keys have these queues, whatever the hash seed."""
    small = hashing({"a": "1", "b": "1", "c": "1"})
    assert [small.route("h", key)[0] for key in KEYS[:12]] == list("cbbbcbcacbbb")


def test_consistent_hash_moves_keys_only_from_the_queue_that_goes() -> None:
    """Unbinding moves that queue's keys and no others; binding it again moves them back."""
    small = hashing({"a": "2", "b": "3", "c": "4"})
    before = {key: small.route("h", key)[0] for key in KEYS[:3_000]}
    gone = small.binding("h", "b", "3")
    unbind(small.topology, gone)
    after = {key: small.route("h", key)[0] for key in before}
    assert all(after[key] == name for key, name in before.items() if name != "b")
    assert {after[key] for key, name in before.items() if name == "b"} == {"a", "c"}
    bind(small.topology, gone)
    assert {key: small.route("h", key)[0] for key in before} == before


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "The binding key must be an integer, not ''"),
        ("ten", "The binding key must be an integer, not 'ten'"),
        ("1.5", "The binding key must be an integer, not '1.5'"),
        ("\u0661", "The binding key must be an integer, not '\u0661'"),
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
    ],
)
def test_consistent_hash_weight_is_a_positive_integer(key: str, text: str) -> None:
    small = hashing({})
    small.queues.add("q")
    with pytest.raises(InvalidArgument) as refusal:
        small.bind("h", "q", key)
    assert refusal.value.description == text


def test_consistent_hash_by_header() -> None:
    """With hash-header the header decides, the key does not, and nothing is cacheable."""
    small = hashing({"a": "1", "b": "1"}, hash_header="customer")
    chosen = {number: small.route("h", "k", headers={"customer": number}) for number in range(100)}
    assert set(chosen.values()) == {("a",), ("b",)}
    assert all(small.route("h", "other", headers={"customer": n}) == names for n, names in chosen.items())
    assert small.route_with_cacheable("h", "k", headers={})[1] is False
    assert len({small.route("h", key) for key in KEYS[:50]}) == 1


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_consistent_hash_by_property(name: str) -> None:
    small = hashing({"a": "1", "b": "1"}, hash_property=name)
    chosen = [small.route("h", "k", properties={name: str(number)}) for number in range(100)]
    assert set(chosen) == {("a",), ("b",)}
    assert chosen == [small.route("h", str(number), properties={name: str(number)}) for number in range(100)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 5}, "invalid type 'signedint' for arg 'hash-header': expected longstr"),
    ],
)
def test_consistent_hash_arguments(arguments: dict[str, object], text: str) -> None:
    """Arguments that make no sense are refused and no exchange is made."""
    small = Small()
    with pytest.raises(PreconditionFailed) as refusal:
        declare_exchange(small.topology, "h", "x-consistent-hash", arguments=arguments)
    assert refusal.value.description == text
    assert small.exchanges() == set()


def modulus(bindings: list[tuple[str, str]]) -> Small:
    small = Small(*(name for name, key in bindings))
    small.declare("m", "x-modulus-hash")
    for name, key in bindings:
        small.bind("m", name, key)
    return small


def test_modulus_hash_picks_one_queue_by_key() -> None:
    """Every message goes to one queue, also with several keys; without queues it goes nowhere."""
    small = modulus([("q1", ""), ("q2", "any"), ("q3", "key")])
    assert {small.route("m", key, "cc") for key in KEYS[:100]} == {("q1",), ("q2",), ("q3",)}
    assert modulus([]).route("m", "k") == ()


@pytest.mark.rabbitmq("rabbit_exchange_type_modulus_hash_SUITE", "weighted_routing_test")
def test_modulus_hash_weighs_by_bindings() -> None:
    """A queue that is bound more often gets more."""
    small = modulus([("q1", ""), ("q2", "a"), ("q2", "b"), ("q3", "a"), ("q3", "b"), ("q3", "c")])
    counts = Counter(small.route("m", str(number))[0] for number in range(600))
    assert counts["q1"] < counts["q2"] < counts["q3"]
    assert sum(counts.values()) == 600


@pytest.mark.rabbitmq("rabbit_exchange_type_modulus_hash_SUITE", "stable_routing_across_restarts_test")
def test_modulus_hash_is_stable_whatever_the_order() -> None:
    """After a restart bindings may be read in another order; keys stay where they were."""
    bindings = [(f"q{number}", str(number * 7 % 5)) for number in range(40)]
    one, other = modulus(bindings), modulus(bindings[::-1])
    assert [one.route("m", key) for key in KEYS[:500]] == [other.route("m", key) for key in KEYS[:500]]


def test_local_random_picks_the_queue_that_chance_names() -> None:
    """Chance is an argument; each message goes to one queue."""
    asked: list[int] = []

    def choose(count: int) -> int:
        asked.append(count)
        return count - 1

    topology = Topology("/", lambda name: True, choose=choose)
    found, _ = declare_exchange(topology, "r", "x-local-random")
    assert topology.route(found, ("k",)) == ((), False)
    bind(topology, Small.binding("r", "a"))
    assert topology.route(found, ("k",)) == (("a",), False)
    bind(topology, Small.binding("r", "b"))
    bind(topology, Small.binding("r", "c"))
    assert topology.route(found, ("k", "cc")) == (("c",), False)
    assert asked == [3]


def test_local_random_refuses_keys_and_exchanges() -> None:
    small = Small("a")
    small.declare("r", "x-local-random")
    with pytest.raises(InvalidArgument, match="Non empty binding 'k' key not permitted"):
        small.bind("r", "a", "k")
    with pytest.raises(InvalidArgument, match="Destination not found"):
        small.bind("r", exchange("amq.direct"))


class Int8(int):
    """As a protocol's own integer."""


CAR = {"type": "car", "size": 4}
X_AND_B = {"x-a": "1", "b": "2"}


@pytest.mark.rabbitmq("exchanges_SUITE", "headers_exchange")
@pytest.mark.parametrize(
    ("arguments", "headers", "matched"),
    [
        # All is the default: each argument must be met, and further headers do not matter.
        *((CAR | mode, CAR | {"more": 1}, True) for mode in ({}, {"x-match": "all"}, {"x-match": b"all"})),
        *((CAR | mode, {"type": "car"}, False) for mode in ({}, {"x-match": "all"}, {"x-match": b"all"})),
        (CAR, CAR | {"size": 5}, False),
        (CAR, {}, False),
        # Without arguments all of none are met, but not any of none.
        *(({"x-match": mode}, each, True) for mode in ("all", "all-with-x") for each in ({}, {"a": 1})),
        *(({"x-match": mode}, each, False) for mode in ("any", "any-with-x") for each in ({}, {"a": 1})),
        # Arguments that begin with x- count only in the two modes that say so.
        ({"x-match": "all", "x-a": "other", "b": "2"}, X_AND_B, True),
        ({"x-match": "all-with-x", "x-a": "other", "b": "2"}, X_AND_B, False),
        ({"x-match": "all-with-x", "x-a": "1", "b": "2"}, X_AND_B, True),
        ({"x-match": "any", "x-a": "1", "b": "other"}, X_AND_B, False),
        ({"x-match": "any-with-x", "x-a": "1", "b": "other"}, X_AND_B, True),
        ({"x-match": "any-with-x", "x-a": "other", "b": "other"}, X_AND_B, False),
        # A void argument is met by any value of that header, and not by its absence.
        *(({"x-match": mode, "a": None}, {"a": 1}, True) for mode in ("all", "any")),
        *(({"x-match": mode, "a": None}, {"a": None}, True) for mode in ("all", "any")),
        *(({"x-match": mode, "a": None}, {"b": 1}, False) for mode in ("all", "any")),
        # An integer is met by that integer of any width, and by nothing else that looks like it.
        *(({"a": 1}, {"a": value}, True) for value in (1, Int8(1))),
        *(({"a": 1}, {"a": value}, False) for value in (1.0, True, "1")),
    ],
    ids=str,
)
def test_a_headers_exchange_matches_arguments_with_headers(
    arguments: dict[str, object], headers: dict[str, object], matched: bool
) -> None:
    small = Small("q")
    small.bind("amq.headers", "q", "ignored", arguments)
    assert small.route("amq.headers", "key", headers=headers) == (("q",) if matched else ())


def test_bad_x_match_value_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Small("q").bind("amq.match", "q", "", {"x-match": "bogus"})
    assert refusal.value.description == (
        "Invalid x-match field value 'bogus'; expected all, any, all-with-x, or any-with-x"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [(23, "signedint (value 23)"), (Int8(1), "byte (value 1)"), (True, "bool (value true)")],
)
def test_bad_x_match_type_is_refused(value: object, written: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Small("q").bind("amq.match", "q", "", {"x-match": value})
    assert refusal.value.description == f"Invalid x-match field type {written}; expected longstr"


def test_headers_are_not_asked_for_without_bindings() -> None:
    small = Small()

    def headers() -> Mapping[str, object]:
        raise AssertionError("asked")

    found = small.topology.lookup_exchange("amq.headers")
    assert small.topology.route(found, ("k",), headers) == ((), False)


PAGE = Path(__file__).parents[3] / "docs" / "exchange-types.md"
MODULE = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
"""The example of the page: it routes by the length of the routing key."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a tiny distribution, as pip would lay it out, that adds two types; one is broken."""
    (tmp_path / "exchange_by_length.py").write_text(MODULE)
    meta = tmp_path / "exchange_by_length-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: exchange-by-length\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        "[amqp10broker.exchange_types]\n"
        "x-by-length = exchange_by_length:ByLength\n"
        "x-broken = exchange_by_length_missing:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("exchange_by_length", None)


def test_installed_package_adds_a_type(installed: Path) -> None:
    """An entry point of an installed distribution is found, loaded and used."""
    topology = Topology("/", lambda name: True, registry=exchange_types.Registry())
    found, created = declare_exchange(topology, "x", "x-by-length")
    assert created
    bind(topology, Small.binding("x", "three", "3"))
    bind(topology, Small.binding("x", "four", "4"))
    assert topology.route(found, ("abc",)) == (("three",), True)
    assert topology.route(found, ("abc", "abcd")) == (("three", "four"), True)
    remove_queue(topology, "three")
    assert topology.route(found, ("abc",)) == ((), True)


def test_package_is_loaded_only_when_its_type_is_used(installed: Path) -> None:
    """Other unknown types, and types of this package, load no other package."""
    registry = exchange_types.Registry()
    registry.create("topic", NOTHING, lambda count: 0)
    with pytest.raises(PreconditionFailed):
        registry.factory("x-nothing")
    assert "x-by-length" in registry.names()
    assert "exchange_by_length" not in sys.modules
    registry.factory("x-by-length")
    assert "exchange_by_length" in sys.modules


def test_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    with pytest.raises(
        PreconditionFailed, match="cannot be loaded from exchange_by_length_missing:Nothing"
    ) as refusal:
        exchange_types.Registry().factory("x-broken")
    assert "repair or uninstall that package" in refusal.value.description


def test_entry_points_are_read_at_most_once() -> None:
    """A client that asks for unknown types again and again does not make the broker search the disk."""
    searches = []
    registry = exchange_types.Registry(lambda: searches.append(1) or ())  # type: ignore[func-returns-value]
    registry.factory("direct")
    assert searches == []
    for name in ("x-1", "x-2", "x-1"):
        with pytest.raises(PreconditionFailed):
            registry.factory(name)
    assert searches == [1]


def test_registered_factory_gets_arguments_and_chance() -> None:
    """A program adds a type by a factory; it sees the exchange's arguments."""
    seen: list[tuple[dict[str, object], int]] = []

    def factory(arguments: Mapping[str, object], choose: Choose) -> exchange_types.FanoutExchange:
        seen.append((dict(arguments), choose(3)))
        return exchange_types.FanoutExchange()

    registry = exchange_types.Registry()
    registry.register("x-mine", factory)
    topology = Topology("/", lambda name: True, choose=lambda count: count - 1, registry=registry)
    declare_exchange(topology, "x", "x-mine", arguments={"a": 1})
    assert seen == [({"a": 1}, 2)] * 2, "asked whether it can be made, and made"


def test_register_adds_to_the_common_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`register` is for the registry that every virtual host uses."""
    monkeypatch.setattr(exchange_types.REGISTRY, "_factories", dict(exchange_types.REGISTRY._factories))
    exchange_types.register("x-mine", lambda arguments, choose: exchange_types.FanoutExchange())
    assert declare_exchange(Small().topology, "x", "x-mine")[1]
