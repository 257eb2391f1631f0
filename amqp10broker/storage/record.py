"""The common format of all files: a header, then records, each with a checksum that is unique to its place.

Header, 32 bytes, big-endian::

    magic 8 | version u16 | purpose u16 | number u64 | file id u64 | crc32 u32

Record, 29 bytes and its payload::

    length u32 | crc32 u32 | group u32 | kind u8 | term u64 | index u64 | payload

`length` counts the payload. The checksum covers group to payload; it begins with the file's random id and is
xored with the record's offset, so that a record of another file, or at another place of this one, is never
taken for a good one. Kind 0 is never written: zeros are not a record.

A *marker* is a record of kind `MARKER` with the synced length of the file when it was appended, as its index.
Its payload is the file's id, so that markers can be found behind a place that cannot be read.

A bad record is damage and raises, except at the end of the last file of a sequence, where it may be the torn
tail that a loss of power leaves (`why_damaged`). Writers observe these rules:

- A header is synced, and its name in the folder, before the first record is written behind it.
- Before the first record is written to a file, all files before it in the sequence are synced.
- Appending after a sync begins with a marker (`LogFile` does).
- A torn tail is cut off durably before anything is appended.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from zlib import crc32

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk

MAGIC: Final = b"\x8aA10LOG\n"
VERSION: Final = 1
MARKER: Final = 255

_HEADER: Final = struct.Struct(">8sHHQQI")
_HEADER_SUMMED: Final = struct.Struct(">8sHHQQ")
_LEAD: Final = struct.Struct(">II")
_REST: Final = struct.Struct(">IBQQ")
RECORD: Final = struct.Struct(">IIIBQQ")

HEADER_BYTES: Final = _HEADER.size
RECORD_BYTES: Final = RECORD.size
OFFSET_MASK: Final = 0xFFFF_FFFF


class Purpose(enum.IntEnum):
    """The purpose of a file. A file of one purpose is never read as one of another."""

    JOURNAL = 1
    CATALOG = 2
    STREAM = 3
    SNAPSHOT = 4
    INVENTORY = 5


class Record(NamedTuple):
    """A record and its position; a tuple, because a start reads millions of them."""

    group: int
    kind: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    payload: bytes
    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    purpose: int
    number: int
    """0 for a file outside of a sequence."""
    file_id: int
    version: int = VERSION

    @property
    def seed(self) -> int:
        """The initial value of the checksums of this file's records."""
        return crc32(self.id_bytes)

    @property
    def id_bytes(self) -> bytes:
        return self.file_id.to_bytes(8, "big")

    def encode(self) -> bytes:
        summed = _HEADER_SUMMED.pack(MAGIC, self.version, self.purpose, self.number, self.file_id)
        return summed + crc32(summed).to_bytes(4, "big")


def decode_header(data: bytes) -> FileHeader | None:
    magic, version, purpose, number, file_id, crc = _HEADER.unpack(data)
    if magic != MAGIC or crc != crc32(data[: _HEADER_SUMMED.size]):
        return None
    return FileHeader(purpose, number, file_id, version)


def encode_head(
    seed: int, offset: int, group: int, kind: int, index: int, payload: Iterable[bytes], term: int = 0
) -> bytes:
    rest = _REST.pack(group, kind, term, index)
    crc = crc32(rest, seed)
    length = 0
    for piece in payload:
        crc = crc32(piece, crc)
        length += len(piece)
    return _LEAD.pack(length, crc ^ offset & OFFSET_MASK) + rest


def encode_marker(header: FileHeader, offset: int, synced: int) -> bytes:
    """Encode a marker at an offset: all bytes of the file before `synced` are synced."""
    payload = header.id_bytes
    return encode_head(header.seed, offset, 0, MARKER, synced, (payload,)) + payload


def is_record(data: bytes, at: int, seed: int, offset: int, *, length: int | None = None) -> bool:
    if at + RECORD_BYTES > len(data) or not data[at + 12]:
        return False
    told: int
    crc: int
    told, crc = _LEAD.unpack_from(data, at)
    end = at + RECORD_BYTES + (told if length is None else length)
    if end > len(data):
        return False
    return crc32(memoryview(data)[at + _LEAD.size : end], seed) ^ offset & OFFSET_MASK == crc


BRING_BACK: Final = (
    "bring the file back, or restore the data folder from a copy; or give up for good what is missing, with: "
    "amqp10broker storage accept DIR"
)

CHUNK_BYTES: Final = 1 << 20
"""The size of a read: a batch has so many bytes, or one record."""


