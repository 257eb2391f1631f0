"""Disks for tests: one in memory that can fail, lose power and be looked at.

`SimDisk` keeps what the system would show and, beside it, what a loss of power may leave. Every call is
counted; `fail` makes the n-th one fail, `lose_power_at` stops everything at it. `after_power_loss` then
gives one of the disks that may be found afterwards:

- of a file, what was synced is there. Of every sector written or cut since, any of its states since then
  may be there; the size is that of any moment since then. (All old, all new, a prefix, a prefix torn in
  the middle of a write, and any mixture are all drawn.)
- of a folder, any of the names made, removed or changed since its last sync may be as before.
- nothing else is there: locks and descriptors are gone.

The same seed gives the same disk. Ids (`fresh_id`) are counted, so that a scenario can be repeated.
"""

from __future__ import annotations

import copy
import errno
import os
import os.path
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

SECTOR_BYTES = 512


class PowerLoss(BaseException):
    """The power is gone. No code under test may catch it: it is no Exception."""


@dataclass
class Inode:
    """A file without a name."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Changes since the last sync: (offset, bytes written), or (size, None) for a cut."""
    allocated: int = 0
    """Bytes for which there is room, whatever the size."""
    locked: int | None = None
    """The descriptor that holds the lock."""

    def change(self, offset: int, data: bytes | None) -> None:
        _change(self.data, offset, data)
        self.since.append((offset, data))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.since.clear()


@dataclass
class Folder:
    """Names in a folder, and how they were at its last sync."""

    names: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    since: list[dict[str, Inode | Folder | None]] = field(default_factory=list)
    """Changes since the last sync; each holds as a whole or not at all. None: the name was removed."""
    locked: int | None = None
    """The descriptor that holds the lock."""

    def change(self, **names: Inode | Folder | None) -> None:
        _rename(self.names, names)
        self.since.append(names)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.since.clear()


