"""One file that is appended to and read."""

from __future__ import annotations

import errno

import pytest

from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.storage.logfile import LogFile, go_on
from amqp10broker.storage.record import (
    HEADER_BYTES,
    RECORD_BYTES,
    FileHeader,
    FileReader,
    Purpose,
    encode_head,
    encode_marker,
)
from tests.support.disks import SimDisk

HEADER = FileHeader(Purpose.CATALOG, 0, 77)
PATH = "/log"


def _made() -> tuple[SimDisk, LogFile]:
    disk = SimDisk()
    file = LogFile(disk, PATH, HEADER)
    file.make_durable()
    return disk, file


def _reader(disk: SimDisk) -> FileReader:
    return FileReader(disk, PATH, purpose=Purpose.CATALOG, number=0, last=True)


def test_the_hot_path_writes_what_encode_head_says() -> None:
    disk, file = _made()
    offset = file.append(1, 2, 3, (b"abc", b"", b"de"), 4)
    assert offset == HEADER_BYTES
    assert file.collected_bytes == RECORD_BYTES + 5
    file.write()
    head = encode_head(HEADER.seed, offset, 1, 2, 3, (b"abcde",), 4)
    assert disk.contents(PATH) == HEADER.encode() + head + b"abcde"


def test_a_marker_precedes_the_first_record_after_a_sync_and_no_other() -> None:
    disk, file = _made()
    file.append(1, 1, 1, (b"a",))
    file.append(1, 1, 2, (b"b",))
    file.write()
    assert file.append(1, 1, 3, (b"c",)) == file.written
    file.sync()
    synced = file.synced
    end = file.end
    first = file.append(1, 1, 4, (b"d",))
    assert file.append(1, 1, 5, (b"e",)) == first + RECORD_BYTES + 1
    file.write()
    marker = encode_marker(HEADER, end, synced)
    assert disk.contents(PATH)[end:first] == marker
    assert first == end + len(marker)


def test_records_are_refused_before_the_header_is_durable() -> None:
    file = LogFile(SimDisk(), PATH, HEADER)
    file.append(1, 1, 1, (b"a",))
    file.make()
    with pytest.raises(AssertionError, match="before a durable header"):
        file.write()


def test_a_numberless_file_goes_on_where_it_ended() -> None:
    disk, file = _made()
    file.append(1, 1, 1, (b"a",))
    file.write()
    file.close()
    disk.overwrite(PATH, disk.contents(PATH) + b"\0\0\0")
    reader = _reader(disk)
    assert [[record.index for record in batch] for batch in reader.batches()] == [[1]]
    file = go_on(disk, reader)
    assert file.synced == file.written == HEADER_BYTES + RECORD_BYTES + 1
    file.append(1, 1, 2, (b"b",))
    file.write()
    assert [record.index for batch in _reader(disk).batches() for record in batch] == [1, 2]
    file.close()
    assert disk.open_count == 0


def test_a_tail_that_cannot_be_cut_is_told() -> None:
    disk, file = _made()
    file.close()
    disk.overwrite(PATH, disk.contents(PATH) + b"\0")
    reader = _reader(disk)
    assert list(reader.batches()) == []
    disk.fail = {len(disk.calls) + 1: errno.EIO}
    with pytest.raises(StorageError, match="torn end cannot be cut off"):
        go_on(disk, reader)
    assert disk.open_count == 0


def test_a_sync_that_fails_is_told() -> None:
    disk, file = _made()
    disk.fail = {len(disk.calls): errno.EIO}
    with pytest.raises(StorageError, match="cannot be synced"):
        file.sync()
    other = LogFile(disk, "/other", HEADER)
    # create, write, sync, open the folder, sync the folder
    disk.fail = {len(disk.calls) + 4: errno.ENOSPC}
    with pytest.raises(DiskFull, match="folder cannot be synced"):
        other.make_durable()
