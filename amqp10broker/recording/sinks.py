"""The file that a Parquet writer writes into: ours, so that it can be given up when the disk is full.

Closing a Parquet writer writes, also when it is forgotten, and a file that is unlinked keeps its room as long
as it is open. So the file belongs to us: giving it up frees its room at once, and what its writer still has
to say goes nowhere.
"""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class Raw(Protocol):
    """What a `Sink` needs of an unbuffered file."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of it, and return how much."""

    def truncate(self, size: int, /) -> int:
        """Give up what is behind so many bytes."""

    def close(self) -> None:
        """Close it."""


def open_raw(path: Path) -> Raw:
    """Make a file, or empty the one that is there.

    Raises:
        OSError: the system does not let us.
    """
    return io.FileIO(path, "wb")


class Sink:
    """A file that is written from its beginning to its end; what pyarrow wants of one."""

    def __init__(self, path: Path) -> None:
        """Make the file, or empty the one that is there.

        Args:
            path: its name while it grows.

        Raises:
            OSError: the system does not let us.
        """
        self._path = path
        self._raw = open_raw(path)
        self._at = 0
        self._given_up = False
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of it; nothing if the file was given up.

        Raises:
            OSError: the disk is full, for instance.
        """
        size = len(data)
        if not self._given_up:
            view = memoryview(data)
            while len(view):
                written = self._raw.write(view)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                view = view[written:]
        self._at += size
        return size

    def tell(self) -> int:
        """Bytes so far."""
        return self._at

    def flush(self) -> None:
        """Do nothing: nothing waits here."""

    def close(self) -> None:
        """Close the file; again is no harm.

        Raises:
            OSError: the system could not keep what was written.
        """
        if not self.closed:
            self.closed = True
            self._raw.close()

    def publish(self, path: Path) -> None:
        """Close the file, and give it its real name; it replaces one of that name in one step.

        Raises:
            OSError: it cannot be.
        """
        self.close()
        os.replace(self._path, path)

    def give_up(self) -> None:
        """Remove the file and free its room on the disk, whoever still wants to write into it."""
        if self._given_up:
            return
        self._given_up = True
        # What is no disk cannot be cut off; a folder that is gone has taken the file with it.
        if not self.closed:
            with suppress(OSError):
                self._raw.truncate(0)
        with suppress(OSError):
            self.close()
        with suppress(OSError):
            self._path.unlink()
