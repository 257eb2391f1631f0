"""Exchanges, bindings, and the interface of a kind of exchange.

A kind (direct, fanout, topic, ... or one of an installed package) is an `ExchangeType`: it stores the
bindings of one exchange in a form that finds the matching ones quickly. `registry` makes one by name,
`topology` owns all exchanges of a virtual host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final, Literal, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.routing.arguments import canonical_table, table_hash

Headers = Callable[[], Mapping[str, object]]
"""Returns a message's headers; called only by kinds that use them, so that they are decoded only then."""

Choose = Callable[[int], int]
"""Takes a count of at least 1 and returns an index below it; the source of randomness in routing."""

NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


def no_headers() -> Mapping[str, object]:
    return NOTHING


@dataclass(frozen=True, slots=True)
class Destination:
    kind: Literal["queue", "exchange"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One rule of an exchange. Two bindings are equal if source, destination, key and arguments are."""

    source: str
    destination: Destination
    routing_key: str = ""
    arguments: Mapping[str, object] = field(default_factory=no_headers)
    """Read-only, as given; compared by kind and content (`arguments.canonical`)."""
    identity: tuple[object, ...] = field(init=False, repr=False)
    """Source, kind and name of the destination, key, canonical arguments or ``()``."""
    _hash: int = field(init=False, repr=False)
    _arguments_identity: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        arguments = MappingProxyType(dict(self.arguments)) if self.arguments else NOTHING
        object.__setattr__(self, "arguments", arguments)
        identity = (
            self.source,
            self.destination.kind,
            self.destination.name,
            self.routing_key,
            canonical_table(arguments) if arguments else (),
        )
        object.__setattr__(self, "identity", identity)
        object.__setattr__(self, "_hash", hash(identity))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self.identity == other.identity

    def __hash__(self) -> int:
        return self._hash

    @property
    def arguments_hash(self) -> str:
        """Six characters for the binding's path; empty without arguments."""
        return table_hash(self.arguments, 4)

    @property
    def arguments_identity(self) -> str:
        """A collision-free hash of 22 characters."""
        if self.arguments and not self._arguments_identity:
            object.__setattr__(self, "_arguments_identity", table_hash(self.arguments, 16))
        return self._arguments_identity


class ExchangeType(Protocol):
    """The bindings of one exchange, and their choice of destinations.

    `add` and `remove` are called once for each binding, never twice for the same one; several bindings may
    have the same destination.
    """

    @property
    def cacheable(self) -> bool:
        """Whether the choice depends on the routing key and the bindings alone."""

    @property
    def per_key(self) -> bool:
        """Whether a message with several keys is routed by each; otherwise `route` gets the first only."""

    def check_binding(self, binding: Binding) -> None:
        """Raise `InvalidArgument` if this kind of exchange cannot use a binding."""

    def add(self, binding: Binding) -> None:
        """Add a binding that was checked before."""

    def remove(self, binding: Binding) -> None:
        """Remove a binding that was added."""

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        """Return the destinations for a message, each once. `properties`: by their name in AMQP 0-9-1."""


ExchangeTypeFactory = Callable[[Mapping[str, object], Choose], ExchangeType]
"""Makes the empty table of a new exchange from its arguments; raises `InvalidArgument` if they are wrong."""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    name: str
    type: str = "direct"
    durable: bool = True
    """It survives a restart of the broker."""
    auto_delete: bool = False
    """It is deleted with the last binding from it."""
    internal: bool = False
    """Clients may not publish to it; stored but not enforced here."""
    arguments: Mapping[str, object] = field(default_factory=no_headers, hash=False)


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange of a virtual host. Only `Topology` changes it, except for the counters."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, object]
    table: ExchangeType
    alternate: str | None = None
    """Name of the exchange for messages without a destination; it need not exist."""
    exchange_destinations: int = 0
    """Number of bindings to exchanges; with none, one lookup in the table is the whole route."""
    published: int = 0
    """Messages from publishers, or dead-lettered by queues; only grows, counted once a batch."""
    unroutable: int = 0
    """The published messages that reached no queue."""
    returned: int = 0
    """The unroutable messages that were returned to their publisher."""

    @property
    def spec(self) -> ExchangeSpec:
        return ExchangeSpec(
            self.name, self.type, self.durable, self.auto_delete, self.internal, self.arguments
        )

    def counted(self) -> dict[str, int]:
        return {"published": self.published, "unroutable": self.unroutable, "returned": self.returned}

    def count(self, messages: int, *, routed: bool) -> None:
        self.published += messages
        if not routed:
            self.unroutable += messages
