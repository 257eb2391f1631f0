"""``amqp10broker`` on a disk that is full to the last byte as long as a file is there.

Run as a program: ``python -m tests.support.small_disk_serve FILE serve ...``. Room counts as the system
counts it, in blocks that the files of the data folder take, allocated ones too. What they give back they may
use again.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from amqp10broker.cli.main import main
from amqp10broker.runtime.journal import data
from amqp10broker.storage.disk import Disk

TOTAL_BYTES = 64 * 1024 * 1024
BLOCK_BYTES = 4096


class SmallDisk(Disk):
    """The real one, and less of it.

    Attributes:
        full: the file; what it holds is of no interest.
        folder: the data folder.
    """

    full: Path
    folder: Path
    _capacity: int | None = None

    def write(self, fd: int, offset: int, pieces: Sequence[bytes]) -> None:
        self._take(fd, offset + sum(map(len, pieces)))
        super().write(fd, offset, pieces)

    def allocate(self, fd: int, end: int) -> bool:
        self._take(fd, end)
        return super().allocate(fd, end)

    def total_bytes(self, path: str) -> int:
        return TOTAL_BYTES

    def _take(self, fd: int, end: int) -> None:
        if not self.full.exists():
            self._capacity = None
            return
        if self._capacity is None:
            self._capacity = self._used()
        more = -(-end // BLOCK_BYTES) * BLOCK_BYTES - os.fstat(fd).st_blocks * 512
        if more > 0 and self._used() + more > self._capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _used(self) -> int:
        blocks = 0
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):  # it has just been removed
                blocks += path.stat().st_blocks if path.is_file() else 0
        return 512 * blocks


if __name__ == "__main__":
    SmallDisk.full = Path(sys.argv.pop(1))
    SmallDisk.folder = Path(sys.argv[sys.argv.index("--data-dir") + 1])
    data.Disk = SmallDisk  # type: ignore[misc]
    sys.exit(main())
