"""How much credit a queue source grants, and which of the messages it keeps.

A segment is in memory, so its bytes are limited; but credit counts messages of unknown size. The first
message that does not fit ends the segment, and it and all behind it are returned, so that at most
`SEGMENT_BYTES_MAX` and one message are kept. A grant is limited to what fits if messages are as large as the
largest of the last grant, and grows by steps: messages of one size, or of decreasing size, are never
returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqp10broker.spark.queue.spool import SEGMENT_BYTES_MAX

# The first grant, to find out how large the messages are.
FIRST_CREDIT: Final = 10
# A grant is at most this many times the largest that the one before might have been.
GROWTH: Final = 8
# Of a message besides its bytes: the objects that hold it, and its places in the columns.
MESSAGE_COST_BYTES: Final = 256


class CreditPacing:
    """The credit of one link. `held_bytes` is the weight of the messages kept in this segment."""

    def __init__(self, credit_max: int, room_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._credit_max = credit_max
        self._room_bytes = room_bytes
        self._step = min(FIRST_CREDIT, credit_max)
        self._largest = 0
        self._came_largest = 0

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._room_bytes

    def begin(self) -> None:
        self.held_bytes = 0

    def next(self, wanted: int) -> int:
        """Return how many messages to request, from 1 to `wanted`; call it only while not `full`."""
        count = min(wanted, self._step)
        if self._largest:
            count = min(count, (self._room_bytes - self.held_bytes) // self._largest)
        return max(1, count)

    def keep(self, sizes: Sequence[int]) -> int:
        """Weigh messages that arrived within a grant, in order of their sizes in bytes. Returns how many of
        them, from the first on, are kept. The others must be returned to the queue, and so must all that
        still arrive within this grant: `full` holds then.
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
        if self._came_largest:
            fitting = max(1, self._room_bytes // self._came_largest)
            self._step = min(self._credit_max, self._step * GROWTH, fitting)
            self._largest = self._came_largest
            self._came_largest = 0
