"""Numbers of a fixed width, which both protocols have, and the error for a value that does not fit."""

from __future__ import annotations

import struct
from typing import ClassVar, Final, Self

_BINARY32: Final = struct.Struct(">f")


class EncodeError(ValueError):
    """A fault of ours: a value has no encoding in the protocol, or does not fit the requested type."""


class Integer(int):
    """An int of a fixed width, ``class UByte(Integer, bits=8)``. Raises `EncodeError` for any other.

    A decoder, which has read that many bits, calls ``int.__new__`` and skips the check.
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
