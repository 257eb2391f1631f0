"""The catalog's log: entries by key that survive the process at once, and a loss of power when synced."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from amqp10broker.errors import DamagedFile, LimitExceeded, StorageError, StorageFailed
from amqp10broker.storage import entry_log
from amqp10broker.storage.catalog_log import CatalogLog, open_catalog_log
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import DataFolder, open_data_folder
from amqp10broker.storage.record import HEADER_BYTES, RECORD_BYTES, FileHeader, Purpose, encode_head
from tests.support.disks import PowerLoss, SimDisk

FILE = "/data/catalog/catalog.log"
Entries = dict[tuple[str, ...], Any]


def opened(disk: Disk) -> CatalogLog:
    folder = open_data_folder(disk, "/data", "test")
    return open_catalog_log(disk, folder, folder.inventory.part("catalog"))


def entries(log: CatalogLog) -> Entries:
    return dict(log.entries())


def sync(disk: SimDisk, log: CatalogLog) -> None:
    fds = log.fds_to_sync()
    for fd in fds:
        try:
            disk.sync(fd)
        except OSError as error:
            raise StorageFailed(FILE, f"cannot be synced: {error.strerror}", "look at the disk") from error
    if fds:
        log.synced()


def sync_all(disk: SimDisk, log: CatalogLog) -> None:
    while log.fds_to_sync():
        sync(disk, log)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> CatalogLog:
    return opened(disk)


@pytest.fixture
def small_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "SPARE_BYTES", 100)


# --- entries --------------------------------------------------------------------------------------


def test_the_present_entries_are_there_after_a_restart(log: CatalogLog, disk: SimDisk) -> None:
    """The last entry of each key is there, in the order of the keys' creation; forgotten ones are not."""
    log.put([(("a",), 1), (("b", "x"), {"deep": [None, "é"]})])
    log.put([(("c",), 1)])
    log.put([(("a",), 2)])
    log.forget([("c",), ("d",)])
    log.put([(("c",), 3)])
    expected = {("a",): 2, ("b", "x"): {"deep": [None, "é"]}, ("c",): 3}
    assert entries(log) == expected
    again = opened(disk.after_kill())
    assert list(again.entries()) == list(expected.items())
    assert (len(again), again.reader.records, again.reader.torn) == (3, 5, None)
    assert ("a",) in again
    assert ("d",) not in again


def test_a_change_is_one_record(log: CatalogLog, disk: SimDisk) -> None:
    log.put([(("a",), 1)])
    sync(disk, log)
    before = log.size_bytes
    log.put([(("b",), 1), (("c",), 1)])
    data = disk.contents(FILE)
    for size in range(before, len(data) + 1):
        cut = disk.after_kill()
        cut.overwrite(FILE, data[:size])
        expected: Entries = {("a",): 1}
        if size == len(data):
            expected |= {("b",): 1, ("c",): 1}
        assert entries(opened(cut)) == expected


def test_entries_and_keys_that_go_are_one_record(log: CatalogLog, disk: SimDisk) -> None:
    """This includes values that look like the end of a key."""
    log.put([(("a",), 1), (("b",), 2)])
    log.change([(("c",), [["x"]]), (("b",), [])], [("a",), ("never",)])
    assert entries(log) == {("b",): [], ("c",): [["x"]]}
    again = opened(disk.after_kill())
    assert (entries(again), again.reader.records) == (entries(log), 2)
    live = log.live_bytes
    log.change([], [("never",)])
    log.change([], [("b",)])
    log.change([(("b",), [])], [])
    assert log.live_bytes == live


def test_whoever_waits_is_told_in_order_when_it_is_durable(log: CatalogLog, disk: SimDisk) -> None:
    """It is answered for earlier changes, not for those that come while a sync is under way."""
    told: list[str] = []
    log.change([(("a",), 1)], [])
    log.when_durable(lambda: told.append("a"))
    log.when_durable(lambda: told.append("a too"))
    fds = log.fds_to_sync()
    log.change([(("b",), 1)], [])
    log.when_durable(lambda: told.append("b"))
    for fd in fds:
        disk.sync(fd)
    assert told == []
    log.synced()
    assert told == ["a", "a too"]
    sync(disk, log)
    assert told == ["a", "a too", "b"]


def test_what_must_be_durable_at_once_is(log: CatalogLog, disk: SimDisk) -> None:
    log.put([(("a",), 1)])
    fds = log.fds_to_sync()
    log.put([(("b",), 1)])
    log.sync()
    for seed in range(20):
        assert entries(opened(disk.after_power_loss(seed))) == {("a",): 1, ("b",): 1}
    log.put([(("c",), 1)])
    assert len(fds) == 1
    log.synced()
    assert len(log.fds_to_sync()) == 1


