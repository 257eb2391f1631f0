"""Files that need not outlive the process: without a name from the moment they are there."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from contextlib import suppress

from amqp10broker.storage.disk import Disk


class Scratch:
    """One file that is appended to and read, and gone when it is closed."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Make it.

        Args:
            disk: where.
            folder: in which folder its name is for a moment.

        Raises:
            OSError: it cannot be made.
        """
        path = os.path.join(folder, ".scratch")
        with suppress(FileNotFoundError):
            disk.unlink(path)  # of a broker that was killed in that moment
        self._disk = disk
        self._fd = disk.create(path)
        self._end = 0
        disk.unlink(path)

    def write(self, pieces: Sequence[bytes]) -> int:
        """Append; where it begins.

        Raises:
            OSError: it was not written; the next write begins at the same place.
        """
        offset = self._end
        self._disk.write(self._fd, offset, pieces)
        self._end = offset + sum(map(len, pieces))
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Read back what was written.

        Raises:
            OSError: it cannot be read.
        """
        return self._disk.read(self._fd, offset, length)

    def close(self) -> None:
        """Give the space back."""
        self._disk.close(self._fd)
