"""A classic queue's store whose files cannot be written or read."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from amqp10broker.errors import StorageError
from amqp10broker.queues import commands
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.journal import Spool
from amqp10broker.storage.record import Record
from tests.support.memory_journal import MemoryJournal, MemoryScratch
from tests.support.reply_addresses import new_reply_to
from tests.support.stored_queue import make_message, number_of, shorten_pages

HERE = new_reply_to("1.1")
TRANSIENT = [number for number in range(200) if number % 5 == 3]


class Scratch(MemoryScratch):
    """A file without a name that fails when the test says so."""

    full = broken = False
    refused = 0

    def write(self, pieces: Sequence[bytes]) -> int:
        if self.full:
            Scratch.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(pieces)

    def read(self, offset: int, length: int) -> bytes:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(offset, length)


class Broken(MemoryJournal):
    """A journal that cannot be read."""

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        raise StorageError("journal", "cannot be read: Input/output error", "look at the disk")


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pages(monkeypatch)
    monkeypatch.setattr(Scratch, "full", False)
    monkeypatch.setattr(Scratch, "broken", False)
    monkeypatch.setattr(Scratch, "refused", 0)


def queue_on(log: MemoryJournal) -> ClassicQueue:
    return ClassicQueue("q", durable=True, store=ClassicStore(7, log, Spool(Scratch)))


def publish(queue: ClassicQueue, numbers: Sequence[int]) -> None:
    for number in numbers:
        queue.apply(commands.Publish(HERE.publisher(), [number], [make_message(number)], False), 0)
    queue.take_effects()


def consume(queue: ClassicQueue) -> list[commands.Effect]:
    consumer = HERE.consumer()
    queue.apply(commands.Subscribe(consumer, False), 0)
    queue.apply(commands.Credit(consumer, 0, 1000, True, 0), 0)
    return queue.take_effects()[HERE.id]


def test_a_backlog_for_which_the_disk_has_no_room_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_on(MemoryJournal(records_max=8))
    publish(queue, TRANSIENT[:20])
    monkeypatch.setattr(Scratch, "full", True)
    publish(queue, TRANSIENT[20:])
    delivered = [
        number_of(each)
        for effect in consume(queue)
        if isinstance(effect, commands.Deliver)
        for each in effect.messages
    ]
    assert delivered == TRANSIENT
    assert Scratch.refused


def test_a_backlog_that_cannot_be_read_back_is_an_error_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_on(MemoryJournal(records_max=8))
    publish(queue, TRANSIENT)
    monkeypatch.setattr(Scratch, "broken", True)
    with pytest.raises(StorageError, match="cannot be read back: Input/output error; look at the disk"):
        consume(queue)


def test_a_queue_that_breaks_down_hands_nothing_out() -> None:
    """Reading its broken backlog again must not end more than the queue."""
    queue = queue_on(Broken())
    publish(queue, [number for number in range(100) if number % 5 != 3])
    consumer = HERE.consumer()
    credit = commands.Credit(consumer, 0, 1000, True, 0)
    queue.apply(commands.Subscribe(consumer, False), 0)
    with pytest.raises(StorageError):
        queue.apply(credit, 0)
    queue.break_down([credit])
    effects = [type(effect) for effect in queue.take_effects()[HERE.id]]
    assert set(effects[:-1]) == {commands.Unconfirmed}
    assert effects[-1] is commands.QueueDeleted
