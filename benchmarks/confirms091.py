"""Publisher confirms of one AMQP 0-9-1 channel: sequence numbers, and what waits for which.

A channel in confirm mode counts its publishes from 1; the broker acknowledges singly, in any order, or all
up to a number at once.
"""

from __future__ import annotations

from benchmarks.errors import PeerError
from benchmarks.ring import RING, Ring


class Confirms:
    """The sequence numbers of one channel."""

    __slots__ = ("_low", "_ring", "next")

    def __init__(self) -> None:
        """Start at 1, with nothing unconfirmed."""
        self._ring = Ring()
        self._low = 1
        """The lowest number that may still wait."""
        self.next = 1
        """The next publish gets this number."""

    @property
    def room(self) -> int:
        """How many messages may be published before the ring is full."""
        return RING - (self.next - self._low)

    def note(self, count: int, mark: int) -> None:
        """Give the next `count` numbers to a group, by its mark."""
        self._ring.note(self.next, count, mark)
        self.next += count

    def take(self, first: int, last: int, *, multiple: bool) -> tuple[int, bytes]:
        """Take a confirm.

        Args:
            first: first number of a run of single confirms.
            last: its last number; with `multiple`, everything up to here, and 0 is everything sent.
            multiple: as in basic.ack.

        Returns:
            The lowest number named, and the marks of the groups from there to the last one.

        Raises:
            PeerError: a number was never published, or is confirmed a second time.
        """
        if multiple:
            first = self._low
            last = last or self.next - 1
        if last >= self.next:
            raise PeerError(f"the broker confirmed number {last}, only {self.next - 1} were published")
        if last < first or (not multiple and first < self._low):
            if multiple:
                return first, b""
            raise PeerError(f"the broker confirmed number {first} a second time")
        marks = self._ring.take(first, last - first + 1)
        if not multiple and 0 in marks:
            raise PeerError(f"the broker confirmed number {first + marks.index(0)} a second time")
        if first == self._low:
            self._low = last + 1
            while self._low < self.next and not self._ring.waits(self._low):
                self._low += 1
        return first, marks
