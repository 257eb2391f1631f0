"""What an exchange is: its record, what it is bound to, and what a kind of exchange must be able to do.

A kind (direct, fanout, topic, ... or one that an installed package adds) is an `ExchangeType`: it holds the
bindings of one exchange in whatever form finds the matching ones quickly. `registry` makes one by name,
`topology` owns all exchanges of a virtual host and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final, Literal, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.routing.arguments import arguments_hash, arguments_identity, canonical_table

Headers = Callable[[], Mapping[str, object]]
"""Gives a message's headers; called only by a kind that looks at them, so that they are decoded only then."""

Choose = Callable[[int], int]
"""Takes a count of at least 1 and returns an index below it; how chance comes into this room."""

NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


def no_headers() -> Mapping[str, object]:
    """Return the headers of a message that has none, or the arguments of a binding without any."""
    return NOTHING


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a binding leads."""

    kind: Literal["queue", "exchange"]
    name: str

    def __str__(self) -> str:
        """Write it as error texts name it."""
        return f"{self.kind} '{self.name}'"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One rule of an exchange. Two bindings are the same if source, destination, key and arguments are."""

    source: str
    """Name of the exchange."""
    destination: Destination
    routing_key: str = ""
    arguments: Mapping[str, object] = field(default_factory=no_headers)
    """Read-only, as given; compared by kind and content (`arguments.canonical`)."""
    identity: tuple[object, ...] = field(init=False, repr=False)
    """What makes it itself: source, kind and name of the destination, key, canonical arguments or ``()``."""
    _hash: int = field(init=False, repr=False)
    _arguments_identity: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        """Freeze the arguments and work out what makes this binding itself."""
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
        """Compare by content."""
        return isinstance(other, Binding) and self.identity == other.identity

    def __hash__(self) -> int:
        """Agree with equality."""
        return self._hash

    @property
    def arguments_hash(self) -> str:
        """What stands for the arguments in the binding's path; empty without arguments."""
        return arguments_hash(self.arguments)

    @property
    def arguments_identity(self) -> str:
        """What no other arguments have (`arguments.arguments_identity`), worked out once."""
        if self.arguments and not self._arguments_identity:
            object.__setattr__(self, "_arguments_identity", arguments_identity(self.arguments))
        return self._arguments_identity


class ExchangeType(Protocol):
    """The bindings of one exchange, and how they choose.

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
        """Look at a binding before it is added.

        Raises:
            InvalidArgument: this kind of exchange cannot use it.
        """

    def add(self, binding: Binding) -> None:
        """Take a binding, checked before."""

    def remove(self, binding: Binding) -> None:
        """Forget a binding that was added."""

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        """Return the destinations for a message, each once, in an order that does not change by itself.

        Args:
            routing_key: the message's routing key.
            headers: what a headers exchange compares.
            properties: the message's properties by their AMQP 0-9-1 name: ``message_id``.
        """


ExchangeTypeFactory = Callable[[Mapping[str, object], Choose], ExchangeType]
"""Makes the empty table of a new exchange of its arguments; raises `InvalidArgument` if they are wrong."""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """An exchange as it is declared."""

    name: str
    type: str = "direct"
    """Its kind; `registry` has the names."""
    durable: bool = True
    """It outlives the broker process."""
    auto_delete: bool = False
    """It goes with the last binding from it."""
    internal: bool = False
    """Clients may not publish to it; only kept here."""
    arguments: Mapping[str, object] = field(default_factory=no_headers, hash=False)
    """``alternate-exchange`` and those of the kind."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange of a virtual host. `Topology` alone changes it, but for the counters."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, object]
    table: ExchangeType
    alternate: str | None = None
    """Name of the exchange that gets what this one has no destination for; it need not exist."""
    exchange_destinations: int = 0
    """How many of its bindings lead to exchanges; with none, one look into the table is the whole route."""
    published: int = 0
    """Messages that publishers, or queues that gave them up, sent to it; only grows, counted once a batch."""
    unroutable: int = 0
    """Those of them that reached no queue."""
    returned: int = 0
    """Those of these that went back to their publisher."""

    @property
    def spec(self) -> ExchangeSpec:
        """As it was declared."""
        return ExchangeSpec(
            self.name, self.type, self.durable, self.auto_delete, self.internal, self.arguments
        )

    def counted(self) -> dict[str, int]:
        """All that is counted of it."""
        return {"published": self.published, "unroutable": self.unroutable, "returned": self.returned}

    def count(self, messages: int, *, routed: bool) -> None:
        """Count messages that were sent to it.

        Args:
            messages: how many.
            routed: they reached a queue.
        """
        self.published += messages
        if not routed:
            self.unroutable += messages
