"""``x-local-random``: each message goes to one of the bound queues, chosen at random."""

from __future__ import annotations

from amqp10broker.errors import InvalidArgument
from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Choose, Destination, Headers


class LocalRandomExchange:
    """Queues, and the function that chooses among them."""

    cacheable = False
    per_key = False

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._destinations = Destinations()

    def check_binding(self, binding: Binding) -> None:
        """Requires an empty key, because a key would promise a choice that is not made, and a queue as
        destination.
        """
        if binding.routing_key:
            problem = f"Non empty binding '{binding.routing_key}' key not permitted"
        elif binding.destination.kind != "queue":
            problem = "Destination not found"
        else:
            return
        raise InvalidArgument(f"exchange '{binding.source}'", problem)

    def add(self, binding: Binding) -> None:
        self._destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._destinations.remove(binding.destination)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        listed = self._destinations.listed()
        if len(listed) < 2:
            return listed
        return (listed[self._choose(len(listed))],)
