"""Runs of like frames in a buffer: compared with the first of them column by column.

Peers under load send long runs that differ only in a few bytes at fixed places. `Pattern` is what one kind
of frame (or message) looks like, without those bytes; it is compared at about 40 ns a frame.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

# Up to so many frames it is cheaper to compare frame by frame than column by column.
SHORT_RUN_FRAMES: Final = 5


class Pattern:
    """The bytes that all frames of one kind have in common."""

    __slots__ = ("_columns", "_pieces", "stride")

    def __init__(self, whole: bytes, changing: Container[int], fixed_to: int) -> None:
        """Learn from one frame.

        Args:
            whole: the frame.
            changing: offsets of the bytes that differ from frame to frame.
            fixed_to: from here on all may differ.
        """
        self.stride: Final = len(whole)
        self._columns = [(at, whole[at : at + 1]) for at in range(fixed_to) if at not in changing]
        self._pieces: list[tuple[int, int, bytes]] = []
        """The same bytes joined: start, end, value."""
        for offset, value in self._columns:
            if self._pieces and self._pieces[-1][1] == offset:
                start, _, head = self._pieces.pop()
                self._pieces.append((start, offset + 1, head + value))
            else:
                self._pieces.append((offset, offset + 1, value))

    def run_length(self, data: bytearray, position: int, end: int) -> int:
        """Return how many whole frames from `position` on are of this kind; 0 if not even the first."""
        stride = self.stride
        whole = (end - position) // stride
        count = 0
        while count < min(whole, SHORT_RUN_FRAMES):
            for start, stop, value in self._pieces:
                if data[position + start : position + stop] != value:
                    return count
            count += 1
            position += stride
        # Gallop: a long look ahead would be wasted each time runs are short.
        look_ahead = 8 * SHORT_RUN_FRAMES
        while count < whole:
            wanted = min(whole - count, look_ahead)
            found = self._by_column(data, position, wanted)
            count += found
            if found < wanted:
                break
            position += wanted * stride
            look_ahead *= 4
        return count

    def _by_column(self, data: bytearray, position: int, count: int) -> int:
        stride = self.stride
        limit = position + count * stride
        for offset, value in self._columns:
            column = data[position + offset : limit : stride]
            if column != value * count:
                count = len(column) - len(column.lstrip(value))
                if count == 0:
                    return 0
                limit = position + count * stride
        return count
