"""Temporary files that need not outlive the process, without a name."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from contextlib import suppress

from amqp10broker.storage.disk import Disk


class Scratch:
    """A file that is appended to and read, and removed when it is closed. All methods may raise `OSError`."""

    def __init__(self, disk: Disk, folder: str) -> None:
        path = os.path.join(folder, ".scratch")
        with suppress(FileNotFoundError):
            disk.unlink(path)  # of a broker that was killed in that moment
        self._disk = disk
        self._fd = disk.create(path)
        self._end = 0
        disk.unlink(path)

    def write(self, pieces: Sequence[bytes]) -> int:
        offset = self._end
        self._disk.write(self._fd, offset, pieces)
        self._end = offset + sum(map(len, pieces))
        return offset

    def read(self, offset: int, length: int) -> bytes:
        return self._disk.read(self._fd, offset, length)

    def close(self) -> None:
        self._disk.close(self._fd)
