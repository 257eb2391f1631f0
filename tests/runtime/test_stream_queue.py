"""A stream's task: commits, time, a full disk, restart and deletion, on a disk in memory."""

from __future__ import annotations

import errno
import os.path
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from amqp10broker.errors import DamagedFile
from amqp10broker.message.filters.stream_filters import OffsetWord
from amqp10broker.queues.commands import (
    DELETE,
    Answer,
    Command,
    Confirmed,
    ConsumerRef,
    Credit,
    Deliver,
    Effect,
    Inspect,
    Publish,
    QueueDeleted,
    Subscribe,
    Unconfirmed,
)
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.durability import StreamBackend
from amqp10broker.queues.stream.log import MemoryShelf, Shelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.mailbox import Mailbox, ReplyRegistry
from amqp10broker.runtime.queues.queue_task import QueueTask
from amqp10broker.storage.stream_files import FileShelf, folder_of
from tests.support.disks import SimDisk
from tests.support.inventories import ShelfAlone, inventory_on
from tests.support.streams import text

STREAMS = "/streams"


@dataclass
class Slow:
    """Syncs that last as long as the test says."""

    disk: SimDisk
    seconds: float = 0.0
    syncs: int = 0
    fails: bool = False
    waiting: list[tuple[Sequence[int], Callable[[], None]]] = field(default_factory=list)

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        self.waiting.append((fds, callback))
        self.asked.set()

    def withdraw(self, callback: Callable[[], None]) -> None:
        self.waiting = [each for each in self.waiting if each[1] != callback]

    async def run(self) -> None:
        while True:
            self.asked = trio.Event()
            await self.asked.wait()
            await trio.sleep(self.seconds)
            for fds, callback in self.waiting if not self.fails else ():
                self.syncs += 1
                for fd in fds:
                    self.disk.sync(fd)
                callback()
            self.waiting.clear()


@dataclass
class Running:
    """A stream that runs, and one session."""

    stream: QueueTask
    reply_registry: ReplyRegistry
    mailbox: Mailbox[list[Effect]] = field(default_factory=Mailbox)
    gone: int = 0
    full: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = self.reply_registry.open("session", self.mailbox)
        self.publisher = self.address.publisher()
        self.published = 0

    def publish(self, count: int = 1) -> None:
        ids = range(self.published, self.published + count)
        self.published += count
        self.stream.post(Publish(self.publisher, ids, [text(number) for number in ids], False))

    async def effects(self) -> list[Effect]:
        await wait_all_tasks_blocked()
        return [each for letter in await self.mailbox.take_all() for each in letter] if self.waiting else []

    @property
    def waiting(self) -> int:
        return self.mailbox.waiting

    async def confirmed(self) -> list[int]:
        return [number for each in await self.effects() if isinstance(each, Confirmed) for number in each.ids]

    def read(self, credit: int = 100) -> ConsumerRef:
        ref = self.address.consumer()
        subscribe = Subscribe(ref, True, position=OffsetWord.FIRST)
        commands: list[Command] = [subscribe, Credit(ref, 0, credit, False, 0)]
        self.stream.post_all(commands)
        return ref


def never(*given: object) -> Any:
    raise AssertionError("a stream has no dead letters")


@asynccontextmanager
async def running(
    shelf: Shelf | None = None,
    sync: Slow | None = None,
    settings: QueueSettings = DEFAULTS,
    delay_ms: int = 0,
) -> AsyncIterator[Running]:
    log = StreamLog(shelf or MemoryShelf())
    found: list[Running] = []
    reply_registry = ReplyRegistry()

    def forget(stream: QueueTask) -> None:
        found[0].gone += 1

    stream = QueueTask(
        lambda wake, publish: StreamBackend(
            *(StreamQueue("s", log, settings=settings), wake, publish, log, sync),
            lambda _, error: found[0].full.append(error is not None),
        ),
        reply_registry,
        WallClock(),
        forget,
        never,
        never,
        confirm_delay_ms=delay_ms,
    )
    found.append(Running(stream, reply_registry))
    async with trio.open_nursery() as nursery:
        if sync is not None:
            nursery.start_soon(sync.run)
        nursery.start_soon(stream.run)
        yield found[0]
        nursery.cancel_scope.cancel()


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_folder(STREAMS)
    disk.sync(disk.open_folder("/"))
    return disk


def shelf_of(disk: SimDisk) -> FileShelf:
    return ShelfAlone(disk, STREAMS, 1)


def offsets_of(effects: Sequence[Effect]) -> list[int]:
    return [key for effect in effects if isinstance(effect, Deliver) for key in effect.keys]


async def test_in_memory_a_publish_is_confirmed_at_once_and_delivered() -> None:
    async with running() as one:
        one.read()
        one.publish(3)
        effects = await one.effects()
        assert offsets_of(effects) == [0, 1, 2]
        assert any(isinstance(effect, Confirmed) for effect in effects)