def test_the_journal_is_held_until_what_goes_ahead_of_it_is_durable(log: CatalogLog, disk: SimDisk) -> None:
    log.put([(("a",), 1)])
    assert not log.holds_journal()
    log.put_ahead([(("numbers",), 1024)])
    assert log.holds_journal()
    fds = log.fds_to_sync()
    log.put([(("b",), 1)])
    for fd in fds:
        disk.sync(fd)
    assert log.holds_journal()
    log.synced()
    assert not log.holds_journal()
    assert entries(opened(disk.after_power_loss(1)))[("numbers",)] == 1024


# --- writing anew -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_spare")
def test_the_file_does_not_grow_with_changes_that_are_undone(log: CatalogLog, disk: SimDisk) -> None:
    log.put([(("kept",), "x" * 50)])
    for number in range(200):
        log.put([(("a",), number)])
        log.forget([("a",)])
        sync_all(disk, log)
        assert log.size_bytes < 1000
    assert entries(opened(disk.after_kill())) == {("kept",): "x" * 50}
    assert disk.names("/data/catalog") == ["catalog.log"]
    assert disk.open_count == 4  # two locks, the inventory and the log


@pytest.mark.usefixtures("small_spare")
def test_the_file_is_written_anew_without_a_sync_of_its_own(log: CatalogLog, disk: SimDisk) -> None:
    """The next commit syncs it along with other writes, and changes made meanwhile are in it."""
    while disk.names("/data/catalog") == ["catalog.log"]:
        log.put([(("a",), log.size_bytes)])
        sync(disk, log)
    calls = len(disk.calls)
    told: list[str] = []
    fds = log.fds_to_sync()
    log.put([(("b",), 1)])
    log.when_durable(lambda: told.append("b"))
    assert ("sync", FILE) not in disk.calls[calls:]
    for fd in fds:
        disk.sync(fd)
    calls = len(disk.calls)
    log.synced()
    assert [method for method, _ in disk.calls[calls:]] == ["rename", "open_folder", "open", "allocate"]
    assert (told, disk.names("/data/catalog")) == ([], ["catalog.log"])
    sync(disk, log)
    assert told == ["b"]
    for seed in range(5):
        assert entries(opened(disk.after_power_loss(seed))) == entries(log)


@pytest.mark.usefixtures("small_spare")
def test_a_file_that_is_too_long_at_the_start_is_written_anew(log: CatalogLog, disk: SimDisk) -> None:
    """It is that long after many changes between two chances to rewrite it."""
    for number in range(100):
        log.put([(("a",), number)])
    size = log.size_bytes
    again = opened(disk.after_kill())
    assert again.reader.end == size
    assert again.size_bytes < 300
    assert entries(again) == {("a",): 99}


@pytest.mark.usefixtures("small_spare")
def test_many_entries_are_written_anew_in_several_records(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "_RECORD_BYTES_MAX", 64)
    log = opened(disk)
    expected: Entries = {}
    for _ in range(20):
        for number in range(20):
            expected[str(number),] = "v" * random.Random(number).randrange(40)
            log.put([((str(number),), "-"), ((str(number),), expected[str(number),])])
            log.put([((str(number),), "-")])
            log.put([((str(number),), expected[str(number),])])
        sync_all(disk, log)
    again = opened(disk.after_kill())
    assert entries(again) == expected
    assert again.reader.records > 3


@pytest.mark.usefixtures("small_spare")
def test_without_room_to_write_it_anew_the_old_file_goes_on(log: CatalogLog, disk: SimDisk) -> None:
    """The rewrite is tried again when the file has grown."""
    while log.size_bytes < 400:
        log.put([(("a",), log.size_bytes)])
    disk.fail[len(disk.calls) + 1] = errno.ENOSPC
    sync_all(disk, log)
    assert disk.calls[-1][0] == "list_folder"
    assert log.size_bytes >= 400
    assert disk.names("/data/catalog") == ["catalog.log"]
    log.put([(("b",), 1)])
    while log.size_bytes > 400:
        log.put([(("a",), log.size_bytes)])
        sync_all(disk, log)
    assert entries(opened(disk.after_kill())) == entries(log)
    assert ("b",) in log


# --- when it cannot be written -----------------------------------------------------------------------


