"""A broker whose disk is full to the last byte: publishers wait, and everything else goes on.

The disk is `SimDisk` with a capacity, so that each of its bytes counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.errors import StorageError
from amqp10broker.queues import commands
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.journal import journal_task as journal_module
from amqp10broker.runtime.journal.journal_task import journal_sizes
from amqp10broker.storage.record import RECORD_BYTES
from tests.support.declaring import declare, remove
from tests.support.disks import SimDisk
from tests.support.node import CLASSIC, CONFIG, QUORUM, STREAM, History, Kind, Node, NoMeter, Seat, faults_of

COUNT = 60


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Tests use only its disk and its way to start a broker."""
    return Node(monkeypatch)


def _life(body: Callable[[Broker], object]) -> None:
    async def live() -> None:
        with trio.fail_after(1000):
            async with Broker(CONFIG, meter=NoMeter()) as broker:
                await body(broker)  # type: ignore[misc]

    trio.run(live, clock=MockClock(autojump_threshold=0))


def _seat(broker: Broker, kind: Kind) -> Seat:
    vhost = broker.catalog.lookup_vhost("/")
    queue, _ = declare(
        broker.catalog, vhost, kind.name, arguments={"x-queue-type": kind.name, **dict(kind.arguments)}
    )
    return Seat(queue, History(kind))


def _fill(disk: SimDisk) -> None:
    disk.capacity = disk.used()


async def _taken(seat: Seat, count: int) -> int:
    """Take messages, accept them, and await durable answers; return the confirms meanwhile."""
    effects: list[object] = []
    settled = 0
    seat.consume(count)
    assert seat.consumer is not None
    while settled < count:
        more = await seat.effects()
        effects += more
        keys = [key for each in more if isinstance(each, commands.Deliver) for key in each.keys]
        if keys:
            seat.handle.post(
                commands.Settle(seat.consumer, keys, commands.DeliveryOutcome.ACCEPT, answer=True)
            )
        settled += sum(len(each.keys) for each in more if isinstance(each, commands.Settled))
    return _confirms(effects)


async def _confirmed(seat: Seat) -> int:
    await trio.sleep(5)
    return _confirms(await seat.effects()) if seat.mailbox.waiting else 0


