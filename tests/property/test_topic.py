"""The topic tree against the sentence of the specification, word by word, for any patterns and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.routing.exchange import Binding, no_headers
from amqp10broker.routing.registry import TopicExchange, words_of
from tests.support.topologies import queue

# Few words, so that patterns and keys meet; the empty one is a word too.
keys = st.lists(st.sampled_from(["a", "b", ""]), max_size=6).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


def naive_match(pattern: list[str], words: list[str]) -> bool:
    """`*` is one word, `#` is zero or more, anything else is itself."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(naive_match(rest, words[at:]) for at in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and naive_match(rest, words[1:])


def naive_route(bindings: list[Binding], key: str) -> set[str]:
    words = words_of(key)
    return {
        binding.destination.name for binding in bindings if naive_match(words_of(binding.routing_key), words)
    }


bound = st.lists(st.tuples(st.sampled_from("pqrs"), patterns), max_size=12, unique=True).map(
    lambda pairs: [Binding("t", queue(name), pattern) for name, pattern in pairs]
)


@pytest.mark.rabbitmq("routing_SUITE", "topic")
@given(bound, st.lists(keys, min_size=1, max_size=5), st.data())
def test_tree_routes_as_the_naive_matcher(
    bindings: list[Binding], routed: list[str], data: st.DataObject
) -> None:
    """With all bindings, and after any of them are removed, both find the same queues, each once."""
    table = TopicExchange()
    for binding in bindings:
        table.add(binding)
    kept = list(bindings)
    for leaving in data.draw(st.permutations(bindings)):
        for key in routed:
            found = [one.name for one in table.route(key, no_headers, no_headers)]
            assert len(found) == len(set(found))
            assert set(found) == naive_route(kept, key)
        table.remove(leaving)
        kept.remove(leaving)
    assert table._root.is_leaf()
    assert not table._exact


@given(bound, keys)
def test_no_node_is_recorded_twice(bindings: list[Binding], key: str) -> None:
    """The walk meets each group of destinations at most once, however often a `#` can be cut differently."""
    table = TopicExchange()
    for binding in bindings:
        table.add(binding)
    found = table._matching(words_of(key))
    assert len(found) == len({id(one) for one in found})