class KnownFile(NamedTuple):
    """The inventory's data of a file."""

    file_id: int
    synced: int
    """At least so many bytes of it are durable."""
    gap: bool = False
    """Files before it in its sequence were given up (`check.accept_folder`)."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of the last file, which was not written whole. Nothing in it was ever synced."""

    offset: int
    bytes: int


class FileReader:
    """A reader of one file. `header`: None if the file was made and then lost before anything was in it.
    `end`: of the last good record read so far, 0 without a header. `synced`: a fault before this offset is
    damage, not a torn end.
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
    ) -> None:
        """Open a file and read its header. `number`: the expected one; None for any. `last`: of its sequence,
        so that its tail may be torn. Raises `DamagedFile` if its header is wrong, and `StorageError` if it
        cannot be read, or a newer version has written it.
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
            self.end = HEADER_BYTES

    def close(self) -> None:
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
            # One record is longer than a chunk, or the length exceeds the file.
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
                # The power was lost before the file's first sync: no record was ever after the header.
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
    """Parse the records at the start of some bytes. Returns them without markers; the bytes that they and the
    markers take; and whether the rest may be the beginning of a record, and not a fault.
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
            # Zeros of this length are not a beginning either, but then the checksum will differ.
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


SECTOR_BYTES: Final = 512
"""The unit that a disk writes as a whole or not at all."""

# The distance after a bad record in which another one is searched byte by byte, when its length is invalid.
_SEARCH_BYTES_MAX: Final = 256 * 1024
# Longer records are not found so: checking each possible beginning would take minutes.
_SEARCHED_RECORD_BYTES_MAX: Final = 256 * 1024


def why_damaged(data: bytes, offset: int, header: FileHeader) -> str | None:
    """Return the sign of damage at a bad record as a clause; None if it is a torn tail.

    When the power goes, any part of what was written since the last sync may be missing: the file may be
    shorter, and any sector of it may hold zeros. That is a *torn tail*, which is cut off. Anything else is
    *damage*, and must never be cut off silently. Three signs show damage:

    1. A marker behind the place records a sync beyond it.
    2. The record there would be right with another length: its length is wrong and all else is whole.
    3. The record was written as a whole (it ends where the next good one begins, or where the file ends,
       and no sector of it is all zeros), and yet its checksum is wrong.

    Not detected: damage in a record of the very last commit that also has a sector of zeros in it (of its
    own, or because that is the damage), or that hides where the record ends, when the broker died before
    it appended anything after that commit. The third sign would be wrong on a file system that shows old
    contents of other files in sectors it has not written; those that Linux offers by default do not.
    """
    synced = _synced(data, offset, header)
    if synced > offset:
        return f"the file was synced up to offset {synced}"
    end = _end_of_record(data, offset, header.seed)
    for whole in (end, len(data)):
        if whole is not None and is_record(data, 0, header.seed, offset, length=whole - RECORD_BYTES):
            return "the length of the record is wrong"
    if end is not None and not _has_empty_sector(data, offset, end):
        return "the record was written whole, and its checksum is wrong"
    return None


def _synced(data: bytes, offset: int, header: FileHeader) -> int:
    # The highest synced length in a marker; 0 if there is none.
    wanted = header.id_bytes
    synced = 0
    found = data.find(wanted)
    while found >= 0:
        at = found - RECORD_BYTES
        if at >= 0 and is_record(data, at, header.seed, offset + at):
            _, _, _, kind, _, index = RECORD.unpack_from(data, at)
            # A marker can only describe bytes before it.
            if kind == MARKER and index <= offset + at:
                synced = max(synced, index)
        found = data.find(wanted, found + 1)
    return synced


def _end_of_record(data: bytes, offset: int, seed: int) -> int | None:
    if len(data) < RECORD_BYTES:
        return None
    end = RECORD_BYTES + int.from_bytes(data[:4], "big")
    if end == len(data) or is_record(data, end, seed, offset + end):
        return end
    # The length to be found begins with a zero.
    at = data.find(0, 1)
    while 0 < at < _SEARCH_BYTES_MAX:
        length = int.from_bytes(data[at : at + 4], "big")
        if length <= _SEARCHED_RECORD_BYTES_MAX and is_record(data, at, seed, offset + at):
            return at
        at = data.find(0, at + 1)
    return None


def _has_empty_sector(data: bytes, offset: int, end: int) -> bool:
    at = 0
    while at < end:
        stop = min(end, at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
        if not any(data[at:stop]):
            return True
        at = stop
    return False
