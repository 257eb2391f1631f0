"""Kinds of values that filters compare: types that differ in width or name only are one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from amqp10broker.protocols.amqp10 import types as t10

BOOLEAN: Final = 1
NUMBER: Final = 2
"""Integers, floating-point numbers and times alike: 10 equals 10.0."""
TEXT: Final = 3
BINARY: Final = 4
UNIQUE_ID: Final = 5

INTEGERS: Final[frozenset[type]] = frozenset(
    (int, t10.UByte, t10.UShort, t10.UInt, t10.ULong, t10.Byte, t10.Short, t10.Int, t10.Long, t10.Timestamp)
)

KINDS: Final[Mapping[type, int]] = {
    bool: BOOLEAN,
    **dict.fromkeys(INTEGERS, NUMBER),
    float: NUMBER,
    t10.Float: NUMBER,
    str: TEXT,
    t10.Symbol: TEXT,
    t10.Char: TEXT,
    bytes: BINARY,
    UUID: UNIQUE_ID,
}
"""By the class of the value. Null, decimals and compound values have no kind. The lookup by class, not by
`isinstance`, prevents True from being 1.
"""
