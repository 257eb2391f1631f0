"""Python values for the field types of AMQP 0-9-1 tables that Python lacks (section 4.2.5).

The letters are those that RabbitMQ and every client in use agree on, which are not all those of the
specification's grammar:

| Python | letter | Python | letter |
|---|---|---|---|
| bool | t | `Int8` | b |
| str, or bytes if it is not UTF-8 | S | `UInt8` | B |
| `ByteArray` | x | `Int16` | s |
| float | d | `UInt16` | u |
| `Float32` | f | `Int32` | I |
| `decimal.Decimal` | D | `UInt32` | i |
| `Timestamp` | T | `Int64` | l (L is read as well) |
| None | V | list, dict | A, F |

The numbers and byte arrays are subclasses of int, float and bytes: they compare and hash by value alone
(``Int8(1) == Int64(1) == 1``); the class determines the encoding. A plain int is encoded as I if it fits,
otherwise as l.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final, Self, TypeAlias


class EncodeError(ValueError):
    """A fault of ours: a value has no encoding in AMQP 0-9-1, or does not fit its type."""


DEPTH_MAX: Final = 32
"""How many tables and arrays may enclose a value. Real messages use two or three; the limit prevents hostile
ones from exhausting the stack of the recursive readers. It is half that of AMQP 1.0, so that every table can
be converted.
"""

Table: TypeAlias = dict[str, Any]
"""A field table: values as in the list above."""


class _Integer(int):
    # An int of a fixed width. The decoder, which has read that many bits, calls ``int.__new__`` and skips the
    # check.
    __slots__ = ()
    MIN: ClassVar[int]
    MAX: ClassVar[int]

    def __new__(cls, value: int) -> Self:
        if not cls.MIN <= value <= cls.MAX:
            raise EncodeError(f"{cls.__name__} holds {cls.MIN} to {cls.MAX}, not {value}")
        return int.__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int.__repr__(self)})"

    __str__ = int.__repr__


class Int8(_Integer):
    """Signed 8 bits, letter b."""

    __slots__ = ()
    MIN = -(2**7)
    MAX = 2**7 - 1


class UInt8(_Integer):
    """Unsigned 8 bits, letter B."""

    __slots__ = ()
    MIN = 0
    MAX = 2**8 - 1


class Int16(_Integer):
    """Signed 16 bits, letter s."""

    __slots__ = ()
    MIN = -(2**15)
    MAX = 2**15 - 1


class UInt16(_Integer):
    """Unsigned 16 bits, letter u."""

    __slots__ = ()
    MIN = 0
    MAX = 2**16 - 1


class Int32(_Integer):
    """Signed 32 bits, letter I."""

    __slots__ = ()
    MIN = -(2**31)
    MAX = 2**31 - 1


class UInt32(_Integer):
    """Unsigned 32 bits, letter i."""

    __slots__ = ()
    MIN = 0
    MAX = 2**32 - 1


class Int64(_Integer):
    """Signed 64 bits, letter l."""

    __slots__ = ()
    MIN = -(2**63)
    MAX = 2**63 - 1


class Timestamp(_Integer):
    """Seconds since 1970-01-01T00:00:00Z, unsigned 64 bits, letter T."""

    __slots__ = ()
    MIN = 0
    MAX = 2**64 - 1


_BINARY32: Final = struct.Struct(">f")


class Float32(float):
    """A 32-bit floating point number, letter f, rounded. Raises `EncodeError` if it is too large."""

    __slots__ = ()

    def __new__(cls, value: float) -> Self:
        try:
            return float.__new__(cls, _BINARY32.unpack(_BINARY32.pack(value))[0])
        except OverflowError:
            raise EncodeError(f"{value} does not fit a 32-bit float") from None

    def __repr__(self) -> str:
        return f"Float32({float.__repr__(self)})"

    __str__ = float.__repr__


class ByteArray(bytes):
    """Bytes that are not text, letter x; plain bytes are encoded as a long string that is not UTF-8."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ByteArray({bytes.__repr__(self)})"

    __str__ = __repr__
