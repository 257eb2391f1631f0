"""Conversion between AMQP 1.0 values and plain ones, for arguments and results.

Plain values are those of the catalog: None, bool, int, float, str, bytes, list and dict with string keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from amqp10broker.errors import BadRequest
from amqp10broker.operations.arguments import shown
from amqp10broker.protocols.amqp10.codec import array_of
from amqp10broker.protocols.amqp10.types import Array, Map, Timestamp, UInt, ULong

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


def to_plain(value: object) -> Any:
    """Convert a decoded AMQP 1.0 value: integers of all widths become int, symbols become str. Raises
    `BadRequest` if the type has no counterpart in AMQP 0-9-1's tables, by which all queues are declared.
    """
    match value:
        case None | bool():
            return value
        case int() if not isinstance(value, Timestamp):
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes():
            return value
        case list() | tuple() | Array():
            return [to_plain(item) for item in value]
        case dict() | Map():
            return plain_table(value)
        case _:
            raise BadRequest(
                "argument",
                f"bad argument value {shown(value)} of type {type(value).__name__.lower()}: give a string, "
                "an integer, a boolean, a floating point number, binary, a list, an array or a map",
            )


def plain_table(value: object) -> dict[str, Any]:
    """Convert a decoded map to a table. Raises `BadRequest` if it is not a map, has keys other than strings,
    or values without a counterpart.
    """
    if not isinstance(value, dict | Map):
        raise BadRequest("map", f"{shown(value)} is no map")
    table: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise BadRequest("map", f"bad key {shown(key)} in a map: keys must be strings")
        table[str(key)] = to_plain(item)
    return table


def from_plain(value: object) -> Any:
    """Convert a table's value for encoding: text becomes utf8, integers become long."""
    match value:
        case None | bool() | bytes():
            return value
        case int():
            number = int(value)
            return number if _INT64_MIN <= number <= _INT64_MAX else float(number)
        case Decimal() | float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {str(key): from_plain(item) for key, item in value.items()}
        case Sequence():
            return [from_plain(item) for item in value]
        case _:
            return str(value)


_OFFSETS: Final = ("first_offset", "next_offset")


def queue_map(queue: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the description of a queue to the types that clients expect."""
    return {
        **queue,
        "arguments": from_plain(queue["arguments"]),
        "message_count": ULong(queue["message_count"]),
        "consumer_count": UInt(queue["consumer_count"]),
        "replicas": array_of(queue["replicas"]),
        **{
            name: ULong(queue[name])
            for name in ("first_offset", "next_offset")
            if queue.get(name) is not None
        },
    }


def binding_map(binding: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the description of a binding to the types that clients expect."""
    return {**binding, "arguments": from_plain(binding["arguments"])}


def count_map(counted: Mapping[str, int]) -> dict[str, Any]:
    """Convert a count of messages to the type that clients expect."""
    return {"message_count": ULong(counted["message_count"])}
