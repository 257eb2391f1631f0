"""The catalog's entries (`metadata.catalog.Changes`) on disk, in one `EntryLog`."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from typing import Final

from amqp10broker.errors import DamagedFile, LimitExceeded, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.entry_log import EntryLog, Key, Value
from amqp10broker.storage.folder import DataFolder, FolderInventory
from amqp10broker.storage.logfile import JOURNAL, survey
from amqp10broker.storage.record import KnownFile, Purpose

NAME: Final = "catalog.log"


class CatalogLog(EntryLog):
    def __init__(
        self, disk: Disk, folder: str, part: FolderInventory, when_written: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(disk, os.path.join(folder, NAME), Purpose.CATALOG, when_written)
        self._part = part
        self._ahead = 0

    def put(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Store entries, all of them or none. Raises `LimitExceeded` if they cannot be stored now."""
        try:
            self.store(entries)
        except StorageError as error:
            raise LimitExceeded("data folder", f"it cannot be kept on disk: {error}") from error

    def put_ahead(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Store entries that must be durable before all records that queues append from now on."""
        self.put(entries)
        self._ahead = self.changes

    def holds_journal(self) -> bool:
        return self._ahead > self.durable_changes

    def mark(self) -> None:
        """Record the synced length in the inventory, to detect a missing end. A failure is ignored."""
        file_id, synced = self.place
        try:
            self._part.put({NAME: KnownFile(file_id, synced)})
        except StorageError:
            return


def open_catalog_log(
    disk: Disk, folder: DataFolder, part: FolderInventory, when_written: Callable[[], None] = lambda: None
) -> CatalogLog:
    """Read the catalog's log of a data folder that this process has locked; make an empty one if the folder
    is new. Raises `DamagedFile` as `is_there` or if the file is damaged, and `StorageFailed` if it may not be
    on the disk.
    """
    log = CatalogLog(disk, folder.catalog, part, when_written)
    if is_there(disk, folder, part):
        log.open(part.known.get(NAME))
    else:
        log.make()
    log.mark()
    return log


def is_there(disk: Disk, folder: DataFolder, part: FolderInventory) -> bool:
    """Return whether there is a catalog's log; if not, the folder is new. Raises `DamagedFile` if it is
    missing from a folder that had one.
    """
    try:
        names = disk.list_folder(folder.catalog) if disk.is_folder(folder.catalog) else []
    except OSError as error:
        raise StorageError(
            folder.catalog, f"cannot be used: {error.strerror}", "check the folder's owner and mode"
        ) from error
    if NAME in names:
        return True
    journal = survey(disk, folder.journal, JOURNAL, {})
    if part.known or journal.files or journal.unused:
        # It is made before anything else, and never removed.
        raise DamagedFile(
            os.path.join(folder.catalog, NAME),
            "the file is missing, which says which queues there are",
            "nothing was changed; bring it back, or restore the data folder from a copy",
        )
    return False
