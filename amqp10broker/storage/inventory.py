"""The inventory: which files the data folder must have, and how much of each was synced.

It detects missing files, and missing ends of files. Each file of the journal and of the streams, and
that of the catalog, has an entry here: its id and a lower bound of its durable bytes. Entries are true after
any crash or loss of power:

- An entry is made when header and name of the file are durable, and in a commit before, or with, which
  anything in that file is confirmed.
- Before a file is removed its entry is, durably. A file that comes back is older than all that have entries.
- The length only grows: when a sequence goes on in another file, each second in which something was synced,
  and at an orderly end.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.entry_log import EntryLog
from amqp10broker.storage.reader import FileReader, KnownFile
from amqp10broker.storage.record import Purpose

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
        """Return the entries of a folder, by its path in the data folder: ``journal``, ``streams/7``."""
        return FolderInventory(self, name, self._parts.setdefault(name, {}))

    def parts(self, above: str) -> list[str]:
        return [name for name, files in self._parts.items() if files and os.path.dirname(name) == above]


class FolderInventory:
    """The inventory's entries of one folder. `known`: the files that must exist, by name."""

    def __init__(self, inventory: Inventory, folder: str, known: dict[str, KnownFile]) -> None:
        self.known = known
        self._inventory = inventory
        self._folder = folder

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
        """Remove the entries of files, which may go when the returned change `is_durable`."""
        gone = [name for name in names if self.known.pop(name, None) is not None]
        self._inventory.forget([(self._folder, name) for name in gone])
        return self._inventory.changes

    def when_durable(self, told: Callable[[], None]) -> None:
        """Call a function when all changes so far survive a loss of power, at once if they do."""
        if self.is_durable(self._inventory.changes):
            told()
        else:
            self._inventory.when_durable(told)

    def is_durable(self, change: int) -> bool:
        return self._inventory.durable_changes >= change

    def sync(self) -> None:
        """Make all changes durable, which blocks. Raises `StorageError` if they may not be durable."""
        self._inventory.sync()


def open_inventory(disk: Disk, folder: str, *, make: bool) -> Inventory:
    """Read the inventory of a data folder that this process holds. `make`: begin an empty one: the folder is
    new, or of a format without. Raises `DamagedFile` if it is not as it was written.
    """
    inventory = Inventory(disk, folder)
    if make:
        inventory.make()
    else:
        inventory.open()
    return inventory


def is_there(disk: Disk, folder: str) -> bool:
    try:
        return NAME in disk.list_folder(folder)
    except OSError as error:
        raise StorageError(folder, f"cannot be read: {error.strerror}", "check whose it is") from error
