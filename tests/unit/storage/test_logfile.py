"""Files of records: what is written, read back, and told of damage."""

from __future__ import annotations

import errno
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from amqp10broker.errors import DamagedFile, DiskFull, StorageError
from amqp10broker.storage import record as reader_module
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.logfile import LogFile, go_on
from amqp10broker.storage.record import (
    HEADER_BYTES,
    MARKER,
    RECORD_BYTES,
    FileHeader,
    FileReader,
    Purpose,
    Record,
    decode_header,
    encode_head,
    encode_marker,
    is_record,
)
from tests.support.disks import PowerLoss, SimDisk
from tests.support.inventories import inventory_on
from tests.support.journal_harness import FOLDER, LONG, Harness, file_name, new_disk, walk

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


HEADER_READER = FileHeader(Purpose.JOURNAL, 3, 0xFEDCBA9876543210)
DISK = Disk()


class File:
    """The bytes of a file, as a writer makes them."""

    def __init__(self) -> None:
        self.data = bytearray(HEADER_READER.encode())
        self.starts: list[int] = []

    def add(self, payload: bytes, index: int = 0) -> File:
        self.starts.append(len(self.data))
        self.data += encode_head(HEADER_READER.seed, len(self.data), 9, 1, index, (payload,)) + payload
        return self

    def mark(self) -> File:
        self.data += encode_marker(HEADER_READER, len(self.data), len(self.data))
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
        assert (reader.torn.offset, reader.torn.bytes) == (last, length - last)


@pytest.mark.parametrize("length", [1, 28, 29, 30, 512, 5000])
def test_zeros_behind_the_last_record_are_torn(length: int) -> None:
    file = _some()
    end = len(file.data)
    file.data += bytes(length)
    records, reader = file.read()
    assert len(records) == 10
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


HEADER_RECORD = FileHeader(Purpose.JOURNAL, 7, 0x0123456789ABCDEF)


def test_a_header_is_32_bytes_and_reads_back() -> None:
    data = HEADER_RECORD.encode()
    assert len(data) == HEADER_BYTES == 32
    assert data[:20] == b"\x8aA10LOG\n" + struct.pack(">HHQ", 1, 1, 7)
    assert decode_header(data) == HEADER_RECORD


def test_a_header_with_any_bit_flipped_is_none() -> None:
    data = HEADER_RECORD.encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_header(bytes(flipped)) is None, bit


def test_a_record_has_the_documented_bytes() -> None:
    head = encode_head(HEADER_RECORD.seed, 100, 3, 4, 6, (b"ab", b"", b"c"), 5)
    rest = struct.pack(">IBQQ", 3, 4, 5, 6)
    crc = zlib.crc32(rest + b"abc", zlib.crc32(bytes.fromhex("0123456789ABCDEF"))) ^ 100
    assert head == struct.pack(">II", 3, crc) + rest
    assert len(head) == RECORD_BYTES == 29


def test_a_record_of_another_file_or_another_place_is_not_taken() -> None:
    data = encode_head(HEADER_RECORD.seed, 64, 1, 1, 1, (b"x",)) + b"x"
    assert is_record(data, 0, HEADER_RECORD.seed, 64)
    assert not is_record(data, 0, HEADER_RECORD.seed, 65)
    assert not is_record(data, 0, FileHeader(Purpose.JOURNAL, 7, 1).seed, 64)


def test_zeros_are_no_record_whatever_the_seed() -> None:
    # At this offset the checksum of 29 zeros is 0, as it stands there.
    offset = zlib.crc32(bytes(21), HEADER_RECORD.seed)
    assert not is_record(bytes(4096), 0, HEADER_RECORD.seed, offset)


def test_a_marker_carries_the_id_and_what_was_synced() -> None:
    data = encode_marker(HEADER_RECORD, 500, 300)
    assert is_record(data, 0, HEADER_RECORD.seed, 500)
    assert data[12] == MARKER
    assert int.from_bytes(data[21:29], "big") == 300
    assert data[29:] == HEADER_RECORD.id_bytes


FLIPS = 40_000 if LONG else 3_000


def _small(index: int) -> bytes:
    return b"message %d, not long" % index


def _with_zeros(index: int) -> bytes:
    return b"begin" + bytes(1500) + b"end %d" % index


def _written(payload: Callable[[int], bytes], *, mark: bool, file_bytes_max: int) -> SimDisk:
    disk = new_disk()
    part = inventory_on(disk).part("journal")
    journal = Journal(disk, FOLDER, part, file_bytes_max=file_bytes_max)
    assert list(journal.recover()) == []
    for index in range(24):
        journal.append(index % 3, 1 + index % 2, index, [payload(index)], term=index)
        if index % 5 == 4:
            _commit(disk, journal)
    _commit(disk, journal)
    if mark:
        journal.mark()
        _commit(disk, journal)
    return disk.after_kill()


