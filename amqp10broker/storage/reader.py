"""The reader of all files: records in batches from front to back, and the decision where they end.

A bad record is damage and raises, except at the end of the last file of a sequence, where it may be the torn
tail that a loss of power leaves (`tail` distinguishes them). Writers observe these rules:

- A header is synced, and its name in the folder, before the first record is written behind it.
- Before the first record is written to a file, all files before it in the sequence are synced.
- Appending after a sync begins with a marker (`LogFile` does).
- A torn tail is cut off durably before anything is appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.record import (
    HEADER_BYTES,
    MARKER,
    OFFSET_MASK,
    RECORD,
    RECORD_BYTES,
    VERSION,
    FileHeader,
    Record,
    decode_header,
)
from amqp10broker.storage.tail import why_damaged

BRING_BACK: Final = (
    "bring the file back, or restore the data folder from a copy; or give up for good what is missing, with: "
    "amqp10broker storage accept DIR"
)
"""Advice for a missing file, or a missing end of one."""

CHUNK_BYTES: Final = 1 << 20
"""Size of a read: a batch has so many bytes, or one record if that is longer."""


class KnownFile(NamedTuple):
    """The inventory's data of a file."""

    file_id: int
    synced: int
    """At least so many bytes of it are durable."""
    gap: bool = False
    """Files before it in its sequence were given up (`accept`)."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of the last file, which was not written whole. It contains nothing that was ever synced."""

    offset: int
    bytes: int


class FileReader:
    """A reader of one file.

    Attributes:
        header: None if the file was made and then lost before anything was in it.
        size: bytes of the file when it was opened.
        end: end of the last good record read so far, 0 without a header.
        synced: so many bytes were durable: a fault before is damage, not a torn end.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        purpose: int,
        number: int | None,
        last: bool,
        known: KnownFile | None = None,
        start: int = HEADER_BYTES,
    ) -> None:
        """Open a file and read its header. `number`: the expected number in the header; None for any. `last`:
        the file is the last of its sequence, so that its tail may be torn. Raises `DamagedFile` if its header
        is not right, or it is another file, and `StorageError` if it cannot be read, or a newer version has
        written it.
        """
        self.path = path
        self.size = 0
        self.end = 0
        self.torn: Torn | None = None
        self.records = 0
        self.synced = 0 if known is None else known.synced
        self._disk = disk
        self._last = last
        self._fd: int | None = None
        try:
            self._fd = disk.open(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            self.size = disk.size(self._fd)
            self.header: FileHeader | None = self._read_header(purpose, number, known)
        except OSError as error:
            self.close()
            raise _unreadable(path, error) from error
        except StorageError:
            self.close()
            raise
        if self.header is not None:
            self.end = start

    def close(self) -> None:
        """Close the file; reading to the end does so too."""
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def batches(self) -> Iterator[list[Record]]:
        """Iterate over batches of records, without markers, none of them empty; the file is closed at the
        end. Raises `DamagedFile` if a record is bad; those before it were good.
        """
        try:
            while self.header is not None and self.end < self.size:
                found = self._next(self.header)
                if found:
                    self.records += len(found)
                    yield found
                if self.torn is not None:
                    break
            if self.end < self.synced:
                raise DamagedFile(
                    self.path,
                    f"the file ends here, and it was synced up to offset {self.synced}: "
                    f"{self.synced - self.end} bytes are missing",
                    f"nothing was changed; {BRING_BACK}",
                    offset=self.end,
                )
        except OSError as error:
            raise _unreadable(self.path, error) from error
        finally:
            self.close()

    def _next(self, header: FileHeader) -> list[Record]:
        # Sets `end`, and `torn` at a torn tail.
        assert self._fd is not None
        data = self._disk.read(self._fd, self.end, CHUNK_BYTES)
        records, used, good = parse(data, self.end, header)
        if good and not used and len(data) >= RECORD_BYTES:
            # One record longer than a chunk, or a length that leads beyond the end.
            length = RECORD_BYTES + int.from_bytes(data[:4], "big")
            if self.end + length <= self.size:
                data = self._disk.read(self._fd, self.end, length)
                records, used, good = parse(data, self.end, header)
        self.end += used
        if not good or not used:
            self._judge(header)
        return records

    def _judge(self, header: FileHeader) -> None:
        assert self._fd is not None
        rest = self._disk.read(self._fd, self.end, self.size - self.end)
        reason: str | None
        if self.end < self.synced:
            reason = f"the file was synced up to offset {self.synced}"
        elif not self._last:
            reason = "only the last file may end in a record that was not written whole"
        else:
            reason = why_damaged(rest, self.end, header)
        if reason is not None:
            raise DamagedFile(
                self.path,
                f"the record is damaged ({reason})",
                "nothing was changed; restore the data folder from a copy, or give up the rest of this "
                f"file, {self.size - self.end} bytes, with: truncate -s {self.end} {self.path}, and then: "
                "amqp10broker storage accept DIR",
                offset=self.end,
            )
        self.torn = Torn(self.end, self.size - self.end)

    def _read_header(self, purpose: int, number: int | None, known: KnownFile | None) -> FileHeader | None:
        assert self._fd is not None
        data = self._disk.read(self._fd, 0, HEADER_BYTES)
        header = decode_header(data) if len(data) == HEADER_BYTES else None
        if header is None:
            if known is None and self._last and self.size <= HEADER_BYTES:
                # The file was made, and the power went before its first sync: no record was ever behind the
                # header.
                self.torn = Torn(0, self.size)
                return None
            problem = "the header of the file is damaged"
        elif header.version > VERSION:
            raise StorageError(
                self.path,
                f"has format {header.version}, and this broker reads format {VERSION}",
                "start the newer version of the broker that wrote it",
            )
        elif header.purpose != purpose:
            problem = f"the file is for purpose {header.purpose}, and one for {purpose} should be here"
        elif number is not None and header.number != number:
            problem = f"the file is number {header.number} by its header, and {number} by its name"
        elif known is not None and header.file_id != known.file_id:
            problem = "the file is another one than was here: its id in the header is not the one it had"
        else:
            return header
        raise DamagedFile(
            self.path,
            problem,
            "nothing was changed; restore the data folder from a copy, or move this file and those with "
            "higher numbers away to lose what is in them",
            offset=0,
        )


def parse(data: bytes, offset: int, header: FileHeader) -> tuple[list[Record], int, bool]:
    """Parse the records at the start of some bytes. Returns the records without markers; the bytes that they
    and the markers take; and whether the rest may be the beginning of a record, and not a fault.
    """
    records: list[Record] = []
    view = memoryview(data)
    limit = len(data)
    seed = header.seed
    number = header.number
    unpack = RECORD.unpack_from
    new = tuple.__new__
    at = 0
    while at + RECORD_BYTES <= limit:
        length, crc, group, kind, term, index = unpack(data, at)
        end = at + RECORD_BYTES + length
        if end > limit:
            # Zeros of a length this long are not a beginning either, but then the checksum will differ.
            return records, at, True
        place = offset + at
        if crc32(view[at + 8 : end], seed) ^ place & OFFSET_MASK != crc or not kind:
            return records, at, False
        if kind != MARKER:
            fields = (group, kind, term, index, data[at + RECORD_BYTES : end], number, place, end - at)
            records.append(new(Record, fields))
        at = end
    return records, at, True


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(
        path,
        f"cannot be read: {error.strerror}",
        "check the disk, and whose the file is (its mode and owner)",
    )
