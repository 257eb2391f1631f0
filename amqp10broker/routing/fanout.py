"""Fanout exchanges: every destination gets every message."""

from __future__ import annotations

from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers


class FanoutExchange:
    cacheable = True
    per_key = False

    def __init__(self) -> None:
        self._destinations = Destinations()

    def check_binding(self, binding: Binding) -> None:
        """Any binding is valid; key and arguments only make bindings distinct."""

    def add(self, binding: Binding) -> None:
        self._destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._destinations.remove(binding.destination)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        return self._destinations.listed()