def _commit(disk: SimDisk, journal: Journal) -> None:
    while (ticket := journal.write()) is not None:
        for fd in journal.fds_to_sync():
            disk.sync(fd)
        journal.synced(ticket)


def _read(disk: SimDisk) -> list[Record]:
    journal = Journal(disk, FOLDER, inventory_on(disk).part("journal"))
    return [record for batch in journal.recover() for record in batch]


@pytest.mark.parametrize(
    ("payload", "mark"),
    [(_small, False), (_small, True), (_with_zeros, True)],
    ids=["small, killed", "small, stopped", "with zeros, stopped"],
)
@pytest.mark.parametrize("file_bytes_max", [400, 1 << 20], ids=["many files", "one file"])
def test_a_flipped_bit_is_detected_or_harmless(
    payload: Callable[[int], bytes], mark: bool, file_bytes_max: int
) -> None:
    disk = _written(payload, mark=mark, file_bytes_max=file_bytes_max)
    right = _read(disk.after_kill())
    assert len(right) == 24
    bits = [
        (name, bit)
        for name in disk.names(FOLDER)
        for bit in range(8 * len(disk.contents(f"{FOLDER}/{name}")))
    ]
    if len(bits) > FLIPS:
        bits = random.Random(1).sample(bits, FLIPS)
    last = disk.names(FOLDER)[-1]
    detected: list[tuple[str, str]] = []
    for name, bit in bits:
        flipped = disk.after_kill()
        flipped.flip(f"{FOLDER}/{name}", bit)
        try:
            found = _read(flipped)
        except StorageError as error:
            detected.append((error.path, f"{FOLDER}/{name}"))
        else:
            # Harmless is the header of a file that nothing was written to, and the marker that is last:
            # what it speaks of is read as it is.
            assert found == right
            assert name == last
    assert all(told == changed for told, changed in detected)
    harmless = len(bits) - len(detected)
    assert harmless <= 8 * (HEADER_BYTES + 37)


def test_the_limit_of_what_can_be_told_is_as_documented() -> None:
    # Killed within a second after a commit: a flip in the last record is taken for a torn end if the record
    # has a sector of zeros of its own. It is not served, and all before it is.
    disk = _written(_with_zeros, mark=False, file_bytes_max=1 << 20)
    right = _read(disk.after_kill())
    end = len(disk.contents(f"{FOLDER}/{file_name(1)}"))
    outcomes = set()
    for bit in range(8 * (end - 5), 8 * end):
        flipped = disk.after_kill()
        flipped.flip(f"{FOLDER}/{file_name(1)}", bit)
        found = _read(flipped)
        outcomes.add(len(found))
        assert found == right[: len(found)]
    assert outcomes == {23}


SEEDS = range(100 if LONG else 3)
STEPS = 40
STATES = 4 if LONG else 2


def _walked(seed: int, lose_power_at: int | None) -> Harness:
    # With a reserve the next file is made in advance, and found by the start that follows.
    world = Harness(new_disk(seed), reserve_bytes=900 if seed % 2 else 0)
    world.disk.lose_power_at = lose_power_at
    try:
        world.recover()
        walk(world, random.Random(seed), STEPS)
    except PowerLoss:
        pass
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_durable_is_recovered_and_nothing_else_appears(seed: int) -> None:
    calls = len(_walked(seed, None).disk.calls)
    for at in range(calls):
        for state in range(STATES):
            world = _walked(seed, at)
            world.disk = world.disk.after_power_loss(1000 * at + state)
            world.recover()
            # And it can be gone on with, and the power may go again.
            walk(world, random.Random(at), 4)
            world.disk = world.disk.after_power_loss(state)
            world.recover()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_power_may_go_while_recovering(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        world = _walked(seed, rng.randrange(20, 120))
        for _ in range(4):
            # Killed without a loss of power: what was written and not synced is there, for the moment.
            killed = rng.random() < 0.5
            disk = world.disk
            world.disk = disk.after_kill() if killed else disk.after_power_loss(rng.randrange(1 << 30))
            world.disk.lose_power_at = rng.randrange(1, 25)
            try:
                world.recover()
                walk(world, rng, 6)
            except PowerLoss:
                pass
        world.disk = world.disk.after_power_loss(rng.randrange(1 << 30))
        world.recover()
