"""Python values for the AMQP 1.0 types that Python lacks (part 1, section 1.6).

The codec maps null, boolean, string, binary, double, uuid, list and map to None, bool, str, bytes, float,
UUID, list and dict. Every other AMQP type has a class here, a subclass of int, float or str if it can be:
they compare and hash by value alone, so ``UInt(1) == ULong(1) == 1`` and ``Symbol("a") == "a"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.serial import Binary32, EncodeError, Integer

# How many values may enclose another one: hostile messages must not exhaust the readers' stack.
DEPTH_MAX: Final = 64

# Items of width 0 (null, true, uint0, list0 ...) take no bytes, so an array of 2**32 - 1 of them would fit in
# ten. Real messages have no such arrays: booleans have constructor 0x56.
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
    # It is an IEEE 754-2008 decimal in its encoded form, because the broker does not compute with it.
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


# It is not frozen, because a frozen one takes three times as long to build.
@dataclass(slots=True, unsafe_hash=True)
class Described:
    """A value and its descriptor (section 1.3.1): a `Symbol`, or a `ULong` of which the upper 32 bits are a
    vendor id.
    """

    descriptor: Any
    value: Any


@dataclass(slots=True, unsafe_hash=True)
class Array:
    """Values that share one constructor (section 1.6.24). Build one with `codec.array_of` unless the code
    matters.

    The constructor, such as 0xA3 for sym8, is stored as it was read, so that an empty array retains its type.
    `descriptors`: of every item, outermost first; usually none or one.
    """

    constructor: int
    items: tuple[Any, ...] = ()
    descriptors: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class Map:
    """A map with keys that a dict cannot distinguish (section 1.6.23): two are equal in Python and differ in
    AMQP (uint 1 and ulong 1, string "a" and symbol "a"), or one cannot be hashed (a list).
    """

    pairs: tuple[tuple[Any, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self) -> tuple[tuple[Any, Any], ...]:
        return self.pairs

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key that is equal and of the same type."""
        for other, value in self.pairs:
            if type(other) is type(key) and other == key:
                return value
        return default
