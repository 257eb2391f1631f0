"""The journal, rule by rule."""

from __future__ import annotations

import errno
import random

import pytest

from amqp10broker.errors import DamagedFile, DiskFull, StorageError, StorageFailed
from amqp10broker.storage import journal as journal_module
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import HEADER_BYTES, RECORD_BYTES, Record
from tests.support.disks import PowerLoss, SimDisk
from tests.support.inventories import inventory_on
from tests.support.journal_harness import FOLDER, LONG, Harness, file_name, new_disk, walk


def _open(disk: SimDisk, file_bytes_max: int = 10_000) -> tuple[Journal, list[Record]]:
    part = inventory_on(disk).part("journal")
    journal = Journal(disk, FOLDER, part, file_bytes_max=file_bytes_max)
    return journal, [record for batch in journal.recover() for record in batch]


def _sync(disk: SimDisk, journal: Journal, ticket: int | None) -> None:
    assert ticket is not None
    for fd in journal.fds_to_sync():
        disk.sync(fd)
    journal.synced(ticket)


def _commit(disk: SimDisk, journal: Journal) -> None:
    while (ticket := journal.write()) is not None:
        _sync(disk, journal, ticket)


def _append(journal: Journal, index: int, size: int = 10) -> tuple[int, int, int]:
    return journal.append(1, 1, index, [bytes(size)])


def _names(disk: SimDisk) -> list[int]:
    return [int(name.split(".")[0]) for name in disk.names(FOLDER)]


@pytest.fixture
def disk() -> SimDisk:
    return new_disk()


