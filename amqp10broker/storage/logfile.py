"""Files of records that are appended to and read at the same time, and the numbered files of a folder.

Records are collected in memory with fixed offsets, and `write` writes them in one call. A failed write leaves
the file as it was and everything collected; the next one puts the same bytes at the same places. After a
sync, `synced_to` must be called; the next record is then preceded by a marker (`record.encode_marker`).
"""

from __future__ import annotations

import errno
import itertools
import os.path
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, DiskFull, StorageError, StorageFailed
from amqp10broker.storage.disk import Disk, sync_folder
from amqp10broker.storage.record import (
    BRING_BACK,
    HEADER_BYTES,
    OFFSET_MASK,
    RECORD_BYTES,
    FileHeader,
    FileReader,
    KnownFile,
    Purpose,
    Record,
    encode_marker,
    parse,
)

# The bytes of the first read of one record: most records are shorter.
_GUESS_BYTES: Final = 4096
_LEAD: Final = struct.Struct(">II")
_REST: Final = struct.Struct(">IBQQ")
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogFile:
    """One file. `written`: bytes that were passed to the system; 0: the file is not created. `synced`: bytes
    that are known to be durable; 0 as long as the header and the name are not. `allocated`: bytes before this
    offset can be written even if the disk is full.
    """

    __slots__ = (
        "_cut_short", "_disk", "_fd", "_marked", "_pieces", "_places", "_seed",
        "allocated", "end", "header", "number", "path", "synced", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str, header: FileHeader, *, size: int = 0, synced: int = 0) -> None:
        """Describe a file without opening it. `size`: the end of its last record; 0: it must be created."""
        self.path = path
        self.header = header
        self.number = header.number
        self.written = size
        self.synced = synced
        self.end = max(size, HEADER_BYTES)
        self.allocated = 0
        self._disk = disk
        self._cut_short = False
        self._fd: int | None = None
        self._seed = header.seed
        # The last value that a marker recorded; none is needed before the first record.
        self._marked = HEADER_BYTES
        self._pieces: list[bytes] = []
        # Offset of a collected record -> its place in `_pieces`.
        self._places: dict[int, int] = {}

    @property
    def collected_bytes(self) -> int:
        return self.end - max(self.written, HEADER_BYTES)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def known(self) -> KnownFile:
        return KnownFile(self.header.file_id, self.synced)

    def fileno(self) -> int:
        """Return the descriptor; opens the file if it is closed."""
        if self._fd is None:
            try:
                self._fd = self._disk.open(self.path, write=True)
            except OSError as error:
                raise self._failed("cannot be opened", error) from error
        return self._fd

    def make(self) -> None:
        """Make the file with its header, which must be synced with the folder before `write`."""
        assert not self.written
        header = self.header.encode()
        try:
            if self._fd is None:
                self._fd = self._disk.create(self.path)
            self._disk.write(self._fd, 0, [header])
        except OSError as error:
            raise self._failed("cannot be made", error) from error
        self.written = HEADER_BYTES

    def make_durable(self) -> None:
        self.make()
        self.sync()
        try:
            sync_folder(self._disk, os.path.dirname(self.path))
        except OSError as error:
            raise self._failed("its folder cannot be synced", error) from error

    def sync(self) -> None:
        """Make written records durable. After a failure another sync is useless."""
        try:
            self._disk.sync(self.fileno())
        except OSError as error:
            raise self._failed("cannot be synced", error) from error
        self.synced_to(self.written)

    def allocate(self, end: int) -> bool:
        try:
            allocated = self._disk.allocate(self.fileno(), end)
        except OSError as error:
            raise self._failed("cannot be given room", error) from error
        if allocated:
            self.allocated = max(self.allocated, end)
        return allocated

    def give_back(self) -> None:
        if self.allocated > self.written:
            try:
                self._disk.truncate(self.fileno(), self.written)
            except OSError as error:
                if error.errno not in FULL:
                    raise self._failed("cannot give room back", error) from error
                # On copy-on-write file systems even that takes room; it is released when the file is removed.
            self.allocated = self.written

    def append(self, group: int, kind: int, index: int, payload: Sequence[bytes], term: int = 0) -> int:
        """Collect a record and return its offset. `payload` is not copied until it has been written. Raises
        `struct.error` if a number is out of range.
        """
        # The hot path: `record.encode_head` is written out here; a test compares the two.
        if self.synced > self._marked:
            self.mark()
        offset = self.end
        rest = _REST.pack(group, kind, term, index)
        crc = crc32(rest, self._seed)
        length = 0
        for piece in payload:
            crc = crc32(piece, crc)
            length += len(piece)
        pieces = self._pieces
        self._places[offset] = len(pieces)
        pieces.append(_LEAD.pack(length, crc ^ offset & OFFSET_MASK) + rest)
        pieces += payload
        self.end = offset + RECORD_BYTES + length
        return offset

    def mark(self) -> None:
        if self.synced > self._marked:
            self._marked = self.synced
            marker = encode_marker(self.header, self.end, self.synced)
            self._pieces.append(marker)
            self.end += len(marker)

    def write(self) -> None:
        assert self.synced > 0, "a record before a durable header would pass for damage after a loss of power"
        if not self._pieces:
            return
        fd = self.fileno()
        if self._cut_short:
            self._forget_half(fd)
        try:
            self._disk.write(fd, self.written, self._pieces)
        except OSError as error:
            self._cut_short = True
            self.allocated = 0
            try:
                self._disk.truncate(fd, self.written)
            except OSError:
                # The next attempt cuts it. The bytes are the beginning of what will be written there again; a
                # reader that comes first finds a torn record.
                pass
            raise self._failed("cannot be written", error) from error
        self.written = self.end
        self._pieces = []
        self._places = {}

    def _forget_half(self, fd: int) -> None:
        # After a failed write, no part of it may be found under the bytes that are written there next. After
        # a loss of power, half of an old record in a file as long as now would look like a record that was
        # written completely and damaged. It is rare, so the caller waits.
        try:
            self._disk.truncate(fd, self.written)
        except OSError as error:
            raise self._failed("cannot be cut back", error) from error
        try:
            self._disk.sync(fd)
        except OSError as error:
            raise StorageFailed(
                self.path,
                f"cannot be synced: {error.strerror}",
                "look at the disk; the broker stops, and a start recovers what was confirmed",
            ) from error
        self._cut_short = False

    def synced_to(self, size: int) -> None:
        """Note that the first `size` bytes and the file's name are durable."""
        self.synced = max(self.synced, size)

    def read(self, offset: int) -> bytes:
        """Return the payload of a record, written or collected. Raises `DamagedFile`."""
        if offset >= self.written:
            return self._read_collected(offset)
        data = self._read(offset, min(_GUESS_BYTES, self.written - offset))
        length = RECORD_BYTES + int.from_bytes(data[:4], "big")
        if offset + length > self.written:
            raise self._damaged(offset)
        if length > len(data):
            data = self._read(offset, length)
        records, _, _ = parse(data[:length], offset, self.header)
        if not records:
            raise self._damaged(offset)
        return records[0].payload

    def read_run(self, offset: int, length: int) -> list[Record]:
        """Return consecutive records. `length`: bytes up to the end of the last record, with markers and
        records of other groups between. Raises `DamagedFile`.
        """
        end = offset + length
        data = self._read(offset, min(end, self.written) - offset) if offset < self.written else b""
        if end > self.written:
            # This is rare: records are read that were appended a moment ago.
            collected = b"".join(self._pieces)
            first = max(self.written, HEADER_BYTES)
            data += collected[max(offset - first, 0) : end - first]
        records, used, _ = parse(data, offset, self.header)
        if used != length:
            raise self._damaged(offset + used)
        return records

    def read_some(self, offset: int, size: int) -> list[Record]:
        """Return whole written records from an offset on: about `size` bytes, one record at least. `offset`:
        beginning of a record, or of a marker before it; nothing is found at the end of the written bytes, or
        before a marker there. Raises `DamagedFile`.
        """
        left = self.written - offset
        while left > 0:
            data = self._read(offset, min(size, left))
            records, used, good = parse(data, offset, self.header)
            if not good:
                raise self._damaged(offset + used)
            if records or used == left:
                return records
            if size >= left:
                raise self._damaged(offset)
            # A marker and the beginning of a record, or of one that is longer than this.
            size = max(2 * size, used + RECORD_BYTES + int.from_bytes(data[used : used + 4], "big"))
        return []

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def _read(self, offset: int, length: int) -> bytes:
        fd = self.fileno()
        try:
            return self._disk.read(fd, offset, length)
        except OSError as error:
            raise self._failed("cannot be read", error) from error

    def _read_collected(self, offset: int) -> bytes:
        at = self._places[offset]
        missing = int.from_bytes(self._pieces[at][:4], "big")
        first = at + 1
        while missing:
            at += 1
            missing -= len(self._pieces[at])
        return b"".join(self._pieces[first : at + 1])

    def _failed(self, problem: str, error: OSError) -> StorageError:
        if error.errno in FULL:
            return DiskFull(self.path, f"{problem}: {error.strerror}", "free space on that file system")
        return StorageError(
            self.path, f"{problem}: {error.strerror}", "look at the disk, the mode and the owner"
        )

    def _damaged(self, offset: int) -> DamagedFile:
        return DamagedFile(
            self.path,
            "the record was changed after it had been written",
            "it is not served; stop the broker and read all files with: amqp10broker storage check",
            offset=offset,
        )


