"""Exchanges that pick one destination: x-consistent-hash, x-modulus-hash, x-local-random."""

from __future__ import annotations

from collections import Counter

import pytest

from amqp10broker.errors import InvalidArgument, PreconditionFailed
from amqp10broker.routing.topology import Topology
from tests.support.topologies import Small, bind, declare_exchange, exchange, unbind

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
    """Every message goes to one queue, also with several keys; none without queues."""
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
    """Only queues, only with the empty key."""
    small = Small("a")
    small.declare("r", "x-local-random")
    with pytest.raises(InvalidArgument, match="Non empty binding 'k' key not permitted"):
        small.bind("r", "a", "k")
    with pytest.raises(InvalidArgument, match="Destination not found"):
        small.bind("r", exchange("amq.direct"))
