"""How much credit a queue source grants, and what it keeps of what comes. Pure.

A segment is in memory, so bytes end it and not only a number of messages; but credit counts messages, and
how large the next ones are is not known. So what comes is weighed as it comes: it is kept as long as there
is room, and the first message that finds none ends the segment; it and all behind it are given back. No
more is ever kept than `SEGMENT_BYTES_MAX` and one message.

What is given back has crossed the network for nothing. To make that rare, a grant is no larger than what
fits if messages are like the largest of the last grant, and grows by steps: messages of one size, or ever
smaller ones, are never given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqp10broker.spark.queue.spool import SEGMENT_BYTES_MAX

FIRST_CREDIT: Final = 10
"""Granted first, to learn how large the messages are."""
GROWTH: Final = 8
"""A grant is at most so many times the largest that the one before might have been."""
MESSAGE_COST_BYTES: Final = 256
"""What a message weighs besides its bytes: the objects that hold it, and its places in the columns."""


class Grants:
    """The rule, for one link.

    Attributes:
        held_bytes: weight of what is kept of this segment.
    """

    def __init__(self, credit_max: int, room_bytes: int = SEGMENT_BYTES_MAX) -> None:
        """Prepare for a first segment.

        Args:
            credit_max: the option linkCredit.
            room_bytes: a segment ends with the message that reaches this weight.
        """
        self.held_bytes = 0
        self._credit_max = credit_max
        self._room_bytes = room_bytes
        self._step = min(FIRST_CREDIT, credit_max)
        self._largest = 0
        self._came_largest = 0

    @property
    def full(self) -> bool:
        """Whether the segment has all the bytes that it may have."""
        return self.held_bytes >= self._room_bytes

    def begin(self) -> None:
        """Another segment; what was learned about sizes still counts."""
        self.held_bytes = 0

    def next(self, wanted: int) -> int:
        """How many messages to ask for, at least 1; to be called while not `full`.

        Args:
            wanted: no more than so many, at least 1.
        """
        count = min(wanted, self._step)
        if self._largest:
            count = min(count, (self._room_bytes - self.held_bytes) // self._largest)
        return max(1, count)

    def keep(self, sizes: Sequence[int]) -> int:
        """Weigh messages that came within a grant, in order.

        Args:
            sizes: of their bytes.

        Returns:
            How many of them, from the first on, are kept. The others are to be given back, and so is all that
            still comes within this grant: `full` holds then.
        """
        if not sizes:
            return 0
        self._came_largest = max(self._came_largest, max(sizes) + MESSAGE_COST_BYTES)
        total = sum(sizes) + len(sizes) * MESSAGE_COST_BYTES
        if self.held_bytes + total < self._room_bytes:
            self.held_bytes += total
            return len(sizes)
        for number, size in enumerate(sizes):
            if self.full:
                return number
            self.held_bytes += size + MESSAGE_COST_BYTES
        return len(sizes)

    def end_grant(self) -> None:
        """All has come that comes of the last grant: learn from it."""
        if self._came_largest:
            fitting = max(1, self._room_bytes // self._came_largest)
            self._step = min(self._credit_max, self._step * GROWTH, fitting)
            self._largest = self._came_largest
            self._came_largest = 0