def go_on(disk: Disk, reader: FileReader) -> LogFile:
    """Open a file for appending after a reader has read all its batches; a torn tail is cut off durably."""
    assert reader.header is not None
    file = LogFile(disk, reader.path, reader.header, size=reader.end)
    if reader.torn is not None:
        try:
            disk.truncate(file.fileno(), reader.end)
        except OSError as error:
            file.close()
            raise file._failed("its torn end cannot be cut off", error) from error
    # Records that a crashed broker wrote may be in memory only: they count from now on, so they are synced.
    file.sync()
    return file


# --- the numbered files of a folder ---------------------------------------------------------------
#
# A start and a check (`check`) use the same rules:
#
# - A file that the inventory names must exist.
# - One before all those was dropped and came back with a loss of power: it is not read, and removed.
# - One behind them was made and not written to, or not for long: it may be empty, and is removed then.
# - In a *gapless* sequence, the journal, each number follows the one before, and the next file is made in the
#   commit that fills the one before, so that both may be unfinished. Of a stream the records state what
#   follows.

_SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True)
class Naming:
    digits: int
    purpose: Purpose
    gapless: bool

    def name(self, number: int) -> str:
        return f"{number:0{self.digits}}{_SUFFIX}"

    def number(self, name: str) -> int | None:
        found = re.fullmatch(rf"(\d{{{self.digits}}})\{_SUFFIX}", name)
        return None if found is None else int(found[1])


