"""Topologies for tests: a set of queue names, a virtual host "/", and short ways to bind and route."""

from __future__ import annotations

from collections.abc import Mapping

from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.routing.topology import Topology


def queue(name: str) -> Destination:
    """Name a queue."""
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    """Name an exchange."""
    return Destination("exchange", name)


class Small:
    """A topology whose queues are the set `queues`."""

    def __init__(self, *queues: str) -> None:
        self.queues = set(queues)
        self.topology = Topology("/", lambda name: name in self.queues)

    def declare(self, name: str, type: str = "direct", **settings: object) -> None:
        """Declare an exchange."""
        arguments = {
            key.replace("_", "-"): settings.pop(key) for key in ["alternate_exchange"] & settings.keys()
        }
        assert self.topology.declare_exchange(name, type, arguments=arguments, **settings)[1]  # type: ignore[arg-type]

    def bind(
        self,
        source: str,
        destination: Destination | str,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> Binding:
        """Bind a queue (by name) or anything else; the binding must be new."""
        binding = self.binding(source, destination, key, arguments)
        assert self.topology.bind(binding)
        return binding

    @staticmethod
    def binding(
        source: str,
        destination: Destination | str,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> Binding:
        """Write a binding."""
        end = queue(destination) if isinstance(destination, str) else destination
        return Binding(source, end, key, arguments or {})

    def route(
        self,
        source: str,
        *keys: str,
        headers: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> tuple[str, ...]:
        """Return the queues for a message."""
        return self.route_with_cacheable(source, *keys, headers=headers, properties=properties)[0]

    def route_with_cacheable(
        self,
        source: str,
        *keys: str,
        headers: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> tuple[tuple[str, ...], bool]:
        """Return the queues for a message, and whether that may be kept."""
        found = self.topology.lookup_exchange(source)
        return self.topology.route(found, keys or ("",), lambda: headers or {}, lambda: properties or {})

    def exchanges(self) -> set[str]:
        """Return the names of the declared exchanges."""
        return {one.name for one in self.topology if one.name and not one.name.startswith("amq.")}

    def delete_queue(self, name: str) -> None:
        """Delete a queue as its virtual host does: first it is gone, then its bindings go."""
        self.queues.discard(name)
        self.topology.remove_queue(name)
