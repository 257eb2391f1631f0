"""Acceptance of lost files: the inventory is changed to the files that exist.

For an operator without a copy of what got lost. Files are not touched: one that is damaged inside stays so,
and a start reports where. A missing catalog is not accepted, since it is needed to interpret the other files.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from typing import Final

from amqp10broker.errors import StorageError
from amqp10broker.storage import catalog_log
from amqp10broker.storage.check import streams_in
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import DataFolder
from amqp10broker.storage.inventory import FolderInventory
from amqp10broker.storage.reader import FileReader, KnownFile
from amqp10broker.storage.record import HEADER_BYTES, Purpose
from amqp10broker.storage.sequence import JOURNAL, STREAM, Naming, SequenceFile, survey
from amqp10broker.storage.stream_files import folder_of, part_of

CATALOG: Final = Naming(16, Purpose.CATALOG, gapless=False)
"""The catalog's one file has another name; it is rewritten under it, with another id."""


def accept_folder(disk: Disk, folder: DataFolder) -> Iterator[str]:
    """Set each inventory entry to the present state of its file, durably; yield a clause for each loss.
    Raises `DamagedFile` if the catalog is missing, and `StorageError` if a file cannot be read, or the
    inventory cannot be written.
    """
    part = folder.inventory.part("catalog")
    if catalog_log.is_there(disk, folder, part):
        path = os.path.join(folder.catalog, catalog_log.NAME)
        yield from _accept(
            disk, part, [SequenceFile(0, path, True, part.known.get(catalog_log.NAME))], CATALOG
        )
    yield from _accept_all(disk, folder.inventory.part("journal"), folder.journal, JOURNAL)
    for number in streams_in(disk, folder):
        part = part_of(folder.inventory, number)
        yield from _accept_all(disk, part, folder_of(folder.streams, number), STREAM)
    folder.inventory.sync()


def _accept_all(disk: Disk, part: FolderInventory, folder: str, naming: Naming) -> Iterator[str]:
    files = survey(disk, folder, naming, part.known).files
    yield from _accept(disk, part, files, naming)
    there = {os.path.basename(member.path) for member in files}
    gone = sorted(name for name in part.known if name not in there)
    for name in gone:
        yield f"{os.path.join(folder, name)}: missing"
    part.forget(gone)


def _accept(
    disk: Disk, part: FolderInventory, files: Sequence[SequenceFile], naming: Naming
) -> Iterator[str]:
    # Files behind those that are given up may have a gap before them.
    missing = {number for name in part.known if (number := naming.number(name)) is not None}
    missing.difference_update(member.number for member in files)
    new: dict[str, KnownFile] = {}
    before: int | None = None
    shorter = False
    for member in files:
        known = member.known
        reader = FileReader(disk, member.path, purpose=naming.purpose, number=None, last=True)
        reader.close()
        if reader.header is None:
            raise StorageError(
                member.path, "there is nothing in it", "remove the file, and give the same command again"
            )
        gap = shorter or any(before is not None and before < each < member.number for each in missing)
        shorter = known is not None and known.synced > reader.size
        if known is not None and known.file_id != reader.header.file_id and naming is not CATALOG:
            yield f"{member.path}: another file than it was"
            known = None
        elif known is not None and shorter:
            yield f"{member.path}: {known.synced - reader.size} bytes at its end"
            known = None
        claim = known or KnownFile(reader.header.file_id, HEADER_BYTES)
        new[os.path.basename(member.path)] = claim._replace(gap=claim.gap or gap)
        before = member.number
    part.put(new)
