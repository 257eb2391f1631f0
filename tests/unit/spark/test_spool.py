"""The spool of a queue source: what is written, found again, refused, and left after every crash."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue.spool import QueueSpool, SpoolOwner, open_spool
from tests.support.disks import PowerLoss, SimDisk

OWNER = SpoolOwner("stream", "orders", "127.0.0.1:5672", "")
PATH = "/spools/orders"


def a_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_folder("/spools")
    disk.sync(disk.open_folder("/"))
    return disk


def opened(disk: SimDisk, owner: SpoolOwner = OWNER, path: str = PATH) -> QueueSpool:
    return open_spool(path, owner, disk=disk, lock_wait_s=0)


def contents(spool: QueueSpool) -> dict[int, bytes]:
    return {segment.number: spool.read(segment) for segment in spool.segments}


def test_the_newest_segment_is_never_removed() -> None:
    """Its number must not be given again."""
    spool = opened(a_disk())
    for data in (b"1", b"2", b"3"):
        spool.append([data], 1)
    spool.remove_through(2)
    assert contents(spool) == {3: b"3"}
    spool.remove_through(9)
    assert contents(spool) == {3: b"3"}
    assert spool.append([b"4"], 1).number == 4


def test_a_range_with_a_segment_that_is_gone_is_refused() -> None:
    spool = opened(a_disk())
    for data in (b"1", b"2", b"3"):
        spool.append([data], 1)
    assert [segment.number for segment in spool.between(1, 3)] == [2, 3]
    assert spool.between(3, 3) == []
    spool.remove_through(1)
    with pytest.raises(SpoolError, match="segment 1 is gone"):
        spool.between(0, 3)
    with pytest.raises(SpoolError, match="segment 4 is gone"):
        spool.between(2, 4)


@pytest.mark.parametrize(
    "other",
    [
        SpoolOwner("stream", "invoices", "127.0.0.1:5672", ""),
        SpoolOwner("stream", "orders", "10.0.0.1:5672", ""),
        SpoolOwner("stream", "orders", "127.0.0.1:5672", "shop"),
        SpoolOwner("batch", "orders", "127.0.0.1:5672", ""),
    ],
)
def test_the_spool_of_somebody_else_is_refused(other: SpoolOwner) -> None:
    disk = a_disk()
    opened(disk).close()
    with pytest.raises(
        SpoolError, match="is the spool of a stream query of queue 'orders' at 127.0.0.1:5672"
    ):
        opened(disk, other)
    opened(disk)  # the lock was let go of


def test_a_folder_with_other_files_is_refused_and_left_alone() -> None:
    disk = a_disk()
    disk.make_folder(PATH)
    disk.overwrite(f"{PATH}/letter.tmp", b"dear")
    with pytest.raises(SpoolError, match="holds other files and no spool"):
        opened(disk)
    assert disk.names(PATH) == ["letter.tmp"]


def test_a_spool_without_the_folder_that_it_belongs_in_is_refused() -> None:
    """A file system that is not mounted must not become a spool on the local disk."""
    with pytest.raises(SpoolError, match="there is no folder /mnt/shared for the spool orders"):
        opened(a_disk(), path="/mnt/shared/orders")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_a_damaged_manifest_is_refused(data: bytes) -> None:
    disk = a_disk()
    opened(disk).close()
    disk.overwrite(f"{PATH}/spool.json", data)
    with pytest.raises(SpoolError, match="spool.json is damaged"):
        opened(disk)


def test_message_ids_take_the_place_of_a_removed_segment() -> None:
    disk = a_disk()
    spool = opened(disk)
    spool.append([b"one"], 1)
    spool.append([b"two"], 1)
    spool.remove_through(1, lambda segment: bytes([segment.number]) * 32)
    (kept,) = spool.ids
    assert (kept.number, kept.count, kept.kind) == (1, 2, "ids")
    later = disk.after_kill()
    again = opened(later)
    assert again.ids == [kept]
    assert again.read(kept) == b"\x01" * 32
    again.remove_ids(kept)
    assert again.ids == []
    assert kept.name not in later.names(PATH)


def test_removals_that_a_loss_of_power_undid_leave_no_gap() -> None:
    """Whatever comes back, the segments after the ones removed are there, and no gap before them."""
    disk = a_disk()
    spool = opened(disk)
    for number in range(1, 7):
        spool.append([b"%d" % number], 1)
    spool.remove_through(4)
    seen = set()
    for seed in range(200):
        again = opened(disk.after_power_loss(seed))
        numbers = [segment.number for segment in again.segments]
        assert numbers == list(range(numbers[0], 7))
        assert numbers[0] <= 5
        seen.add(numbers[0])
    assert len(seen) > 2


def _a_life(disk: SimDisk, told: list[tuple[int, bytes]]) -> None:
    """Open, append two segments, remove one, seal; `told` has what append returned for."""
    spool = opened(disk)
    for data in (b"first segment", b"second segment"):
        segment = spool.append([data], 1)
        told.append((segment.number, data))
    spool.remove_through(1, lambda _: b"x" * 16)
    spool.seal()


def _calls_of_a_life() -> int:
    disk = a_disk()
    start = len(disk.calls)
    _a_life(disk, [])
    return len(disk.calls) - start


def _check_what_was_told(disk: SimDisk, told: list[tuple[int, bytes]]) -> None:
    spool = opened(disk)
    found = contents(spool)
    for number, data in told:
        if number == spool.newest or number not in (1,):
            assert found[number] == data
        else:  # the first may have been removed
            assert found.get(number, data) == data
    assert spool.newest >= len(told)
    assert spool.append([b"next"], 1).number == spool.newest


@pytest.mark.parametrize("end", [SimDisk.after_kill, lambda disk: disk.after_power_loss(1)])
def test_a_crash_at_every_call_loses_nothing_that_was_told(end: Callable[[SimDisk], SimDisk]) -> None:
    """The spool opens again, and has every segment for which append returned."""
    calls = _calls_of_a_life()
    assert calls > 40
    for number in range(calls):
        disk = a_disk(number)
        disk.lose_power_at = len(disk.calls) + number
        told: list[tuple[int, bytes]] = []
        with pytest.raises(PowerLoss):
            _a_life(disk, told)
        _check_what_was_told(end(disk), told)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_every_call_is_an_error_that_says_what_to_do(code: int) -> None:
    """No failure passes for success, and after mending it the spool opens with what was told."""
    for number in range(_calls_of_a_life()):
        disk = a_disk(number)
        disk.fail[len(disk.calls) + number] = code
        told: list[tuple[int, bytes]] = []
        with pytest.raises(SpoolError, match="start the query again"):
            _a_life(disk, told)
        _check_what_was_told(disk.after_kill(), told)


def test_after_a_failed_write_nothing_more_is_written() -> None:
    """A number of which nobody knows whether it is on the disk must not be given to other messages."""
    disk = a_disk()
    spool = opened(disk)
    disk.fail[len(disk.calls) + 3] = errno.EIO  # create, write, sync, then the rename
    with pytest.raises(SpoolError, match="cannot write"):
        spool.append([b"one"], 1)
    with pytest.raises(SpoolError, match="a write failed before"):
        spool.append([b"two"], 1)
