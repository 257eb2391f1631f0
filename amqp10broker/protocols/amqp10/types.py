"""Python values for the AMQP 1.0 types that Python lacks (part 1, section 1.6).

The codec maps null, boolean, string, binary, double, uuid, list and map to None, bool, str, bytes, float,
UUID, list and dict. Every other AMQP type has a class here. The numbers and texts are subclasses of int,
float and str: they compare and hash by value alone, so ``UInt(1) == ULong(1) == 1`` and ``Symbol("a") ==
"a"``. The class determines the encoding.

A plain Python int is encoded as long, a float as double, a str as string.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.serial import Binary32, EncodeError, Integer

# How many values may enclose another one. Real messages use fewer than ten; the limit keeps hostile
# ones from exhausting the stack of the recursive readers and writers.
DEPTH_MAX: Final = 64

# Items of width 0 (null, true, uint0, list0 ...) cost no bytes, so an array of 2**32 - 1 of them would fit in
# ten. Real messages have no such arrays: booleans go with constructor 0x56. The limit bounds the allocation
# that four bytes can cause to 0.5 kB.
ZERO_WIDTH_ITEMS_MAX: Final = 64


class Symbol(str):
    """A name from a constrained domain (section 1.6.21). Raises `EncodeError` if it is not ASCII."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not text.isascii():
            raise EncodeError(f"a symbol is ASCII only, not {text!r}")
        return str.__new__(cls, text)

    def __repr__(self) -> str:
        return f"Symbol({str.__repr__(self)})"


class Char(str):
    """One Unicode scalar value (section 1.6.16). Raises `EncodeError` for any other text."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if len(text) != 1 or "\ud800" <= text <= "\udfff":
            raise EncodeError(f"a char is one Unicode scalar value, not {text!r}")
        return str.__new__(cls, text)

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


class UByte(Integer, bits=8):
    __slots__ = ()


class UShort(Integer, bits=16):
    __slots__ = ()


class UInt(Integer, bits=32):
    __slots__ = ()


class ULong(Integer, bits=64):
    __slots__ = ()


class Byte(Integer, bits=8, signed=True):
    __slots__ = ()


class Short(Integer, bits=16, signed=True):
    __slots__ = ()


class Int(Integer, bits=32, signed=True):
    __slots__ = ()


class Long(Integer, bits=64, signed=True):
    __slots__ = ()


class Timestamp(Integer, bits=64, signed=True):
    """Milliseconds since 1970-01-01T00:00:00Z, signed 64 bits (section 1.6.17)."""

    __slots__ = ()


class Float(Binary32):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Decimal:
    # An IEEE 754-2008 decimal in its encoded form: the broker passes decimals on and never computes with
    # them.
    raw: bytes

    WIDTH: ClassVar[int]

    def __post_init__(self) -> None:
        if len(self.raw) != self.WIDTH:
            raise EncodeError(f"{type(self).__name__} is {self.WIDTH} bytes, not {len(self.raw)}")


@dataclass(frozen=True, slots=True)
class Decimal32(_Decimal):
    WIDTH: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Decimal64(_Decimal):
    WIDTH: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class Decimal128(_Decimal):
    WIDTH: ClassVar[int] = 16


# Slotted and not frozen, since a frozen one costs three times as much to build; treat it as frozen
# all the same.
@dataclass(slots=True, unsafe_hash=True)
class Described:
    """A value and the descriptor that determines its meaning (section 1.3.1)."""

    descriptor: Any
    """A `Symbol`, or a `ULong` of which the upper 32 bits are a vendor id; any other value is reserved."""
    value: Any


@dataclass(slots=True, unsafe_hash=True)
class Array:
    """Values that share one constructor (section 1.6.24). Build one with `codec.array_of` unless the code
    matters.

    The constructor is stored as it was read, so that an empty array retains its type.
    """

    constructor: int
    """The format code of every item, such as 0xA3 for sym8."""
    items: tuple[Any, ...] = ()
    """The items, without their descriptors; arrays if this is an array of arrays."""
    descriptors: tuple[Any, ...] = ()
    """Descriptors of every item, outermost first; usually none or one."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class Map:
    """A map with keys that a dict cannot distinguish (section 1.6.23).

    Decoding gives a dict wherever it can. It gives this when two keys are equal in Python and differ in AMQP
    (uint 1 and ulong 1, string "a" and symbol "a"), or when a key cannot be hashed (a list).
    """

    pairs: tuple[tuple[Any, Any], ...] = ()
    """Keys with values in the order of the wire."""

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self) -> tuple[tuple[Any, Any], ...]:
        return self.pairs

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key that is equal and of the same Python type, else `default`."""
        for other, value in self.pairs:
            if type(other) is type(key) and other == key:
                return value
        return default
