"""The values of types Python lacks."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.errors import EncodeError
from amqp10broker.protocols.amqp10.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Int,
    Long,
    Map,
    Short,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

RANGES = [
    (UByte, 0, 255),
    (UShort, 0, 65535),
    (UInt, 0, 4294967295),
    (ULong, 0, 18446744073709551615),
    (Byte, -128, 127),
    (Short, -32768, 32767),
    (Int, -2147483648, 2147483647),
    (Long, -9223372036854775808, 9223372036854775807),
    (Timestamp, -9223372036854775808, 9223372036854775807),
]


@pytest.mark.parametrize(("kind", "low", "high"), RANGES)
def test_an_integer_type_holds_its_range_and_no_more(kind: type[Any], low: int, high: int) -> None:
    """Both ends of the range are accepted and their neighbours outside are refused."""
    assert kind(low) == low
    assert kind(high) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(EncodeError, match=str(outside)):
            kind(outside)


@pytest.mark.parametrize("text", ["", "ab", chr(0xD800), chr(0xDFFF)])
def test_a_char_is_one_scalar_value(text: str) -> None:
    """No character, two, or a surrogate are no char."""
    with pytest.raises(EncodeError):
        Char(text)


@pytest.mark.parametrize(("kind", "width"), [(Decimal32, 4), (Decimal64, 8), (Decimal128, 16)])
def test_a_decimal_has_the_width_of_its_type(kind: type[Any], width: int) -> None:
    """One byte too few or too many is refused."""
    assert kind(bytes(width)).raw == bytes(width)
    for wrong in (width - 1, width + 1):
        with pytest.raises(EncodeError):
            kind(bytes(wrong))


def test_a_map_finds_a_key_by_type_and_value() -> None:
    """Keys that are equal in Python are told apart."""
    found = Map(((UInt(1), "uint"), (ULong(1), "ulong"), (True, "true")))
    assert [found.get(key) for key in (UInt(1), ULong(1), True)] == ["uint", "ulong", "true"]
    assert found.get(1, "none") == "none"
    assert len(found) == 3
