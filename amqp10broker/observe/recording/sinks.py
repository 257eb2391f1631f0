"""Files for Parquet writers that can be discarded when the disk is full.

Closing a Parquet writer writes, as does its finalizer, and an unlinked file occupies its space as long as it
is open. Therefore this package owns the file: discarding it frees its space at once, and later output of its
writer is dropped.
"""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from pathlib import Path


def open_raw(path: Path) -> io.FileIO:
    """Create or truncate a file."""
    return io.FileIO(path, "wb")


class Sink:
    """A file that is written from beginning to end, with the interface that pyarrow needs.

    The file at `path` is created or truncated; it is renamed by `publish`. Methods raise OSError, for
    instance if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = open_raw(path)
        self._at = 0
        self._given_up = False
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of the data; nothing if the file was discarded."""
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
        return self._at

    def flush(self) -> None:
        """Do nothing, because the file is unbuffered."""

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if not self.closed:
            self.closed = True
            self._raw.close()

    def publish(self, path: Path) -> None:
        """Close the file and rename it, atomically replacing a file of that name."""
        self.close()
        os.replace(self._path, path)

    def give_up(self) -> None:
        """Remove the file and free its space on the disk; later writes are dropped."""
        if self._given_up:
            return
        self._given_up = True
        # A file that is not on a disk cannot be truncated; if its folder was removed, so was the file.
        if not self.closed:
            with suppress(OSError):
                self._raw.truncate(0)
        with suppress(OSError):
            self.close()
        with suppress(OSError):
            self._path.unlink()
