"""Reading files: what is good is yielded, a torn tail is told, damage raises."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage import record as reader_module
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.record import (
    HEADER_BYTES,
    FileHeader,
    FileReader,
    Purpose,
    Record,
    encode_head,
    encode_marker,
)
from tests.support.disks import SimDisk

HEADER = FileHeader(Purpose.JOURNAL, 3, 0xFEDCBA9876543210)
DISK = Disk()


class File:
    """The bytes of a file, as a writer makes them."""

    def __init__(self) -> None:
        self.data = bytearray(HEADER.encode())
        self.starts: list[int] = []

    def add(self, payload: bytes, index: int = 0) -> File:
        self.starts.append(len(self.data))
        self.data += encode_head(HEADER.seed, len(self.data), 9, 1, index, (payload,)) + payload
        return self

    def mark(self) -> File:
        self.data += encode_marker(HEADER, len(self.data), len(self.data))
        return self

    def reader(self, *, last: bool = True) -> FileReader:
        disk = SimDisk()
        disk.overwrite("/file", bytes(self.data))
        return FileReader(disk, "/file", purpose=Purpose.JOURNAL, number=3, last=last)

    def read(self, *, last: bool = True) -> tuple[list[Record], FileReader]:
        reader = self.reader(last=last)
        return [record for batch in reader.batches() for record in batch], reader


def _some(count: int = 10) -> File:
    file = File()
    for index in range(count):
        file.add(bytes([65 + index]) * (index * 20), index)
    return file


def test_records_come_back_in_order_with_their_places() -> None:
    file = _some()
    records, reader = file.read(last=False)
    assert [record.offset for record in records] == file.starts
    assert records[3] == Record(9, 1, 0, 3, b"D" * 60, 3, file.starts[3], 29 + 60)
    assert (reader.end, reader.torn, reader.records) == (len(file.data), None, 10)


def test_chunks_end_anywhere_and_a_record_may_be_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "CHUNK_BYTES", 64)
    file = _some(10).add(b"z" * 1000).add(b"")
    records, reader = file.read()
    assert [len(record.payload) for record in records] == [*range(0, 200, 20), 1000, 0]
    assert reader.torn is None


# --- the torn tail ------------------------------------------------------------------------------


def test_a_tail_cut_anywhere_in_the_last_record_is_torn_and_the_rest_is_read() -> None:
    whole = _some()
    last = whole.starts[-1]
    for length in range(last + 1, len(whole.data)):
        file = _some()
        del file.data[length:]
        records, reader = file.read()
        assert len(records) == 9
        assert reader.torn is not None
        assert (reader.torn.offset, reader.torn.bytes) == (last, length - last)


@pytest.mark.parametrize("length", [1, 28, 29, 30, 512, 5000])
def test_zeros_behind_the_last_record_are_torn(length: int) -> None:
    file = _some()
    end = len(file.data)
    file.data += bytes(length)
    records, reader = file.read()
    assert len(records) == 10
    assert reader.torn is not None
    assert (reader.torn.offset, reader.torn.bytes) == (end, length)


def test_a_sector_that_was_never_written_is_torn_though_good_records_follow() -> None:
    file = _some().mark()
    for index in range(100):
        file.add(b"x" * 50, index)
    file.data[1536:2048] = bytes(512)
    records, reader = file.read()
    assert reader.torn is not None
    assert records[-1].offset < 1536
    assert reader.torn.offset <= 1536


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_header_that_was_not_written_whole_is_torn_in_the_last_file(size: int) -> None:
    file = File()
    del file.data[size:]
    records, reader = file.read()
    assert (records, reader.header, reader.end) == ([], None, 0)
    assert reader.torn is not None
    assert reader.torn.bytes == size


# --- damage -------------------------------------------------------------------------------------


def test_the_same_tail_in_any_file_but_the_last_is_damage() -> None:
    file = _some()
    del file.data[-1:]
    with pytest.raises(DamagedFile, match=r"only the last file.*truncate -s") as caught:
        file.read(last=False)
    assert caught.value.offset == file.starts[-1]
    assert caught.value.path == "/file"


def test_a_lost_sector_of_what_a_marker_says_was_synced_is_damage() -> None:
    file = File()
    for index in range(100):
        file.add(b"x" * 50, index)
    file.mark().add(b"y")
    file.data[1536:2048] = bytes(512)
    with pytest.raises(DamagedFile, match="the file was synced up to offset") as caught:
        file.read()
    assert caught.value.offset is not None
    assert caught.value.offset <= 1536


def test_every_flipped_bit_of_a_last_file_is_told_though_no_marker_follows() -> None:
    whole = File().add(b"first, of some length", 1).mark().add(b"second", 2).add(b"the last one", 3)
    for bit in range(len(whole.data) * 8):
        file = File()
        file.data = bytearray(whole.data)
        file.data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFile):
            file.read()


def test_a_damaged_length_is_told_when_another_record_follows() -> None:
    for size in (0, 100, 5000):
        for bit in range(32):
            file = File().add(b"a" * 700).add(b"b" * size).add(b"c" * 10)
            file.data[file.starts[0] + bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedFile, match="length") as caught:
                file.read()
            assert caught.value.offset == file.starts[0]


def test_a_long_tail_of_nonsense_is_judged_in_bounded_time() -> None:
    file = _some()
    end = len(file.data)
    file.data += random.Random(1).randbytes(4 << 20)
    checked: list[int] = []

    def crc32(data: bytes, seed: int = 0) -> int:
        checked.append(len(data))
        return zlib.crc32(data, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amqp10broker.storage.record.crc32", crc32)
        _, reader = file.read()
    assert reader.torn is not None
    assert reader.torn.offset == end
    # Not the four MiB again and again: a few times at the most.
    assert sum(checked) < 5 * len(file.data)


def test_a_payload_that_looks_like_a_record_is_not_taken_for_one() -> None:
    # Somebody publishes the bytes of this very file: cut inside, they are still a torn tail.
    inner = bytes(_some().data)
    file = _some().add(inner)
    del file.data[-1:]
    records, reader = file.read()
    assert len(records) == 10
    assert reader.torn is not None


def test_a_file_of_another_number_purpose_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(File().data)
    with pytest.raises(DamagedFile, match="number 3 by its header, and 4 by its name"):
        FileReader(DISK, str(path), purpose=1, number=4, last=True)
    with pytest.raises(DamagedFile, match="for purpose 1, and one for 3 should be here"):
        FileReader(DISK, str(path), purpose=3, number=3, last=True)
    path.write_bytes(FileHeader(1, 3, 5, version=2).encode())
    with pytest.raises(StorageError, match="start the newer version"):
        FileReader(DISK, str(path), purpose=1, number=3, last=True)
