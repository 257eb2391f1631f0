"""Routing through random topologies against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqp10broker.errors import RefusedError
from amqp10broker.routing.exchange import Binding, Destination, no_headers
from amqp10broker.routing.exchange_types import TopicExchange, words_of
from amqp10broker.routing.topology import Topology
from tests.support.examples import tried
from tests.support.topologies import bind, declare_exchange, delete_exchange, queue, remove_queue, unbind

EXCHANGES = ("a", "b", "c", "d")
QUEUES = ("p", "q", "r")
KINDS = ("direct", "fanout", "topic", "headers")
KEYS = ("", "x", "y", "x.y", "x.*", "#", "*.#.y")
ROUTED = ("", "x", "y", "x.y", "p")
HEADERS = ({}, {"n": 1}, {"n": 1, "m": 2})
ARGUMENTS: tuple[dict[str, object], ...] = ({}, {"n": 1}, {"n": 1, "m": 2, "x-match": "any"}, {"n": 1.0})

names = st.sampled_from(EXCHANGES)
destinations = st.one_of(
    st.builds(Destination, st.just("queue"), st.sampled_from(QUEUES)),
    st.builds(Destination, st.just("exchange"), names),
)
bindings = st.builds(Binding, names, destinations, st.sampled_from(KEYS), st.sampled_from(ARGUMENTS))


class NaiveExchange:
    """Name, kind, auto-delete and alternate."""

    def __init__(self, kind: str, auto_delete: bool, alternate: str | None) -> None:
        self.kind = kind
        self.auto_delete = auto_delete
        self.alternate = alternate

    def matches(self, binding: Binding, key: str, headers: dict[str, object]) -> bool:
        if self.kind == "direct":
            return binding.routing_key == key
        if self.kind == "topic":
            return naive_match(words_of(binding.routing_key), words_of(key))
        if self.kind == "headers":
            wanted = {name: value for name, value in binding.arguments.items() if name != "x-match"}
            met = [
                name in headers and type(headers[name]) is type(value) and headers[name] == value
                for name, value in wanted.items()
            ]
            return any(met) if binding.arguments.get("x-match") == "any" else all(met)
        return True


class Topologies(RuleBasedStateMachine):
    """Both are told the same and must agree on everything that can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = set(QUEUES)
        self.real = Topology("/", lambda name: name in self.queues)
        self.exchanges: dict[str, NaiveExchange] = {}
        self.bindings: list[Binding] = []
        self.version = self.real.version
        self.state: object = None

    @rule(
        name=names,
        kind=st.sampled_from(KINDS),
        auto_delete=st.booleans(),
        alternate=st.one_of(st.none(), st.sampled_from((*EXCHANGES, "missing", ""))),
    )
    def declare(self, name: str, kind: str, auto_delete: bool, alternate: str | None) -> None:
        """Declare a new exchange, or an existing one with the same or other arguments."""
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        known = self.exchanges.get(name)
        same = known and (known.kind, known.auto_delete, known.alternate) == (kind, auto_delete, alternate)
        try:
            created = declare_exchange(self.real, name, kind, auto_delete=auto_delete, arguments=arguments)[1]
        except RefusedError:
            assert known
            assert not same
            return
        assert created is (known is None)
        assert known is None or same
        if known is None:
            self.exchanges[name] = NaiveExchange(kind, auto_delete, alternate)

    @rule(name=st.sampled_from(QUEUES))
    def declare_queue(self, name: str) -> None:
        self.queues.add(name)

    @rule(binding=bindings)
    def bind(self, binding: Binding) -> None:
        end = binding.destination
        there = end.name in (self.queues if end.kind == "queue" else self.exchanges)
        try:
            new = bind(self.real, binding)
        except RefusedError:
            assert not there or binding.source not in self.exchanges
            return
        assert there
        assert binding.source in self.exchanges
        assert new is (binding not in self.bindings)
        if new:
            self.bindings.append(binding)

    @rule(binding=bindings)
    def unbind(self, binding: Binding) -> None:
        self._unbind(binding)

    @rule(number=st.integers(0, 30))
    def unbind_one(self, number: int) -> None:
        if self.bindings:
            self._unbind(self.bindings[number % len(self.bindings)])

    def _unbind(self, binding: Binding) -> None:
        removed = unbind(self.real, binding)
        assert removed is (binding in self.bindings)
        if removed:
            self._forget([binding])

    @rule(name=names, if_unused=st.booleans())
    def delete(self, name: str, if_unused: bool) -> None:
        used = any(one.source == name for one in self.bindings)
        try:
            deleted = delete_exchange(self.real, name, if_unused=if_unused)
        except RefusedError:
            assert if_unused
            assert used
            return
        assert deleted is (name in self.exchanges)
        assert not (if_unused and used)
        if deleted:
            self._forget_exchange(name)

    @rule(name=st.sampled_from(QUEUES))
    def delete_queue(self, name: str) -> None:
        self.queues.discard(name)
        remove_queue(self.real, name)
        self._forget([one for one in self.bindings if one.destination == Destination("queue", name)])

    def _forget(self, gone: list[Binding]) -> None:
        """Remove bindings; auto-delete sources that are left without any are removed too."""
        self.bindings = [one for one in self.bindings if one not in gone]
        for source in {one.source for one in gone}:
            if (
                source in self.exchanges
                and self.exchanges[source].auto_delete
                and all(one.source != source for one in self.bindings)
            ):
                self._forget_exchange(source)

    def _forget_exchange(self, name: str) -> None:
        del self.exchanges[name]
        end = Destination("exchange", name)
        self._forget([one for one in self.bindings if name == one.source or one.destination == end])

    def _naive_route(self, first: str, keys: tuple[str, ...], headers: dict[str, object]) -> set[str]:
        queues: set[str] = set()
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name == "":
                queues.update(set(keys) & self.queues)
                return
            exchange = self.exchanges.get(name)
            if exchange is None:
                return
            matched = [
                one
                for one in self.bindings
                if one.source == name and any(exchange.matches(one, key, headers) for key in keys)
            ]
            for one in matched:
                if one.destination.kind == "queue":
                    queues.add(one.destination.name)
                else:
                    visit(one.destination.name)
            if not matched and exchange.alternate is not None:
                visit(exchange.alternate)

        visit(first)
        return queues

    @invariant()
    def same_things_are_there(self) -> None:
        """Exchanges and bindings agree; when they have changed, the version has changed."""
        real = {one.name for one in self.real if one.name and not one.name.startswith("amq.")}
        assert real == self.exchanges.keys()
        assert set(self.real.bindings()) == set(self.bindings)
        for name in EXCHANGES:
            assert self.real.bindings(name) == [one for one in self.bindings if one.source == name]
        state = (set(self.exchanges), set(self.bindings))
        assert state == self.state or self.real.version > self.version or self.state is None
        self.state, self.version = state, self.real.version

    @invariant()
    def same_routes(self) -> None:
        for name in self.exchanges:
            exchange = self.real.lookup_exchange(name)
            for keys in (*((key,) for key in ROUTED), ("x", "p"), ("y", "x.y")):
                for headers in HEADERS:
                    found, _ = self.real.route(exchange, keys, lambda given=headers: given)  # type: ignore[misc]
                    assert len(found) == len(set(found))
                    assert set(found) == self._naive_route(name, keys, headers)


TestTopologies = Topologies.TestCase
TestTopologies.settings = settings(max_examples=tried(60), stateful_step_count=30, deadline=None)


# Few words, so that patterns and keys meet; the empty one is a word too.
keys = st.lists(st.sampled_from(["a", "b", ""]), max_size=6).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


def naive_match(pattern: list[str], words: list[str]) -> bool:
    """`*` is one word, `#` is zero or more, and anything else matches itself."""
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
@pytest.mark.rabbitmq("exchanges_SUITE", "topic_exchange")
@given(bound, st.lists(keys, min_size=1, max_size=5), st.data())
def test_tree_routes_as_the_naive_matcher(
    bindings: list[Binding], routed: list[str], data: st.DataObject
) -> None:
    """With all bindings and after any removals, both find the same queues, each once."""
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
    assert not table._by_key


@given(bound, keys)
def test_no_node_is_recorded_twice(bindings: list[Binding], key: str) -> None:
    """The walk meets each group of destinations at most once, however often a `#` can be cut differently."""
    table = TopicExchange()
    for binding in bindings:
        table.add(binding)
    found = table._matching(words_of(key))
    assert len(found) == len({id(one) for one in found})
