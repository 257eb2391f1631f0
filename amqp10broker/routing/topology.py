"""Exchanges and bindings of one virtual host: declaring, binding, deleting, and routing messages.

Methods with the prefix ``plan_`` check the rules and change nothing; ``put_`` and ``drop_`` apply a plan
without checks. The caller has checked permissions. `version` grows with every change: until then a cacheable
route holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused, InUse, NotFound, ReservedName
from amqp10broker.routing.exchange import (
    ALTERNATE_EXCHANGE,
    NOTHING,
    RESERVED_PREFIX,
    Binding,
    Choose,
    Destination,
    Exchange,
    ExchangeSpec,
    Headers,
    alternate_of,
    check_equivalent,
    check_length,
    check_not_direct_reply_to,
    no_headers,
    stripped,
)
from amqp10broker.routing.exchange_types import REGISTRY, Bindings, Registry

DEFAULT_EXCHANGE: Final = ""
PREDECLARED: Final = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)
"""Name, type, and whether it is internal."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The objects that are deleted with another one, including exchanges that auto-delete."""

    bindings: tuple[Binding, ...] = ()
    exchanges: tuple[Exchange, ...] = ()


_NO_REMOVAL: Final = Removal()


def in_turn() -> Choose:
    turn = -1

    def choose(count: int) -> int:
        nonlocal turn
        turn += 1
        return turn % count

    return choose