def test_one_commit_is_one_write_and_one_sync(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    for index in range(100):
        _append(journal, index)
    del disk.calls[:]
    ticket = journal.write()
    assert ticket == 100
    assert (journal.collected_bytes, journal.durable) == (0, 0)
    _sync(disk, journal, ticket)
    assert [method for method, _ in disk.calls] == ["write", "sync"]
    assert journal.durable == 100
    assert journal.write() is None


def test_what_is_appended_during_a_sync_waits_for_the_next(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _append(journal, 1)
    ticket = journal.write()
    assert ticket is not None
    fds = journal.fds_to_sync()
    _append(journal, 2)
    with pytest.raises(AssertionError, match="a sync is under way"):
        journal.write()
    for fd in fds:
        disk.sync(fd)
    journal.synced(ticket)
    assert journal.durable == 1
    assert journal.write() == 2


def test_what_is_written_early_is_there_after_a_kill_and_counts_for_the_next_sync(disk: SimDisk) -> None:
    """This holds while a sync is under way that began before."""
    journal, _ = _open(disk)
    _append(journal, 1)
    ticket = journal.write()
    assert ticket is not None
    fds = journal.fds_to_sync()
    _append(journal, 2)
    assert journal.write_early() == 2
    assert (journal.collected_bytes, journal.unsynced_bytes) == (0, 2 * (RECORD_BYTES + 10))
    assert [record.index for record in _open(disk.after_kill())[1]] == [1, 2]
    for fd in fds:
        disk.sync(fd)
    journal.synced(ticket)
    # Whether that sync took it along is not known.
    assert (journal.durable, journal.unsynced_bytes) == (1, RECORD_BYTES + 10)
    assert journal.write_early() == 2
    _sync(disk, journal, journal.write())
    assert (journal.durable, journal.unsynced_bytes) == (2, 0)
    assert journal.write() is None


def test_what_belongs_into_the_next_file_is_not_written_early(disk: SimDisk) -> None:
    """A header and its name are durable before anything stands behind them."""
    journal, _ = _open(disk, 150)
    first = [_append(journal, index, 60)[1] for index in range(4)]
    assert first == [1, 1, 2, 2]
    assert journal.write_early() == 2
    assert _names(disk) == [1]
    _commit(disk, journal)
    assert journal.write_early() == 4


def test_a_group_is_not_written_early(disk: SimDisk) -> None:
    """A group counts when its end is there, so no part of it is reported durable."""
    journal, _ = _open(disk)
    _append(journal, 1)
    before = journal.write_early()
    with journal.together():
        _append(journal, 2)
        assert journal.write_early() == before
    assert journal.write_early() == journal.ticket
    assert [record.index for record in _open(disk.after_kill())[1]] == [1, 2]


def test_an_early_write_that_fails_leaves_all_collected(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _append(journal, 1)
    disk.fail = {len(disk.calls): errno.ENOSPC}
    with pytest.raises(DiskFull):
        journal.write_early()
    assert journal.collected_bytes == RECORD_BYTES + 10
    _commit(disk, journal)
    assert [record.index for record in _open(disk.after_power_loss(1))[1]] == [1]


def test_a_full_file_is_followed_by_the_next_when_it_is_durable(disk: SimDisk) -> None:
    journal, _ = _open(disk, 150)
    places = [_append(journal, index, 60) for index in range(3)]
    assert [file for _, file, _ in places] == [1, 1, 2]
    assert places[2][2] == HEADER_BYTES
    assert _names(disk) == [1]
    first = journal.write()
    assert (first, _names(disk)) == (2, [1, 2])
    assert len(disk.contents(f"{FOLDER}/{file_name(2)}")) == HEADER_BYTES
    # Without a sync nothing goes to the second file, however often it is asked for.
    assert journal.write() == 2
    assert len(disk.contents(f"{FOLDER}/{file_name(2)}")) == HEADER_BYTES
    _sync(disk, journal, 2)
    assert journal.durable == 2
    assert journal.write() == 3
    assert len(disk.contents(f"{FOLDER}/{file_name(2)}")) == HEADER_BYTES + RECORD_BYTES + 60


def test_recovery_yields_what_was_written_with_its_places_and_goes_on_behind(disk: SimDisk) -> None:
    journal, _ = _open(disk, 200)
    places = [journal.append(2, 3, index, [b"a", b"bc"], term=9)[1:] for index in range(20)]
    _commit(disk, journal)
    disk = disk.after_kill()
    journal, records = _open(disk, 200)
    assert [(record.file, record.offset) for record in records] == places
    assert records[4][:5] == (2, 3, 9, 4, b"abc")
    assert all(record.length == RECORD_BYTES + 3 for record in records)
    assert (journal.found.records, journal.found.files) == (20, len(_names(disk)))
    ticket, file, offset = _append(journal, 20)
    assert ticket == 1
    assert (file, offset) > places[-1]
    _commit(disk, journal)
    assert len(_open(disk.after_kill(), 200)[1]) == 21


def test_a_run_is_read_across_others_records_markers_and_the_end_of_what_is_written(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _, _, begin = _append(journal, 1)
    _commit(disk, journal)
    _append(journal, 2)
    _commit(disk, journal)
    _, _, last = _append(journal, 3)
    for _ in range(2):
        run = journal.read_run(1, begin, last + RECORD_BYTES + 10 - begin)
        assert [record.index for record in run] == [1, 2, 3]
        assert [record.index for record in journal.read_run(1, last, RECORD_BYTES + 10)] == [3]
        _commit(disk, journal)


def test_a_record_that_was_changed_is_not_served(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _, _, offset = _append(journal, 1, 50)
    _append(journal, 2, 5000)
    _commit(disk, journal)
    path = f"{FOLDER}/{file_name(1)}"
    for bit in range(8 * offset, 8 * (offset + RECORD_BYTES + 50)):
        disk.flip(path, bit)
        with pytest.raises(DamagedFile, match=f"{file_name(1)} at offset {offset}"):
            journal.read(1, offset)
        with pytest.raises(DamagedFile):
            journal.read_run(1, offset, RECORD_BYTES + 50)
        disk.flip(path, bit)
    assert journal.read(1, offset) == bytes(50)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "dont_leak_file_handles")
def test_few_descriptors_stay_open_and_none_after_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "OPEN_FILES_MAX", 4)
    world = _world(file_bytes_max=100)
    world.put(60, 30)
    world.read_all()
    # Four full files, the one that is written to, the folder; the inventory, as made and as read.
    assert world.disk.open_count <= 8
    world.journal.close()
    world.inventory.close()
    assert world.disk.open_count == 1
    world.read_all()


# --- cleaning -----------------------------------------------------------------------------------


def _world(seed: int = 0, file_bytes_max: int = 600) -> Harness:
    world = Harness(new_disk(seed), file_bytes_max)
    world.recover()
    return world


def _filled(files: int) -> Harness:
    world = _world(file_bytes_max=1000)
    while world.journal.files <= files:
        world.put(100)
    return world


def test_a_full_file_without_a_live_byte_is_to_be_cleaned() -> None:
    world = _filled(1)
    assert world.journal.to_clean() is None
    for message in list(world.live):
        if world.copies[world.live[message]].file == 1:
            assert world.journal.to_clean() is None
            world.consume(message)
    assert world.journal.to_clean() == 1


@pytest.mark.rabbitmq("queue_parallel_SUITE", "trigger_message_store_compaction")
def test_a_live_file_is_cleaned_when_more_than_half_of_everything_is_dead() -> None:
    world = _filled(4)
    first, *others = sorted(world.live)
    for message in others:
        assert world.journal.to_clean() is None or 2 * world.journal.live_bytes < world.journal.size_bytes
        world.consume(message)
    assert world.journal.to_clean() == 1
    assert world.clean()
    world.commit()
    assert world.copies[world.live[first]].file > 1
    assert 1 not in _names(world.disk)
    world.read_all()


def test_a_dropped_file_goes_when_what_was_appended_before_is_durable() -> None:
    world = _filled(3)
    keep, *others = sorted(world.live)
    for message in others:
        world.consume(message)
    assert world.clean()
    assert 1 in _names(world.disk)
    assert keep in world.live
    ticket = world.write()
    assert ticket is not None
    assert 1 in _names(world.disk)
    world.sync(ticket)
    assert 1 in _names(world.disk)
    # Not before the inventory has forgotten it durably.
    assert world.sync_inventory()
    assert 1 not in _names(world.disk)


def test_a_change_of_the_inventory_under_way_does_not_cover_a_removal_after_it() -> None:
    world = _filled(4)
    world.consume_all()
    world.journal.drop(1)
    world.journal.drop(2)
    fds = world.inventory.fds_to_sync()
    world.journal.drop(3)
    for fd in fds:
        world.disk.sync(fd)
    world.inventory.synced()
    world.journal.remove_dropped()
    assert _names(world.disk)[0] == 3
    world.sync_inventory()
    assert _names(world.disk)[0] == 4


def test_a_file_that_was_dropped_and_comes_back_goes_again_unread() -> None:
    world = _filled(3)
    world.consume_all()
    assert _names(world.disk) == [1, 2, 3, 4]
    world.journal.drop(1)
    before = world.disk.contents(f"{FOLDER}/{file_name(1)}")
    world.sync_inventory()
    disk = world.disk.after_kill()
    disk.overwrite(f"{FOLDER}/{file_name(1)}", before[:-5])
    _, records = _open(disk)
    assert {record.file for record in records} == {2, 3, 4}
    assert 1 not in _names(disk)


def test_a_removal_before_a_crash_is_durable_before_the_next_one_after_it() -> None:
    world = _filled(4)
    world.consume_all()
    world.journal.drop(1)
    disk = world.disk.after_kill()
    journal, _ = _open(disk)
    journal.drop(2)
    for seed in range(200):
        _open(disk.after_power_loss(seed))


@pytest.mark.parametrize("file", [2, 5, 99])
def test_only_the_oldest_full_file_can_be_dropped(file: int) -> None:
    world = _filled(4)
    with pytest.raises(ValueError, match="not the oldest full file"):
        world.journal.drop(file)


def test_a_file_in_which_something_lives_is_not_dropped() -> None:
    """A wrong count of live records ends the broker, and loses no message."""
    world = _filled(2)
    lives = world.copies[world.live[min(world.live)]]
    for message in sorted(world.live)[1:]:
        world.consume(message)
    with pytest.raises(ValueError, match=f"{lives.length} bytes of file 1 are needed still"):
        world.journal.drop(1)
    world.read_all()
    world.consume(min(world.live))
    world.journal.drop(1)


# --- what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_missing_file_is_damage(number: int) -> None:
    world = _filled(3)
    assert _names(world.disk) == [1, 2, 3, 4]
    world.disk.unlink(f"{FOLDER}/{file_name(number)}")
    with pytest.raises(
        DamagedFile, match=rf"000{number}\.log: the file is missing; nothing was changed; bring"
    ):
        _open(world.disk.after_kill())


def test_a_file_that_lost_records_at_its_end_is_damage() -> None:
    """A middle file ends at a record, and no other check would detect the loss."""
    world = _filled(3)
    for number in (1, 2, 3):
        path = f"{FOLDER}/{file_name(number)}"
        shorter = world.disk.after_kill()
        shorter.overwrite(path, shorter.contents(path)[: HEADER_BYTES + RECORD_BYTES + 100])
        with pytest.raises(DamagedFile, match=rf"{file_name(number)} at offset \d+: the file ends here"):
            _open(shorter)


def test_a_missing_file_in_the_middle_is_damage_without_an_inventory() -> None:
    world = _filled(3)
    world.disk.unlink("/inventory.log")
    world.disk.unlink(f"{FOLDER}/{file_name(2)}")
    with pytest.raises(DamagedFile, match=r"0002\.log: the file is missing; nothing was changed; bring"):
        _open(world.disk.after_kill())


def test_a_foreign_file_in_the_folder_is_told_unless_it_is_hidden(disk: SimDisk) -> None:
    disk.overwrite(f"{FOLDER}/.nfs0001", b"")
    _open(disk)
    disk.overwrite(f"{FOLDER}/1.log", b"")
    with pytest.raises(StorageError, match=r"1\.log: does not belong here; move it"):
        _open(disk)


def test_a_torn_tail_is_cut_off_and_reported(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _append(journal, 1)
    _commit(disk, journal)
    path = f"{FOLDER}/{file_name(1)}"
    whole = disk.contents(path)
    disk.overwrite(path, whole + b"\0\0\0\x50half a record")
    disk = disk.after_kill()
    journal, records = _open(disk)
    assert [record.index for record in records] == [1]
    assert (journal.found.torn.offset, journal.found.torn_path) == (len(whole), path)
    assert disk.contents(path) == whole


def test_in_a_quiet_time_the_inventory_tells_damage_in_the_last_commit(disk: SimDisk) -> None:
    journal, _ = _open(disk)
    _append(journal, 1, 3000)
    _commit(disk, journal)
    path = f"{FOLDER}/{file_name(1)}"
    lost = bytearray(disk.contents(path))
    # All zeros, like sectors that were never written: nobody could tell.
    lost[100] ^= 1
    disk.overwrite(path, bytes(lost))
    assert _open(disk.after_kill())[1] == []
    journal.mark()
    with pytest.raises(DamagedFile, match="synced up to"):
        _open(disk.after_kill())
    journal.mark()
    journal.mark()


# --- disks that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_keeps_everything_and_works_the_next_time(code: int) -> None:
    world = _world()
    world.put(100)
    before = len(world.disk.contents(f"{FOLDER}/{file_name(1)}"))
    for _ in range(3):
        world.append(300)
    collected = world.journal.collected_bytes
    for tried in range(5):
        # After a failure the file is first cut and synced, so that nothing of it comes back.
        world.disk.fail = {len(world.disk.calls) + (2 if tried else 0): code}
        with pytest.raises(DiskFull if code == errno.ENOSPC else StorageError, match="cannot be written"):
            world.write()
        assert world.journal.collected_bytes == collected
        assert len(world.disk.contents(f"{FOLDER}/{file_name(1)}")) == before
        world.read_all()
    world.put(10)
    assert len(world.restart()) == 5


def test_half_of_a_failed_write_does_not_come_back_under_the_next_one() -> None:
    # Found by the model: it looked like a record that was written whole and then damaged.
    for seed in range(2):
        world = _world(seed)
        world.append(100)
        world.disk.fail = {len(world.disk.calls): errno.ENOSPC}
        with pytest.raises(DiskFull):
            world.write()
        assert world.write() is not None
        for state in range(400):
            world.check(world.disk.after_power_loss(state))


def test_a_cut_that_fails_is_tried_again_and_one_that_cannot_be_synced_is_final() -> None:
    world = _world()
    world.append(100)
    calls = len(world.disk.calls)
    # The write, its cut; the cut at the next try; then the sync of it.
    world.disk.fail = {calls + each: errno.ENOSPC for each in (0, 1, 2, 4)}
    with pytest.raises(DiskFull, match="cannot be written"):
        world.write()
    with pytest.raises(DiskFull, match="cannot be cut back"):
        world.write()
    with pytest.raises(StorageFailed, match="cannot be synced"):
        world.write()


def test_a_next_file_that_cannot_be_made_does_not_hold_up_the_last_one() -> None:
    world = _world(file_bytes_max=100)
    world.append(200)
    world.append(200)
    calls = len(world.disk.calls)
    # The write, then the creation.
    world.disk.fail = {calls + 1: errno.ENOSPC}
    ticket = world.write()
    assert ticket == 1
    world.sync(ticket)
    assert world.journal.durable == 1
    # Now there is nothing else to do: it is told.
    world.disk.fail = {len(world.disk.calls): errno.ENOSPC}
    with pytest.raises(DiskFull, match="cannot be made"):
        world.write()
    # Its header is written half.
    world.disk.fail = {len(world.disk.calls) + 1: errno.ENOSPC}
    with pytest.raises(DiskFull, match="cannot be made"):
        world.write()
    world.commit()
    assert len(world.restart()) == 2


def _failing(seed: int, at: int, code: int) -> tuple[Harness, bool]:
    """Walk with call failing; return whether that was final, as a failed sync is."""
    world = Harness(new_disk(seed))
    world.disk.fail = {at: code}
    rng = random.Random(seed)
    while True:
        try:
            if not world.journal.found:
                world.recover()
            walk(world, rng, 40)
        except StorageFailed:
            return world, True
        except StorageError:
            if world.journal.found is None:
                world.journal.close()
                continue
        except OSError:
            return world, True
        return world, False


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("seed", range(20 if LONG else 1))
def test_whichever_call_fails_it_is_told_and_nothing_durable_is_lost(seed: int, code: int) -> None:
    calls = len(_failing(seed, -1, code)[0].disk.calls)
    for at in range(calls):
        world, stopped = _failing(seed, at, code)
        if not stopped:
            # Whatever failed, it goes on.
            world.read_all()
            world.put(100)
            world.read_all()
        world.disk = world.disk.after_power_loss(at) if at % 2 else world.disk.after_kill()
        world.recover()
        world.read_all()


def test_what_was_removed_does_not_come_back_alone_and_what_is_there_has_no_hole() -> None:
    # Many files, few live: removals and creations of names in any order of durability.
    for seed in range(150 if LONG else 30):
        world = Harness(new_disk(seed), 150)
        rng = random.Random(seed)
        world.recover()
        world.disk.lose_power_at = len(world.disk.calls) + rng.randrange(200)
        _until_power_loss(world, rng)
        world.disk = world.disk.after_power_loss(seed)
        world.recover()


def _until_power_loss(world: Harness, rng: random.Random) -> None:
    try:
        while True:
            for _ in range(3):
                world.append(60)
            for message in sorted(world.live)[: -rng.randrange(1, 4)]:
                world.consume(message)
            while world.clean():
                pass
            ticket = world.write()
            if ticket is not None:
                world.sync(ticket)
    except PowerLoss:
        pass


def test_records_of_a_group_are_all_there_after_a_loss_of_power_or_none() -> None:
    """The journal has the records before the group, those with the whole group, or also those behind it."""
    seen = set()
    for seed in range(60):
        disk = new_disk()
        journal, _ = _open(disk)
        _append(journal, 1)
        _commit(disk, journal)
        with journal.together():
            for index in (2, 3, 4):
                _append(journal, index, 3_000)
        _append(journal, 5)
        journal.write()
        again = disk.after_power_loss(seed)
        later, records = _open(again)
        found = [record.index for record in records]
        assert found in ([1], [1, 2, 3, 4], [1, 2, 3, 4, 5])
        seen.add(len(found))
        _append(later, 6)
        _commit(again, later)
        _, records = _open(again.after_power_loss(seed))
        assert [record.index for record in records] == [*found, 6]
    assert seen >= {1, 5}


def test_a_group_whose_end_was_not_written_does_not_count_and_takes_nothing_with_it() -> None:
    """This holds at every length of the file: records appended after the start count again."""
    whole = new_disk()
    journal, _ = _open(whole)
    _append(journal, 1)
    with journal.together():
        _append(journal, 2)
        _append(journal, 3)
    journal.write()
    name = f"{FOLDER}/{file_name(1)}"
    data = whole.contents(name)
    for length in range(HEADER_BYTES, len(data) + 1):
        disk = new_disk()
        _open(disk)
        disk.overwrite(name, data[:length])
        again, records = _open(disk)
        found = [record.index for record in records]
        assert found in ([], [1], [1, 2, 3])
        assert (found == [1, 2, 3]) == (length == len(data))
        _append(again, 4)
        with again.together():
            _append(again, 5)
        _commit(disk, again)
        assert [record.index for record in _open(disk)[1]] == [*found, 4, 5]


def test_a_group_lies_in_one_file(disk: SimDisk) -> None:
    journal, _ = _open(disk, 150)
    with journal.together():
        places = [_append(journal, index, 60) for index in range(5)]
    assert {file for _, file, _ in places} == {1}
    assert _append(journal, 6)[1] == 2


def test_a_group_that_fails_half_way_does_not_count(disk: SimDisk) -> None:
    journal, _ = _open(disk)

    def fail_half_way() -> None:
        with journal.together():
            _append(journal, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    _append(journal, 2)
    _commit(disk, journal)
    assert [record.index for record in _open(disk)[1]] == [2]
