"""Group commit on a disk in memory and a clock that jumps."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from amqp10broker.errors import StorageFailed
from amqp10broker.runtime.journal.journal_task import Committer
from amqp10broker.storage.journal import Journal
from tests.support.disks import SimDisk
from tests.support.inventories import inventory_on
from tests.support.journal_harness import FOLDER, file_name, new_disk


class Scene:
    """A committer, the sync of whose disk takes a time that can be set."""

    def __init__(self, sync_s: float = 0.01, reserve_bytes: int = 0) -> None:
        self.disk = new_disk()
        self.inventory = inventory_on(self.disk)
        part = self.inventory.part("journal")
        self.journal = Journal(self.disk, FOLDER, part, reserve_bytes=reserve_bytes)
        assert list(self.journal.recover()) == []
        self.sync_s = sync_s
        self.sync_fails = False
        self.syncs = 0
        self.told: list[str] = []
        self.marks = 0
        self.committer = Committer(
            self.journal, self.sync, also=[self.inventory], on_mark=self.mark,
            on_full=lambda full: self.told.append(f"full {full}"),
        )  # fmt: skip

    def mark(self) -> None:
        self.marks += 1

    def synced(self) -> int:
        """Return what the inventory has of the first file after a loss of power."""
        disk = self.disk.after_power_loss(0)
        return inventory_on(disk).part("journal").known[file_name(1)].synced

    async def sync(self, fds: Sequence[int]) -> None:
        await trio.sleep(self.sync_s)
        self.syncs += 1
        if self.sync_fails:
            raise StorageFailed("the disk", "is gone", "buy another")
        for fd in fds:
            self.disk.sync(fd)

    def append(self, payload: bytes = b"x") -> int:
        ticket, _, _ = self.journal.append(1, 1, self.journal.ticket + 1, [payload])
        self.committer.wake()
        return ticket

    def recovered(self) -> list[int]:
        disk = self.disk.after_power_loss(0)
        journal = Journal(disk, FOLDER, inventory_on(disk).part("journal"))
        return [record.index for batch in journal.recover() for record in batch]


@pytest.fixture
def scene(nursery: trio.Nursery) -> Scene:
    scene = Scene()
    nursery.start_soon(scene.committer.run)
    return scene


async def _settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_nobody_is_told_before_the_sync_is_over(scene: Scene) -> None:
    ticket = scene.append()
    scene.committer.when_durable(ticket, lambda: scene.told.append("durable"))
    await trio.sleep(0.009)
    assert (scene.told, scene.committer.journal.durable) == ([], 0)
    await trio.sleep(0.002)
    assert (scene.told, scene.committer.journal.durable) == (["durable"], 1)
    assert scene.recovered() == [1]


async def test_a_sync_that_is_running_counts_as_the_last_one(scene: Scene) -> None:
    """It counts once it has taken longer than the one before."""
    committer = scene.committer
    assert (committer.began, committer.last_sync_ms) == (None, 0)
    await committer.wait_durable(scene.append())
    assert (committer.began, committer.last_sync_ms) == (None, pytest.approx(10))
    scene.sync_s = 60
    began = trio.current_time()
    scene.append()
    await trio.sleep(0.005)
    assert (committer.began, committer.last_sync_ms) == (began, pytest.approx(10))
    await trio.sleep(45)
    assert committer.last_sync_ms == pytest.approx(45_005)


async def test_what_comes_during_a_sync_makes_one_batch(scene: Scene) -> None:
    scene.append()
    for _ in range(100):
        await trio.sleep(0.00005)
        scene.append()
    await scene.committer.wait_durable(101)
    assert scene.syncs == 2
    assert scene.committer.commits == 2
    assert scene.committer.sync_ms == pytest.approx(10)


async def test_a_callback_may_wait_for_the_next_ticket_and_a_late_one_is_called_at_once(scene: Scene) -> None:
    committer = scene.committer
    first = scene.append()

    def again() -> None:
        scene.told.append(f"first at {committer.journal.durable}")
        committer.when_durable(
            scene.append(), lambda: scene.told.append(f"second at {committer.journal.durable}")
        )

    committer.when_durable(first, again)
    await committer.wait_durable(first)
    await trio.sleep(1)
    assert scene.told == ["first at 1", "second at 2"]
    committer.when_durable(first, lambda: scene.told.append("late"))
    assert scene.told[-1] == "late"
    await committer.wait_durable(first)


async def test_a_commit_that_leaves_nothing_is_the_last_look_until_the_next_append(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look costs as much as a part of a commit."""
    looks = 0
    write = scene.journal.write

    def look() -> int | None:
        nonlocal looks
        looks += 1
        return write()

    await _settled()
    monkeypatch.setattr(scene.journal, "write", look)
    for _ in range(10):
        await scene.committer.wait_durable(scene.append())
        await _settled()
    assert (looks, scene.syncs) == (10, 10)


