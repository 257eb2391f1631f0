"""Direct exchanges: the routing key is the binding key."""

from __future__ import annotations

from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers


class DirectExchange:
    """Destinations by binding key; the routing key equals it."""

    cacheable = True
    per_key = True

    def __init__(self) -> None:
        self._by_key: dict[str, Destinations] = {}

    def check_binding(self, binding: Binding) -> None:
        """Any binding is valid; arguments are stored, and only make bindings distinct."""

    def add(self, binding: Binding) -> None:
        found = self._by_key.get(binding.routing_key)
        if found is None:
            found = self._by_key[binding.routing_key] = Destinations()
        found.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        found = self._by_key[binding.routing_key]
        found.remove(binding.destination)
        if not found:
            del self._by_key[binding.routing_key]

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        found = self._by_key.get(routing_key)
        return found.listed() if found is not None else ()
