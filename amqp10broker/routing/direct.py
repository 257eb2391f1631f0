"""Direct exchanges: the routing key is the binding key."""

from __future__ import annotations

from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers


class DirectExchange:
    """Destinations by key."""

    cacheable = True
    per_key = True

    def __init__(self) -> None:
        """Begin without bindings."""
        self._by_key: dict[str, Destinations] = {}

    def check_binding(self, binding: Binding) -> None:
        """Any binding will do; arguments are kept, they only tell bindings apart."""

    def add(self, binding: Binding) -> None:
        """Take a binding."""
        found = self._by_key.get(binding.routing_key)
        if found is None:
            found = self._by_key[binding.routing_key] = Destinations()
        found.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        """Forget a binding."""
        found = self._by_key[binding.routing_key]
        found.remove(binding.destination)
        if not found:
            del self._by_key[binding.routing_key]

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        """Return what is bound with this very key."""
        found = self._by_key.get(routing_key)
        return found.listed() if found is not None else ()