JOURNAL: Final = Naming(16, Purpose.JOURNAL, gapless=True)
STREAM: Final = Naming(20, Purpose.STREAM, gapless=False)
"""Files numbered by the offset of the first message."""


@dataclass(frozen=True, slots=True)
class SequenceFile:
    number: int
    path: str
    last: bool
    known: KnownFile | None

    @property
    def gap(self) -> bool:
        """Whether files before it were given up."""
        return self.known is not None and self.known.gap

    def reader(self, disk: Disk, naming: Naming) -> FileReader:
        return FileReader(
            disk, self.path, purpose=naming.purpose, number=self.number, last=self.last, known=self.known
        )


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    files: Sequence[SequenceFile]
    missing: Sequence[DamagedFile]
    leftovers: Sequence[str]
    unused: str | None


def survey(disk: Disk, folder: str, naming: Naming, known: Mapping[str, KnownFile]) -> FolderSurvey:
    """Survey the files of a folder. `known`: those that must exist, by name. Raises `StorageError` if there
    is something else in the folder, or it cannot be read.
    """
    there = _numbers(disk, folder, naming)
    must = {number: each for name, each in known.items() if (number := naming.number(name)) is not None}
    first = min(must, default=0)
    numbers = [number for number in there if number >= first]
    missing = set(must).difference(there)
    unused = None
    may_be_torn = set(numbers[-1:])
    if numbers and numbers[-1] not in must:
        path = os.path.join(folder, naming.name(numbers[-1]))
        if _is_unused(disk, path, naming, numbers):
            unused = path
            numbers.pop()
            # Of a stream, all before is durable when a file is made.
            may_be_torn = set(numbers[-1:]) if naming.gapless else set()
    if naming.gapless:
        missing.update(
            before + 1
            for before, after in itertools.pairwise(numbers)
            if after != before + 1 and not (after in must and must[after].gap)
        )
    return FolderSurvey(
        [
            SequenceFile(
                number, os.path.join(folder, naming.name(number)), number in may_be_torn, must.get(number)
            )
            for number in numbers
        ],
        [
            DamagedFile(
                os.path.join(folder, naming.name(number)),
                "the file is missing",
                f"nothing was changed; {BRING_BACK}",
            )
            for number in sorted(missing)
        ],
        [os.path.join(folder, naming.name(number)) for number in there if number < first],
        unused,
    )


def _numbers(disk: Disk, folder: str, naming: Naming) -> list[int]:
    try:
        names = disk.list_folder(folder) if disk.is_folder(folder) else []
    except OSError as error:
        raise StorageError(
            folder, f"cannot be read: {error.strerror}", "check the folder's owner and mode"
        ) from error
    numbers = []
    for name in names:
        number = naming.number(name)
        if number is not None:
            numbers.append(number)
        elif not name.startswith("."):
            raise StorageError(
                os.path.join(folder, name), "does not belong here", "move it out of the data folder"
            )
    return numbers


def _is_unused(disk: Disk, path: str, naming: Naming, numbers: Sequence[int]) -> bool:
    # The last file was made, and then the power went before anything was in it.
    try:
        reader = FileReader(disk, path, purpose=naming.purpose, number=numbers[-1], last=True)
    except StorageError:
        return False  # its reader reports the fault
    reader.close()
    if not naming.gapless:
        return reader.header is None
    # The only file of the journal is used, or made anew.
    return len(numbers) > 1 and reader.size <= HEADER_BYTES
