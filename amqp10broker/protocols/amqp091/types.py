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

from typing import Any, Final, TypeAlias

from amqp10broker.protocols.numbers import Binary32, Integer

DEPTH_MAX: Final = 32
"""How many tables and arrays may enclose a value. Real messages use two or three; the limit prevents hostile
ones from exhausting the stack of the recursive readers. It is half that of AMQP 1.0, so that every table can
be converted.
"""

Table: TypeAlias = dict[str, Any]
"""A field table: values as in the list above."""


class Int8(Integer, bits=8, signed=True):
    __slots__ = ()


class UInt8(Integer, bits=8):
    __slots__ = ()


class Int16(Integer, bits=16, signed=True):
    __slots__ = ()


class UInt16(Integer, bits=16):
    __slots__ = ()


class Int32(Integer, bits=32, signed=True):
    __slots__ = ()


class UInt32(Integer, bits=32):
    __slots__ = ()


class Int64(Integer, bits=64, signed=True):
    __slots__ = ()


class Timestamp(Integer, bits=64):
    """Seconds since 1970-01-01T00:00:00Z, unsigned 64 bits, letter T."""

    __slots__ = ()


class Float32(Binary32):
    """32-bit floating point, letter f, rounded."""

    __slots__ = ()


class ByteArray(bytes):
    """Bytes that are not text, letter x; plain bytes are encoded as a long string that is not UTF-8."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ByteArray({bytes.__repr__(self)})"

    __str__ = __repr__
