"""The system calls of storage. Errors are the system's `OSError`, which the callers convert to `StorageError`
with the file's name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import os.path
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from amqp10broker import portable
from amqp10broker.portable import BINARY, pread, pwrite, pwritev
from amqp10broker.syncing import sync_file

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

# FALLOC_FL_KEEP_SIZE of Linux; `os.posix_fallocate` makes the file longer, or writes zeros.
_KEEP_SIZE: Final = 1
# The most buffers that Linux takes in one call (IOV_MAX).
_PIECES_MAX: Final = 1024
# Up to this average size, joining pieces takes less time than passing each to the system.
_JOIN_BYTES_MAX: Final = 4096


def _find_fallocate() -> Any:
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    found = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate: Final = _find_fallocate()


class Disk:
    """The files of the operating system, by path and by descriptor. Every method may raise `OSError`. Tests
    replace it by a disk that fails the n-th call or loses power between two of them
    (`tests/support/disks.py`).
    """

    def create(self, path: str) -> int:
        """Make a new file, for its owner only. Raises `FileExistsError` if it exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, FILE_MODE)

    def open(self, path: str, *, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | BINARY)

    def open_folder(self, path: str) -> int:
        """Open a folder, to lock or sync it: a sync makes names in it durable."""
        return portable.open_folder(path)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all pieces from `offset` on. After an error any number of the first bytes may be there."""
        # It continues after a short write, until an error explains it. Python handles EINTR (PEP 475).
        for start in range(0, len(pieces), _PIECES_MAX):
            some = pieces[start : start + _PIECES_MAX]
            length = sum(map(len, some))
            if len(some) == 1 or length > len(some) * _JOIN_BYTES_MAX:
                written = pwritev(fd, some, offset)
            else:
                some = (b"".join(some),)
                written = pwrite(fd, some[0], offset)
            if written < length:
                _write_rest(fd, offset, b"".join(some), written)
            offset += length

    def read(self, fd: int, offset: int, length: int) -> bytes:
        """Read; less than `length` only at the end of the file."""
        data = pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing:
            # The system may stop early, at 2 GiB for instance.
            data = pread(fd, missing, offset + length - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, end: int) -> bool:
        """Allocate room for all bytes before `end`, so that writing them cannot fail for lack of it. The size
        of the file does not change; truncating it releases the room after its new end. Returns False if the
        system cannot allocate. After an error some of the room may have been taken.
        """
        if _fallocate is None:
            return False
        code = errno.EINTR
        while code == errno.EINTR:  # some file systems are interrupted by a signal
            if _fallocate(fd, _KEEP_SIZE, 0, end) == 0:
                return True
            code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM):
            return False
        raise OSError(code, os.strerror(code))

    def sync(self, fd: int) -> None:
        """Make a file durable, or the names in a folder."""
        sync_file(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_folder(self, path: str) -> None:
        """Make a folder, for its owner only. Raises `FileExistsError` if it exists."""
        os.mkdir(path, FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def lock(self, fd: int) -> bool:
        """Lock a file or folder for this process until it is closed; return False if another has it."""
        return portable.lock(fd)

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this user can still write to the file system of `path`."""
        return shutil.disk_usage(path).free

    def total_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).total

    def fresh_id(self) -> int:
        """Return a number of 64 bits that no other file has."""
        return int.from_bytes(os.urandom(8), "big")


def sync_folder(disk: Disk, path: str) -> None:
    fd = disk.open_folder(path)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)


def _write_rest(fd: int, offset: int, data: bytes, written: int) -> None:
    view = memoryview(data)
    while written < len(data):
        more = pwrite(fd, view[written:], offset + written)
        if not more:
            raise OSError(errno.EIO, "the system writes nothing and gives no reason")
        written += more


# Scratch files that may be open at the same time, where each has a name.
_NAMES_MAX: Final = 10_000


class Scratch:
    """A file that is appended to and read, and removed when it is closed."""

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
            disk.unlink(path)  # that of a broker that was killed
        except FileNotFoundError:
            break
        except PermissionError:
            # It is open, and Windows does not remove open files.
            number += 1
            path = os.path.join(folder, f".scratch{number}")
    return path
