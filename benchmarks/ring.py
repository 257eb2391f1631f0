"""Who waits for which confirm: a ring of marks, one byte for each number of a delivery.

Both protocols confirm by number: delivery-ids in AMQP 1.0, publish sequence numbers in 0-9-1. A group of
sending links has a mark of 1 to 255; the ring holds it at each number that waits, and zero at each that
does not, so that a confirm of a thousand messages is a slice and a count.
"""

from __future__ import annotations

from typing import Final

RING: Final = 1 << 18
"""Unconfirmed messages are kept in a ring of this many numbers."""


class Ring:
    """The marks of everything unconfirmed on one session or channel."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        """Make a ring in which nothing waits."""
        self._marks = bytearray(RING)

    def note(self, first: int, count: int, mark: int) -> None:
        """Write the group's mark at `count` numbers from `first` on; at most `RING` of them."""
        marks = self._marks
        start = first & (RING - 1)
        head = min(count, RING - start)
        marks[start : start + head] = bytes((mark,)) * head
        if head < count:
            marks[: count - head] = bytes((mark,)) * (count - head)

    def take(self, first: int, count: int) -> bytes:
        """Return the marks at `count` numbers from `first` on, at most `RING`, and clear them."""
        marks = self._marks
        start = first & (RING - 1)
        head = min(count, RING - start)
        taken = bytes(marks[start : start + head] + marks[: count - head])
        marks[start : start + head] = bytes(head)
        marks[: count - head] = bytes(count - head)
        return taken

    def waits(self, number: int) -> bool:
        """Return whether a number waits."""
        return self._marks[number & (RING - 1)] != 0
