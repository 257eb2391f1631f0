"""RFC 1982 serial-number arithmetic on 32 bits (part 2, section 2.8.10).

Used for delivery-count, delivery-id and transfer-id. All results are in 0 .. 2**32 - 1 unless a function
states another range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000
_MODULUS: Final = 0x1_0000_0000


def add(serial: int, distance: int) -> int:
    """Return the number `distance` steps after `serial`.

    RFC 1982 defines the sum for distances up to 2**31 - 1 only, but link-credit and windows may be any uint
    (a client may grant 2**32 - 1), so any distance is taken modulo 2**32 here.
    """
    return (serial + distance) & MASK


def diff(a: int, b: int) -> int:
    """Return the signed distance from `b` to `a`, so that ``add(b, diff(a, b)) == a``.

    The result is in -2**31 .. 2**31 - 1. RFC 1982 leaves a distance of exactly 2**31 undefined; here it is
    -2**31, that is "`a` is behind `b`", the reading that never grants anything.
    """
    distance = (a - b) & MASK
    return distance - _MODULUS if distance & _HALF else distance


def less(a: int, b: int) -> bool:
    return diff(a, b) < 0


def limit_left(base: int, allowance: int, position: int) -> int:
    """Return how much of an allowance is left: ``base + allowance - position``, not below 0 and a uint.

    This is the formula of link-credit (section 2.6.7) and of remote-incoming-window (section 2.5.6). The
    allowance may be any uint: the subtraction is made on the signed distance between the two sequence numbers
    and the allowance added to it, so that 2**32 - 1 works as well.
    """
    left = allowance - diff(position, base)
    if left > MASK:  # the peer has counted more than there was
        return MASK
    return left if left > 0 else 0


def ranges(serials: Iterable[int]) -> list[tuple[int, int]]:
    """Group serials into contiguous inclusive ranges in serial order, across the wrap.

    All serials must be within 2**31 of each other.
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
