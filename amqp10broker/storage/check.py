"""Reading all files of a data folder without a broker: what is in them, and whether they are whole.

Every file called ``*.log`` is read with the one reader (`reader`), each folder's as one sequence. Nothing
is changed. What a record means is not looked at: that is the business of those who wrote it.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import DataFolder
from amqp10broker.storage.reader import FileReader, Torn
from amqp10broker.storage.record import HEADER_BYTES, Purpose

_SUFFIX: Final = ".log"
# What the next start removes: files written aside, folders of deleted streams.
_LEFTOVERS: Final = (".new", ".deleted")


@dataclass(frozen=True, slots=True)
class Checked:
    """One file that was read, or could not be."""

    path: str
    """Relative to the data folder."""
    bytes: int
    records: int
    """That were read: all, or those before the torn tail or the fault."""
    torn: Torn | None = None
    """An end that was not written whole when power or process went. The next start cuts it off."""
    fault: StorageError | None = None
    """Why a start would be refused."""


def check_folder(disk: Disk, folder: DataFolder) -> Iterator[Checked]:
    """Read everything.

    Args:
        disk: where it is.
        folder: one that no broker is using.

    Yields:
        A result a file, in the order of their names; one without bytes for a file that is missing.
    """
    yield from _sequence(disk, folder, folder.journal, Purpose.JOURNAL, gapless=True)
    yield from _sequence(disk, folder, folder.catalog, Purpose.CATALOG)
    yield from _tree(disk, folder, folder.streams)


def _tree(disk: Disk, folder: DataFolder, path: str) -> Iterator[Checked]:
    """The files of a folder of streams, and of the folders in it."""
    yield from _sequence(disk, folder, path, Purpose.STREAM)
    for name in disk.list_folder(path):
        inner = os.path.join(path, name)
        if not name.endswith(_LEFTOVERS) and disk.is_folder(inner):
            yield from _tree(disk, folder, inner)


def _sequence(
    disk: Disk, folder: DataFolder, path: str, purpose: Purpose, *, gapless: bool = False
) -> Iterator[Checked]:
    """The files of one folder, of which the last may have a torn tail.

    Args:
        disk: where they are.
        folder: the data folder.
        path: the folder to read.
        purpose: what its files are for.
        gapless: they are the journal's: their numbers follow each other, and the next file is made in
            the commit that fills the one before, so that both may be unfinished.
    """
    try:
        names = disk.list_folder(path)
    except OSError as error:
        fault = StorageError(
            path, f"cannot be read: {error.strerror}", "check that it is there, and whose it is"
        )
        yield Checked(os.path.relpath(path, folder.path), 0, 0, fault=fault)
        return
    logs = [name for name in names if name.endswith(_SUFFIX)]
    last = logs[-1:]
    before: int | None = None
    if gapless and len(logs) > 1 and _size(disk, os.path.join(path, logs[-1])) <= HEADER_BYTES:
        last = logs[-2:]
    for name in logs:
        stem = name.removesuffix(_SUFFIX)
        number = int(stem) if stem.isdecimal() else None
        if gapless and before is not None and number is not None:
            yield from _missing(folder, path, before, number, len(stem))
        yield _file(disk, folder, os.path.join(path, name), purpose, number, last=name in last)
        before = number


def _missing(folder: DataFolder, path: str, before: int, after: int, digits: int) -> Iterator[Checked]:
    if after != before + 1:
        missing = os.path.join(path, f"{before + 1:0{digits}}{_SUFFIX}")
        fault = DamagedFile(
            missing, "the file is missing", "bring it back, or restore the data folder from a copy"
        )
        yield Checked(os.path.relpath(missing, folder.path), 0, 0, fault=fault)


def _file(
    disk: Disk, folder: DataFolder, path: str, purpose: Purpose, number: int | None, *, last: bool
) -> Checked:
    shown = os.path.relpath(path, folder.path)
    records = size = 0
    try:
        reader = FileReader(disk, path, purpose=purpose, number=number, last=last)
        size = reader.size
        for batch in reader.batches():
            records += len(batch)
    except StorageError as error:
        return Checked(shown, size or _size(disk, path), records, fault=error)
    return Checked(shown, size, records, torn=reader.torn)


def _size(disk: Disk, path: str) -> int:
    """Bytes of a file; 0 if the system does not tell, which reading it will."""
    try:
        fd = disk.open(path)
    except OSError:
        return 0
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)
