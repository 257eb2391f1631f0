"""Arguments of operations: names, types and defaults, checked alike for all front ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest


class Kind(Enum):
    """The type of an argument."""

    TEXT = "a string"
    FLAG = "true or false"
    INTEGER = "an integer"
    TEXTS = "a list of strings"
    TABLE = "a map with string keys"
    ANY = "any value"


_REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation. `secret`: it must not be logged."""

    name: str
    kind: Kind
    help: str
    default: object = _REQUIRED
    secret: bool = False
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    bounds: tuple[int, int] | None = None
    word: str | None = None

    @property
    def usual(self) -> object:
        """The default, if there is one."""
        return None if self.required else self.default

    @property
    def required(self) -> bool:
        """Whether every request must contain it."""
        return self.default is _REQUIRED


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
        value = given.get(argument.name)
        if value is None:
            if argument.required:
                raise BadRequest(
                    noun, f"{noun} property '{argument.name}' is missing: give {argument.kind.value}"
                )
            value = argument.default
        elif not _fits(argument.kind, value) and (argument.word is None or value != argument.word):
            raise BadRequest(
                noun,
                f"bad {noun} property {{{shown(argument.name)},{shown(value)}}}: "
                f"it must be {argument.kind.value}{'' if argument.word is None else f' or {argument.word}'}",
            )
        elif argument.choices and value not in argument.choices:
            raise BadRequest(
                noun,
                f"bad {noun} property {{{shown(argument.name)},{shown(value)}}}: "
                f"it must be one of {', '.join(argument.choices)}",
            )
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