async def test_what_nobody_asks_for_makes_no_commit_of_its_own(scene: Scene) -> None:
    """A settlement during a publish's sync is committed with the next publish, or a little later."""
    scene.append()
    await trio.sleep(0.001)
    assert scene.committer.began is not None
    scene.journal.append(1, 1, 2, [b"x"])
    await trio.sleep(0.5)
    assert (scene.syncs, scene.committer.journal.durable) == (1, 1)
    await scene.committer.wait_durable(scene.append())
    assert (scene.syncs, scene.committer.journal.durable) == (2, 3)
    scene.journal.append(1, 1, 4, [b"x"])
    await trio.sleep(10)
    assert scene.committer.journal.durable == 4  # with what the inventory is told
    assert scene.recovered() == [1, 2, 3, 4]


async def test_a_second_after_the_last_commit_the_inventory_is_told_of_it(scene: Scene) -> None:
    await scene.committer.wait_durable(scene.append())
    size = len(scene.disk.contents(f"{FOLDER}/{file_name(1)}"))
    await trio.sleep(0.9)
    assert scene.synced() < size
    await trio.sleep(100)
    assert scene.synced() == size == len(scene.disk.contents(f"{FOLDER}/{file_name(1)}"))
    assert scene.syncs == 2
    assert scene.marks == 2  # the second finds nothing new
    await scene.committer.wait_durable(scene.append())
    assert scene.recovered() == [1, 2]


async def test_commits_without_a_pause_do_not_keep_the_inventory_from_being_told_each_second(
    nursery: trio.Nursery,
) -> None:
    """The next batch collects during a sync, so that there is never a pause."""
    scene = Scene(sync_s=0.3)
    nursery.start_soon(scene.committer.run)
    path = f"{FOLDER}/{file_name(1)}"
    sizes: list[int] = []
    for _ in range(100):
        scene.append()
        await trio.sleep(0.1)
        sizes.append(len(scene.disk.contents(path)))
        if len(sizes) > 20:
            # Of a second ago, of the commit with the mark, and of the one before.
            assert scene.synced() >= sizes[-20]
    assert scene.syncs > 30
    assert scene.marks <= 10


async def test_a_full_disk_is_told_and_tried_again_and_nothing_is_confirmed_or_lost(scene: Scene) -> None:
    await scene.committer.wait_durable(scene.append())
    await trio.sleep(10)  # the inventory has been told
    began = trio.current_time()
    calls = len(scene.disk.calls)
    # Three tries, each a write and the cut after it; before a next one the cut is made again and synced.
    scene.disk.fail = {calls: errno.ENOSPC, calls + 4: errno.ENOSPC, calls + 8: errno.EDQUOT}
    ticket = scene.append()
    await trio.sleep(0.5)
    assert scene.told == ["full True"]
    assert scene.committer.full
    scene.append()
    await trio.sleep(2)
    assert scene.committer.journal.durable == 1
    await scene.committer.wait_durable(ticket + 1)
    assert trio.current_time() > began + 3
    assert scene.told == ["full True", "full False"]
    assert not scene.committer.full
    assert scene.recovered() == [1, 2, 3]


async def test_who_waits_for_room_hears_of_it_though_the_disk_never_counted_as_full() -> None:
    """The shortage is between two commits: a file that was just left gives its room back."""
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.committer.run)
        await trio.testing.wait_all_tasks_blocked()
        scene.committer.when_room(lambda: scene.told.append("room"))
        await trio.testing.wait_all_tasks_blocked()
        assert scene.told == ["room"]
        scene.append()
        await trio.testing.wait_all_tasks_blocked()
        scene.committer.stop()
    assert scene.told == ["room"]


async def test_who_waits_for_room_hears_of_it_when_there_is_some() -> None:
    scene = Scene(reserve_bytes=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.committer.run)
        scene.disk.capacity = scene.disk.used()
        while scene.journal.shortage is None:
            scene.append()
        scene.committer.when_room(lambda: scene.told.append("room"))
        await trio.sleep(5)
        assert scene.told == ["full True"]
        scene.disk.capacity = None
        await trio.sleep(5)
        assert scene.told == ["full True", "full False", "room"]
        scene.committer.stop()


