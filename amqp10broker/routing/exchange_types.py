"""The kinds of exchange by name: those of this package, and those that installed packages add.

A package adds a kind by an entry point in the group ``amqp10broker.exchange_types``; its name is the
type's name, its object an `ExchangeTypeFactory`::

    [project.entry-points."amqp10broker.exchange_types"]
    x-by-length = "my_package.exchanges:ByLength"

Entry points are read at the first request for an unknown kind, and loaded at the first use of theirs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Final, TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, PreconditionFailed
from amqp10broker.routing.exchange import (
    Binding,
    Choose,
    Destination,
    ExchangeType,
    ExchangeTypeFactory,
    Headers,
    canonical,
    canonical_table,
    hash64,
    plain_text,
    type_name,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


Identity: TypeAlias = tuple[object, ...]

_NONE: Final[Mapping[Identity, Binding]] = {}


class Destinations:
    """Destinations in the order of their first binding, each with the number of its bindings."""

    __slots__ = ("_counts", "_listed")

    def __init__(self) -> None:
        self._counts: dict[Destination, int] = {}
        # It is computed on demand, so that binding many queues to one key does not copy it each time.
        self._listed: tuple[Destination, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, destination: Destination) -> None:
        count = self._counts.get(destination, 0)
        self._counts[destination] = count + 1
        if not count:
            self._listed = None

    def remove(self, destination: Destination) -> None:
        count = self._counts[destination]
        if count > 1:
            self._counts[destination] = count - 1
        else:
            del self._counts[destination]
            self._listed = None

    def listed(self) -> tuple[Destination, ...]:
        if self._listed is None:
            self._listed = tuple(self._counts)
        return self._listed


def _listed(found: Sequence[Destinations]) -> tuple[Destination, ...]:
    if len(found) == 1:
        return found[0].listed()
    # A dictionary has each destination once, in the order in which it was found.
    return tuple(dict.fromkeys(one for matching in found for one in matching.listed()))


class Bindings:
    def __init__(self) -> None:
        self._by_source: dict[str, dict[Identity, Binding]] = {}
        self._by_destination: dict[Destination, dict[Identity, Binding]] = {}
        # The bindings with arguments, which the key of an entry identifies by a hash.
        self._with_arguments: dict[Identity, Binding] = {}

    def __contains__(self, binding: Binding) -> bool:
        return binding.identity in self._by_source.get(binding.source, ())

    def add(self, binding: Binding) -> None:
        self._by_source.setdefault(binding.source, {})[binding.identity] = binding
        self._by_destination.setdefault(binding.destination, {})[binding.identity] = binding
        if binding.arguments:
            self._with_arguments[_hashed(binding)] = binding

    def remove(self, binding: Binding) -> None:
        for index, key in ((self._by_source, binding.source), (self._by_destination, binding.destination)):
            group = index[key]  # type: ignore[index]  # each index with its own kind of key
            del group[binding.identity]
            if not group:
                del index[key]  # type: ignore[arg-type]  # as above
        if binding.arguments:
            del self._with_arguments[_hashed(binding)]

    def count(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def identified(
        self, source: str, kind: str, destination: str, routing_key: str, arguments: str
    ) -> Binding | None:
        """Return a binding by its names and `Binding.arguments_identity`."""
        if arguments:
            return self._with_arguments.get((source, kind, destination, routing_key, arguments))
        return self._by_source.get(source, _NONE).get((source, kind, destination, routing_key, ()))

    def find(self, source: str | None, destination: Destination | None) -> Iterator[Binding]:
        """Yield the bindings with this source and destination, oldest first; None is any."""
        if source is None and destination is None:
            for group in self._by_source.values():
                yield from group.values()
        elif destination is None:
            yield from self._by_source.get(source or "", _NONE).values()
        elif source is None:
            yield from self._by_destination.get(destination, _NONE).values()
        else:
            from_source = self._by_source.get(source, _NONE)
            to_destination = self._by_destination.get(destination, _NONE)
            fewer, other = sorted((from_source, to_destination), key=len)
            yield from (binding for identity, binding in fewer.items() if identity in other)


def _hashed(binding: Binding) -> Identity:
    return (*binding.identity[:-1], binding.arguments_identity)


HASHES_MAX: Final = 2
"""A third `#` matches little that two do not, and each multiplies the work for a key (RabbitMQ 4.3)."""


def words_of(key: str) -> list[str]:
    """Split a key: the empty one has no words."""
    return key.split(".") if key else []


class _TrieNode:
    __slots__ = ("any_word", "any_words", "bound", "by_word", "loops")

    def __init__(self, *, loops: bool) -> None:
        self.by_word: dict[str, _TrieNode] | None = None
        self.any_word: _TrieNode | None = None
        self.any_words: _TrieNode | None = None
        self.bound: Destinations | None = None
        # `#` leads here, so it may match further words.
        self.loops = loops

    def is_leaf(self) -> bool:
        return self.by_word is None and self.any_word is None and self.any_words is None

    def child(self, word: str) -> _TrieNode | None:
        if word == "*":
            return self.any_word
        if word == "#":
            return self.any_words
        return None if self.by_word is None else self.by_word.get(word)

    def grow(self, word: str) -> _TrieNode:
        node = _TrieNode(loops=word == "#")
        if word == "*":
            self.any_word = node
        elif word == "#":
            self.any_words = node
        else:
            if self.by_word is None:
                self.by_word = {}
            self.by_word[word] = node
        return node

    def cut(self, word: str) -> None:
        if word == "*":
            self.any_word = None
        elif word == "#":
            self.any_words = None
        elif self.by_word is not None:
            del self.by_word[word]
            if not self.by_word:
                self.by_word = None


class AnyBinding:
    """The base of kinds of exchange. Every binding is valid, unless `_fault_of` returns a reason."""

    cacheable = True
    per_key = False

    def check_binding(self, binding: Binding) -> None:
        fault = self._fault_of(binding)
        if fault is not None:
            raise InvalidArgument(f"exchange '{binding.source}'", fault)

    def _fault_of(self, binding: Binding) -> str | None:
        return None


class DirectExchange(AnyBinding):
    per_key = True

    def __init__(self) -> None:
        self._by_key: defaultdict[str, Destinations] = defaultdict(Destinations)

    def add(self, binding: Binding) -> None:
        self._by_key[binding.routing_key].add(binding.destination)

    def remove(self, binding: Binding) -> None:
        found = self._by_key[binding.routing_key]
        found.remove(binding.destination)
        if not found:
            del self._by_key[binding.routing_key]

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        found = self._by_key.get(routing_key)
        return found.listed() if found is not None else ()


class TopicExchange(DirectExchange):
    """Binding keys are patterns of words: `*` is any one word, `#` any number of words.

    Words are separated by dots; the empty key has no words, so only the empty binding key and those made of
    `#` match it. Patterns with wildcards are in a tree with a word on each edge; only branches that still
    match the key are entered, so the cost does not depend on the number of bindings.
    """

    def __init__(self) -> None:
        super().__init__()
        self._root = _TrieNode(loops=False)

    def _fault_of(self, binding: Binding) -> str | None:
        hashes = words_of(binding.routing_key).count("#")
        if hashes <= HASHES_MAX:
            return None
        return (
            f"Topic binding key '{binding.routing_key}' uses {hashes} '#' wildcards,"
            f" at most {HASHES_MAX} are allowed"
        )

    def add(self, binding: Binding) -> None:
        words = words_of(binding.routing_key)
        if "*" not in words and "#" not in words:
            super().add(binding)
            return
        node = self._root
        for word in words:
            node = node.child(word) or node.grow(word)
        if node.bound is None:
            node.bound = Destinations()
        node.bound.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        key = binding.routing_key
        words = words_of(key)
        if "*" not in words and "#" not in words:
            super().remove(binding)
            return
        path: list[tuple[_TrieNode, str]] = []
        node = self._root
        for word in words:
            path.append((node, word))
            child = node.child(word)
            assert child is not None, f"binding key {key!r} was never added"
            node = child
        assert node.bound is not None, f"binding key {key!r} was never added"
        node.bound.remove(binding.destination)
        if node.bound:
            return
        node.bound = None
        for parent, word in reversed(path):
            child = parent.child(word)
            if child is None or child.bound is not None or not child.is_leaf():
                return
            parent.cut(word)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        exact = self._by_key.get(routing_key)
        if self._root.is_leaf():
            return exact.listed() if exact is not None else ()
        found = self._matching(words_of(routing_key))
        if exact is not None:
            found.append(exact)
        return _listed(found)

    def _matching(self, words: list[str]) -> list[Destinations]:
        found: list[Destinations] = []
        count = len(words)
        # Where each `#` was first entered: all its matches from a later word on were found from there.
        entered: dict[_TrieNode, int] = {}
        open_ends: list[tuple[_TrieNode, int]] = [(self._root, 0)]
        while open_ends:
            node, at = open_ends.pop()
            loop = node.any_words
            if loop is not None:
                seen_from = entered.get(loop)
                if seen_from is None and loop.bound is not None:
                    found.append(loop.bound)
                if seen_from is None or at < seen_from:
                    entered[loop] = at
                    if not loop.is_leaf():
                        upto = count + 1 if seen_from is None else seen_from
                        open_ends += [(loop, later) for later in range(at, upto)]
            if at == count:
                # A `#` at the end was noted when it was entered.
                if node.bound is not None and not node.loops:
                    found.append(node.bound)
                continue
            if node.any_word is not None:
                open_ends.append((node.any_word, at + 1))
            if node.by_word is not None:
                following = node.by_word.get(words[at])
                if following is not None:
                    open_ends.append((following, at + 1))
        return found


X_MATCH: Final = "x-match"
_MODES: Final = frozenset({"all", "any", "all-with-x", "any-with-x"})
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class _Wanted:
    every: bool
    present: tuple[str, ...]
    equal: tuple[tuple[str, object], ...]
    destinations: Destinations

    def matches(self, headers: dict[str, object]) -> bool:
        if self.every:
            return all(key in headers for key in self.present) and all(
                headers.get(key, _ABSENT) == value for key, value in self.equal
            )
        return any(key in headers for key in self.present) or any(
            headers.get(key, _ABSENT) == value for key, value in self.equal
        )


def _wanted(binding: Binding) -> _Wanted:
    mode = canonical(binding.arguments.get(X_MATCH, "all"))
    with_x = mode in ("all-with-x", "any-with-x")
    compared = {
        key: value
        for key, value in binding.arguments.items()
        if key != X_MATCH and (with_x or not key.startswith("x-"))
    }
    return _Wanted(
        mode in ("all", "all-with-x"),
        tuple(key for key, value in compared.items() if value is None),
        tuple((key, canonical(value)) for key, value in compared.items() if value is not None),
        Destinations(),
    )


class HeadersExchange(AnyBinding):
    """The binding's arguments are compared with the message's headers; the routing key has no effect.

    ``x-match`` selects the rule: ``all`` (the default) and ``any`` ignore keys that begin with ``x-``,
    ``all-with-x`` and ``any-with-x`` compare them too. A void argument requires only the key.
    """

    cacheable = False

    def __init__(self) -> None:
        self._groups: dict[object, _Wanted] = {}

    def _fault_of(self, binding: Binding) -> str | None:
        mode = binding.arguments.get(X_MATCH, "all")
        if type_name(mode) != "longstr":
            given = f"{type_name(mode)} (value {plain_text(mode)})"
            return f"Invalid x-match field type {given}; expected longstr"
        if canonical(mode) in _MODES:
            return None
        return (
            f"Invalid x-match field value '{plain_text(mode)}'; expected all, any, all-with-x, or any-with-x"
        )

    def add(self, binding: Binding) -> None:
        group = canonical_table(binding.arguments)
        wanted = self._groups.get(group)
        if wanted is None:
            wanted = self._groups[group] = _wanted(binding)
        wanted.destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        group = canonical_table(binding.arguments)
        wanted = self._groups[group]
        wanted.destinations.remove(binding.destination)
        if not wanted.destinations:
            del self._groups[group]

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        if not self._groups:
            return ()
        given = {key: canonical(value) for key, value in headers().items()}
        found = [wanted.destinations for wanted in self._groups.values() if wanted.matches(given)]
        return _listed(found)


HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
PROPERTIES: Final = frozenset({"correlation_id", "message_id", "timestamp"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MASK: Final = 2**64 - 1


def _lot(message_hash: int, own_hash: int, weight: int) -> float:
    # The finisher of SplitMix64: every bit of the input moves every bit of the result.
    mixed = message_hash ^ own_hash
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    mixed ^= mixed >> 31
    # Of n numbers log(u)/w with u uniform in (0, 1), the i-th is greatest with probability w_i / sum(w).
    return log(((mixed >> 11) + 0.5) / 2**53) / weight


class ConsistentHashExchange(AnyBinding):
    """Selects one destination by a hash, which stays equal for equal keys after a restart.

    Each destination gets a score from the message's hash and its own, scaled by its weight, which is its
    binding key, and the best score wins ("weighted rendezvous"). So no message moves between two destinations
    that stay. The hash is over the routing key, or the value that the exchange's arguments ``hash-header`` or
    ``hash-property`` name.
    """

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._header = _text_argument(arguments, HASH_HEADER)
        self._property = _text_argument(arguments, HASH_PROPERTY)
        if self._header is not None and self._property is not None:
            raise InvalidArgument("exchange", "hash-header and hash-property are mutually exclusive")
        if self._property is not None and self._property not in PROPERTIES:
            raise InvalidArgument("exchange", f"Unsupported property: {self._property}")
        self.cacheable = self._header is None and self._property is None
        self._bindings: dict[Destination, dict[Binding, int]] = {}
        # An entry for each destination: the destination, its hash, and the weight of its oldest binding.
        self._shares: list[tuple[Destination, int, int]] | None = None

    def _fault_of(self, binding: Binding) -> str | None:
        key = binding.routing_key
        if not _INTEGER.fullmatch(key):
            return f"The binding key must be an integer, not '{key}'"
        return "The binding key must be greater than 0" if int(key) < 1 else None

    def add(self, binding: Binding) -> None:
        """A further binding of the same destination changes nothing while the first exists."""
        self._bindings.setdefault(binding.destination, {})[binding] = int(binding.routing_key)
        self._shares = None

    def remove(self, binding: Binding) -> None:
        bindings = self._bindings[binding.destination]
        del bindings[binding]
        if not bindings:
            del self._bindings[binding.destination]
        self._shares = None

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        shares = self._shares
        if shares is None:
            shares = self._shares = [
                (destination, hash64([destination.kind, destination.name]), next(iter(weights.values())))
                for destination, weights in self._bindings.items()
            ]
        if len(shares) < 2:
            return (shares[0][0],) if shares else ()
        if self._header is not None:
            hashed = hash64(headers().get(self._header))
        elif self._property is not None:
            hashed = hash64(properties().get(self._property))
        else:
            hashed = hash64(routing_key)
        return (max(shares, key=lambda share: _lot(hashed, share[1], share[2]))[0],)


def _text_argument(arguments: Mapping[str, object], name: str) -> str | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if type_name(value) != "longstr":
        raise InvalidArgument(
            "exchange", f"invalid type '{type_name(value)}' for arg '{name}': expected longstr"
        )
    return plain_text(value)


class ModulusHashExchange(AnyBinding):
    """The hash modulo the number of bindings: cheaper, but nearly every key moves when one changes. A queue
    that is bound three times gets three shares.
    """

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        self._sorted: list[Destination] | None = None

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        self._sorted = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]
        self._sorted = None

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        if self._sorted is None:
            # They are sorted, so that the order in which bindings were made, or read back, does not matter.
            self._sorted = sorted(
                (binding.destination for binding in self._bindings), key=lambda one: (one.kind, one.name)
            )
        if not self._sorted:
            return ()
        return (self._sorted[hash64(routing_key) % len(self._sorted)],)


class FanoutExchange(AnyBinding):
    def __init__(self) -> None:
        self._destinations = Destinations()

    def add(self, binding: Binding) -> None:
        self._destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._destinations.remove(binding.destination)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        return self._destinations.listed()


class LocalRandomExchange(FanoutExchange):
    cacheable = False

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self._choose = choose

    def _fault_of(self, binding: Binding) -> str | None:
        if binding.routing_key:  # a key would suggest a choice that is not made
            return f"Non empty binding '{binding.routing_key}' key not permitted"
        return None if binding.destination.kind == "queue" else "Destination not found"

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        listed = self._destinations.listed()
        if len(listed) < 2:
            return listed
        return (listed[self._choose(len(listed))],)


_OWN: Final[Mapping[str, ExchangeTypeFactory]] = {
    "direct": lambda arguments, choose: DirectExchange(),
    "fanout": lambda arguments, choose: FanoutExchange(),
    "topic": lambda arguments, choose: TopicExchange(),
    "headers": lambda arguments, choose: HeadersExchange(),
    "x-consistent-hash": lambda arguments, choose: ConsistentHashExchange(arguments),
    "x-modulus-hash": lambda arguments, choose: ModulusHashExchange(),
    "x-local-random": lambda arguments, choose: LocalRandomExchange(choose),
}
EXCHANGE_TYPES: Final = tuple(_OWN)
"""The kinds of exchange of this package."""

ENTRY_POINT_GROUP: Final = "amqp10broker.exchange_types"


def _installed() -> Iterable[EntryPoint]:
    # It is imported here because it takes a twentieth of the start's time.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)


class Registry:
    def __init__(self, find_entry_points: Callable[[], Iterable[EntryPoint]] = _installed) -> None:
        self._factories = dict(_OWN)
        self._find_entry_points = find_entry_points
        self._entry_points: dict[str, EntryPoint] | None = None

    def register(self, name: str, factory: ExchangeTypeFactory) -> None:
        self._factories[name] = factory

    def names(self) -> list[str]:
        """Return the names of all kinds, sorted; reads the entry points."""
        return sorted({*self._factories, *self._others()})

    def factory(self, name: str) -> ExchangeTypeFactory:
        """Return the factory of a kind. Raises `PreconditionFailed` if the kind is unknown, or its package
        cannot be loaded.
        """
        found = self._factories.get(name)
        if found is not None:
            return found
        entry_point = self._others().get(name)
        if entry_point is None:
            raise PreconditionFailed(f"exchange type '{name}'", f"unknown exchange type '{name}'")
        try:
            factory: ExchangeTypeFactory = entry_point.load()
        except Exception as error:
            # Another package's import may raise anything, which must not end the broker.
            raise PreconditionFailed(
                f"exchange type '{name}'",
                f"exchange type '{name}' cannot be loaded from {entry_point.value}:"
                f" {type(error).__name__}: {error}; repair or uninstall that package",
            ) from error
        self._factories[name] = factory
        return factory

    def create(self, name: str, arguments: Mapping[str, object], choose: Choose) -> ExchangeType:
        return self.factory(name)(arguments, choose)

    def _others(self) -> dict[str, EntryPoint]:
        if self._entry_points is None:
            self._entry_points = {one.name: one for one in self._find_entry_points()}
        return self._entry_points


REGISTRY: Final = Registry()


def register(name: str, factory: ExchangeTypeFactory) -> None:
    """Add a kind of exchange to `REGISTRY`, for programs that embed a broker."""
    REGISTRY.register(name, factory)
