"""The kinds of exchange by name: those of this package, and those that installed packages add.

A package adds a kind by an entry point in the group ``amqp10broker.exchange_types``; its name is the
type's name, its object an `ExchangeTypeFactory`::

    [project.entry-points."amqp10broker.exchange_types"]
    x-by-length = "my_package.exchanges:ByLength"

Entry points are read at the first request for an unknown kind, and loaded at the first use of theirs, so
that other brokers have no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from amqp10broker.errors import InvalidArgument, PreconditionFailed
from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.consistent_hash import ConsistentHashExchange, ModulusHashExchange
from amqp10broker.routing.exchange import (
    Binding,
    Choose,
    Destination,
    ExchangeType,
    ExchangeTypeFactory,
    Headers,
)
from amqp10broker.routing.headers import HeadersExchange
from amqp10broker.routing.topic import TopicExchange


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


class LocalRandomExchange(FanoutExchange):
    cacheable = False

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self._choose = choose

    def check_binding(self, binding: Binding) -> None:
        """Requires a queue, and an empty key: a key would promise a choice that is not made."""
        if binding.routing_key:
            problem = f"Non empty binding '{binding.routing_key}' key not permitted"
        elif binding.destination.kind != "queue":
            problem = "Destination not found"
        else:
            return
        raise InvalidArgument(f"exchange '{binding.source}'", problem)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        listed = self._destinations.listed()
        if len(listed) < 2:
            return listed
        return (listed[self._choose(len(listed))],)


class DirectExchange:
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


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    # Imported here: it takes a broker a twentieth of its time to start, and hardly one needs it.
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
        """Raises `PreconditionFailed` if the kind is unknown, or its package cannot be loaded."""
        found = self._factories.get(name)
        if found is not None:
            return found
        entry_point = self._others().get(name)
        if entry_point is None:
            raise PreconditionFailed(f"exchange type '{name}'", f"unknown exchange type '{name}'")
        try:
            factory: ExchangeTypeFactory = entry_point.load()
        except Exception as error:
            # Another package's import may raise anything; report it to the client instead of ending the
            # broker.
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
