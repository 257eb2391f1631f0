"""Fanout exchanges: every destination gets every message."""

from __future__ import annotations

from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers


class FanoutExchange:
    """All destinations."""

    cacheable = True
    per_key = False

    def __init__(self) -> None:
        """Begin without bindings."""
        self._destinations = Destinations()

    def check_binding(self, binding: Binding) -> None:
        """Any binding will do; key and arguments only tell bindings apart."""

    def add(self, binding: Binding) -> None:
        """Take a binding."""
        self._destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        """Forget a binding."""
        self._destinations.remove(binding.destination)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        """Return everything that is bound."""
        return self._destinations.listed()
