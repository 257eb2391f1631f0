"""The journal's reserve: what helps to make room can be appended when the disk is full to the last byte."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.storage import disk as disk_module
from amqp10broker.storage import journal as journal_module
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.record import RECORD_BYTES
from tests.support.disks import SECTOR_BYTES, Inode, SimDisk
from tests.support.journal_harness import FOLDER, Harness, file_name, new_disk

FILE = 8000
RESERVE = 12_000


def _world() -> Harness:
    world = Harness(new_disk(), FILE, RESERVE)
    world.recover()
    world.commit()
    return world


def _fill(disk: SimDisk) -> None:
    disk.capacity = disk.used()


def test_a_full_disk_is_noticed_before_anything_is_lost() -> None:
    world = _world()
    _fill(world.disk)
    assert world.journal.shortage is None
    appended = 0
    while world.journal.shortage is None:
        world.append(100)
        appended += RECORD_BYTES + 100
    assert appended <= FILE // 8 + SECTOR_BYTES + RECORD_BYTES + 100
    assert world.journal.room_bytes >= RESERVE - RECORD_BYTES - 100
    world.commit()


def test_what_does_not_fit_beside_the_reserve_is_not_admitted_until_it_does() -> None:
    world = _world()
    journal = world.journal
    free = FILE // 2
    assert journal.admits(free, free)
    world.disk.capacity = world.disk.used() + free
    large = 4 * free
    assert not journal.admits(large, large)
    assert journal.shortage is not None
    assert not journal.admits(1, 1), "what comes behind it waits as well"
    assert journal.room_bytes >= RESERVE
    world.commit()
    assert journal.shortage is not None, "the reserve is whole, and there is no room for the large one"
    world.disk.capacity += large
    world.commit()
    assert journal.shortage is None
    assert journal.admits(large, large)
    assert journal.room_bytes >= RESERVE + large


def test_the_next_file_is_begun_by_what_is_admitted() -> None:
    """The file's reserve is behind its admitted records; the previous file's reserve does not help."""
    world = _world()
    while world.journal.size_bytes < FILE:
        world.append(100)
    large = 3 * FILE
    assert world.journal.admits(large, large)
    assert world.journal.room_bytes >= RESERVE + large
    world.append(large)
    assert world.journal.room_bytes >= RESERVE
    assert world.live[world.next_message - 1]
    assert world.copies[world.live[world.next_message - 1]].file == 2
    world.commit()
    world.disk = world.disk.after_power_loss(1)
    world.recover()


def test_the_reserve_is_written_to_the_last_byte_and_then_nothing_is_lost() -> None:
    world = _world()
    _fill(world.disk)
    while world.journal.room_bytes > 2 * RECORD_BYTES + 200:
        world.put(100)
    assert world.journal.shortage is not None
    for _ in range(SECTOR_BYTES):
        world.append(100)
    with pytest.raises(DiskFull):
        world.commit()
    world.disk.capacity = None
    world.commit()
    assert world.journal.shortage is None
    world.restart()


def test_a_file_in_which_nothing_lives_goes_and_makes_the_reserve_whole() -> None:
    """There is no room to make another file, but the next one was made in advance."""
    world = _world()
    while world.journal.size_bytes < FILE // 2:
        world.put(100)
    _fill(world.disk)
    while world.journal.shortage is None:
        world.put(10)
    used = world.disk.used()
    world.append(10)
    world.consume_all()
    world.commit()
    while world.clean():
        world.commit()
    assert file_name(1) not in world.disk.names(FOLDER)
    assert world.disk.used() <= used
    world.commit()
    assert world.journal.shortage is None
    assert world.journal.room_bytes >= RESERVE


def test_a_file_with_more_alive_than_there_is_room_for_is_not_cleaned() -> None:
    world = _world()
    while world.journal.files < 4:
        world.put(100)
    live = sorted(world.live)
    for message in live[len(live) // 4 :]:
        world.consume(message)
    assert world.journal.to_clean() is not None
    _fill(world.disk)
    while world.journal.room_bytes > 1000:
        world.put(100)
    for message in [message for message in world.live if message > live[-1]]:
        world.consume(message)
    assert world.journal.to_clean() is None
    world.disk.capacity = None
    world.commit()
    assert world.journal.to_clean() is not None


def test_a_start_on_a_full_disk_has_what_was_reserved_before() -> None:
    world = _world()
    world.put(100, 10)
    _fill(world.disk)
    while world.journal.shortage is None:
        world.put(100)
    room = world.journal.room_bytes
    world.restart()
    assert world.journal.shortage is not None
    assert world.journal.room_bytes >= room // 2
    world.put(10, 20)
    assert world.disk.used() <= (world.disk.capacity or 0)


def test_a_full_file_keeps_no_room_behind_its_end() -> None:
    world = _world()
    while world.journal.files < 4:
        world.put(100)
    full = world.disk.paths(FOLDER)[:-2]
    assert len(full) == 3
    for path in full:
        inode = world.disk._find(path)
        assert isinstance(inode, Inode)
        assert inode.allocated <= len(inode.data)


def test_a_system_that_cannot_allocate_has_no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = new_disk()
    monkeypatch.setattr(disk, "allocate", lambda fd, end: False)
    world = Harness(disk, FILE, RESERVE)
    world.recover()
    world.put(100, 300)
    assert (world.journal.shortage, world.journal.room_bytes) == (None, 0)
    assert not world.journal.reserve
    world.read_all()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_file_whose_room_cannot_be_given_back_stops_nothing_for_want_of_room(code: int) -> None:
    """Where files are copied on write, a truncation takes room as well."""
    world = _world()
    disk = world.disk
    truncate = disk.truncate

    def refuse(fd: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    disk.truncate = refuse  # type: ignore[method-assign]
    if code == errno.EIO:
        with pytest.raises(StorageError, match="cannot give room back"):
            _go_on_to_file(world, 3)
        return
    _go_on_to_file(world, 3)
    disk.truncate = truncate  # type: ignore[method-assign]
    world.disk = disk.after_kill()
    world.recover()


def _go_on_to_file(world: Harness, number: int) -> None:
    while world.journal.files < number:
        world.put(100)


def test_a_signal_does_not_keep_the_system_from_giving_room(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [errno.EINTR, errno.EINTR, 0]

    def fallocate(fd: int, mode: int, offset: int, length: int) -> int:
        code = codes.pop(0)
        ctypes.set_errno(code)
        return -1 if code else 0

    monkeypatch.setattr(disk_module, "_fallocate", fallocate)
    assert Disk().allocate(0, 100)
    assert not codes
    codes = [errno.EOPNOTSUPP, errno.ENOSPC]
    assert not Disk().allocate(0, 100)
    with pytest.raises(OSError, match="No space left"):
        Disk().allocate(0, 100)
    monkeypatch.setattr(disk_module, "_fallocate", None)
    assert not Disk().allocate(0, 100)


def test_the_system_keeps_room_and_the_size(tmp_path: object) -> None:
    """It tests Linux and the file systems that the tests run on."""
    disk = Disk()
    fd = disk.create(f"{tmp_path}/file")
    try:
        if not disk.allocate(fd, 100_000):
            pytest.skip("this file system cannot allocate")
        assert disk.size(fd) == 0
        disk.write(fd, 0, [b"x" * 10])
        assert disk.size(fd) == 10
    finally:
        disk.close(fd)
    assert disk.total_bytes(str(tmp_path)) >= disk.free_bytes(str(tmp_path)) > 0


def test_the_reserve_of_a_short_journal_is_about_as_long_as_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "RESERVE_BYTES_MIN", 1000)
    world = _world()
    assert 1000 <= world.journal.room_bytes < RESERVE // 2
    while world.journal.size_bytes < RESERVE:
        world.append(100)
        assert world.journal.room_bytes >= min(world.journal.size_bytes, RESERVE) // 2
        world.commit()
    assert world.journal.room_bytes >= RESERVE


def test_at_most_one_empty_file_stands_behind_what_is_not_durable() -> None:
    """Otherwise a loss of power leaves a file that ends within a record and is not the last."""
    world = _world()
    for _ in range(3 * FILE // 100):
        world.append(100)
    assert world.journal.write() is not None
    for seed in range(50):
        world.check(world.disk.after_power_loss(seed))
