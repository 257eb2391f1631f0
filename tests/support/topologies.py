"""Topologies for tests: a set of queue names, a virtual host "/", and short ways to bind and route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp10broker.metadata.queue import QueueHandle, QueueSpec
from amqp10broker.routing.exchange import Binding, Destination, Exchange, ExchangeSpec, stripped
from amqp10broker.routing.topology import Removal, Topology


class NoHost:
    """For catalogs in which no queue is declared."""

    def start_queue(self, queue: QueueSpec) -> QueueHandle:
        raise AssertionError(f"nobody was to run the queue {queue.name}")


def declare_exchange(
    topology: Topology, name: str, type: str = "direct", **settings: Any
) -> tuple[Exchange, bool]:
    """Plan an exchange and make it; return it, and whether it is new."""
    planned = topology.plan_exchange(ExchangeSpec(name, type, **settings))
    if planned is not None:
        topology.put_exchange(planned)
    return topology.lookup_exchange(stripped(name)), planned is not None


def delete_exchange(topology: Topology, name: str, *, if_unused: bool = False) -> bool:
    """Plan the deletion of an exchange and run it; return whether it existed."""
    return _drop(topology, topology.plan_delete_exchange(name, if_unused=if_unused))


def bind(topology: Topology, binding: Binding) -> bool:
    """Plan a binding and make it; return whether it is new."""
    new = topology.plan_bind(binding)
    if new:
        topology.put_binding(binding)
    return new


def unbind(topology: Topology, binding: Binding) -> bool:
    """Plan the removal of a binding and run it; return whether it existed."""
    return _drop(topology, topology.plan_unbind(binding))


def remove_queue(topology: Topology, name: str) -> None:
    """Plan a queue's deletion with its bindings, and run it."""
    _drop(topology, topology.plan_queues_gone([name]))


def _drop(topology: Topology, removal: Removal | None) -> bool:
    if removal is None:
        return False
    for binding in removal.bindings:
        topology.drop_binding(binding)
    for exchange in removal.exchanges:
        topology.drop_exchange(exchange.name)
    return True


def queue(name: str) -> Destination:
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


class Small:
    """A topology whose queues are the set `queues`."""

    def __init__(self, *queues: str) -> None:
        self.queues = set(queues)
        self.topology = Topology("/", lambda name: name in self.queues)

    def declare(self, name: str, type: str = "direct", **settings: object) -> None:
        arguments = {
            key.replace("_", "-"): settings.pop(key) for key in ["alternate_exchange"] & settings.keys()
        }
        assert declare_exchange(self.topology, name, type, arguments=arguments, **settings)[1]  # type: ignore[arg-type]

    def bind(
        self,
        source: str,
        destination: Destination | str,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> Binding:
        binding = self.binding(source, destination, key, arguments)
        assert bind(self.topology, binding)
        return binding

    @staticmethod
    def binding(
        source: str,
        destination: Destination | str,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> Binding:
        end = queue(destination) if isinstance(destination, str) else destination
        return Binding(source, end, key, arguments or {})

    def route(
        self,
        source: str,
        *keys: str,
        headers: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> tuple[str, ...]:
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
        return {one.name for one in self.topology if one.name and not one.name.startswith("amq.")}

    def delete_queue(self, name: str) -> None:
        remove_queue(self.topology, name)
        self.queues.discard(name)
