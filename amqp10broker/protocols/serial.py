"""Numbers of a fixed width, which both protocols have, and serial numbers of 32 bits.

Their arithmetic is that of RFC 1982 (part 2, section 2.8.10), for delivery-count, delivery-id and
transfer-id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import ClassVar, Final, Self

_BINARY32: Final = struct.Struct(">f")


class EncodeError(ValueError):
    """An internal error: a value has no encoding in the protocol, or does not fit the requested type."""


class Integer(int):
    """An int of a fixed width, ``class UByte(Integer, bits=8)``. Raises `EncodeError`. A decoder calls
    ``int.__new__`` to skip the check.
    """

    __slots__ = ()
    MIN: ClassVar[int]
    MAX: ClassVar[int]

    def __init_subclass__(cls, *, bits: int, signed: bool = False) -> None:
        cls.MIN, cls.MAX = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def __new__(cls, value: int) -> Self:
        if not cls.MIN <= value <= cls.MAX:
            raise EncodeError(f"{cls.__name__} holds {cls.MIN} to {cls.MAX}, not {value}")
        return int.__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int.__repr__(self)})"

    __str__ = int.__repr__


class Binary32(float):
    """A 32-bit floating point number, rounded to the nearest. Raises `EncodeError` if it is too large."""

    __slots__ = ()

    def __new__(cls, value: float) -> Self:
        try:
            return float.__new__(cls, _BINARY32.unpack(_BINARY32.pack(value))[0])
        except OverflowError:
            raise EncodeError(f"{value} does not fit a 32-bit float") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({float.__repr__(self)})"

    __str__ = float.__repr__


MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000
_MODULUS: Final = 0x1_0000_0000


def add(serial: int, distance: int) -> int:
    """Return the number `distance` steps after `serial`. RFC 1982 defines sums up to 2**31 - 1, but a client
    may grant a credit or a window of 2**32 - 1, so any distance is taken modulo 2**32.
    """
    return (serial + distance) & MASK


def diff(a: int, b: int) -> int:
    """Return the signed distance from `b` to `a`, -2**31 .. 2**31 - 1. RFC 1982 leaves a distance of exactly
    2**31 undefined; here `a` is then behind `b`, which never grants anything.
    """
    distance = (a - b) & MASK
    return distance - _MODULUS if distance & _HALF else distance


def limit_left(base: int, allowance: int, position: int) -> int:
    """Return the rest of an allowance, by the formula of link-credit (section 2.6.7) and of
    remote-incoming-window (2.5.6): ``base + allowance - position``, a uint. The allowance may be any uint: it
    is added to the signed distance between the two sequence numbers.
    """
    left = allowance - diff(position, base)
    if left > MASK:  # the peer has counted more than the allowance
        return MASK
    return left if left > 0 else 0


def ranges(serials: Iterable[int]) -> list[tuple[int, int]]:
    """Group serials within 2**31 of each other into contiguous inclusive ranges in serial order, across the
    wrap.
    """
    items = list(serials)
    if not items:
        return []
    origin = items[0]
    offsets = sorted({diff(item, origin) for item in items})
    result: list[tuple[int, int]] = []
    first = last = offsets[0]
    for offset in offsets[1:]:
        if offset == last + 1:
            last = offset
            continue
        result.append((add(origin, first), add(origin, last)))
        first = last = offset
    result.append((add(origin, first), add(origin, last)))
    return result