class Topology:
    def __init__(
        self,
        vhost: str,
        queue_exists: Callable[[str], bool],
        *,
        choose: Choose | None = None,
        registry: Registry = REGISTRY,
        policy_alternate: Callable[[str], str | None] = lambda exchange: None,
    ) -> None:
        """Create it with the predeclared exchanges. `choose`: their random choice; None: they take turns."""
        self.vhost = vhost
        self.version = 0
        self._queue_exists = queue_exists
        self._choose = choose or in_turn()
        self._registry = registry
        self._policy_alternate = policy_alternate
        self._exchanges: dict[str, Exchange] = {}
        self.all_bindings = Bindings()
        for name, kind, internal in PREDECLARED:
            table = registry.create(kind, NOTHING, self._choose)
            self._exchanges[name] = Exchange(name, kind, True, False, internal, NOTHING, table)

    # Exchanges

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._exchanges.values()))

    def find_exchange(self, name: str) -> Exchange | None:
        return self._exchanges.get(name)

    def lookup_exchange(self, name: str) -> Exchange:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFound(f"exchange '{name}'", f"no exchange '{name}' in vhost '{self.vhost}'")
        return exchange

    def plan_exchange(self, spec: ExchangeSpec) -> ExchangeSpec | None:
        """Check a declaration; None if an equal exchange exists. Raises `PreconditionFailed` (unknown type),
        `AccessRefused` (the default exchange, a new name with ``amq.``), `Inequivalent`, `InvalidArgument`.
        """
        name, arguments = stripped(spec.name), spec.arguments
        self._registry.factory(spec.type)
        self._refuse_default(name)
        exchange = self._exchanges.get(name)
        if exchange is not None:
            check_equivalent(exchange, self.vhost, spec)
            return None
        if name.startswith(RESERVED_PREFIX):
            raise ReservedName(
                f"exchange '{name}'", f"exchange name '{name}' contains reserved prefix 'amq.*'"
            )
        check_length("exchange name", name)
        alternate_of(name, self.vhost, arguments)
        frozen = MappingProxyType(dict(arguments)) if arguments else NOTHING
        # Checks the arguments.
        self._registry.create(spec.type, frozen, self._choose)
        return replace(spec, name=name, arguments=frozen)

    def put_exchange(self, spec: ExchangeSpec) -> None:
        alternate = alternate_of(spec.name, self.vhost, spec.arguments)
        if alternate is None:
            alternate = self._policy_alternate(spec.name)
        table = self._registry.create(spec.type, spec.arguments, self._choose)
        self._exchanges[spec.name] = Exchange(
            *(spec.name, spec.type, spec.durable, spec.auto_delete, spec.internal, spec.arguments),
            table,
            alternate,
        )
        self.version += 1

    def drop_exchange(self, name: str) -> None:
        del self._exchanges[name]
        self.version += 1

    def refresh_alternates(self) -> None:
        """Apply changed policies, of which the default exchange has none."""
        for exchange in self._exchanges.values():
            if exchange.name == DEFAULT_EXCHANGE or ALTERNATE_EXCHANGE in exchange.arguments:
                continue
            alternate = self._policy_alternate(exchange.name)
            if alternate != exchange.alternate:
                exchange.alternate = alternate
                self.version += 1

    def plan_delete_exchange(self, name: str, *, if_unused: bool = False) -> Removal | None:
        """Return what is deleted with an exchange; None if it does not exist. Raises `AccessRefused` (a
        predeclared name), `InUse` (`if_unused`, and something is bound from it).
        """
        self._refuse_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise ReservedName(
                f"exchange '{name}'",
                f"deletion of system exchange '{name}' in vhost '{self.vhost}' not allowed",
            )
        if name not in self._exchanges:
            return None
        if if_unused and self.all_bindings.count(name):
            raise InUse(f"exchange '{name}'", f"exchange '{name}' in vhost '{self.vhost}' in use")
        return self._removal((), [name])

    # Bindings

    def plan_bind(self, binding: Binding) -> bool:
        """Return whether a binding is new. Raises `AccessRefused` (the default exchange on either side, a
        direct reply-to queue), `NotFound`, and `InvalidArgument` (not for the exchange's kind).
        """
        self._refuse_unbindable(binding)
        source = self.lookup_exchange(binding.source)
        destination = binding.destination
        if destination.kind == "exchange":
            self.lookup_exchange(destination.name)
        elif not self._queue_exists(destination.name):
            raise NotFound(str(destination), f"no {destination} in vhost '{self.vhost}'")
        check_length("binding key", binding.routing_key)
        if binding in self.all_bindings:
            return False
        source.table.check_binding(binding)
        return True

    def put_binding(self, binding: Binding) -> None:
        source = self._exchanges[binding.source]
        self.all_bindings.add(binding)
        source.table.add(binding)
        source.exchange_destinations += binding.destination.kind == "exchange"
        self.version += 1

    def drop_binding(self, binding: Binding) -> None:
        source = self._exchanges[binding.source]
        self.all_bindings.remove(binding)
        source.table.remove(binding)
        source.exchange_destinations -= binding.destination.kind == "exchange"
        self.version += 1

    def plan_unbind(self, binding: Binding) -> Removal | None:
        """Return what is deleted with a binding; None if it does not exist. Raises `AccessRefused` as
        `plan_bind`.
        """
        # A missing exchange or queue is not an error: clients unbind when they clean up, after the last
        # unbind has deleted an auto-delete exchange.
        self._refuse_unbindable(binding)
        return self._removal([binding], ()) if binding in self.all_bindings else None

    def plan_queues_gone(self, names: Iterable[str]) -> Removal:
        """Return what is deleted with queues."""
        bindings: list[Binding] = []
        for name in names:
            bindings += self.all_bindings.find(None, Destination("queue", name))
        return self._removal(bindings, ()) if bindings else _NO_REMOVAL

    def bindings(self, source: str | None = None, destination: Destination | None = None) -> list[Binding]:
        """Return bindings, oldest first. The binding of every queue to the default exchange is not stored; it
        is returned first when the destination is given.
        """
        found: list[Binding] = []
        if (
            destination is not None
            and destination.kind == "queue"
            and source in (None, DEFAULT_EXCHANGE)
            and self._queue_exists(destination.name)
        ):
            found.append(Binding(DEFAULT_EXCHANGE, destination, destination.name))
        found += self.all_bindings.find(source, destination)
        return found

    def find_binding(
        self, source: str, destination: Destination, routing_key: str, arguments_hash: str
    ) -> Binding | None:
        """Return the binding with this hash of its arguments (`Binding.arguments_hash`)."""
        for binding in self.all_bindings.find(source, destination):
            if binding.routing_key == routing_key and binding.arguments_hash == arguments_hash:
                return binding
        return None

    # Routing

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Headers = no_headers,
        properties: Headers = no_headers,
    ) -> tuple[tuple[str, ...], bool]:
        """Find the queues for a message: their names, each once, in a stable order; and whether the same
        exchange and keys lead there until `version` changes. `keys`: the routing key, then those of CC and
        BCC.
        """
        table = exchange.table
        if exchange.name == DEFAULT_EXCHANGE:
            return self._default_route(keys)
        if not exchange.exchange_destinations and (len(keys) == 1 or not table.per_key):
            # This is one lookup in one table, with distinct queues as destinations.
            found = table.route(keys[0], headers, properties)
            names = tuple([destination.name for destination in found])
            if names or exchange.alternate is None:
                return names, table.cacheable
            if exchange.alternate not in self._exchanges:
                return (), table.cacheable
        return self._walk(exchange, keys, headers, properties)

    def _default_route(self, keys: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        exists = self._queue_exists
        if len(keys) == 1:
            return ((keys[0],), True) if exists(keys[0]) else ((), False)
        names = tuple(key for key in dict.fromkeys(keys) if exists(key))
        return names, all(map(exists, keys))

    def _walk(
        self, exchange: Exchange, keys: Sequence[str], headers: Headers, properties: Headers
    ) -> tuple[tuple[str, ...], bool]:
        queues: dict[str, None] = {}
        seen = {exchange.name}
        waiting = [exchange]
        cacheable = True
        # The list grows during the loop: exchanges are visited in the order in which they are found.
        for current in waiting:
            if current.name == DEFAULT_EXCHANGE:
                names, hit = self._default_route(keys)
                queues.update(dict.fromkeys(names))
                cacheable = cacheable and hit
                continue
            table = current.table
            cacheable = cacheable and table.cacheable
            matched = False
            for key in keys if table.per_key else keys[:1]:
                for destination in table.route(key, headers, properties):
                    matched = True
                    if destination.kind == "queue":
                        queues[destination.name] = None
                    elif destination.name not in seen:
                        seen.add(destination.name)
                        waiting.append(self._exchanges[destination.name])
            # An exchange with a destination needs no alternate, even if that leads nowhere.
            if not matched and current.alternate is not None and current.alternate not in seen:
                alternate = self._exchanges.get(current.alternate)
                if alternate is not None:
                    seen.add(alternate.name)
                    waiting.append(alternate)
        return tuple(queues), cacheable

    # Helpers

    def _removal(self, bindings: Iterable[Binding], exchanges: Iterable[str]) -> Removal:
        gone: dict[tuple[object, ...], Binding] = {}
        taken: dict[str, int] = {}
        doomed = list(exchanges)
        deleted: dict[str, Exchange] = {}

        def take(group: Iterable[Binding]) -> None:
            for binding in group:
                if binding.identity in gone:
                    continue
                gone[binding.identity] = binding
                name = binding.source
                if self._exchanges[name].auto_delete:
                    taken[name] = taken.get(name, 0) + 1
                    if taken[name] == self.all_bindings.count(name):
                        doomed.append(name)

        take(bindings)
        while doomed:
            name = doomed.pop()
            if name not in deleted:
                deleted[name] = self._exchanges[name]
                take(self.all_bindings.find(name, None))
                take(self.all_bindings.find(None, Destination("exchange", name)))
        return Removal(tuple(gone.values()), tuple(deleted.values()))

    def _refuse_default(self, name: str) -> None:
        if name == DEFAULT_EXCHANGE:
            raise AccessRefused("the default exchange", "operation not permitted on the default exchange")

    def _refuse_unbindable(self, binding: Binding) -> None:
        self._refuse_default(binding.source)
        destination = binding.destination
        if destination.kind == "exchange":
            self._refuse_default(destination.name)
        else:
            check_not_direct_reply_to(destination.name)
