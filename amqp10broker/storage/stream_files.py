"""Segments of a stream as files in a folder of its own.

A segment's file is named after its first offset, which is also its number. Files come and go in order, and
each change of names is durable before the next: so after a loss of power there is a sequence without a gap,
and a gap is damage. A stream that is deleted has its folder renamed first, which is one step; what is
left of such a folder is removed by the next start (`remove_leftovers`).
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from amqp10broker.errors import DamagedFile, DiskFull, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import sync_folder
from amqp10broker.storage.logfile import FULL, LogFile, go_on
from amqp10broker.storage.reader import FileReader
from amqp10broker.storage.record import HEADER_BYTES, Header, Purpose, Record
from amqp10broker.storage.stream_log import CHUNK, Entry

OPEN_MAX: Final = 8
"""Files of a stream that stay open beside the one that is written to."""

_NAME: Final = re.compile(r"(\d{20})\.log")
_DELETED: Final = ".deleted"


def folder_of(streams: str, number: int) -> str:
    """The folder of a stream.

    Args:
        streams: folder of all streams.
        number: the stream's.
    """
    return os.path.join(streams, str(number))


def remove_leftovers(disk: Disk, streams: str, numbers: Iterable[int]) -> list[str]:
    """Remove the folders of streams that are not there any more.

    Args:
        disk: where they are.
        streams: folder of all streams.
        numbers: of the streams that are.

    Returns:
        The names of what was removed.

    Raises:
        StorageError: something could not be removed.
    """
    there = {str(number) for number in numbers}
    gone = []
    try:
        for name in disk.list_folder(streams):
            if name not in there and name.removesuffix(_DELETED).isdecimal():
                _remove_folder(disk, os.path.join(streams, name))
                gone.append(name)
    except OSError as error:
        raise _failed(streams, "what is left of a deleted stream cannot be removed", error) from error
    return gone


class FileShelf:
    """A `stream_log.Shelf` on disk."""

    def __init__(self, disk: Disk, streams: str, number: int) -> None:
        """Name the folder; nothing is read or made before it is asked for.

        Args:
            disk: where it is.
            streams: folder of all streams, which is there.
            number: the stream's, 1 to 2**32 - 1.
        """
        self._disk = disk
        self._streams = streams
        self._number = number
        self._folder = folder_of(streams, number)
        self._files: dict[int, LogFile] = {}
        self._open: dict[int, None] = {}
        self._newest: LogFile | None = None

    # --- the start --------------------------------------------------------------------------------

    def recover(self) -> Iterator[tuple[int, int, Sequence[Entry]]]:
        """See `Shelf.recover`.

        Raises:
            DamagedFile: a file is missing, or is not what was written.
            StorageError: a file cannot be read, or is not ours.
        """
        firsts = self._firsts()
        # When a segment is made, all before it is durable: nothing but the last one's end can be torn,
        # also when the last one is not there after all.
        torn = firsts[-1] if firsts else None
        if firsts and self._is_empty(firsts[-1]):
            self._unlink(firsts.pop())
        following = firsts[0] if firsts else 0
        for first in firsts:
            if first != following:
                raise DamagedFile(
                    self._path(first),
                    f"messages {following} to {first - 1} of the stream should be before this file, "
                    "and are not there",
                    "restore the data folder from a copy, or move the older files of this stream away to "
                    "lose what is in them",
                )
            following = yield from self._recover_file(first, newest=first == firsts[-1], last=first == torn)

    def _firsts(self) -> list[int]:
        try:
            if not self._disk.is_folder(self._folder):
                return []
            names = self._disk.list_folder(self._folder)
        except OSError as error:
            raise _failed(self._folder, "cannot be read", error) from error
        firsts = []
        for name in names:
            found = _NAME.fullmatch(name)
            if found is None:
                raise StorageError(
                    os.path.join(self._folder, name), "is no file of a stream", "move it away from here"
                )
            firsts.append(int(found[1]))
        return firsts

    def _is_empty(self, first: int) -> bool:
        """Whether the last file was made, and the power went before anything was in it."""
        reader = FileReader(self._disk, self._path(first), purpose=Purpose.STREAM, number=first, last=True)
        reader.close()
        return reader.header is None

    def _recover_file(
        self, first: int, *, newest: bool, last: bool
    ) -> Generator[tuple[int, int, Sequence[Entry]], None, int]:
        """One file's records; the offset behind its last message is what comes out in the end."""
        reader = FileReader(self._disk, self._path(first), purpose=Purpose.STREAM, number=first, last=last)
        following = first
        assert reader.header is not None
        yield first, HEADER_BYTES, ()
        for records in reader.batches():
            entries = [self._entry(record) for record in records]
            for entry in entries:
                if entry.first != following:
                    raise DamagedFile(
                        reader.path,
                        f"message {following} should come next, and it is {entry.first}",
                        "restore the data folder from a copy",
                        offset=entry.position,
                    )
                following = entry.first + int.from_bytes(entry.payload[8:12], "big")
            yield first, reader.end, entries
        if newest:
            self._newest = self._files[first] = go_on(self._disk, reader)
        else:
            self._files[first] = LogFile(
                self._disk, reader.path, reader.header, size=reader.end, synced=reader.end
            )
        return following

    def _entry(self, record: Record) -> Entry:
        if record.kind != CHUNK or record.group != self._number:
            raise DamagedFile(
                self._path(record.file),
                f"a record of kind {record.kind} of stream {record.group} does not belong here",
                "restore the data folder from a copy",
                offset=record.offset,
            )
        return Entry(record.offset, record.length, record.index, record.payload)

    # --- writing ----------------------------------------------------------------------------------

    def roll(self, first: int) -> int:
        """See `Shelf.roll`."""
        path = self._path(first)
        file = LogFile(self._disk, path, Header(Purpose.STREAM, first, self._disk.fresh_id()))
        try:
            if not self._disk.is_folder(self._folder):
                self._disk.make_folder(self._folder)
                sync_folder(self._disk, self._streams)
            elif os.path.basename(path) in self._disk.list_folder(self._folder):
                # An attempt for which there was no room.
                self._disk.unlink(path)
            file.make_durable()
        except OSError as error:
            raise _failed(self._folder, "cannot be made", error) from error
        except StorageError:
            file.close()
            raise
        if self._newest is not None:
            self._touch(self._newest.number)
        self._newest = self._files[first] = file
        return HEADER_BYTES

    def append(self, first: int, payload: Sequence[bytes]) -> tuple[int, int]:
        """See `Shelf.append`."""
        assert self._newest is not None
        position = self._newest.append(self._number, CHUNK, first, payload)
        return position, self._newest.end - position

    def mark(self) -> None:
        """See `Shelf.mark`."""
        if self._newest is not None:
            self._newest.mark()

    def write(self) -> None:
        """See `Shelf.write`."""
        if self._newest is not None:
            self._newest.write()

    def fds_to_sync(self) -> list[int]:
        """See `Shelf.fds_to_sync`."""
        return [] if self._newest is None else [self._newest.fileno()]

    def synced(self) -> None:
        """See `Shelf.synced`."""
        if self._newest is not None:
            self._newest.synced_to(self._newest.written)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, segment: int, position: int, size: int) -> Sequence[Entry]:
        """See `Shelf.read`.

        Raises:
            DamagedFile: what is there is not what was written; it is not served.
            StorageError: it cannot be read.
        """
        file = self._files[segment]
        records = file.read_some(position, size)
        if file is not self._newest:
            self._touch(segment)
        return [Entry(record.offset, record.length, record.index, record.payload) for record in records]

    def _touch(self, segment: int) -> None:
        """A file was used: another one that has not been for long is closed."""
        self._open.pop(segment, None)
        self._open[segment] = None
        if len(self._open) > OPEN_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._files[oldest].close()

    # --- the end ----------------------------------------------------------------------------------

    def drop(self, segment: int) -> None:
        """See `Shelf.drop`."""
        self._unlink(segment)
        self._files.pop(segment).close()
        self._open.pop(segment, None)

    def _unlink(self, segment: int) -> None:
        try:
            self._disk.unlink(self._path(segment))
            # Before the next one goes: names may come back after a loss of power, but none in the middle.
            sync_folder(self._disk, self._folder)
        except OSError as error:
            # Not `DiskFull`, whatever the system says: nothing waits here to be tried again.
            raise _fault(self._path(segment), "cannot be removed", error) from error

    def close(self) -> None:
        """See `Shelf.close`."""
        if self._newest is not None and self._newest.is_open:
            self._mark_the_end(self._newest)
        for file in self._files.values():
            file.close()

    def _mark_the_end(self, file: LogFile) -> None:
        """At an orderly end a marker guards the last commit; without it, it is as well kept as before."""
        try:
            if not file.collected_bytes:
                file.mark()
                file.write()
        except StorageError:
            return

    def delete(self) -> None:
        """See `Shelf.delete`."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        try:
            if self._disk.is_folder(self._folder):
                gone = self._folder + _DELETED
                self._disk.rename(self._folder, gone)
                sync_folder(self._disk, self._streams)
                _remove_folder(self._disk, gone)
        except OSError as error:
            raise _failed(self._folder, "cannot be removed", error) from error

    def _path(self, first: int) -> str:
        return os.path.join(self._folder, f"{first:020}.log")


def _remove_folder(disk: Disk, path: str) -> None:
    for name in disk.list_folder(path):
        disk.unlink(os.path.join(path, name))
    disk.remove_folder(path)


def _failed(path: str, problem: str, error: OSError) -> StorageError:
    return _fault(path, problem, error, DiskFull if error.errno in FULL else StorageError)


def _fault(path: str, problem: str, error: OSError, kind: type[StorageError] = StorageError) -> StorageError:
    return kind(path, f"{problem}: {error.strerror}", "look at the disk, the mode and the owner")
