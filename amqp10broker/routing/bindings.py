"""Tables of bindings: which there are, and which destinations some of them have in common.

`Bindings` is the list of a virtual host, found by source, by destination or by both. `Destinations` is what
the kinds of exchange are built of: the destinations that several bindings name, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqp10broker.routing.exchange import Binding, Destination


class Destinations:
    """Destinations in the order they were first named, each with the number of bindings that name it."""

    __slots__ = ("_counts", "_listed")

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: dict[Destination, int] = {}
        # Made when it is asked for: binding many queues to one key then costs no copy each time.
        self._listed: tuple[Destination, ...] | None = None

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self._counts)

    def add(self, destination: Destination) -> None:
        """Count one more binding to a destination."""
        count = self._counts.get(destination, 0)
        self._counts[destination] = count + 1
        if not count:
            self._listed = None

    def remove(self, destination: Destination) -> None:
        """Count one binding less; the destination goes with the last."""
        count = self._counts[destination]
        if count > 1:
            self._counts[destination] = count - 1
        else:
            del self._counts[destination]
            self._listed = None

    def listed(self) -> tuple[Destination, ...]:
        """Return them all."""
        if self._listed is None:
            self._listed = tuple(self._counts)
        return self._listed


class Bindings:
    """Every binding of a virtual host."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_source: dict[str, dict[Binding, None]] = {}
        self._by_destination: dict[Destination, dict[Binding, None]] = {}

    def __contains__(self, binding: Binding) -> bool:
        """Tell whether it is there."""
        return binding in self._by_source.get(binding.source, ())

    def add(self, binding: Binding) -> None:
        """Take a binding that is not there yet."""
        self._by_source.setdefault(binding.source, {})[binding] = None
        self._by_destination.setdefault(binding.destination, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        for index, key in ((self._by_source, binding.source), (self._by_destination, binding.destination)):
            group = index[key]  # type: ignore[index]  # each index with its own kind of key
            del group[binding]
            if not group:
                del index[key]  # type: ignore[arg-type]  # as above

    def count(self, source: str) -> int:
        """Count the bindings from an exchange."""
        return len(self._by_source.get(source, ()))

    def has_source(self, source: str) -> bool:
        """Tell whether anything is bound from an exchange."""
        return source in self._by_source

    def find(self, source: str | None, destination: Destination | None) -> Iterator[Binding]:
        """Yield the bindings with this source and this destination; None is any. Oldest first."""
        if source is None and destination is None:
            for group in self._by_source.values():
                yield from group
        elif destination is None:
            yield from self._by_source.get(source or "", ())
        elif source is None:
            yield from self._by_destination.get(destination, ())
        else:
            from_source = self._by_source.get(source, {})
            to_destination = self._by_destination.get(destination, {})
            fewer, other = sorted((from_source, to_destination), key=len)
            yield from (binding for binding in fewer if binding in other)
