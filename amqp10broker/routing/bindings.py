"""Tables of bindings: `Bindings` finds those of a virtual host by source, by destination or by both.

`Destinations`, a part of the kinds of exchange, has the destinations of several bindings, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from amqp10broker.routing.exchange import Binding, Destination

Identity: TypeAlias = tuple[object, ...]

_NONE: Final[Mapping[Identity, Binding]] = {}


class Destinations:
    """Destinations in the order they were first named, each with the number of bindings that name it."""

    __slots__ = ("_counts", "_listed")

    def __init__(self) -> None:
        self._counts: dict[Destination, int] = {}
        # Computed lazily: binding many queues to one key then costs no copy each time.
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


class Bindings:
    def __init__(self) -> None:
        self._by_source: dict[str, dict[Identity, Binding]] = {}
        self._by_destination: dict[Destination, dict[Identity, Binding]] = {}
        # Those with arguments, which the key of an entry names by a hash.
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
        """Return a binding by its names and `Binding.arguments_identity`; None if there is none."""
        if arguments:
            return self._with_arguments.get((source, kind, destination, routing_key, arguments))
        return self._by_source.get(source, _NONE).get((source, kind, destination, routing_key, ()))

    def find(self, source: str | None, destination: Destination | None) -> Iterator[Binding]:
        """Yield the bindings with this source and this destination; None is any. Oldest first."""
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
