"""Conversion of values between the type systems of AMQP 0-9-1 and AMQP 1.0, width for width.

A value without a counterpart becomes `DROPPED`, and so do items of arrays and tables, each by itself;
nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from amqp10broker.protocols.amqp091 import types as t091
from amqp10broker.protocols.amqp10 import types as t10

DROPPED: Final = object()
"""Stands for a value that has no counterpart."""

TEXT_BYTES_MAX: Final = 4096
"""A longer text of AMQP 0-9-1 becomes binary: its long strings are as often data as text, and every reader
would have to check for UTF-8.
"""

NAME_BYTES_MAX: Final = 255
"""The limit of a short string: names in tables, and most properties."""

# Only the spelling that comes back: an upper-case one stays text, or a requester that compares its
# correlation-id with the one of the reply would find another.
_URN_UUID: Final = re.compile("urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_INT64_MAX: Final = 2**63 - 1


def uuid_of(text: str) -> UUID | None:
    """Return the UUID that a text like ``urn:uuid:3d0c...`` names, None for any other text."""
    return UUID(text[9:]) if _URN_UUID.fullmatch(text) else None


def urn_of(uuid: UUID) -> str:
    return f"urn:uuid:{uuid}"


# AMQP 0-9-1 to AMQP 1.0


def simple_to_amqp10(value: Any) -> Any:
    """Convert a header to an application-property, which cannot be a table or an array."""
    convert = _SIMPLE_TO_10.get(type(value))
    return DROPPED if convert is None else convert(value)


def value_to_amqp10(value: Any) -> Any:
    """Convert a header to a message-annotation: tables become maps, arrays become lists."""
    if type(value) is dict:
        return {
            t10.Symbol(key) if key.isascii() else key: found
            for key, item in value.items()
            if (found := value_to_amqp10(item)) is not DROPPED
        }
    if type(value) is list:
        return [found for item in value if (found := value_to_amqp10(item)) is not DROPPED]
    return simple_to_amqp10(value)


def _same(value: Any) -> Any:
    return value


def _text_or_binary(value: str) -> str | bytes:
    # A character takes up to four bytes.
    if len(value) * 4 <= TEXT_BYTES_MAX:
        return value
    content = value.encode()
    return content if len(content) > TEXT_BYTES_MAX else value


def milliseconds(seconds: int) -> Any:
    return t10.Timestamp(seconds * 1000) if seconds * 1000 <= _INT64_MAX else DROPPED


def _decimal64(value: Decimal) -> t10.Decimal64:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    return t10.Decimal64((sign << 63 | (exponent + 398) << 53 | coefficient).to_bytes(8, "big"))


_SIMPLE_TO_10: Final[dict[type, Callable[[Any], Any]]] = {
    str: _text_or_binary,
    bytes: _same,
    t091.ByteArray: bytes,
    bool: _same,
    t091.Int8: t10.Byte,
    t091.UInt8: t10.UByte,
    t091.Int16: t10.Short,
    t091.UInt16: t10.UShort,
    t091.Int32: t10.Int,
    t091.UInt32: t10.UInt,
    t091.Int64: t10.Long,
    t091.Float32: t10.Float,
    float: _same,
    Decimal: _decimal64,
    t091.Timestamp: milliseconds,
    type(None): _same,
}


# AMQP 1.0 to AMQP 0-9-1


def simple_to_amqp091(value: Any) -> Any:
    """Convert an application-property to a header; lists, maps, arrays and described values are dropped."""
    convert = _SIMPLE_TO_091.get(type(value))
    return DROPPED if convert is None else convert(value)


def value_to_amqp091(value: Any, depth: int = 1) -> Any:
    """Convert a message-annotation to a header: lists and arrays become arrays, maps become tables."""
    kind = type(value)
    if kind in (dict, t10.Map):
        return table_of(value.items(), depth) if depth < t091.DEPTH_MAX else DROPPED
    if kind in (list, t10.Array):
        if depth >= t091.DEPTH_MAX or (kind is t10.Array and value.descriptors):
            return DROPPED
        return [found for item in value if (found := value_to_amqp091(item, depth + 1)) is not DROPPED]
    return simple_to_amqp091(value)


def table_of(pairs: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
    return {
        name: found
        for key, item in pairs
        if (name := name_of(key)) is not None and (found := value_to_amqp091(item, depth + 1)) is not DROPPED
    }


def name_of(key: Any) -> str | None:
    """Return the name in a table for a key of a map; None if it is not a text, or too long."""
    if not isinstance(key, str):
        return None
    return str(key) if len(key.encode()) <= NAME_BYTES_MAX else None


def _int64(value: int) -> Any:
    return t091.Int64(value) if value <= _INT64_MAX else DROPPED


def seconds(milliseconds: int) -> Any:
    return t091.Timestamp(milliseconds // 1000) if milliseconds >= 0 else DROPPED


def _decimal(bits: int, width: int, exponent_bits: int, bias: int) -> Any:
    sign = bits >> (width - 1)
    coefficient_bits = width - 1 - exponent_bits
    if bits >> (width - 3) & 3 == 3:
        # The long form: the exponent is two bits further down, and the coefficient begins with 100.
        if bits >> (width - 5) & 3 == 3:
            return DROPPED
        coefficient_bits -= 2
        coefficient = 4 << coefficient_bits | bits & ((1 << coefficient_bits) - 1)
    else:
        coefficient = bits & ((1 << coefficient_bits) - 1)
    exponent = (bits >> coefficient_bits & ((1 << exponent_bits) - 1)) - bias
    if exponent > 0 and coefficient:
        if exponent > 10:
            return DROPPED
        coefficient *= 10**exponent
    while exponent < -255 and coefficient % 10 == 0 and coefficient:
        coefficient //= 10
        exponent += 1
    if coefficient == 0:
        sign, exponent = 0, max(exponent, -255)
    if coefficient >= 2**31 + sign or exponent < -255:
        return DROPPED
    return Decimal((sign, tuple(map(int, str(coefficient))), min(exponent, 0)))


_SIMPLE_TO_091: Final[dict[type, Callable[[Any], Any]]] = {
    str: _same,
    t10.Symbol: str,
    t10.Char: str,
    bytes: t091.ByteArray,
    bool: _same,
    t10.Byte: t091.Int8,
    t10.UByte: t091.UInt8,
    t10.Short: t091.Int16,
    t10.UShort: t091.UInt16,
    t10.Int: t091.Int32,
    t10.UInt: t091.UInt32,
    t10.Long: t091.Int64,
    t10.ULong: _int64,
    t10.Float: t091.Float32,
    float: _same,
    t10.Decimal32: lambda value: _decimal(int.from_bytes(value.raw, "big"), 32, 8, 101),
    t10.Decimal64: lambda value: _decimal(int.from_bytes(value.raw, "big"), 64, 10, 398),
    t10.Decimal128: lambda value: _decimal(int.from_bytes(value.raw, "big"), 128, 14, 6176),
    t10.Timestamp: seconds,
    UUID: urn_of,
    type(None): _same,
}
