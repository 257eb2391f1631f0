"""The words of the operation scripts: one call a line, with literals of both protocols' types.

``A.queue_declare("q", durable=True)`` is client ``A``, operation ``queue_declare`` and its arguments.
An argument is a Python literal, or a call of one of `TYPES` for what Python has no literal of. `show`
writes what a client saw in the same words, with everything left out that differs from run to run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import proton

TYPES: Final[Mapping[str, Callable[..., Any]]] = {
    # AMQP 0-9-1
    "seconds": lambda value: datetime.fromtimestamp(value, tz=UTC),
    "decimal": Decimal,
    # AMQP 1.0
    "symbol": proton.symbol,
    "ubyte": proton.ubyte,
    "byte": proton.byte,
    "short": proton.short,
    "uint": proton.uint,
    "int32": proton.int32,
    "ulong": proton.ulong,
    "float32": proton.float32,
    "timestamp": proton.timestamp,
    "uuid": UUID,
}

_GENERATED: Final = re.compile(
    r"amq\.(gen|ctag|dyn)[-.][^'\s\"]+|amq\.rabbitmq\.reply-to\.[^'\s\"]+|(?<=args=)[\w-]+"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of one client."""

    client: str
    operation: str
    positional: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)


def parse(line: str, **variables: Any) -> Call:
    match ast.parse(line.strip(), mode="eval").body:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=client), attr=operation)) as call:
            given = {each.arg: _value(each.value, variables) for each in call.keywords if each.arg}
            return Call(client, operation, [_value(each, variables) for each in call.args], given)
        case _:
            raise ValueError(f"not CLIENT.operation(...): {line}")


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name) if name in variables:
            return variables[name]
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in TYPES:
            return TYPES[name](*(_value(each, variables) for each in arguments))
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_value(key, variables): _value(value, variables) for key, value in pairs if key}
        case ast.List(elts=items):
            return [_value(item, variables) for item in items]
        case _:
            return ast.literal_eval(node)


def show(value: Any) -> str:
    match value:
        case dict():
            entries = sorted((show(key), show(each)) for key, each in value.items())
            return "{" + ", ".join(f"{key}: {each}" for key, each in entries) + "}"
        case proton.Array():
            return f"array({', '.join(show(each) for each in value.elements)})"
        case list() | tuple():
            return "[" + ", ".join(show(each) for each in value) + "]"
        case memoryview() | bytearray():
            return show(bytes(value))
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            return f"seconds({int(moment.timestamp())})"
        case Decimal():
            return f"decimal({str(value)!r})"
        case UUID():
            return f"uuid({str(value)!r})"
        case _:
            return mask(repr(value))


def show_fields(**fields: Any) -> str:
    return " ".join(f"{name}={show(value)}" for name, value in fields.items() if value is not None)


def mask(text: str) -> str:
    return _GENERATED.sub("<generated>", text)
