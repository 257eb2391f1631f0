"""Exchanges, bindings, and the interface of a kind of exchange.

A kind (direct, fanout, ... or one of an installed package) is an `ExchangeType`: it stores the bindings of
one exchange in a form that finds the matching ones quickly.

Values of arguments come from several APIs, each with its own classes for numbers. Here only kind and content
count: integers of any width are integers, text is text whether it came as `str` or as UTF-8 `bytes`; but an
integer, a float and a boolean are never equal.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Literal, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused, Inequivalent, InvalidArgument

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1

# RabbitMQ's names of field types, by class name: routing does not import protocols.
_TYPE_NAMES: Final = {
    "Int8": "byte",
    "UInt8": "unsignedbyte",
    "Int16": "short",
    "UInt16": "unsignedshort",
    "Int32": "signedint",
    "UInt32": "unsignedint",
    "Int64": "long",
    "Timestamp": "timestamp",
    "Float32": "float",
    "ByteArray": "binary",
}


def canonical(value: object) -> object:
    """Return a hashable form that is equal for two values exactly if they count as the same: text and
    integers themselves, everything else as a tuple that begins with its kind.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return ("bytes", content)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return int(value)
    if value is None:
        return ("void",)
    if isinstance(value, float):
        return ("float", float(value))
    if isinstance(value, Decimal):
        return ("decimal", value)
    if isinstance(value, Mapping):
        return ("table", canonical_table(value))
    if isinstance(value, list | tuple):
        return ("array", tuple(canonical(item) for item in value))
    # A type of another protocol (a UUID) is identified by its class and its text.
    return (type(value).__name__, str(value))