async def test_on_disk_a_publish_is_confirmed_after_the_sync_and_readers_do_not_wait_meanwhile() -> None:
    disk = new_disk()
    slow = Slow(disk, 10)
    async with running(shelf_of(disk), slow) as one:
        one.publish(2)
        assert await one.effects() == []
        await trio.sleep(11)  # the file is there
        assert await one.effects() == []
        await trio.sleep(10)
        assert await one.confirmed() == [0, 1]
        # A quiet second, in which the inventory is told, costs no sync of the stream's file.
        await trio.sleep(20)
        one.publish(1)
        one.publish(1)
        await wait_all_tasks_blocked()
        one.publish(5)
        one.read()
        assert offsets_of(await one.effects()) == [0, 1]
        await trio.sleep(11)
        effects = await one.effects()
        assert offsets_of(effects) == [2, 3]
        await trio.sleep(11)
        effects = await one.effects()
        assert offsets_of(effects) == [4, 5, 6, 7, 8]
        assert slow.syncs == 4


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "recover", "restart_single_node", "restart_stream")
async def test_a_stream_goes_on_after_a_restart_with_what_was_confirmed() -> None:
    disk = new_disk()
    async with running(shelf_of(disk), Slow(disk)) as one:
        one.publish(5)
        await trio.sleep(1)
        assert await one.confirmed() == [0, 1, 2, 3, 4]
    assert disk.open_count == 1  # the root, which the test has opened
    disk = disk.after_power_loss(1)
    async with running(shelf_of(disk), Slow(disk)) as one:
        request = one.address.request()
        one.stream.post(Inspect(request))
        one.read()
        effects = await one.effects()
        assert effects[0] == Answer(request, 5, 0, next_offset=5)
        assert offsets_of(effects) == [0, 1, 2, 3, 4]
        assert one.stream.figures().next_offset == 5


async def test_without_room_nothing_is_confirmed_and_it_is_tried_again_each_second() -> None:
    disk = new_disk()
    async with running(shelf_of(disk), Slow(disk)) as one:
        one.publish(1)
        await trio.sleep(1)
        assert await one.confirmed() == [0]
        disk.fail = dict.fromkeys(range(len(disk.calls), len(disk.calls) + 1000), errno.ENOSPC)
        one.publish(1)
        one.read()
        assert offsets_of(await one.effects()) == [0]
        assert one.full == [True]
        one.publish(1)
        await trio.sleep(2.5)
        calls = len(disk.calls)
        await trio.sleep(3)
        assert 3 <= len(disk.calls) - calls <= 12
        disk.fail = {}
        await trio.sleep(1.5)
        effects = await one.effects()
        assert [list(each.ids) for each in effects if isinstance(each, Confirmed)] == [[1], [2]]
        assert offsets_of(effects)[-2:] == [1, 2]
        assert one.full == [True, False]


@pytest.mark.parametrize(("publishes", "pause_s"), [(1, 1.5), (100, 0.05), (10, 0.6)])
async def test_the_inventory_guards_what_was_committed_a_second_ago(publishes: int, pause_s: float) -> None:
    """Damage in it is distinguished from a torn end when the broker is killed, also without a pause."""
    disk = new_disk()
    path = f"{folder_of(STREAMS, 1)}/{0:020}.log"
    async with running(shelf_of(disk), Slow(disk)) as one:
        sizes: list[int] = []
        for _ in range(publishes):
            one.publish(1)
            await wait_all_tasks_blocked()
            sizes.append(len(disk.contents(path)))
            await trio.sleep(pause_s)
        known = inventory_on(disk.after_kill()).part("streams/1").known[os.path.basename(path)]
        assert known.synced >= sizes[-int(1 + 1.1 / pause_s)]
        await trio.sleep(10)
        size = len(disk.contents("/inventory.log"))
        await trio.sleep(100)
        assert len(disk.contents("/inventory.log")) == size, "once is enough"
        killed = disk.after_kill()
    killed.overwrite(path, killed.contents(path)[:-1])
    with pytest.RaisesGroup(DamagedFile, flatten_subgroups=True):
        async with running(shelf_of(killed), Slow(killed)):
            await trio.sleep(1)


async def test_a_sync_that_fails_confirms_nothing_and_publishers_hear_that_storage_has_failed() -> None:
    disk = new_disk()
    async with running(shelf_of(disk), Slow(disk, fails=True)) as one:
        one.publish(1)
        await trio.sleep(1)
        assert one.mailbox.waiting == 0
        one.stream.storage_failed()
        (refused,) = await one.effects()
        assert isinstance(refused, Unconfirmed)
        assert refused.failed


async def test_a_damaged_file_ends_the_task_before_anything_is_served() -> None:
    disk = new_disk()
    async with running(shelf_of(disk), Slow(disk), QueueSettings(segment_bytes=1)) as one:
        for _ in range(3):
            one.publish(1)
            await trio.sleep(1)
    folder = folder_of(STREAMS, 1)
    disk.flip(f"{folder}/{disk.names(folder)[0]}", 8 * 70)
    with pytest.RaisesGroup(DamagedFile, flatten_subgroups=True):
        async with running(shelf_of(disk), Slow(disk)) as one:
            one.read()
            await trio.sleep(1)
    assert one.mailbox.waiting == 0


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_delete_same_stream", "delete_queue")
async def test_a_deleted_stream_leaves_no_files_and_answers_who_comes_too_late() -> None:
    disk = new_disk()
    slow = Slow(disk, 100)
    async with running(shelf_of(disk), slow) as one:
        one.read()
        one.publish(1)
        await one.effects()
        one.stream.post(DELETE)
        effects = await one.effects()
        assert [type(effect) for effect in effects] == [Unconfirmed, QueueDeleted]
        assert one.gone == 1
        assert disk.names(STREAMS) == []
        one.publish(1)
        assert [type(effect) for effect in await one.effects()] == [Unconfirmed]


async def test_many_messages_are_read_in_several_wakes_and_others_run_in_between() -> None:
    async with running() as one:
        for _ in range(10):
            one.publish(4000)
        await one.effects()
        one.read(40_000)
        turns = 0
        with trio.CancelScope() as scope:
            while not one.waiting or turns < 3:
                turns += 1
                await trio.lowlevel.checkpoint()
                if turns > 1000:
                    scope.cancel()
        assert len(offsets_of(await one.effects())) == 40_000
