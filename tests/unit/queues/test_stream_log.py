"""A stream's log, in memory and on disk: chunks found by offset and time, segments that come and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.message.message import Message
from amqp10broker.queues.stream.durability import StreamCommits
from amqp10broker.queues.stream.log import INDEX_BYTES, Chunk, MemoryShelf, StreamLog
from amqp10broker.storage.record import HEADER_BYTES, RECORD_BYTES
from amqp10broker.storage.stream_files import OPEN_MAX, folder_of
from tests.support.disks import SimDisk
from tests.support.inventories import ShelfAlone, inventory_on
from tests.support.memory_journal import MemoryJournal
from tests.support.streams import make_room

STREAMS = "/streams"
NUMBER = 7

MakeLog = Callable[[], StreamLog]


def disk_with_folder() -> SimDisk:
    disk = SimDisk()
    disk.make_folder(STREAMS)
    return disk


def opened(disk: SimDisk, number: int = NUMBER, segment_bytes: int | None = None) -> StreamLog:
    log = StreamLog(ShelfAlone(disk, STREAMS, number))
    log.segment_bytes = segment_bytes or log.segment_bytes
    for _ in log.recover():
        pass
    return log


@pytest.fixture(params=["memory", "disk"])
def make_log(request: pytest.FixtureRequest) -> MakeLog:
    disk = disk_with_folder()
    return (lambda: StreamLog(MemoryShelf())) if request.param == "memory" else (lambda: opened(disk))


def write(
    log: StreamLog, count: int = 1, at_ms: int = 0, data: bytes = b"data", filter_bytes: bytes = b""
) -> None:
    make_room(log)
    log.append(count, at_ms, filter_bytes, [data])
    log.commit(log.write())


def everything(log: StreamLog, offset: int = 0) -> list[Chunk]:
    place = log.find(offset)
    chunks: list[Chunk] = []
    while True:
        some, place = log.read(place)
        if not some:
            return chunks
        chunks += some


# --- reading ----------------------------------------------------------------------------------------


def test_a_chunk_is_found_far_from_any_entry_of_the_index(make_log: MakeLog) -> None:
    log = make_log()
    for _ in range(60):
        write(log, 10, data=bytes(INDEX_BYTES // 7))
    for offset in (0, 5, 99, 333, 599):
        assert log.read(log.find(offset))[0][0].first == offset // 10 * 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume_timestamp_last_offset", "consume_timestamp_offset"
)
def test_a_chunk_is_found_by_time(make_log: MakeLog) -> None:
    log = make_log()
    log.segment_bytes = 300
    times = [10, 10, 20, 20, 20, 40, 50, 50, 60, 60, 60, 60, 70]
    for at_ms in times:
        write(log, 1, at_ms)
    for asked in range(80):
        expected = next((place for place, at_ms in enumerate(times) if at_ms >= asked), len(times))
        assert log.offset_at(asked) == expected


# --- segments ---------------------------------------------------------------------------------------


def test_a_full_segment_gets_no_more_chunks(make_log: MakeLog) -> None:
    log = make_log()
    log.segment_bytes = 200
    for _ in range(10):
        write(log, 1, data=bytes(30))
    # A chunk takes 29 + 13 + 30 bytes, on disk a segment has a header and markers beside.
    assert 3 <= len(log.segments) <= 5


def test_the_oldest_segments_go_and_the_newest_stays(make_log: MakeLog) -> None:
    log = make_log()
    log.segment_bytes = 1
    for number in range(10):
        write(log, 1, at_ms=number)
    size = log.size_bytes // 10
    log.retain(0, 5 * size, None)
    assert log.first_offset == 5
    log.retain(7, None, 0)
    assert log.first_offset == 7
    log.retain(10**9, 0, 0)
    assert (log.first_offset, log.next_offset, len(log.segments)) == (9, 10, 1)
    assert [chunk.first for chunk in everything(log)] == [9]


# --- files ------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimDisk:
    return disk_with_folder()


def test_a_stream_begins_again_where_it_ended_when_nothing_is_left_in_its_newest_segment(
    disk: SimDisk,
) -> None:
    log = opened(disk, segment_bytes=1)
    write(log, 5)
    make_room(log)
    log.shelf.close()
    log = opened(disk, segment_bytes=1)
    log.retain(10**9, 0, 0)
    assert (log.first_offset, log.next_offset) == (5, 5)
    assert everything(log) == []
    write(log, 2)
    assert [(chunk.first, chunk.end) for chunk in everything(log)] == [(5, 7)]


def test_the_end_of_a_segment_that_was_left_is_never_taken_for_torn(disk: SimDisk) -> None:
    log = opened(disk)
    write(log, 5)
    log.shelf.close()
    folder = folder_of(STREAMS, NUMBER)
    path = f"{folder}/{0:020}.log"
    disk.overwrite(f"{folder}/{5:020}.log", b"")
    disk.overwrite(path, disk.contents(path)[:-3])
    with pytest.raises(DamagedFile):
        opened(disk)


def test_only_few_files_are_open(disk: SimDisk) -> None:
    log = opened(disk, segment_bytes=1)
    for _ in range(40):
        write(log)
    everything(log)
    assert disk.open_count <= OPEN_MAX + 2  # the one that is written to, and the inventory


def test_a_torn_end_is_cut_off(disk: SimDisk) -> None:
    log = opened(disk)
    write(log, 5)
    log.shelf.close()
    [name] = disk.names(folder_of(STREAMS, NUMBER))
    path = f"{folder_of(STREAMS, NUMBER)}/{name}"
    disk.overwrite(path, disk.contents(path) + bytes(100))
    log = opened(disk)
    assert log.next_offset == 5
    write(log, 1)
    assert [(chunk.first, chunk.end) for chunk in everything(opened(disk))] == [(0, 5), (5, 6)]


def segments_of(disk: SimDisk, count: int) -> list[str]:
    """Return the paths of a stream with so many segments of one chunk."""
    log = opened(disk, segment_bytes=1)
    for number in range(count):
        write(log, 1, data=b"%d" % number * 20)
    log.shelf.close()
    folder = folder_of(STREAMS, NUMBER)
    return [f"{folder}/{name}" for name in disk.names(folder)]


def test_a_flipped_bit_in_an_older_segment_stops_the_start(disk: SimDisk) -> None:
    path = segments_of(disk, 3)[1]
    disk.flip(path, (HEADER_BYTES + RECORD_BYTES + 20) * 8)
    with pytest.raises(DamagedFile) as caught:
        opened(disk)
    assert caught.value.path == path
    assert caught.value.offset == HEADER_BYTES
    assert disk.open_count == 1  # the inventory


def test_a_flipped_bit_is_found_when_it_is_read(disk: SimDisk) -> None:
    paths = segments_of(disk, 3)
    log = opened(disk)
    disk.flip(paths[1], (HEADER_BYTES + RECORD_BYTES + 20) * 8)
    chunks, place = log.read(log.find(0))
    assert len(chunks) == 1
    with pytest.raises(DamagedFile):
        log.read(place)


def test_a_missing_segment_stops_the_start(disk: SimDisk) -> None:
    paths = segments_of(disk, 4)
    for path in paths:
        missing = disk.after_kill()
        missing.unlink(path)
        with pytest.raises(DamagedFile, match="the file is missing") as caught:
            opened(missing)
        assert caught.value.path == path


def test_a_segment_that_is_missing_from_a_folder_without_an_inventory_stops_the_start(disk: SimDisk) -> None:
    """In such a folder of an earlier version a missing middle segment can be detected."""
    paths = segments_of(disk, 4)
    disk.unlink(paths[2])
    disk.unlink("/inventory.log")
    with pytest.raises(
        DamagedFile, match="messages 2 to 2 of the stream should be before this file"
    ) as caught:
        opened(disk)
    assert caught.value.path == paths[3]


def test_a_segment_of_another_stream_stops_the_start(disk: SimDisk) -> None:
    segments_of(disk, 1)
    disk.make_folder(folder_of(STREAMS, 8))
    name = f"{0:020}.log"
    disk.overwrite(f"{folder_of(STREAMS, 8)}/{name}", disk.contents(f"{folder_of(STREAMS, NUMBER)}/{name}"))
    with pytest.raises(DamagedFile, match="does not belong here"):
        opened(disk, 8)


def test_a_strange_file_stops_the_start(disk: SimDisk) -> None:
    segments_of(disk, 1)
    disk.overwrite(f"{folder_of(STREAMS, NUMBER)}/notes.txt", b"mine")
    with pytest.raises(StorageError, match="does not belong here; move it out"):
        opened(disk)


def test_a_deleted_stream_leaves_nothing(disk: SimDisk) -> None:
    log = opened(disk, segment_bytes=1)
    for _ in range(3):
        write(log)
    log.delete()
    assert disk.names(STREAMS) == []
    assert disk.open_count == 1  # the inventory, which says nothing of it any more
    assert not inventory_on(disk).part(f"streams/{NUMBER}").known
    opened(disk).delete()


GROUP = 7


def messages(*bodies: bytes) -> list[Message]:
    return [(b"head", body) for body in bodies]


def next_life(journal: MemoryJournal) -> tuple[StreamCommits, MemoryJournal]:
    found = journal.again()
    commits = StreamCommits(GROUP, found)
    commits.restore(found.records)
    return commits, found


def bodies(commits: StreamCommits, number: int) -> list[tuple[int, list[bytes]]]:
    """Return the bodies that the stream lacks when its chunks claim all commits up to a number."""
    return [(each, [body for _, body in missing]) for each, missing in commits.missing(number)]


def test_a_start_finds_what_the_streams_files_lack() -> None:
    journal = MemoryJournal()
    commits = StreamCommits(GROUP, journal)
    assert [commits.append(messages(b"a", b"b")), commits.append(messages(b"c"))] == [1, 2]
    assert bodies(next_life(journal)[0], 0) == [(1, [b"a", b"b"]), (2, [b"c"])]
    assert bodies(next_life(journal)[0], 1) == [(2, [b"c"])]
    assert bodies(next_life(journal)[0], 2) == []


def test_what_was_written_once_is_not_written_again_when_its_chunks_have_gone() -> None:
    """Retention removes chunks with their commit numbers; the journal has the numbers, too."""
    journal = MemoryJournal()
    commits = StreamCommits(GROUP, journal)
    for body in (b"a", b"b", b"c"):
        commits.append(messages(body))
    commits.written(2)
    assert commits.bytes == journal.live[1]
    assert bodies(next_life(journal)[0], 0) == [(3, [b"c"])]


def test_numbers_go_on_behind_all_that_is_known() -> None:
    """The numbers are the journal's, or the stream's chunks' where the journal has been cleaned."""
    journal = MemoryJournal()
    StreamCommits(GROUP, journal).append(messages(b"a"))
    again, _ = next_life(journal)
    assert bodies(again, 1) == []
    assert again.append(messages(b"b")) == 2
    fresh = StreamCommits(GROUP, MemoryJournal())
    assert bodies(fresh, 41) == []
    assert fresh.append(messages(b"c")) == 42


def test_what_lives_in_a_file_is_appended_again_and_counted_once() -> None:
    """So the oldest file can be removed; a start that finds both copies has the commit once."""
    journal = MemoryJournal(file_bytes=200)
    commits = StreamCommits(GROUP, journal)
    for body in (b"a" * 300, b"b" * 300):
        commits.append(messages(body))
    assert commits.bytes == sum(journal.live.values())
    assert list(commits.relocate(1)) == [None]
    assert journal.live[1] == 0
    both, found = next_life(journal)
    assert bodies(both, 0) == [(1, [b"a" * 300]), (2, [b"b" * 300])]
    assert both.bytes == sum(found.live.values())
    journal.drop_oldest()
    left, _ = next_life(journal)
    assert bodies(left, 0) == [(1, [b"a" * 300]), (2, [b"b" * 300])]
