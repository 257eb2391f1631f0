"""What storage asks of the system, as a protocol, and the system's own answer.

All of storage goes through `Disk`, so that a test can put a disk in its place that fails the n-th call
or loses power between two of them (`tests/support/disks.py`). Errors are the system's own `OSError`;
the callers know which file they were about and say so (`StorageError`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

# Not every system has it; fsync does more.
_fdatasync: Final = getattr(os, "fdatasync", os.fsync)
# FALLOC_FL_KEEP_SIZE of Linux; `os.posix_fallocate` makes the file longer, or writes zeros.
_KEEP_SIZE: Final = 1
# The most buffers that Linux takes in one call (IOV_MAX).
_PIECES_MAX: Final = 1024
# Up to this average size, copying pieces together costs less than handing each to the system.
_JOIN_BYTES_MAX: Final = 4096


def _find_fallocate() -> Any:
    """The system's call; None where there is none."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate: Final = _find_fallocate()


class Disk(Protocol):
    """Files by path and by descriptor. Every method may raise `OSError`.

    A descriptor is an integer that only this disk understands; that of `OsDisk` is the system's, so
    that another process can be asked to sync it.
    """

    def create(self, path: str) -> int:
        """Make a new file, for its owner only, and open it for reading and writing.

        Raises:
            FileExistsError: it is there.
        """

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that is there."""

    def open_folder(self, path: str) -> int:
        """Open a folder, to lock it, or to sync it: that makes names in it durable."""

    def close(self, fd: int) -> None:
        """Forget a descriptor."""

    def write(self, fd: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all pieces one after the other from `offset` on.

        Raises:
            OSError: any number of the first bytes may have been written.
        """

    def read(self, fd: int, offset: int, length: int) -> bytes:
        """Read; less than `length` only where the file ends."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""

    def allocate(self, fd: int, end: int) -> bool:
        """Have room for all bytes before `end`, so that writing them cannot fail for want of it.

        The size stays; cutting the file gives back what is behind its new end.

        Returns:
            Whether there is: not every system can.

        Raises:
            OSError: there is no room; some of it may have been taken.
        """

    def sync(self, fd: int) -> None:
        """Make durable what was written to a file and its size, or the names in a folder."""

    def size(self, fd: int) -> int:
        """Bytes in the file."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of a file that has it."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; the space returns when no descriptor is open."""

    def list_folder(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of that name."""

    def make_folder(self, path: str) -> None:
        """Make a folder, for its owner only, in a folder that is there.

        Raises:
            FileExistsError: it is there.
        """

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""

    def lock(self, fd: int) -> bool:
        """Take a file or folder for this process alone until it is closed; False: another has it."""

    def free_bytes(self, path: str) -> int:
        """What can still be written to the file system of `path` by this user."""

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""

    def fresh_id(self) -> int:
        """A number of 64 bits that no other file has."""


class OsDisk:
    """The system's files."""

    def create(self, path: str) -> int:
        """Make a new file, for its owner only, and open it."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that is there."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def open_folder(self, path: str) -> int:
        """Open a folder, to sync or lock it."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Forget a descriptor."""
        os.close(fd)

    def write(self, fd: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all pieces; goes on after a short write, until an error says why it was short."""
        # Python itself goes on after EINTR (PEP 475).
        for start in range(0, len(pieces), _PIECES_MAX):
            some = pieces[start : start + _PIECES_MAX]
            length = sum(map(len, some))
            if len(some) == 1 or length > len(some) * _JOIN_BYTES_MAX:
                written = os.pwritev(fd, some, offset)
            else:
                some = (b"".join(some),)
                written = os.pwrite(fd, some[0], offset)
            if written < length:
                _write_rest(fd, offset, b"".join(some), written)
            offset += length

    def read(self, fd: int, offset: int, length: int) -> bytes:
        """Read; less than `length` only where the file ends."""
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing:
            # The system may stop early, at 2 GiB for instance.
            data = os.pread(fd, missing, offset + length - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, end: int) -> bool:
        """Have room for all bytes before `end`; on Linux, where the file system can."""
        if _fallocate is None:
            return False
        code = errno.EINTR
        while code == errno.EINTR:  # some file systems stop for a signal
            if _fallocate(fd, _KEEP_SIZE, 0, end) == 0:
                return True
            code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM):
            return False
        raise OSError(code, os.strerror(code))

    def sync(self, fd: int) -> None:
        """Make durable what was written to a file and its size, or the names in a folder."""
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            # Not fdatasync: a new name changes no size, and ext4 may then leave it for later.
            os.fsync(fd)
        else:
            _fdatasync(fd)

    def size(self, fd: int) -> int:
        """Bytes in the file."""
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of a file that has it."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def list_folder(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(os.listdir(path))

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of that name."""
        return os.path.isdir(path)

    def make_folder(self, path: str) -> None:
        """Make a folder, for its owner only."""
        os.mkdir(path, FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def lock(self, fd: int) -> bool:
        """Take the file or folder for this process alone until the descriptor is closed."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free_bytes(self, path: str) -> int:
        """What can still be written to the file system of `path` by this user."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def fresh_id(self) -> int:
        """A number of 64 bits that no other file has."""
        return int.from_bytes(os.urandom(8), "big")


def sync_folder(disk: Disk, path: str) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: they may not be.
    """
    fd = disk.open_folder(path)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)


def _write_rest(fd: int, offset: int, data: bytes, written: int) -> None:
    view = memoryview(data)
    while written < len(data):
        more = os.pwrite(fd, view[written:], offset + written)
        if not more:
            raise OSError(errno.EIO, "the system writes nothing and gives no reason")
        written += more