class SimDisk:
    """A disk in memory; see above.

    Attributes:
        calls: what was called, in order: (method, path).
        fail: the error number by the number of the call, counted from 0. A write that fails has written
            some of its bytes.
        lose_power_at: the number of the call at which the power goes: a write may have been done by then.
            Nothing is done by any later call.
        free: what `free_bytes` says.
        capacity: bytes that all files together may take, in whole sectors; None: any.
    """

    def __init__(self, seed: int = 0) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail: dict[int, int] = {}
        self.lose_power_at: int | None = None
        self.free = 1 << 40
        self.capacity: int | None = None
        self._root = Folder()
        self._open: dict[int, tuple[Inode | Folder, str]] = {}
        self._next_fd = 1000
        self._next_id = seed << 32 | 1
        self._rng = random.Random(seed)

    # --- the protocol -------------------------------------------------------------------------------

    def create(self, path: str) -> int:
        self._call("create", path)
        folder, name = self._parent(path)
        if name in folder.names:
            raise OSError(errno.EEXIST, "File exists", path)
        inode = Inode()
        folder.change(**{name: inode})
        return self._descriptor(inode, path)

    def open(self, path: str, *, write: bool = False) -> int:
        self._call("open", path)
        inode = self._find(path)
        if isinstance(inode, Folder):
            raise OSError(errno.EISDIR, "Is a directory", path)
        return self._descriptor(inode, path)

    def open_folder(self, path: str) -> int:
        self._call("open_folder", path)
        return self._descriptor(self._folder(path), path)

    def close(self, fd: int) -> None:
        what, _ = self._open.pop(fd)
        if what.locked == fd:
            what.locked = None

    def write(self, fd: int, offset: int, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        inode, path = self._inode(fd)

        def part() -> None:
            some = data[: self._rng.randrange(len(data) + 1)]
            if some:
                inode.change(offset, some)

        self._call("write", path, part, lambda: inode.change(offset, data))
        self._take_room(inode, offset + len(data), path)
        if data:
            inode.change(offset, data)

    def read(self, fd: int, offset: int, length: int) -> bytes:
        inode, path = self._inode(fd)
        self._call("read", path)
        return bytes(inode.data[offset : offset + length])

    def truncate(self, fd: int, size: int) -> None:
        inode, path = self._inode(fd)
        self._call("truncate", path, lost=lambda: inode.change(size, None))
        inode.change(size, None)
        inode.allocated = 0

    def allocate(self, fd: int, end: int) -> bool:
        inode, path = self._inode(fd)
        self._call("allocate", path)
        self._take_room(inode, end, path)
        inode.allocated = max(inode.allocated, end)
        return True

    def sync(self, fd: int) -> None:
        what, path = self._open[fd]
        self._call("sync", path)
        what.sync()

    def size(self, fd: int) -> int:
        inode, path = self._inode(fd)
        self._call("size", path)
        return len(inode.data)

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old)
        folder, name = self._parent(old)
        other, new_name = self._parent(new)
        assert folder is other, "renaming from folder to folder is not simulated"
        if name not in folder.names:
            raise OSError(errno.ENOENT, "No such file or directory", old)
        folder.change(**{name: None, new_name: folder.names[name]})

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        if isinstance(self._find(path), Folder):
            raise OSError(errno.EISDIR, "Is a directory", path)
        folder, name = self._parent(path)
        folder.change(**{name: None})

    def list_folder(self, path: str) -> list[str]:
        self._call("list_folder", path)
        return sorted(self._folder(path).names)

    def is_folder(self, path: str) -> bool:
        self._call("is_folder", path)
        try:
            return isinstance(self._find(path), Folder)
        except OSError:
            return False

    def make_folder(self, path: str) -> None:
        self._call("make_folder", path)
        folder, name = self._parent(path)
        if name in folder.names:
            raise OSError(errno.EEXIST, "File exists", path)
        folder.change(**{name: Folder()})

    def remove_folder(self, path: str) -> None:
        self._call("remove_folder", path)
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        folder, name = self._parent(path)
        folder.change(**{name: None})

    def lock(self, fd: int) -> bool:
        what, path = self._open[fd]
        self._call("lock", path)
        if what.locked not in (None, fd):
            return False
        what.locked = fd
        return True

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", path)
        return self.free if self.capacity is None else max(0, self.capacity - self.used())

    def total_bytes(self, path: str) -> int:
        self._call("total_bytes", path)
        return 1 << 40 if self.capacity is None else self.capacity

    def fresh_id(self) -> int:
        self._next_id += 1
        # Spread over all bits, as random ones are.
        return self._next_id * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of the file, as a process receives one; this counts as no call."""
        what, path = self._open[fd]
        return self._descriptor(what, path)

    def used(self) -> int:
        """Return the space of all files, including open files without a name; this counts as no call."""
        found = (*self._within(self._root), *(what for what, _ in self._open.values()))
        inodes = {id(what): what for what in found if isinstance(what, Inode)}
        return sum(_sectors(max(len(inode.data), inode.allocated)) for inode in inodes.values())

    # --- looking and changing -----------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        return len(self._open)

    def contents(self, path: str) -> bytes:
        """Return the bytes of a file; this counts as no call."""
        inode = self._find(path)
        assert isinstance(inode, Inode)
        return bytes(inode.data)

    def overwrite(self, path: str, data: bytes) -> None:
        """Change a file durably, or make it; this counts as no call."""
        folder, name = self._parent(path)
        inode = folder.names.get(name)
        if inode is None:
            inode = Inode()
            folder.change(**{name: inode})
            folder.sync()
        assert isinstance(inode, Inode)
        inode.data[:] = data
        inode.sync()

    def flip(self, path: str, bit: int) -> None:
        """Flip a bit of a file durably; this counts as no call."""
        data = bytearray(self.contents(path))
        data[bit // 8] ^= 1 << bit % 8
        self.overwrite(path, bytes(data))

    def names(self, path: str) -> list[str]:
        return sorted(self._folder(path).names)

    def paths(self, path: str) -> list[str]:
        """Return all files in a folder and below it; this counts as no call."""
        found = []
        for name, what in sorted(self._folder(path).names.items()):
            below = os.path.join(path, name)
            found += [below] if isinstance(what, Inode) else self.paths(below)
        return found

    def after_kill(self) -> SimDisk:
        """Return the disk after SIGKILL: all that was written is there, durable or not."""
        disk = copy.copy(self)
        disk.calls, disk.fail, disk.lose_power_at = [], {}, None
        disk._root = copy.deepcopy(self._root)
        disk._open = {}
        for what in disk._within(disk._root):
            what.locked = None
        return disk

    def after_power_loss(self, seed: int) -> SimDisk:
        """Return one of the possible disks after a loss of power now."""
        return self._copy(random.Random(seed), _some_data, _some_names)

    # --- parts --------------------------------------------------------------------------------------

    def _copy(
        self,
        rng: random.Random,
        data_of: Callable[[Inode, random.Random], bytes],
        names_of: Callable[[Folder, random.Random], dict[str, Inode | Folder]],
    ) -> SimDisk:
        disk = SimDisk()
        disk._next_id = self._next_id + 1000
        disk.capacity = self.capacity
        disk._rng = random.Random(rng.random())
        copies: dict[int, Inode | Folder] = {}

        def copied(what: Inode | Folder) -> Inode | Folder:
            if id(what) not in copies:
                if isinstance(what, Inode):
                    data = data_of(what, rng)
                    copies[id(what)] = Inode(bytearray(data), data, allocated=what.allocated)
                else:
                    names = {name: copied(each) for name, each in names_of(what, rng).items()}
                    copies[id(what)] = Folder(names, dict(names))
            return copies[id(what)]

        root = copied(self._root)
        assert isinstance(root, Folder)
        disk._root = root
        return disk

    def _within(self, folder: Folder) -> Iterator[Inode | Folder]:
        yield folder
        for what in folder.names.values():
            if isinstance(what, Inode):
                yield what
            else:
                yield from self._within(what)

    def _call(
        self,
        method: str,
        path: str,
        part: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        number = len(self.calls)
        self.calls.append((method, path))
        if self.lose_power_at is not None and number >= self.lose_power_at:
            if number == self.lose_power_at:
                lost()
            raise PowerLoss(number)
        if number in self.fail:
            part()
            code = self.fail[number]
            raise OSError(code, os.strerror(code), path)

    def _take_room(self, inode: Inode, end: int, path: str) -> None:
        if self.capacity is None:
            return
        more = _sectors(end) - _sectors(max(len(inode.data), inode.allocated))
        if more > 0 and self.used() + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _descriptor(self, what: Inode | Folder, path: str) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (what, path)
        return self._next_fd

    def _inode(self, fd: int) -> tuple[Inode, str]:
        what, path = self._open[fd]
        assert isinstance(what, Inode)
        return what, path

    def _find(self, path: str) -> Inode | Folder:
        what: Inode | Folder = self._root
        for part in os.path.abspath(path).split("/"):
            if part:
                if not isinstance(what, Folder):
                    raise OSError(errno.ENOTDIR, "Not a directory", path)
                if part not in what.names:
                    raise OSError(errno.ENOENT, "No such file or directory", path)
                what = what.names[part]
        return what

    def _folder(self, path: str) -> Folder:
        what = self._find(path)
        if not isinstance(what, Folder):
            raise OSError(errno.ENOTDIR, "Not a directory", path)
        return what

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder, name = os.path.split(os.path.abspath(path))
        return self._folder(folder), name


def _sectors(size: int) -> int:
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def _change(data: bytearray, offset: int, written: bytes | None) -> None:
    if written is None:
        if offset <= len(data):
            del data[offset:]
        else:
            data += bytes(offset - len(data))
    else:
        if offset > len(data):
            data += bytes(offset - len(data))
        data[offset : offset + len(written)] = written


def _rename(names: dict[str, Inode | Folder], changed: dict[str, Inode | Folder | None]) -> None:
    for name, what in changed.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


def _some_data(inode: Inode, rng: random.Random) -> bytes:
    """Return possible contents of a file after power loss."""
    states = [inode.durable]
    data = bytearray(inode.durable)
    for offset, written in inode.since:
        _change(data, offset, written)
        states.append(bytes(data))
    kind = rng.randrange(5)
    if kind == 0:
        return states[0]
    if kind == 1:
        return states[-1]
    reached = rng.randrange(len(states))
    if kind == 2 and reached:
        # A write that was cut at some byte.
        offset, written = inode.since[reached - 1]
        data = bytearray(states[reached - 1])
        _change(data, offset, written[: rng.randrange(len(written) + 1)] if written else written)
        return bytes(data)
    if kind == 3 or len(states) == 1:
        return states[reached]
    size = len(states[rng.randrange(len(states))])
    mixed = bytearray(size)
    # Most sectors have one state, and some have another: more telling than to draw each one.
    usual = states[rng.randrange(len(states))]
    for start in range(0, size, SECTOR_BYTES):
        state = usual if rng.random() < 0.7 else states[rng.randrange(len(states))]
        sector = state[start : start + SECTOR_BYTES]
        mixed[start : start + len(sector)] = sector
    del mixed[size:]
    return bytes(mixed)


def _some_names(folder: Folder, rng: random.Random) -> dict[str, Inode | Folder]:
    """Return possible names in a folder after power loss."""
    names = dict(folder.durable)
    since = folder.since
    kind = rng.randrange(4)
    if kind == 0:
        since = []
    elif kind == 1:
        since = since[: rng.randrange(len(since) + 1)]
    elif kind == 2:
        since = [change for change in since if rng.random() < 0.5]
    for change in since:
        _rename(names, change)
    return names
