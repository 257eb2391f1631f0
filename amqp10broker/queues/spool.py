"""Pages of messages that need not survive a restart, in files without a name, or in memory.

One spool serves all queues of a broker. A file is closed, and its space released, when the last page in it
has been dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from amqp10broker.storage.disk import Scratch

FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class Place(NamedTuple):
    file: int
    offset: int
    length: int


Page = bytes | Place
"""A page in memory, or in a file."""


class Spool:
    """The pages of all queues of a broker. `open_scratch`: None: all are in memory."""

    def __init__(self, open_scratch: Callable[[], Scratch] | None = None) -> None:
        self._open = open_scratch
        self._files: dict[int, Scratch] = {}
        self._pages: dict[int, int] = {}
        self._number = 0
        self._filled = 0
        self.bytes_used = 0

    def keep(self, pieces: Sequence[bytes]) -> Page:
        if self._open is not None:
            # Without room the disk alarm is on or will be, and memory is what is left.
            with suppress(OSError):
                return self._write(self._open, pieces)
        return b"".join(pieces)

    def _write(self, open_scratch: Callable[[], Scratch], pieces: Sequence[bytes]) -> Place:
        if not self._number or self._filled >= FILE_BYTES_MAX:
            # First the call that may fail: then it is tried again with the next page.
            self._files[self._number + 1] = open_scratch()
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

    def read(self, page: Page) -> bytes:
        return page if isinstance(page, bytes) else self.read_at(page, 0, page.length)

    def read_at(self, page: Page, at: int, length: int) -> bytes:
        if isinstance(page, bytes):
            return page[at : at + length]
        return self._files[page.file].read(page.offset + at, length)

    def drop(self, page: Page) -> None:
        if isinstance(page, bytes):
            return
        self._pages[page.file] -= 1
        self.bytes_used -= page.length
        if page.file != self._number:
            self._close_if_empty(page.file)

    def _close_if_empty(self, number: int) -> None:
        if self._pages.get(number) == 0:
            del self._pages[number]
            self._files.pop(number).close()

    def close(self) -> None:
        for scratch in self._files.values():
            scratch.close()
        self._files.clear()
        self._pages.clear()
