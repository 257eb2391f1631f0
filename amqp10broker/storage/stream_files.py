"""Segments of a stream as files in a folder of its own.

A segment's file is numbered by its first offset. Files are made and removed in order, and have entries in the
inventory from when they are durable to when they are removed: so a missing file is detected, and one that
comes back after a loss of power is removed again.

A deleted stream loses its entries, and then its folder is renamed, which is atomic; the next start removes
the rest of such a folder. Each step waits until the one before is durable, without blocking a caller.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, DiskFull, StorageError
from amqp10broker.storage.disk import Disk, sync_folder
from amqp10broker.storage.folder import FolderInventory, Inventory
from amqp10broker.storage.logfile import FULL, STREAM, LogFile, go_on, survey
from amqp10broker.storage.record import (
    BRING_BACK,
    HEADER_BYTES,
    FileHeader,
    FileReader,
    Purpose,
    Record,
    Torn,
)

CHUNK: Final = 1
"""Kind of a record with a chunk of messages (`queues.stream.log`)."""

OPEN_MAX: Final = 8
"""The open files of a stream besides the one that is written."""

FOLDER: Final = "streams"
_DELETED: Final = ".deleted"


def folder_of(streams: str, number: int) -> str:
    return os.path.join(streams, str(number))


def part_of(inventory: Inventory, number: int) -> FolderInventory:
    return inventory.part(f"{FOLDER}/{number}")


def remove_leftovers(disk: Disk, streams: str, numbers: Iterable[int], inventory: Inventory) -> list[str]:
    """Remove the folders and inventory entries of streams that are not in `numbers`; return the names."""
    there = {str(number) for number in numbers}
    gone = []
    entries = [name for name in inventory.parts(FOLDER) if os.path.basename(name) not in there]
    for name in entries:
        part = inventory.part(name)
        part.forget(list(part.known))
    if entries:
        inventory.sync()
    try:
        for name in disk.list_folder(streams):
            if name not in there and name.removesuffix(_DELETED).isdecimal():
                _remove_folder(disk, os.path.join(streams, name))
                gone.append(name)
    except OSError as error:
        raise _failed(streams, "what is left of a deleted stream cannot be removed", error) from error
    return gone


@dataclass(eq=False)
class FileShelf:
    """The segments of one stream, each a file. Methods that write raise `DiskFull` if nothing has changed and
    the call can be repeated. `_part`: of the inventory, which must be synced with the stream. `_on_torn`:
    called with a file after its torn end was cut off at the start.
    """

    _disk: Disk
    _streams: str
    _number: int
    _part: FolderInventory
    _when_synced: Callable[[Sequence[int], Callable[[], None]], None]
    _on_torn: Callable[[str, Torn], None] = lambda path, torn: None
    _files: dict[int, LogFile] = field(default_factory=dict, init=False)
    _open: dict[int, None] = field(default_factory=dict, init=False)
    _newest: LogFile | None = None
    # The next file, and the folders in which its name, or theirs, is not durable yet.
    _next: LogFile | None = None
    _folder_fds: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._folder = folder_of(self._streams, self._number)

    def recover(self) -> Iterator[tuple[int, int, Sequence[Record]]]:
        """Iterate over the existing records in steps: first offset of a segment, its size as far as it has
        been read, and its next records, which may be none.
        """
        found = survey(self._disk, self._folder, STREAM, self._part.known)
        if found.missing:
            raise found.missing[0]
        for path in (*found.leftovers, *([found.unused] if found.unused else [])):
            self._remove(path)
        segments = Segments(self._number)
        reader: FileReader | None = None
        for member in found.files:
            reader = member.reader(self._disk, STREAM)
            yield member.number, HEADER_BYTES, ()
            for entries in segments.read(reader, gap=member.gap):
                yield member.number, reader.end, entries
            assert reader.header is not None
            file = LogFile(self._disk, reader.path, reader.header, size=reader.end, synced=reader.end)
            self._files[member.number] = file
        if reader is not None:
            self._newest = self._files[found.files[-1].number] = go_on(self._disk, reader)
            if reader.torn is not None:
                self._on_torn(reader.path, reader.torn)
            self._claim_all()

    def _claim_all(self) -> None:
        # Also files without entries, since a killed broker may not have written them.
        files = {file.name: file.known for file in self._files.values()}
        if files == self._part.known:
            return
        try:
            sync_folder(self._disk, self._streams)
            sync_folder(self._disk, self._folder)
        except OSError as error:
            raise _failed(self._folder, "cannot be synced", error) from error
        try:
            self._part.put(files)
        except DiskFull:
            return  # the entries are as true as before

    def prepare(self, first: int) -> list[int]:
        """Begin a new segment; all before it must be durable. Returns descriptors to sync before `synced` and
        then `roll`; none if that has been done.
        """
        if self._next is None:
            self._next = LogFile(
                self._disk, self._path(first), FileHeader(Purpose.STREAM, first, self._disk.fresh_id())
            )
        file = self._next
        if file.synced:
            return []
        try:
            if not self._disk.is_folder(self._folder):
                self._disk.make_folder(self._folder)
            if not file.written:
                file.make()
            while len(self._folder_fds) < 2:
                folder = (self._folder, self._streams)[len(self._folder_fds)]
                self._folder_fds.append(self._disk.open_folder(folder))
        except OSError as error:
            raise _failed(self._folder, "cannot be made", error) from error
        return [file.fileno(), *self._folder_fds]

    def roll(self, first: int) -> int:
        file = self._next
        assert file is not None, "prepare it first"
        assert file.synced, "sync it first"
        full = {} if self._newest is None else {self._newest.name: self._newest.known}
        self._part.put({**full, file.name: file.known})
        if self._newest is not None:
            self._touch(self._newest.number)
        self._newest = self._files[first] = file
        self._next = None
        return HEADER_BYTES

    def append(self, first: int, payload: Sequence[bytes], number: int) -> tuple[int, int]:
        """Append a record to the newest segment in memory; return its position and length."""
        assert self._newest is not None
        position = self._newest.append(self._number, CHUNK, first, payload, number)
        return position, self._newest.end - position

    def mark(self) -> None:
        if self._newest is not None:
            try:
                self._part.put({self._newest.name: self._newest.known})
            except StorageError:
                return  # the records themselves are safe

    def write(self) -> None:
        if self._newest is not None:
            self._newest.write()

    def fds_to_sync(self) -> list[int]:
        return [] if self._newest is None else [self._newest.fileno()]

    def synced(self) -> None:
        if self._newest is not None:
            self._newest.synced_to(self._newest.written)
        if self._next is not None:
            self._next.synced_to(self._next.written)
        self._close_folders()

    def _close_folders(self) -> None:
        for fd in self._folder_fds:
            self._disk.close(fd)
        self._folder_fds.clear()

    def read(self, segment: int, position: int, size: int) -> Sequence[Record]:
        file = self._files[segment]
        records = file.read_some(position, size)
        if file is not self._newest:
            self._touch(segment)
        return records

    def _touch(self, segment: int) -> None:
        self._open.pop(segment, None)
        self._open[segment] = None
        if len(self._open) > OPEN_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._files[oldest].close()

    def drop(self, segment: int) -> None:
        self._files.pop(segment).close()
        self._open.pop(segment, None)
        self._part.forget([STREAM.name(segment)])
        self._part.when_durable(partial(self._remove, self._path(segment)))

    def _remove(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:
            # It is not `DiskFull`, whatever the system reports: no caller would repeat the removal.
            raise _fault(path, "cannot be removed", error) from error

    def close(self) -> None:
        self.mark()
        self._close_files()

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        if self._next is not None:
            self._next.close()
        self._close_folders()

    def delete(self) -> None:
        self._close_files()
        self._files.clear()
        self._part.forget(list(self._part.known))
        self._part.when_durable(self._move_away)

    def _move_away(self) -> None:
        try:
            if self._disk.is_folder(self._folder):
                self._disk.rename(self._folder, self._folder + _DELETED)
                fd = self._disk.open_folder(self._streams)
                self._when_synced([fd], partial(self._remove_all, fd))
        except OSError as error:
            raise _failed(self._folder, "cannot be removed", error) from error

    def _remove_all(self, fd: int) -> None:
        try:
            self._disk.close(fd)
            _remove_folder(self._disk, self._folder + _DELETED)
        except OSError as error:
            raise _failed(self._folder, "cannot be removed", error) from error

    def _path(self, first: int) -> str:
        return os.path.join(self._folder, STREAM.name(first))


class Segments:
    """A reader of a stream's segments, which checks that each begins where the last ended. `following`: the
    offset of the next message; None before the first.
    """

    def __init__(self, number: int) -> None:
        self.following: int | None = None
        self._number = number

    def read(self, reader: FileReader, *, gap: bool) -> Iterator[list[Record]]:
        """Iterate over the records of the next file. Raises `DamagedFile` if messages are missing."""
        assert reader.header is not None
        first = reader.header.number
        if self.following is not None and first != self.following and not (gap and first > self.following):
            reader.close()
            raise DamagedFile(
                reader.path,
                f"messages {self.following} to {first - 1} of the stream should be before this file, "
                "and are not there",
                f"nothing was changed; {BRING_BACK}",
            )
        self.following = first
        for records in reader.batches():
            for record in records:
                if record.kind != CHUNK or record.group != self._number:
                    raise DamagedFile(
                        reader.path,
                        f"a record of kind {record.kind} of stream {record.group} does not belong here",
                        "restore the data folder from a copy",
                        offset=record.offset,
                    )
                if record.index != self.following:
                    raise DamagedFile(
                        reader.path,
                        f"message {self.following} should come next, and it is {record.index}",
                        "restore the data folder from a copy",
                        offset=record.offset,
                    )
                self.following = record.index + int.from_bytes(record.payload[8:12], "big")
            yield records


def _remove_folder(disk: Disk, path: str) -> None:
    for name in disk.list_folder(path):
        disk.unlink(os.path.join(path, name))
    disk.remove_folder(path)


def _failed(path: str, problem: str, error: OSError) -> StorageError:
    return _fault(path, problem, error, DiskFull if error.errno in FULL else StorageError)


def _fault(path: str, problem: str, error: OSError, kind: type[StorageError] = StorageError) -> StorageError:
    return kind(path, f"{problem}: {error.strerror}", "look at the disk, the mode and the owner")
