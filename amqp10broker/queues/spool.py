"""Pages of messages that need not survive a restart, in files without a name.

One spool serves all queues of a broker. A file is closed, and its space released, when the last page in it
has been dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, cast

FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class Scratch(Protocol):
    """A file without a name (`storage.disk`)."""

    def write(self, pieces: Sequence[bytes]) -> int:
        """Append, and return the offset. Nothing is left behind after a failure."""

    def read(self, offset: int, length: int) -> bytes:
        """Read a range of the file."""

    def close(self) -> None:
        """Close the file, and release its space."""


class OpenScratch(Protocol):
    """Opens a new file without a name."""

    def __call__(self) -> Scratch: ...


class Place(NamedTuple):
    """The place of a page."""

    file: int
    offset: int
    length: int


class Spool:
    """The pages of all queues of a broker."""

    def __init__(self, open_scratch: OpenScratch) -> None:
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


class SpoolPacks:
    """Packed messages of quorum queues on disk (`queues.quorum.bodies.Packs`).

    The journal contains the messages too; here they are together, page by page, and need no search.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def keep(self, pieces: Sequence[bytes]) -> object:
        try:
            return self._spool.write(pieces)
        except OSError:
            # No room: the disk alarm is on or will be, and memory is what is left.
            return b"".join(pieces)

    def read(self, handle: object) -> bytes:
        return self._spool.peek(handle) if isinstance(handle, Place) else cast("bytes", handle)

    def read_at(self, handle: object, at: int, length: int) -> bytes:
        if isinstance(handle, Place):
            return self._spool.peek_at(handle, at, length)
        return cast("bytes", handle)[at : at + length]

    def drop(self, handle: object) -> None:
        if isinstance(handle, Place):
            self._spool.drop(handle)
