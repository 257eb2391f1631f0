"""The data folder: its location, lock and format.

::

    DIR/                mode 0700
      format            "amqp10broker data folder, format 1"
      lock              held with flock, as the folder is, by the one broker that runs; says which it is
      log     which files there must be (`inventory`)
      journal/          the journal's numbered files
      catalog/          what is declared
      streams/          a folder of segments for each stream
      pid, command, log of a node of a cluster: its process, and what started it; nothing depends on them

A folder with an interrupted creation is finished by the next start; the three folders are made last, so one
that has any of them and no format was changed by other programs. Nothing is ever written into a folder with
other things in it.

The inventory detects missing files, and missing ends of files. Each file of the journal and of the streams,
and that of the catalog, has an entry: its id and a lower bound of its durable bytes. Entries are true after
any crash or loss of power:

- An entry is made when header and name of the file are durable, and in a commit before, or with, which
  anything in that file is confirmed.
- Before a file is removed its entry is, durably. A file that comes back is older than all that have entries.
- The length only grows: when a sequence goes on in another file, each second in which something was synced,
  and at an orderly end.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, DiskFull, FolderInUse, StorageError
from amqp10broker.storage.disk import Disk, sync_folder
from amqp10broker.storage.entry_log import ASIDE, EntryLog
from amqp10broker.storage.logfile import FULL
from amqp10broker.storage.record import BRING_BACK, FileReader, KnownFile, Purpose

NAME: Final = "inventory.log"


class Inventory(EntryLog):
    def __init__(self, disk: Disk, folder: str, when_written: Callable[[], None] = lambda: None) -> None:
        super().__init__(disk, os.path.join(folder, NAME), Purpose.INVENTORY, when_written)
        self._parts: dict[str, dict[str, KnownFile]] = {}

    def read(self, known: KnownFile | None = None) -> FileReader:
        reader = super().read(known)
        for key, value in self.entries():
            try:
                part, name = key
                file_id, synced, gap = value
                self._parts.setdefault(part, {})[name] = KnownFile(int(file_id), int(synced), bool(gap))
            except (TypeError, ValueError) as error:
                raise DamagedFile(
                    self.path,
                    f"the entry {key} cannot be understood",
                    "start the newer version that wrote it",
                ) from error
        return reader

    def part(self, name: str) -> FolderInventory:
        """Return the entries of a folder: ``journal``, ``streams/7``."""
        return FolderInventory(self, name, self._parts.setdefault(name, {}))

    def parts(self, above: str) -> list[str]:
        return [name for name, files in self._parts.items() if files and os.path.dirname(name) == above]


@dataclass(slots=True, eq=False)
class FolderInventory:
    """The inventory's entries of one folder. `known`: the files that must exist, by name."""

    _inventory: Inventory
    _folder: str
    known: dict[str, KnownFile]

    def put(self, files: Mapping[str, KnownFile]) -> None:
        """Put entries of files with true durable lengths. Raises `StorageError` without any change."""
        new: dict[str, KnownFile] = {}
        for name, each in files.items():
            before = self.known.get(name)
            if before is not None and before.gap:
                each = each._replace(gap=True)
            if each != before:
                new[name] = each
        if new:
            self._inventory.store([((self._folder, name), list(each)) for name, each in new.items()])
            self.known.update(new)

    def forget(self, names: Iterable[str]) -> int:
        """Remove the entries of files, which may be removed when the returned change `is_durable`."""
        gone = [name for name in names if self.known.pop(name, None) is not None]
        self._inventory.forget([(self._folder, name) for name in gone])
        return self._inventory.changes

    def when_durable(self, told: Callable[[], None]) -> None:
        if self.is_durable(self._inventory.changes):
            told()
        else:
            self._inventory.when_durable(told)

    def is_durable(self, change: int) -> bool:
        return self._inventory.durable_changes >= change

    def sync(self) -> None:
        self._inventory.sync()


def is_there(disk: Disk, folder: str) -> bool:
    try:
        return NAME in disk.list_folder(folder)
    except OSError as error:
        raise StorageError(folder, f"cannot be read: {error.strerror}", "check its owner and mode") from error


FORMAT: Final = 1
_FORMAT_LINE: Final = f"amqp10broker data folder, format {FORMAT}\n".encode()
_FORMAT: Final = re.compile(rb"amqp10broker data folder, format ([1-9]\d{0,8})\n")