async def test_where_nothing_can_be_reserved_though_writes_have_room_it_comes_to_rest_and_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A next file without room is no better than this one, so none is begun."""

    def allocate(disk: SimDisk, fd: int, end: int) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SimDisk, "allocate", allocate)
    scene = Scene(reserve_bytes=1000)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.committer.run)
            for _ in range(3):
                await scene.committer.wait_durable(scene.append())
            await trio.sleep(10)
            assert scene.told == ["full True"]
            assert scene.syncs < 10
            scene.committer.stop()
    assert scene.recovered() == [1, 2, 3]


@pytest.mark.parametrize("where", ["sync", "write"])
async def test_a_failed_sync_or_write_is_final(where: str) -> None:
    scene = Scene()
    raised: list[StorageFailed] = []

    async def wait(ticket: int) -> None:
        try:
            await scene.committer.wait_durable(ticket)
        except StorageFailed as error:
            raised.append(error)

    async def run() -> None:
        with pytest.raises(StorageFailed):
            await scene.committer.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await scene.committer.wait_durable(scene.append())
        scene.sync_fails = where == "sync"
        if where == "write":
            scene.disk.fail = {len(scene.disk.calls): errno.EIO}
        ticket = scene.append()
        scene.committer.when_durable(ticket, lambda: scene.told.append("durable"))
        nursery.start_soon(wait, ticket)
    await wait(ticket)
    assert len(raised) == 2
    assert raised[0] is scene.committer.failure
    assert not scene.told
    assert scene.committer.journal.durable == 1


async def test_stopping_commits_what_there_is_and_tells_the_inventory() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.committer.run)
        await _settled()
        scene.append()
        await _settled()
        scene.append()
        scene.committer.stop()
    assert scene.committer.journal.durable == 2
    assert scene.recovered() == [1, 2]
    assert scene.synced() == len(scene.disk.contents(f"{FOLDER}/{file_name(1)}"))


async def test_stopping_commits_what_nobody_has_asked_for() -> None:
    scene = Scene(sync_s=0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.committer.run)
        scene.append()
        await trio.sleep(0.005)
        scene.committer.stop()
        for index in (2, 3):  # during a sync, and during the next
            scene.journal.append(1, 1, index, [b"x"])
            await trio.sleep(0.01)
    assert scene.recovered() == [1, 2, 3]


async def test_stopping_with_nothing_to_do_writes_nothing() -> None:
    scene = Scene()
    scene.committer.stop()
    await scene.committer.run()
    assert scene.syncs == 0


async def test_stopping_with_a_full_disk_ends() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.committer.run)
        calls = len(scene.disk.calls)
        scene.disk.fail = {calls + number: errno.ENOSPC for number in range(1000) if number % 4 == 0}
        scene.append()
        await trio.sleep(10)
        scene.committer.stop()
    assert scene.committer.journal.durable == 0
    assert scene.recovered() == []


async def test_a_cancelled_wait_leaves_nothing_behind(scene: Scene) -> None:
    ticket = scene.append()
    with trio.move_on_after(0.001) as scope:
        await scene.committer.wait_durable(ticket)
    assert scope.cancelled_caught
    await scene.committer.wait_durable(ticket)


class Other:
    """A file that is synced with the journal."""

    def __init__(self, log: list[str]) -> None:
        self.dirty = False
        self.log = log

    def fds_to_sync(self) -> Sequence[int]:
        return [99] if self.dirty else []

    def synced(self) -> None:
        self.dirty = False
        self.log.append("other durable")


async def test_another_file_is_durable_before_anything_is_told(nursery: trio.Nursery) -> None:
    log: list[str] = []
    asked: list[Sequence[int]] = []

    async def sync(fds: Sequence[int]) -> None:
        await trio.sleep(0.01)
        asked.append(fds)

    disk = new_disk()
    journal = Journal(disk, FOLDER, inventory_on(disk).part("journal"))
    assert list(journal.recover()) == []
    other = Other(log)
    committer = Committer(journal, sync, also=[other])
    nursery.start_soon(committer.run)
    other.dirty = True
    ticket, _, _ = journal.append(1, 1, 1, [b"x"])
    committer.when_durable(ticket, lambda: log.append("told"))
    await committer.wait_durable(ticket)
    assert log == ["other durable", "told"]
    assert asked[0][0] == 99
    other.dirty = True
    committer.wake()
    await trio.sleep(0.5)
    assert asked[-1] == [99], "also when the journal has nothing to say"


async def test_other_files_are_synced_though_the_disk_is_full(nursery: trio.Nursery) -> None:
    scene = Scene()
    other = Other(scene.told)
    synced: list[int] = []

    async def sync(fds: Sequence[int]) -> None:
        synced.extend(fds)
        for fd in set(fds) - {99}:
            scene.disk.sync(fd)

    committer = Committer(
        scene.journal, sync, also=[other], on_full=lambda full: scene.told.append(f"full {full}")
    )
    calls = len(scene.disk.calls)
    scene.disk.fail = {calls: errno.ENOSPC}
    ticket, _, _ = scene.journal.append(1, 1, 1, [b"x"])
    other.dirty = True
    nursery.start_soon(committer.run)
    await trio.sleep(0.5)
    assert (scene.told, synced) == (["other durable", "full True"], [99])
    assert committer.journal.durable == 0
    await committer.wait_durable(ticket)
    assert scene.told == ["other durable", "full True", "full False"]
