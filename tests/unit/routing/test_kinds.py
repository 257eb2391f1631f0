"""Direct, fanout and topic exchanges, and what all kinds share."""

from __future__ import annotations

import pytest

from amqp10broker.errors import InvalidArgument
from amqp10broker.routing.exchange import NOTHING, Binding, no_headers
from amqp10broker.routing.registry import REGISTRY, TopicExchange, words_of
from tests.support.topologies import Small, queue, unbind


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


TOPICS = {
    "t1": "a.b.c",
    "t2": "a.*.c",
    "t3": "a.#.b",
    "t4": "a.b.b.c",
    "t5": "#",
    "t6": "#.#",
    "t7": "#.b",
    "t8": "*.*",
    "t9": "a.*",
    "t10": "*.b.c",
    "t11": "a.#",
    "t12": "a.#.#",
    "t13": "b.b.c",
    "t14": "a.b.b",
    "t15": "a.b",
    "t16": "b.c",
    "t17": "",
    "t18": "*.*.*",
    "t19": "vodka.martini",
    "t20": "a.b.c",
    "t21": "*.#",
    "t22": "#.*.#",
    "t23": "*.#.#",
    "t24": "#.a.#",
    "t25": "*.#.b",
}


@pytest.mark.rabbitmq("exchanges_SUITE", "topic_exchange")
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.b.c", "1 2 5 6 10 11 12 18 20 21 22 23 24"),
        ("a.b", "3 5 6 7 8 9 11 12 15 21 22 23 24 25"),
        ("a.b.b", "3 5 6 7 11 12 14 18 21 22 23 24 25"),
        ("", "5 6 17"),
        ("b.c.c", "5 6 18 21 22 23"),
        ("a.a.a.a.a", "5 6 11 12 21 22 23 24"),
        ("vodka.gin", "5 6 8 21 22 23"),
        ("vodka.martini", "5 6 8 19 21 22 23"),
        ("b.b.c", "5 6 10 13 18 21 22 23"),
        ("nothing.here.at.all", "5 6 21 22 23"),
        ("oneword", "5 6 21 22 23"),
        (".", "5 6 8 21 22 23"),
    ],
)
def test_topic_patterns(key: str, expected: str) -> None:
    """`*` is one word, `#` is any number of words, also none."""
    small = Small(*TOPICS)
    for name, pattern in TOPICS.items():
        small.bind("amq.topic", name, pattern)
    assert set(small.route("amq.topic", key)) == {f"t{number}" for number in expected.split()}


@pytest.mark.rabbitmq("bindings_SUITE", "topic_exchange_zero_words")
def test_topic_empty_key_has_zero_words() -> None:
    """Only the empty pattern and `#` match the empty key; `*` does not."""
    assert words_of("") == []
    assert words_of(".") == ["", ""]
    small = Small("empty", "star", "hash")
    small.bind("amq.topic", "empty", "")
    small.bind("amq.topic", "star", "*")
    small.bind("amq.topic", "hash", "#")
    assert set(small.route("amq.topic", "")) == {"empty", "hash"}
    assert set(small.route("amq.topic", "a")) == {"star", "hash"}


@pytest.mark.rabbitmq("bindings_SUITE", "topic_exchange_binding_hash_limit")
def test_topic_refuses_a_third_hash() -> None:
    """A pattern with three `#` is refused and nothing is bound."""
    small = Small("a")
    with pytest.raises(InvalidArgument) as refusal:
        small.bind("amq.topic", "a", "#.a.#.b.#")
    assert refusal.value.description == (
        "Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed"
    )
    assert small.topology.bindings("amq.topic") == []


def test_topic_unbind_of_three_hashes_is_no_fault() -> None:
    """Unbinding is not checked: bindings from before the rule can be removed."""
    small = Small("a")
    assert not unbind(small.topology, small.binding("amq.topic", "a", "#.#.#"))


def test_topic_table_removes_a_pattern_of_three_hashes() -> None:
    """The table itself holds any pattern, so that one that is there can be taken out."""
    table = TopicExchange()
    binding = Binding("t", queue("a"), "#.x.#.#")
    table.add(binding)
    assert list(table.route("x", no_headers, no_headers)) == [queue("a")]
    table.remove(binding)
    assert list(table.route("x", no_headers, no_headers)) == []


def test_topic_work_does_not_grow_with_bindings() -> None:
    """The number of tree nodes that a key visits is the same among 10 bindings and among 2 000."""

    class Counting(list[str]):
        looks = 0

        def __getitem__(self, index: object) -> str:  # type: ignore[override]
            Counting.looks += 1
            return super().__getitem__(index)  # type: ignore[index]

    looks = []
    for count in (10, 2_000):
        table = TopicExchange()
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
    """What looks at headers or leaves something to chance is not cacheable."""
    assert REGISTRY.create(kind, NOTHING, lambda count: 0).cacheable is cacheable
