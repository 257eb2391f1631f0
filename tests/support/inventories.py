"""Inventories (`storage.folder`) on disks of tests, without a whole data folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import Inventory, is_there
from amqp10broker.storage.stream_files import FileShelf, part_of

TOP = "/"


def inventory_on(disk: Disk) -> Inventory:
    """Read the inventory of a disk, or make one."""
    inventory = Inventory(disk, TOP)
    if is_there(disk, TOP):
        inventory.open()
    else:
        inventory.make()
    return inventory


def sync_inventory(disk: Disk, inventory: Inventory) -> bool:
    """Sync as the group commit does; return whether there was anything to sync."""
    fds = inventory.fds_to_sync()
    for fd in fds:
        disk.sync(fd)
    if fds:
        inventory.synced()
    return bool(fds)


class ShelfAlone(FileShelf):
    """A stream's files with an inventory of their own, which is synced with them, as in the group commit."""

    def __init__(self, disk: Disk, streams: str, number: int) -> None:
        self.inventory = inventory_on(disk)
        super().__init__(disk, streams, number, part_of(self.inventory, number), self._sync_now)

    def _sync_now(self, fds: Sequence[int], done: Callable[[], None]) -> None:
        for fd in fds:
            self._disk.sync(fd)
        done()

    def prepare(self, first: int) -> list[int]:
        fds = super().prepare(first)
        return [*self.inventory.fds_to_sync(), *fds] if fds else []

    def delete(self) -> None:
        super().delete()
        while sync_inventory(self._disk, self.inventory):
            pass

    def fds_to_sync(self) -> list[int]:
        return [*self.inventory.fds_to_sync(), *super().fds_to_sync()]

    def synced(self) -> None:
        super().synced()
        self.inventory.synced()

    def close(self) -> None:
        super().close()
        self.inventory.close()