def canonical_table(arguments: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple((str(key), canonical(arguments[key])) for key in sorted(arguments))


def table_hash(arguments: Mapping[str, object], size_bytes: int) -> str:
    """Return a table's hash in base64url without padding, the same everywhere; empty without entries."""
    if not arguments:
        return ""
    parts: list[bytes] = []
    _encode(("table", canonical_table(arguments)), parts)
    digest = hashlib.blake2b(b"".join(parts), digest_size=size_bytes).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def hash64(value: object) -> int:
    """Return a 64-bit hash of a value, the same everywhere and for equal values."""
    form = canonical(value)
    if isinstance(form, str):
        content = form.encode("utf-8", "surrogatepass")
    else:
        parts: list[bytes] = []
        _encode(form, parts)
        content = b"".join(parts)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _encode(form: object, parts: list[bytes]) -> None:
    if isinstance(form, tuple):
        parts.append(b"(" + struct.pack(">I", len(form)))
        for item in form:
            _encode(item, parts)
        return
    if isinstance(form, str):
        letter, content = b"s", form.encode("utf-8", "surrogatepass")
    elif isinstance(form, bytes):
        letter, content = b"b", form
    elif isinstance(form, bool):
        letter, content = b"t", b"\x01" if form else b"\x00"
    elif isinstance(form, float):
        # Equal values have equal encodings: -0.0 is 0.0, and below 1.00 is 1.0.
        letter, content = b"d", struct.pack(">d", form + 0.0)
    elif isinstance(form, Decimal):
        letter, content = b"i", str(form.normalize()).encode()
    else:
        letter, content = b"i", str(form).encode()
    parts.append(letter + struct.pack(">I", len(content)) + content)


def type_name(value: object) -> str:
    name = _TYPE_NAMES.get(type(value).__name__)
    if name is not None:
        return name
    match value:
        case str() | bytes():
            return "longstr"
        case bool():
            return "bool"
        case int():
            return "signedint" if _INT32_MIN <= value <= _INT32_MAX else "long"
        case float():
            return "double"
        case Decimal():
            return "decimal"
        case None:
            return "void"
        case Mapping():
            return "table"
        case list() | tuple():
            return "array"
        case _:
            return "binary"


def plain_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return "undefined" if value is None else str(value)


Headers = Callable[[], Mapping[str, object]]
"""Returns a message's headers; only kinds that use them call it."""

Choose = Callable[[int], int]
"""Takes a count of at least 1 and returns a random index below it."""

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
    """Read-only. They are compared by kind and content (`canonical`)."""
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
    """The bindings of one exchange, and their choice of destinations (`docs/exchange-types.md`)."""

    @property
    def cacheable(self) -> bool:
        """Whether only the routing key and the bindings determine the destinations."""

    @property
    def per_key(self) -> bool:
        """Whether a message with several keys is routed by each; otherwise `route` gets only the first."""

    def check_binding(self, binding: Binding) -> None:
        """Raise `InvalidArgument` if this kind of exchange cannot use a binding."""

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        """Return the destinations for a message, each once. `properties`: by their name in AMQP 0-9-1."""


ExchangeTypeFactory = Callable[[Mapping[str, object], Choose], ExchangeType]
"""Makes the empty table of a new exchange from its arguments; raises `InvalidArgument` if they are wrong."""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    """It is deleted with the last binding from it."""
    internal: bool = False
    """Clients may not publish to it."""
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
    """The exchange for messages without a destination; it may not exist."""
    exchange_destinations: int = 0
    """The number of bindings to exchanges; without any, one lookup in the table gives the whole route."""
    published: int = 0
    """Messages from publishers, or dead-lettered by queues."""
    unroutable: int = 0
    returned: int = 0

    @property
    def spec(self) -> ExchangeSpec:
        return ExchangeSpec(
            self.name, self.type, self.durable, self.auto_delete, self.internal, self.arguments
        )

    def counted(self) -> dict[str, int]:
        return {"published": self.published, "unroutable": self.unroutable, "returned": self.returned}


NAME_BYTES_MAX: Final = 255
"""The limit of an AMQP 0-9-1 short string."""
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
RESERVED_PREFIX: Final = "amq."
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue for replies; each real name begins with it and a dot."""

_CR_LF: Final = {ord("\r"): None, ord("\n"): None}


def stripped(name: str) -> str:
    """Return a name without carriage returns and line feeds, as it is declared."""
    return name.translate(_CR_LF) if "\r" in name or "\n" in name else name


def check_not_direct_reply_to(queue: str) -> None:
    """Refuse to bind, or to delete, the queue of a direct reply-to consumer."""
    if queue == DIRECT_REPLY_TO or queue.startswith(DIRECT_REPLY_TO + "."):
        raise AccessRefused(
            f"queue '{queue}'", f"operation not permitted on the direct reply-to queue '{queue}'"
        )


def check_length(what: str, name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise InvalidArgument(
            what, f"{what} '{name[:32]}...' has {size} bytes: use at most {NAME_BYTES_MAX}, counted in UTF-8"
        )


def alternate_of(name: str, vhost: str, arguments: Mapping[str, object]) -> str | None:
    """Return the alternate exchange. Raises `InvalidArgument`."""
    if ALTERNATE_EXCHANGE not in arguments:
        return None
    value = arguments[ALTERNATE_EXCHANGE]
    # Only text, because permissions are checked on it.
    if not isinstance(value, str):
        given = "binary" if isinstance(value, bytes) else type_name(value)
        raise InvalidArgument(
            f"exchange '{name}'",
            f"invalid type '{given}' for arg '{ALTERNATE_EXCHANGE}' in exchange '{name}' in vhost '{vhost}'",
        )
    return str(value)


def check_equivalent(exchange: Exchange, vhost: str, spec: ExchangeSpec) -> None:
    """Raise `Inequivalent` with the first difference. The alternate is the only argument that counts."""

    def differ(argument: str, received: str, current: str) -> Inequivalent:
        return Inequivalent(
            f"exchange '{exchange.name}'",
            f"inequivalent arg '{argument}' for exchange '{exchange.name}' in vhost '{vhost}':"
            f" received {received} but current is {current}",
        )

    for argument in ("type", "durable", "auto_delete", "internal"):
        given, kept = getattr(spec, argument), getattr(exchange, argument)
        if given != kept:
            raise differ(argument, f"'{plain_text(given)}'", f"'{plain_text(kept)}'")
    received = _alternate_text(spec.arguments)
    current = _alternate_text(exchange.arguments)
    if (received == "none") != (current == "none"):
        raise differ(ALTERNATE_EXCHANGE, received, current)
    now, before = spec.arguments.get(ALTERNATE_EXCHANGE), exchange.arguments.get(ALTERNATE_EXCHANGE)
    if canonical(now) != canonical(before):
        raise differ(ALTERNATE_EXCHANGE, f"'{plain_text(now)}'", f"'{plain_text(before)}'")


def _alternate_text(arguments: Mapping[str, object]) -> str:
    if ALTERNATE_EXCHANGE not in arguments:
        return "none"
    value = arguments[ALTERNATE_EXCHANGE]
    return f"the value '{plain_text(value)}' of type '{type_name(value)}'"
