"""Pages of messages that need not survive a restart, in files without a name.

One spool serves all queues of a broker. A file is closed, and its space released, when the last page in it
has been dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from amqp10broker.storage.disk import Scratch

FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class Place(NamedTuple):
    """The place of a page."""

    file: int
    offset: int
    length: int


class Spool:
    """The pages of all queues of a broker."""

    def __init__(self, open_scratch: Callable[[], Scratch]) -> None:
        self._open = open_scratch
        self._files: dict[int, Scratch] = {}
        self._pages: dict[int, int] = {}
        self._number = 0
        self._filled = 0
        self.bytes_used = 0

    def write(self, pieces: Sequence[bytes]) -> Place:
        """Append a page. Raises `OSError` if there is no room for it."""
        if not self._number or self._filled >= FILE_BYTES_MAX:
            # First the call that may fail: then it is tried again with the next page.
            self._files[self._number + 1] = self._open()
            self._number += 1
            self._filled = 0
            self._pages[self._number] = 0
            self._close_if_empty(self._number - 1)
        length = sum(map(len, pieces))
        offset = self._files[self._number].write(pieces)
        self._filled = offset + length
        self._pages[self._number] += 1
        self.bytes_used += length
        return Place(self._number, offset, length)

    def peek(self, place: Place) -> bytes:
        return self.peek_at(place, 0, place.length)

    def peek_at(self, place: Place, at: int, length: int) -> bytes:
        return self._files[place.file].read(place.offset + at, length)

    def drop(self, place: Place) -> None:
        self._pages[place.file] -= 1
        self.bytes_used -= place.length
        if place.file != self._number:
            self._close_if_empty(place.file)

    def _close_if_empty(self, number: int) -> None:
        if self._pages.get(number) == 0:
            del self._pages[number]
            self._files.pop(number).close()

    def close(self) -> None:
        for scratch in self._files.values():
            scratch.close()
        self._files.clear()
        self._pages.clear()