def _confirms(effects: Sequence[object]) -> int:
    return sum(len(each.ids) for each in effects if isinstance(each, commands.Confirmed))


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_consumers_settle_and_publishers_wait_until_there_is_room(node: Node, kind: Kind) -> None:
    async def body(broker: Broker) -> None:
        assert broker.journal_task is not None
        seat = await _seat_on_a_full_disk(broker, node, kind)
        assert broker.alarms == {"disk"}
        seat.publish(3)
        assert await _confirmed(seat) == 0
        # What is consumed may free a file, and then they are taken in.
        confirmed = 0
        for _ in range(4):
            confirmed += await _taken(seat, COUNT // 4)
        node.disk.capacity = None
        confirmed += await _confirmed(seat)
        assert confirmed == 3
        assert seat.handle.ready == 3
        assert not broker.alarms

    _life(body)
    assert not faults_of(node.disk.after_kill())


async def _seat_on_a_full_disk(broker: Broker, node: Node, kind: Kind) -> Seat:
    """Return a queue with confirmed messages, on a disk whose reserve is used up."""
    seat = _seat(broker, kind)
    seat.publish(COUNT)
    assert await _confirmed(seat) == COUNT
    _fill(node.disk)
    await _exhaust(broker)
    return seat


async def _exhaust(broker: Broker) -> None:
    """Use up the space allocated beside the reserve, with records that stay."""
    await broker.journal_task.recovered.wait()
    journal = broker.journal_task.journal
    disk = broker.journal_task._disk
    assert isinstance(disk, SimDisk)
    for _ in range(20):
        _fill(disk)
        while journal.shortage is None:
            _, file, _ = journal.append(2**32 - 1, 1, 0, [bytes(100)])
            journal.add_live(file, RECORD_BYTES + 100)
        broker.journal_task.committer.wake()
        # A file that was just left gives its reserve to the next one.
        await trio.sleep(5)
        if journal.shortage is not None:
            return
    raise AssertionError("the disk does not get full")


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_a_publish_larger_than_the_reserve_takes_nothing_of_it(node: Node, kind: Kind) -> None:
    """This publish is the first write on the full disk, and is larger than the space that is left."""
    large = 1000
    # A classic queue confirms its transient messages, each fifth, when it has them: they need no disk.
    transient = large // 5 if kind is CLASSIC else 0

    async def body(broker: Broker) -> None:
        seat = _seat(broker, kind)
        seat.publish(COUNT)
        assert await _confirmed(seat) == COUNT
        _fill(node.disk)
        room = broker.journal_task.journal.room_bytes
        seat.publish(large)
        assert await _confirmed(seat) == transient
        assert broker.journal_task.journal.room_bytes >= room - 1000
        assert broker.alarms == {"disk"}
        assert seat.handle.progress().full_ms is not None
        assert seat.handle.queue_status().unconfirmed == large - transient
        assert seat.handle.queue_status().unconfirmed_ms is not None
        # There is some room, and not enough.
        node.disk.capacity = node.disk.used() + 20_000
        assert await _confirmed(seat) == 0
        assert await _taken(seat, COUNT) == 0
        node.disk.capacity = None
        assert await _confirmed(seat) == large - transient
        assert seat.handle.queue_status().unconfirmed == 0
        assert not broker.alarms

    _life(body)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_what_waits_when_the_broker_stops_is_not_kept(node: Node, kind: Kind) -> None:
    """It takes none of the reserve that the consumers of the next start need."""

    async def before(broker: Broker) -> None:
        seat = await _seat_on_a_full_disk(broker, node, kind)
        seat.publish(3)
        assert await _confirmed(seat) == 0
        # Still in the mailbox when the queue's task ends.
        seat.publish(3)

    _life(before)
    assert not faults_of(node.disk.after_kill())

    async def after(broker: Broker) -> None:
        seat = _seat(broker, kind)
        await trio.sleep(5)
        kept = sum(seat.history.keeps(number) for number in range(COUNT))
        assert seat.handle.ready == kept
        await _taken(seat, kept)

    _life(after)


def test_a_first_start_on_a_full_disk_says_what_to_do_and_the_next_one_works(node: Node) -> None:
    """There may be room for the folder's files, and none for the first declarations."""
    refused: list[StorageError] = []
    for left in range(0, 8192, 1024):
        node.disk = SimDisk()
        node.disk.capacity = left
        node.live(random.Random(0), 0)
        if node.refused is not None:
            refused.append(node.refused)
        node.disk.capacity = None
        node.live(random.Random(0), 0)
        assert node.refused is None
    assert {error.remedy for error in refused} == {"free space on that file system"}
    assert any(error.path.endswith("catalog.log") for error in refused)


def test_a_file_system_that_does_not_say_its_size_has_files_of_the_usual_length(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "journal_sizes", journal_sizes)
    monkeypatch.setattr(node.disk, "total_bytes", lambda path: 0)

    async def body(broker: Broker) -> None:
        assert broker.journal_task.journal._file_bytes_max == 32 * 1024 * 1024

    _life(body)


def test_a_stream_is_read_and_its_publishers_wait(node: Node) -> None:
    async def body(broker: Broker) -> None:
        seat = _seat(broker, STREAM)
        seat.publish(COUNT)
        assert await _confirmed(seat) == COUNT
        _fill(node.disk)
        seat.publish(COUNT)
        assert await _confirmed(seat) == 0
        await _taken(seat, COUNT)
        node.disk.capacity = None
        assert await _confirmed(seat) == COUNT

    _life(body)


@pytest.mark.rabbitmq("queue_parallel_SUITE", "trigger_message_store_compaction")
def test_what_is_consumed_on_a_full_disk_makes_room_for_what_waits(node: Node) -> None:
    async def body(broker: Broker) -> None:
        journal = broker.journal_task.journal
        seat = _seat(broker, QUORUM)
        while journal.files < 5:
            seat.publish(COUNT)
            assert await _confirmed(seat) == COUNT
        _fill(node.disk)
        await _exhaust(broker)
        seat.publish(1)
        assert await _confirmed(seat) == 0
        confirmed = 0
        while not confirmed and seat.handle.ready:
            confirmed += await _taken(seat, min(COUNT, seat.handle.ready))
            confirmed += await _confirmed(seat)
        assert confirmed == 1
        assert not broker.alarms

    _life(body)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_a_queue_that_was_emptied_takes_in_what_waits_though_nobody_else_does_anything(
    node: Node, kind: Kind
) -> None:
    """The last consumed messages are in the file that is being filled, and no further record follows."""

    async def body(broker: Broker) -> None:
        seat = _seat(broker, kind)
        seat.publish(COUNT)
        assert await _confirmed(seat) == COUNT
        _fill(node.disk)
        seat.publish(10)
        while await _confirmed(seat):
            seat.publish(10)
        assert broker.alarms == {"disk"}
        ready = seat.handle.ready
        confirmed = await _taken(seat, ready)
        confirmed += await _confirmed(seat)
        assert confirmed == 10
        assert not broker.alarms
        assert await _taken(seat, 10) == 0

    _life(body)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_a_start_on_a_full_disk_goes_on_where_it_was(node: Node, kind: Kind) -> None:
    """After a kill there, settled messages stay settled, and the rest can be consumed."""

    async def before(broker: Broker) -> None:
        seat = await _seat_on_a_full_disk(broker, node, kind)
        await _taken(seat, COUNT // 2)
        await trio.sleep(5)
        node.disk = node.disk.after_kill()

    _life(before)
    assert not faults_of(node.disk.after_kill())

    async def after(broker: Broker) -> None:
        seat = _seat(broker, kind)
        await trio.sleep(5)
        left = sum(seat.history.keeps(number) for number in range(COUNT // 2, COUNT))
        assert seat.handle.ready == left
        await _taken(seat, left)
        assert seat.handle.ready == 0

    _life(after)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=lambda kind: kind.name)
def test_a_queue_that_is_deleted_on_a_full_disk_answers_who_waits(node: Node, kind: Kind) -> None:
    async def body(broker: Broker) -> None:
        seat = await _seat_on_a_full_disk(broker, node, kind)
        seat.publish(2)
        assert await _confirmed(seat) == 0
        remove(broker.catalog, "/", kind.name)
        seat.handle.post(commands.Delete())
        refused = 0
        while not refused:
            refused = sum(
                len(each.ids) for each in await seat.effects() if isinstance(each, commands.Unconfirmed)
            )
        assert refused == 2

    _life(body)


def test_what_there_was_no_room_for_keeps_nobody_waiting_when_its_queue_is_gone(node: Node) -> None:
    async def body(broker: Broker) -> None:
        assert broker.journal_task is not None
        large, small = _seat(broker, QUORUM), _seat(broker, CLASSIC)
        small.publish(20)
        assert await _confirmed(small) == 20
        _fill(node.disk)
        large.publish(20_000)
        assert await _confirmed(large) == 0
        small.publish(1)
        assert await _confirmed(small) == 0
        # The reserve can be whole again, and there is some room beside it.
        node.disk.capacity = node.disk.used() + 200_000
        assert await _confirmed(small) == 0
        remove(broker.catalog, "/", QUORUM.name)
        large.handle.post(commands.Delete())
        assert await _confirmed(small) == 1
        assert not broker.alarms

    _life(body)


def test_storage_that_fails_while_publishes_wait_tells_them(node: Node) -> None:
    async def body(broker: Broker) -> None:
        seats = [_seat(broker, QUORUM), _seat(broker, CLASSIC)]
        _fill(node.disk)
        await _exhaust(broker)
        for seat in seats:
            seat.publish(2)
            assert await _confirmed(seat) == 0
        broker._queues.storage_failed()  # type: ignore[union-attr]
        for seat in seats:
            assert {type(each) for each in await seat.effects()} == {commands.Unconfirmed}

    _life(body)


@pytest.mark.parametrize("seed", range(3))
def test_promises_hold_on_disks_that_fill_and_empty(node: Node, seed: int) -> None:
    rng = random.Random(seed)
    node.live(rng, 30)
    for _ in range(12):
        node.disk.capacity = node.disk.used() + rng.choice((0, 2000, 50_000)) if rng.random() < 0.6 else None
        if rng.random() < 0.4:
            node.disk.lose_power_at = len(node.disk.calls) + rng.randrange(1, 400)
        node.live(rng, 30)
        assert node.refused is None or "No space" in str(node.refused), node.refused
        disk = node.disk
        node.disk = disk.after_kill() if rng.random() < 0.5 else disk.after_power_loss(rng.randrange(1 << 30))
        if node.incarnations:
            assert not faults_of(node.disk.after_kill())
    node.disk.capacity = None
    node.live(rng, 0)
    assert node.refused is None