class FullDisk(SimDisk):
    """A disk on which there is room or not."""

    full = False

    def write(self, fd: int, offset: int, pieces: Any) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, offset, pieces)


def test_what_cannot_be_written_is_refused_and_not_kept() -> None:
    """It stays out when there is room again; the text names the file and the remedy."""
    disk = FullDisk()
    log = opened(disk)
    log.put([(("a",), 1)])
    disk.full = True
    for _ in range(3):
        with pytest.raises(
            LimitExceeded, match=r"catalog.log: cannot be written: No space left .*free space"
        ):
            log.put([(("a",), 2), (("b",), 2)])
        assert entries(log) == {("a",): 1}
    assert log.trouble is not None
    disk.full = False
    log.put([(("c",), 1)])
    assert log.trouble is None
    assert entries(log) == {("a",): 1, ("c",): 1}
    assert entries(opened(disk.after_kill())) == {("a",): 1, ("c",): 1}


def test_what_was_decided_elsewhere_waits_for_room() -> None:
    """It counts at once, is written when there is room, and durable after that."""
    disk = FullDisk()
    log = opened(disk)
    told: list[str] = []
    disk.full = True
    log.change([(("a",), "x" * 100_000)], [])
    log.when_durable(lambda: told.append("a"))
    sync(disk, log)
    assert (entries(log), told) == ({("a",): "x" * 100_000}, [])
    disk.full = False
    sync(disk, log)
    assert told == ["a"]
    assert entries(opened(disk.after_power_loss(1))) == entries(log)


def test_forgetting_needs_no_room() -> None:
    """It is written when there is some; a deletion is the way to make room."""
    disk = FullDisk()
    log = opened(disk)
    log.put([(("a",), 1), (("b",), 1)])
    disk.full = True
    log.forget([("a",)])
    assert entries(log) == {("b",): 1}
    assert entries(opened(disk.after_kill())) == {("a",): 1, ("b",): 1}
    with pytest.raises(StorageError):
        log.flush()
    disk.full = False
    log.flush()
    assert entries(opened(disk.after_kill())) == {("b",): 1}


def test_what_waits_for_room_is_written_when_others_are_synced() -> None:
    disk = FullDisk()
    log = opened(disk)
    log.put([(("a",), 1)])
    sync(disk, log)
    disk.full = True
    log.forget([("a",)])
    assert log.fds_to_sync() == []
    disk.full = False
    sync(disk, log)
    assert log.trouble is None
    assert entries(opened(disk.after_power_loss(0))) == {}


def test_requests_while_the_disk_is_full_take_no_memory() -> None:
    disk = FullDisk()
    log = opened(disk)
    disk.full = True
    for number in range(50):
        with pytest.raises(LimitExceeded):
            log.put([((str(number),), "x" * 1000)])
    disk.full = False
    log.flush()
    assert log.size_bytes < 3000


