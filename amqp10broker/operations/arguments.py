"""Arguments of operations: names, types and defaults, checked alike for all front ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Annotated, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused, BadRequest, ReservedName


class Kind(Enum):
    """The type of an argument."""

    TEXT = "a string"
    FLAG = "true or false"
    INTEGER = "an integer"
    TEXTS = "a list of strings"
    TABLE = "a map with string keys"
    ANY = "any value"


@dataclass(frozen=True, slots=True)
class Check:
    """The limits of an argument's value.

    Attributes:
        secret: it must not be logged.
        known: examples of values; others are allowed.
        keys: of a table, with their descriptions.
        bounds: the smallest and the largest integer.
        word: a text that is allowed in place of an integer.
    """

    secret: bool = False
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    bounds: tuple[int, int] | None = None
    word: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation. `default`: None if it is required."""

    name: str
    kind: Kind
    help: str
    required: bool
    default: object
    check: Check


Name = Annotated[str, "its name"]
XArguments = Annotated[dict[str, Any], "x-arguments"]
IfUnused = Annotated[bool, "only if nobody uses it"]
Durable = Annotated[bool, "it survives a restart"]
Vhost = Annotated[str | None, "name of the virtual host; the caller's own if not given"]
NodeName = Annotated[str, "name of the node; what stands behind an @ does not matter"]
Found = Annotated[str, "regular expression, found anywhere in the name"]
EMPTY: Final[dict[str, Any]] = {}
"""The default of a table."""


def checked(noun: str, arguments: tuple[Argument, ...], given: Mapping[str, object]) -> dict[str, Any]:
    """Check the arguments of an operation, and return them with defaults. Raises `BadRequest` if one is
    unknown, of a wrong type, or missing.
    """
    known = {argument.name: argument for argument in arguments}
    for name, value in given.items():
        if name not in known:
            raise BadRequest(
                noun, f"bad {noun} property {{{shown(name)},{shown(value)}}}: known are {', '.join(known)}"
            )
    values: dict[str, Any] = {}
    for argument in arguments:
        check, value = argument.check, given.get(argument.name)
        wanted = None
        if value is None:
            if argument.required:
                raise BadRequest(
                    noun, f"{noun} property '{argument.name}' is missing: give {argument.kind.value}"
                )
            value = argument.default
        elif not _fits(argument.kind, value) and (check.word is None or value != check.word):
            wanted = argument.kind.value if check.word is None else f"{argument.kind.value} or {check.word}"
        elif check.choices and value not in check.choices:
            wanted = f"one of {', '.join(check.choices)}"
        if wanted is not None:
            named = f"{{{shown(argument.name)},{shown(value)}}}"
            raise BadRequest(noun, f"bad {noun} property {named}: it must be {wanted}")
        values[argument.name] = value
    return values


def _fits(kind: Kind, value: object) -> bool:
    match kind:
        case Kind.TEXT:
            return isinstance(value, str)
        case Kind.FLAG:
            return isinstance(value, bool)
        case Kind.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case Kind.TEXTS:
            return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        case Kind.TABLE:
            return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        case Kind.ANY:
            return True


def shown(value: object) -> str:
    """Format a value for an error text: like JSON, and never longer than a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f"'{value}'"
    else:
        text = "null" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def counted(count: int, noun: str) -> str:
    """Format a count with a noun: ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


RESERVED_PREFIX: Final = "amq."
NAME_BYTES_MAX: Final = 255


def check_name(kind: str, name: str) -> str:
    """Return the name, if it is valid.

    AMQP 0-9-1 drops line ends from names; over AMQP 1.0 they are refused, so that no name is silently
    changed. Raises `BadRequest` if it contains a line end, or is too long.
    """
    if "\n" in name or "\r" in name:
        raise BadRequest(
            f"{kind} '{name}'",
            f"Bad name '{name}': line feed and carriage return characters not allowed",
        )
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise BadRequest(
            f"{kind} '{name[:32]}...'", f"Bad name '{name[:32]}...': longer than {NAME_BYTES_MAX} bytes"
        )
    return name


def check_not_default(exchange: str) -> str:
    """Return the name; raises `AccessRefused` for the default exchange, which cannot be changed."""
    if exchange == "":
        raise AccessRefused("exchange ''", "operation not permitted on the default exchange")
    return exchange


def check_not_reserved(kind: str, name: str) -> str:
    """Return the name, if it does not begin as the broker's own names do. Raises `ReservedName`."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(
            f"{kind} '{name}'", f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
        )
    return name