_FORMAT_NAME: Final = "format"
_FORMAT_NEW: Final = "format.new"
_LOCK_NAME: Final = "lock"
_FOLDERS: Final = ("journal", "catalog", "streams")
_INVENTORIES: Final = (NAME, NAME + ASIDE)
_OF_A_NODE: Final = ("pid", "pid.new", "command", "log")
_OURS: Final = frozenset({_FORMAT_NAME, _FORMAT_NEW, _LOCK_NAME, *_INVENTORIES, *_FOLDERS, *_OF_A_NODE})

_LOCK_BYTES_MAX: Final = 200


class DataFolder:
    def __init__(self, disk: Disk, path: str, locks: list[int], inventory: Inventory) -> None:
        self.inventory = inventory
        self.path = path
        self.journal = os.path.join(path, "journal")
        self.catalog = os.path.join(path, "catalog")
        self.streams = os.path.join(path, "streams")
        self._disk = disk
        self._locks = locks

    def free_bytes(self) -> int:
        with _told(self.path, "the free space cannot be told"):
            return self._disk.free_bytes(self.path)

    def total_bytes(self) -> int:
        with _told(self.path, "the size of the file system cannot be told"):
            return self._disk.total_bytes(self.path)

    def close(self) -> None:
        self.inventory.let_go()
        _let_go(self._disk, self._locks)


def open_data_folder(disk: Disk, path: str, holder: str, *, without_inventory: bool = False) -> DataFolder:
    """Open a data folder for this process. Make it if it does not exist, in an existing folder.

    `holder`: the name of this process for others: "process 123". Raises `FolderInUse`; `DamagedFile` if its
    format or inventory is missing or damaged; `StorageError` if it cannot be opened, is something else, or
    has another format.
    """
    with _told(path, "the data folder cannot be used"):
        _make_folder(disk, path)
        _check_contents(disk, path, "give an empty folder, or the path of a new one")
        locks = _take_locks(disk, path, holder)
        files: Inventory | None = None
        try:
            complete = _has_format(disk, path)
            lost = complete and without_inventory and not is_there(disk, path)
            if complete and not lost:
                _check_inventory(disk, path)
            # The inventory is durable before the format that refers to it.
            files = Inventory(disk, path)
            if lost or not complete:
                files.make()
            else:
                files.open()
            if not complete:
                _write_format(disk, path)
            for name in _FOLDERS:
                _make_folder(disk, os.path.join(path, name))
            return DataFolder(disk, path, locks, files)
        except BaseException:
            if files is not None:
                files.let_go()
            _let_go(disk, locks)
            raise


def inspect_data_folder(disk: Disk, path: str, *, without_inventory: bool = False) -> DataFolder:
    """Open a data folder for reading, without any change. Raises `FolderInUse` if a broker has it, and
    `StorageError` if there is no data folder, or it has another format.
    """
    with _told(path, "the data folder cannot be read"):
        if not disk.is_folder(path):
            raise StorageError(path, "the folder does not exist", "give the folder of serve --data-dir")
        _check_contents(disk, path, "give the folder of serve --data-dir")
        locks = _take_locks(disk, path, None)
        try:
            if not _has_format(disk, path):
                raise StorageError(
                    path, "is not a data folder of amqp10broker", "give the folder of serve --data-dir"
                )
            files = Inventory(disk, path)
            if not without_inventory or is_there(disk, path):
                _check_inventory(disk, path)
                files.read()
        except BaseException:
            _let_go(disk, locks)
            raise
    return DataFolder(disk, path, locks, files)


def remove_contents(disk: Disk, path: str) -> None:
    """Remove the broker's files from a data folder that no broker uses; the folder stays. Raises
    `StorageError` if something cannot be removed; the folder counts as damaged then.
    """
    with _told(path, "it cannot be emptied"):
        there = disk.list_folder(path)
        for name in (*_FOLDERS, *_INVENTORIES, _FORMAT_NEW, _FORMAT_NAME):
            if name in there:
                _remove(disk, os.path.join(path, name))
        sync_folder(disk, path)


def _remove(disk: Disk, path: str) -> None:
    if not disk.is_folder(path):
        disk.unlink(path)
        return
    for name in disk.list_folder(path):
        _remove(disk, os.path.join(path, name))
    disk.remove_folder(path)


def _make_folder(disk: Disk, path: str) -> None:
    # The name is synced even if the folder exists: its creator may have been killed before that.
    parent = os.path.dirname(os.path.abspath(path))
    if not disk.is_folder(path):
        disk.make_folder(path)
        sync_folder(disk, parent)
        return
    # The parent of a folder that was made for the broker may not be readable.
    with suppress(PermissionError):
        sync_folder(disk, parent)