def test_a_failed_sync_is_final(log: CatalogLog, disk: SimDisk) -> None:
    """The disk's content is unknown then: nothing more is written, for any request."""
    log.put([(("a",), 1)])
    disk.fail[len(disk.calls)] = errno.EIO
    with pytest.raises(StorageFailed, match="catalog.log: cannot be synced: Input/output error; look at"):
        log.sync()
    with pytest.raises(LimitExceeded, match="cannot be synced"):
        log.put([(("b",), 1)])
    with pytest.raises(StorageFailed):
        log.sync()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whichever_call_fails_nothing_is_lost(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th call fails, for every n: the error is clean, and memory equals the disk then."""
    monkeypatch.setattr(entry_log, "SPARE_BYTES", 100)

    def scenario(disk: SimDisk) -> Entries | None:
        """Return the entries to find later; None if the broker stopped."""
        try:
            log = opened(disk)
        except StorageError:
            return None
        for number in range(12):
            try:
                log.put([((str(number % 3),), number), (("n",), number)])
            except LimitExceeded:
                assert dict(log.entries()).get(("n",)) != number
            if number % 4 == 3:
                log.forget([("n",)])
            try:
                sync(disk, log)
            except StorageFailed:
                return None
            except StorageError:
                continue
        log.flush()
        return entries(log)

    whole = SimDisk()
    assert scenario(whole) is not None
    assert len([call for call in whole.calls if call[0] == "rename" and call[1] == f"{FILE}.new"]) > 1
    outcomes = []
    for at in range(len(whole.calls)):
        disk = SimDisk()
        disk.fail[at] = code
        expected = scenario(disk)
        outcomes.append(expected is not None)
        found = entries(opened(disk.after_kill()))
        if expected is not None:
            assert found == expected
    assert any(outcomes)
    assert not all(outcomes)


# --- loss of power ----------------------------------------------------------------------------------


class World:
    """A log that is changed at random, and what may be found of it after the power went."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.possible: list[Entries] = [{}]
        """How the entries have been since the last sync."""

    def walk(self, rng: random.Random, steps: int) -> None:
        log = opened(self.disk)
        now = entries(log)
        assert now in self.possible, "what was found is none of the states since the last sync"
        # What recovery found is durable from then on.
        self.possible = [now]
        for _ in range(steps):
            kind = rng.randrange(5)
            names = [(rng.choice("abcdef"),) for _ in range(rng.randrange(1, 4))]
            if kind < 2:
                some = [(name, "x" * rng.randrange(1, 400)) for name in names]
                self.possible.append({**now, **dict(some)})
                log.put(some)
            elif kind == 2:
                self.possible.append({key: value for key, value in now.items() if key not in names})
                log.forget(names)
            elif kind == 3:
                gone, there = names[1:], [(name, [name[0]]) for name in names[:1] if name not in names[1:]]
                left = {key: value for key, value in now.items() if key not in gone}
                self.possible.append({**left, **dict(there)})
                log.change(there, gone)
            else:
                sync(self.disk, log)
                self.possible = [now]
            now = entries(log)


def walked(seed: int, lose_power_at: int | None) -> World:
    """Walk from an existing folder; the power fails at the n-th call, counted from then."""
    world = World(SimDisk(seed))
    open_data_folder(world.disk, "/data", "test").close()
    world.disk.calls.clear()
    world.disk.lose_power_at = lose_power_at
    try:
        world.walk(random.Random(seed), 40)
    except PowerLoss:
        pass
    return world


@pytest.mark.usefixtures("small_spare")
@pytest.mark.parametrize("seed", range(8))
def test_after_a_loss_of_power_what_was_synced_is_there_and_nothing_that_never_was(seed: int) -> None:
    """Power fails at any call, in several possible states of the disk; and again a few changes later."""
    for at in range(len(walked(seed, None).disk.calls)):
        for state in range(3):
            world = walked(seed, at)
            if state == 2:
                # The process dies and is started again, and then the power goes.
                world.disk = world.disk.after_kill()
            else:
                world.disk = world.disk.after_power_loss(1000 * at + state)
            world.walk(random.Random(at), 5)
            world.disk = world.disk.after_power_loss(state)
            world.walk(random.Random(at), 0)


# --- damage -----------------------------------------------------------------------------------------


def test_any_flipped_bit_in_what_was_synced_is_found() -> None:
    """No read returns bytes that were never written; the error names file and offset."""
    disk = SimDisk()
    log = opened(disk)
    for number in range(4):
        log.put([((str(number),), "value")])
    sync(disk, log)
    good = entries(log)
    synced = log.size_bytes
    log.put([(("later",), 1)])
    sync(disk, log)
    found = 0
    for bit in range(synced * 8):
        flipped = disk.after_kill()
        flipped.flip(FILE, bit)
        with pytest.raises(StorageError) as caught:
            opened(flipped)
        assert FILE in str(caught.value)
        found += isinstance(caught.value, DamagedFile)
    assert found > synced * 8 - 40  # a version that is none of ours is told as such
    assert len(good) == 4


def test_a_flipped_bit_in_a_file_that_was_written_anew_is_found(disk: SimDisk, small_spare: None) -> None:
    """This holds without later changes too: a marker stands behind the entries."""
    log = opened(disk)
    while ("done",) not in log:
        log.put([(("a",), "x" * 2000), (("b",), 1)])
        log.put([(("a",), "y" * 2000)])
        sync_all(disk, log)
        if log.size_bytes < 2300:
            break
    size = log.size_bytes - RECORD_BYTES - 8
    for bit in range(HEADER_BYTES * 8, size * 8, 7):
        flipped = disk.after_kill()
        flipped.flip(FILE, bit)
        with pytest.raises(DamagedFile):
            opened(flipped)


@pytest.mark.usefixtures("small_spare")
def test_an_empty_sector_in_a_file_that_was_written_anew_is_damage(log: CatalogLog, disk: SimDisk) -> None:
    """It would pass for a torn write, but everything before the marker was synced."""
    log.put([(("a",), "x" * 4000)])
    log.put([(("a",), "y" * 4000)])
    log.put([(("a",), "z" * 4000)])
    sync_all(disk, log)
    assert log.size_bytes < 4200
    bad = disk.after_kill()
    data = bytearray(disk.contents(FILE))
    data[1024:1536] = bytes(512)
    bad.overwrite(FILE, bytes(data))
    with pytest.raises(DamagedFile):
        opened(bad)


def test_an_empty_file_is_damage(log: CatalogLog, disk: SimDisk) -> None:
    """It had a header before it had its name. Taken for a new folder, all would be lost silently."""
    empty = disk.after_kill()
    empty.overwrite(FILE, b"")
    with pytest.raises(DamagedFile, match="the file is empty, and it never was; nothing was changed"):
        opened(empty)


def test_a_missing_file_beside_a_journal_is_damage(log: CatalogLog, disk: SimDisk) -> None:
    """The journal's messages belong to queues that have no declaration any more."""
    missing = disk.after_kill()
    missing.overwrite("/data/journal/0000000000000001.log", b"")
    missing.unlink(FILE)
    with pytest.raises(DamagedFile, match=r"catalog\.log: the file is missing, which says which queues"):
        opened(missing)


def test_a_missing_file_is_damage(log: CatalogLog, disk: SimDisk) -> None:
    log.close()
    missing = disk.after_kill()
    missing.unlink(FILE)
    with pytest.raises(
        DamagedFile, match=r"catalog\.log: the file is missing, .*; bring it back, or restore"
    ):
        opened(missing)


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_an_end_that_was_synced_and_is_cut_off_is_damage(log: CatalogLog, disk: SimDisk, cut: int) -> None:
    """The synced length was recorded at a quiet moment before."""
    log.put([(("a",), "the last change")])
    sync(disk, log)
    data = disk.contents(FILE)
    before = disk.after_kill()
    before.overwrite(FILE, data[:-cut])
    assert entries(opened(before)) == {}  # could as well be torn
    log.mark()
    after = disk.after_kill()
    after.overwrite(FILE, data[:-cut])
    with pytest.raises(DamagedFile, match=r"synced up to offset \d+"):
        opened(after)


@pytest.mark.parametrize(
    ("kind", "payload", "problem"),
    [
        (1, b"{", "cannot be understood"),
        (1, b"[1]", "cannot be understood: '.1.' has no key"),
        (1, b"[[1],5]", "cannot be understood"),
        (1, b"", "cannot be understood"),
        (1, b'[["\xff"],5]', "cannot be understood"),
        (2, b"5", "cannot be understood"),
        (2, b"[]", "cannot be understood"),
        (7, b"[]", "is of kind 7, which this version does not have"),
    ],
)
def test_a_whole_record_that_is_none_of_ours_stops_the_start(
    disk: SimDisk, kind: int, payload: bytes, problem: str
) -> None:
    """A newer version has written it, so it must not be skipped."""
    open_data_folder(disk, "/data", "test").close()
    header = FileHeader(Purpose.CATALOG, 0, 5)
    record = encode_head(header.seed, HEADER_BYTES, 0, kind, 1, (payload,)) + payload
    disk.overwrite(FILE, header.encode() + record)
    with pytest.raises(DamagedFile, match=f"at offset {HEADER_BYTES}: the record is whole, but {problem}"):
        opened(disk)


def test_a_file_that_cannot_be_cut_is_told(log: CatalogLog, disk: SimDisk) -> None:
    """A torn end is cut off before anything is appended."""
    log.put([(("a",), 1)])
    torn = disk.after_kill()
    torn.overwrite(FILE, disk.contents(FILE)[:-1])
    calls = len(torn.calls)
    assert entries(opened(torn)) == {}
    at = torn.calls.index(("truncate", FILE))
    again = disk.after_kill()
    again.overwrite(FILE, disk.contents(FILE)[:-1])
    again.fail[at - calls] = errno.EROFS
    with pytest.raises(StorageError, match="cannot be cut: Read-only file system"):
        opened(again)


# --- on the system's disk ---------------------------------------------------------------------------


def test_on_a_real_disk(tmp_path: Any) -> None:
    path = str(tmp_path / "data")
    for number in range(3):
        folder: DataFolder = open_data_folder(Disk(), path, "test")
        log = open_catalog_log(Disk(), folder, folder.inventory.part("catalog"))
        assert len(log) == number
        log.put([((str(number),), number)])
        log.close()
        folder.close()
    text = (tmp_path / "data" / "catalog" / "catalog.log").read_bytes()
    assert b'[["2"],2]' in text
