"""Check of all files of a data folder without a broker, by the rules of a start. Nothing is changed."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import StorageError
from amqp10broker.storage import catalog_log
from amqp10broker.storage.catalog_log import CatalogLog
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.entry_log import Key, Value
from amqp10broker.storage.folder import DataFolder, FolderInventory
from amqp10broker.storage.logfile import JOURNAL, STREAM, Naming, SequenceFile, survey
from amqp10broker.storage.record import HEADER_BYTES, FileReader, KnownFile, Purpose, Record, Torn
from amqp10broker.storage.stream_files import FOLDER, Segments, folder_of, part_of


class Contents(Protocol):
    """The interpretation of the records."""

    @property
    def streams(self) -> Collection[int]: ...

    def declare(self, path: str, entries: Iterable[tuple[Key, Value]]) -> None:
        """Receive the catalog's entries. Raises `StorageError` if a start would be refused because of one."""

    def take(self, records: Sequence[Record]) -> None:
        """Receive records of the journal, in order. Raises `DamagedFile` if one cannot be decoded."""

    def faults(self) -> Iterator[StorageError]:
        """Iterate over missing things, after all records."""


@dataclass(frozen=True, slots=True)
class Checked:
    path: str
    bytes: int
    records: int
    """All records, or those before the torn tail or the fault."""
    torn: Torn | None = None
    """An end that was not written completely, which the next start cuts off."""
    fault: StorageError | None = None


def missing_files(disk: Disk, folder: DataFolder) -> Iterator[StorageError]:
    """Iterate over the errors of missing files, which is the first check of a start. Raises `StorageError` if
    something cannot be read, or does not belong there.
    """
    try:
        catalog_log.is_there(disk, folder, folder.inventory.part("catalog"))
    except StorageError as error:
        yield error
    yield from survey(disk, folder.journal, JOURNAL, folder.inventory.part("journal").known).missing
    for number in streams_in(disk, folder):
        part = part_of(folder.inventory, number)
        yield from survey(disk, folder_of(folder.streams, number), STREAM, part.known).missing


def check_folder(disk: Disk, folder: DataFolder, contents: Contents) -> Iterator[Checked]:
    """Read everything, and yield a result for each file and each other fault. Leftovers of streams that are
    not declared are not read, since the next start removes them.
    """
    return _Check(disk, folder, contents).run()


@dataclass(slots=True, eq=False)
class _Check:
    _disk: Disk
    _folder: DataFolder
    _contents: Contents

    def run(self) -> Iterator[Checked]:
        folder = self._folder
        if folder.inventory.reader is not None:
            yield self._checked(folder.inventory.reader)
        log = CatalogLog(self._disk, folder.catalog, folder.inventory.part("catalog"))
        catalog = self._catalog(log)
        yield from catalog
        declared: Collection[int] | None = None
        if all(checked.fault is None for checked in catalog):
            try:
                self._contents.declare(log.path, log.entries())
                declared = self._contents.streams
            except StorageError as error:
                yield self._fault(log.path, error)
        journal = list(self._sequence(folder.journal, folder.inventory.part("journal"), None))
        yield from journal
        if declared is not None and all(checked.fault is None for checked in journal):
            for fault in self._contents.faults():
                yield Checked("journal", 0, 0, fault=fault)
        for number in streams_in(self._disk, folder):
            part = part_of(folder.inventory, number)
            path = folder_of(folder.streams, number)
            if declared is None or number in declared:
                yield from self._sequence(path, part, number)
            else:
                for fault in survey(self._disk, path, STREAM, part.known).missing:
                    yield self._fault(fault.path, fault)

    def _catalog(self, log: CatalogLog) -> list[Checked]:
        folder = self._folder
        part = folder.inventory.part("catalog")
        try:
            if not catalog_log.is_there(self._disk, folder, part):
                return []
            return [self._checked(log.read(part.known.get(catalog_log.NAME)))]
        except StorageError as error:
            return [self._fault(log.path, error, log.reader)]

    def _sequence(self, path: str, part: FolderInventory, stream: int | None) -> Iterator[Checked]:
        naming = JOURNAL if stream is None else STREAM
        try:
            found = survey(self._disk, path, naming, part.known)
        except StorageError as error:
            yield self._fault(error.path, error)
            return
        for fault in found.missing:
            yield self._fault(fault.path, fault)
        segments = None if stream is None else Segments(stream)
        for member in found.files:
            reader: FileReader | None = None
            try:
                reader = member.reader(self._disk, naming)
                if segments is None:
                    for records in reader.batches():
                        self._contents.take(records)
                else:
                    for _ in segments.read(reader, gap=member.gap):
                        pass
            except StorageError as error:
                yield self._fault(member.path, error, reader)
                if segments is not None:
                    # The first offset of the next segment is not known.
                    segments.following = None
            else:
                yield self._checked(reader)

    def _checked(self, reader: FileReader) -> Checked:
        path = os.path.relpath(reader.path, self._folder.path)
        return Checked(path, reader.size, reader.records, torn=reader.torn)

    def _fault(self, path: str, error: StorageError, reader: FileReader | None = None) -> Checked:
        shown = os.path.relpath(path, self._folder.path)
        if reader is None:
            return Checked(shown, self._size(path), 0, fault=error)
        return Checked(shown, reader.size, reader.records, fault=error)

    def _size(self, path: str) -> int:
        try:
            fd = self._disk.open(path)
        except OSError:
            return 0
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)


def streams_in(disk: Disk, folder: DataFolder) -> list[int]:
    names = {os.path.basename(name) for name in folder.inventory.parts(FOLDER)}
    try:
        if disk.is_folder(folder.streams):
            names.update(disk.list_folder(folder.streams))
    except OSError as error:
        raise StorageError(
            folder.streams, f"cannot be read: {error.strerror}", "check the folder's owner and mode"
        ) from error
    return sorted(int(name) for name in names if name.isdecimal())


CATALOG: Final = Naming(16, Purpose.CATALOG, gapless=False)
"""The catalog's one file has another name; it is rewritten under it, with another id."""


def accept_folder(disk: Disk, folder: DataFolder) -> Iterator[str]:
    """Set each inventory entry to the present state of its file, durably; yield a clause for each loss.

    It is for an operator without a copy of the lost data. Files are not touched: a start reports a damaged
    one. Raises `DamagedFile` if the catalog is missing, and `StorageError` if a file cannot be read, or the
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
    # Files after those that are given up may have a gap before them.
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
                member.path, "the file is empty", "remove the file, and give the same command again"
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