def _check_contents(disk: Disk, path: str, to_do: str) -> None:
    names = disk.list_folder(path)
    if _FORMAT_NAME in names:
        return
    # A new file system has "lost+found" at its top.
    foreign = [name for name in names if name not in _OURS and name != "lost+found"]
    if foreign:
        raise StorageError(
            path,
            f"is not a data folder of amqp10broker, and is not empty: it contains {foreign[0]!r}",
            to_do,
        )
    parts = [name for name in names if name in _FOLDERS]
    if parts:
        raise DamagedFile(
            os.path.join(path, _FORMAT_NAME),
            f"the file is missing, and there is {parts[0]!r}, which is made after it",
            "nothing was changed; bring it back, or restore the data folder from a copy; if all "
            f"else is known to be there, write it: {_FORMAT_LINE.decode().strip()}",
        )


def _take_locks(disk: Disk, path: str, holder: str | None) -> list[int]:
    name, locks = os.path.join(path, _LOCK_NAME), [disk.open_folder(path)]
    try:
        try:
            _lock(disk, path, locks[0])
        except OSError:
            # NFS only locks files that are open for writing, never a folder: the file's lock remains.
            _let_go(disk, locks)
        if _LOCK_NAME not in disk.list_folder(path):
            if holder is None:
                return locks
            try:
                disk.close(disk.create(name))
            except FileExistsError:
                pass  # another broker was faster; the lock file names it
        locks.append(disk.open(name, write=holder is not None))
        _lock(disk, path, locks[-1])
        if holder is not None:
            _sign(disk, locks[-1], holder)
    except BaseException:
        _let_go(disk, locks)
        raise
    return locks


def _lock(disk: Disk, path: str, fd: int) -> None:
    if not disk.lock(fd):
        raise FolderInUse(
            path,
            f"is in use by {_holder(disk, path) or 'another process'}",
            "stop that broker, or give another folder with --data-dir",
        )


def _holder(disk: Disk, path: str) -> str:
    if _LOCK_NAME not in disk.list_folder(path):
        return ""
    fd = disk.open(os.path.join(path, _LOCK_NAME))
    try:
        return disk.read(fd, 0, _LOCK_BYTES_MAX).decode("utf-8", "replace").strip()
    finally:
        disk.close(fd)


def _let_go(disk: Disk, locks: list[int]) -> None:
    while locks:
        disk.close(locks.pop())


def _sign(disk: Disk, fd: int, holder: str) -> None:
    try:
        disk.truncate(fd, 0)
        disk.write(fd, 0, [f"{holder}\n".encode()])
    except OSError:
        # A full disk must not prevent a start, which may free some of it. The lock is valid, and only lacks
        # the holder's name.
        pass


def _check_inventory(disk: Disk, path: str) -> None:
    if not is_there(disk, path):
        raise DamagedFile(
            os.path.join(path, NAME),
            "the file is missing, which says what files there must be",
            f"nothing was changed; {BRING_BACK}",
        )


def _has_format(disk: Disk, path: str) -> bool:
    name = os.path.join(path, _FORMAT_NAME)
    if _FORMAT_NAME not in disk.list_folder(path):
        return False
    fd = disk.open(name)
    try:
        text = disk.read(fd, 0, 2 * len(_FORMAT_LINE))
    finally:
        disk.close(fd)
    found = _FORMAT.fullmatch(text)
    if found is None:
        raise StorageError(
            name,
            "does not contain the format of the data folder",
            f"if this is a data folder of amqp10broker, its text should be {_FORMAT_LINE.decode().strip()!r}",
        )
    if int(found[1]) != FORMAT:
        raise StorageError(
            path,
            f"has format {int(found[1])}, and this broker reads format {FORMAT}",
            "nothing was changed; start the version of the broker that made it, or give another folder "
            "with --data-dir",
        )
    return True


def _write_format(disk: Disk, path: str) -> None:
    # It is written under another name and renamed, so that half of it never exists.
    aside = os.path.join(path, _FORMAT_NEW)
    if _FORMAT_NEW in disk.list_folder(path):
        disk.unlink(aside)
    fd = disk.create(aside)
    try:
        disk.write(fd, 0, [_FORMAT_LINE])
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(aside, os.path.join(path, _FORMAT_NAME))
    sync_folder(disk, path)


@contextmanager
def _told(path: str, problem: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise StorageError(
            where, "is a file, not a folder", "give a folder, or the path of a new one"
        ) from error
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        if error.errno in FULL:
            raise DiskFull(where, f"{problem}: {error.strerror}", "free space on that file system") from error
        raise StorageError(
            where, f"{problem}: {error.strerror}", "check that it exists and that this user may write to it"
        ) from error
