"""Temporary files that need not outlive the process, without a name where the system allows that."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from amqp10broker.storage.disk import Disk

# Files that may be open at the same time, where each has a name.
_NAMES_MAX: Final = 10_000


class Scratch:
    """A file that is appended to and read, and removed when it is closed. All methods may raise `OSError`."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path: str | None = _free_name(disk, folder)
        self._fd = disk.create(self._path)
        self._end = 0
        with suppress(PermissionError):
            disk.unlink(self._path)
            self._path = None

    def write(self, pieces: Sequence[bytes]) -> int:
        offset = self._end
        self._disk.write(self._fd, offset, pieces)
        self._end = offset + sum(map(len, pieces))
        return offset

    def read(self, offset: int, length: int) -> bytes:
        return self._disk.read(self._fd, offset, length)

    def close(self) -> None:
        self._disk.close(self._fd)
        if self._path is not None:
            self._disk.unlink(self._path)


def _free_name(disk: Disk, folder: str) -> str:
    path, number = os.path.join(folder, ".scratch"), 0
    while number < _NAMES_MAX:
        try:
            disk.unlink(path)  # of a broker that was killed
        except FileNotFoundError:
            break
        except PermissionError:
            # It is open, and Windows removes no open file.
            number += 1
            path = os.path.join(folder, f".scratch{number}")
    return path
