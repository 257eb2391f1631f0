"""A sparse index of the chunks in one segment of a stream, in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

INDEX_BYTES: Final = 64 * 1024
"""Distance of index entries: a chunk is found by reading on from the entry before it."""


class SegmentIndex:
    """The index and the figures of one segment. `first_ms`: time of its first chunk; None while it
    has none.
    """

    __slots__ = (
        "_offsets",
        "_positions",
        "_times",
        "first",
        "first_ms",
        "last_chunk",
        "last_ms",
        "next",
        "size",
        "start",
    )

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.next = first
        self.size = size
        self.start = size
        self.first_ms: int | None = None
        self.last_ms = 0
        self.last_chunk = first
        self._offsets = array("Q")
        self._times = array("Q")
        self._positions = array("Q")

    def add(self, position: int, length: int, first: int, count: int, timestamp_ms: int) -> None:
        if not self._positions or position - self._positions[-1] >= INDEX_BYTES:
            self._offsets.append(first)
            self._times.append(timestamp_ms)
            self._positions.append(position)
        if self.first_ms is None:
            self.first_ms = timestamp_ms
            self.start = position
        self.last_ms = timestamp_ms
        self.last_chunk = first
        self.next = first + count
        self.size = position + length

    def before_offset(self, offset: int) -> int:
        """Return the position of a chunk that is not behind the one with this offset."""
        at = bisect_right(self._offsets, offset)
        return self._positions[at - 1] if at else self.start

    def before_time(self, timestamp_ms: int) -> int:
        """Return the position of a chunk that is not behind the first one that is not older than this."""
        # Several chunks may have one time: of those the first may stand before the entry that has it.
        at = bisect_left(self._times, timestamp_ms)
        return self._positions[at - 1] if at else self.start
