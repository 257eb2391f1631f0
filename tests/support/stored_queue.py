"""A queue whose messages are in a journal, on a disk that may lose power, and what it has promised.

`StoredQueue` does what `runtime/queues/queue_task.py` and `runtime/journal/journal_task.py` do, one step at a
time and without Trio, so that the power can go at any call of the disk. It notes what was confirmed and what
was settled for good, and compares after each recovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from amqp10broker.message.amqp10 import header_of, make_head
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.queues.classic import backlog
from amqp10broker.queues.classic import durability as classic_store
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    Confirmed,
    ConsumerRef,
    Credit,
    Deliver,
    DeliveryOutcome,
    Publish,
    Purge,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.storage.journal import Journal
from tests.support.disks import SimDisk
from tests.support.inventories import inventory_on, sync_inventory
from tests.support.journal_harness import FOLDER
from tests.support.memory_journal import MemoryScratch
from tests.support.reply_addresses import new_reply_to

GROUP: Final = 7
LEVELS: Final = 3
FILE_BYTES: Final = 900
ALL: Final = 1_000_000
HERE: Final = new_reply_to("1.1")


class StoredQueue:
    """A classic queue, from one recovery to the next.

    Numbers of messages grow in the order in which they are published; see `priority_of`, `is_persistent`.

    Attributes:
        promised: numbers of messages that were confirmed, and that nobody has begun to settle.
        gone: numbers of messages whose removal is durable.
        published: how many numbers have been given.
    """

    def __init__(self, disk: SimDisk, *, levels: int | None = None) -> None:
        self.disk = disk
        self.levels = levels
        self.published = 0
        self.promised: set[int] = set()
        self.gone: set[int] = set()

    # --- the life of the queue ----------------------------------------------------------------------

    def recover(self, *, look: bool = True) -> None:
        """Open the queue from the disk, and compare it with what was promised."""
        self.inventory = inventory_on(self.disk)
        part = self.inventory.part("journal")
        self.journal = Journal(self.disk, FOLDER, part, file_bytes_max=FILE_BYTES)
        self.store = ClassicStore(GROUP, self.journal, Spool(MemoryScratch))
        for batch in self.journal.recover():
            self.store.restore(batch)
        self.queue = ClassicQueue(
            "q", durable=True, settings=QueueSettings(max_priority=self.levels), store=self.store
        )
        self.queue.recover(self.store.backlogs())
        self.publisher = HERE.publisher()
        self.consumer: ConsumerRef | None = None
        self.held: dict[int, int] = {}
        self.settling: list[tuple[int, set[int]]] = []
        if look:
            self._compare([number for _, number in self._look()])

    def _look(self) -> list[tuple[int, int]]:
        """Return all messages in order, by a consumer that requeues them."""
        consumer = HERE.consumer()
        self.queue.apply(Subscribe(consumer, False), 0)
        self.queue.apply(Credit(consumer, 0, ALL, True, 0), 0)
        found = self._take()
        self.queue.apply(Unsubscribe(consumer, [], [], len(found), DeliveryOutcome.REQUEUE), 0)
        self._take()
        return found

    def _compare(self, found: list[int]) -> None:
        here = set(found)
        assert len(here) == len(found), "a message is there twice"
        assert here <= set(range(self.published)), "a message was never published"
        assert all(is_persistent(number) for number in here), "a message that is not persistent is there"
        assert not here & self.gone, f"gone for good, and there: {sorted(here & self.gone)}"
        assert self.promised <= here, f"confirmed, and lost: {sorted(self.promised - here)}"
        expected = sorted(here, key=lambda number: (-self._level(number), number))
        assert found == expected, "out of order"
        # It was synced by the recovery: from now on it may not go.
        self.promised = here
        self.gone |= set(range(self.published)) - here

    def _level(self, number: int) -> int:
        return min(priority_of(number), self.levels) if self.levels else 0

    # --- what clients do ----------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        messages = [make_message(number) for number in numbers]
        self.queue.apply(Publish(self.publisher, list(numbers), messages, False), 0)
        self._keep()

    def consume(self, credit: int) -> None:
        if self.consumer is None:
            self.consumer = HERE.consumer()
            self.queue.apply(Subscribe(self.consumer, False), 0)
            self.granted = self.seen = 0
        self.queue.apply(Credit(self.consumer, self.granted, credit, True, self.granted), 0)
        got = self._take()
        self.granted += credit
        self.seen += len(got)
        self.held.update(got)
        self._keep()

    def settle(self, keys: list[int], delivery_outcome: DeliveryOutcome) -> None:
        assert self.consumer is not None
        numbers = {self.held.pop(key) for key in keys}
        if delivery_outcome not in (DeliveryOutcome.REQUEUE, DeliveryOutcome.REQUEUE_FAILED):
            self.promised -= numbers
        self.queue.apply(Settle(self.consumer, keys, delivery_outcome), 0)
        self._keep()
        if delivery_outcome not in (DeliveryOutcome.REQUEUE, DeliveryOutcome.REQUEUE_FAILED):
            self.settling.append((self.journal.ticket, numbers))

    def leave(self) -> None:
        if self.consumer is not None:
            self.queue.apply(Unsubscribe(self.consumer, [], [], self.seen, DeliveryOutcome.REQUEUE), 0)
            self.consumer = None
            self.held.clear()
            self._keep()

    def purge(self) -> None:
        held = set(self.held.values())
        self.promised &= held
        gone = set(range(self.published)) - held
        self.queue.apply(Purge(HERE.request()), 0)
        self._keep()
        self.settling.append((self.journal.ticket, gone))

    # --- what the broker does -----------------------------------------------------------------------

    def _keep(self) -> None:
        self.store.flush()
        self.queue.safe_up_to(self.journal.durable)
        self._take()

    def commit(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        ticket = self.journal.write()
        if ticket is None:
            return
        sync_inventory(self.disk, self.inventory)
        for fd in self.journal.fds_to_sync():
            meanwhile()
            self.disk.sync(fd)
        self.journal.synced(ticket)
        durable = self.journal.durable
        for ticket, numbers in self.settling:
            if ticket <= durable:
                self.gone |= numbers
        self.settling = [each for each in self.settling if each[0] > durable]
        self.queue.safe_up_to(durable)
        self._take()

    def clean(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Clean as `runtime/journal/journal_task.py` does; return whether there was anything to clean."""
        file = self.journal.to_clean()
        if file is None:
            return False
        for _ in self.store.relocate(file):
            meanwhile()
        self.journal.drop(file)
        return True

    def _take(self) -> list[tuple[int, int]]:
        """Record the confirms among effects; return keys and numbers of deliveries."""
        got: list[tuple[int, int]] = []
        for effects in self.queue.take_effects().values():
            for effect in effects:
                if isinstance(effect, Confirmed):
                    self.promised |= {number for number in effect.ids if is_persistent(number)}
                elif isinstance(effect, Deliver):
                    for key, message in zip(effect.keys, effect.messages, strict=True):
                        got.append((key, number_of(message)))
        # What was settled before it was confirmed is none the less settled.
        for _, numbers in self.settling:
            self.promised -= numbers
        self.promised -= self.gone
        return got


def shorten_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page backlogs out, and cut records, after a few messages instead of thousands."""
    for module in (backlog, classic_store):
        monkeypatch.setattr(module, "PAGE_MESSAGES_MAX", 5)
    monkeypatch.setattr(backlog, "HEAD_MESSAGES_MAX", 7)
    monkeypatch.setattr(classic_store, "RECORD_MESSAGES_MAX", 11)


def is_persistent(number: int) -> bool:
    return number % 5 != 3


def priority_of(number: int) -> int:
    return number * 7 % 4


def make_message(number: int) -> Message:
    head = make_head(Header(durable=is_persistent(number), priority=priority_of(number)), None, "", "q")
    return head, b"%d:" % number + bytes(number % 251 for _ in range(number * 37 % 200))


def number_of(message: Message) -> int:
    head, body = message
    number = int(body.partition(b":")[0])
    assert body == make_message(number)[1], f"the body of message {number} was changed"
    assert header_of(head).durable == is_persistent(number)
    return number


def walk(kept: StoredQueue, rng: random.Random, steps: int) -> None:
    """Run random operations; the queue grows, or is nearly empty most of the time."""
    busy = rng.random() < 0.5

    def act() -> None:
        deed = rng.randrange(12)
        if deed < 5:
            kept.publish(rng.choice((1, 1, 2, 5, 20) if busy else (1, 2, 3)))
        elif deed < 7:
            kept.consume(rng.choice((1, 2, 5, 20)))
        elif deed < 10 and kept.held:
            keys = rng.sample(sorted(kept.held), rng.randrange(1, len(kept.held) + 1))
            kept.settle(
                keys,
                rng.choice(
                    (
                        DeliveryOutcome.ACCEPT,
                        DeliveryOutcome.ACCEPT,
                        DeliveryOutcome.DISCARD,
                        DeliveryOutcome.REQUEUE,
                    )
                ),
            )
        elif deed == 10 and rng.random() < 0.3:
            kept.leave()
        elif deed == 11 and rng.random() < 0.1:
            kept.purge()

    def maybe() -> None:
        if rng.random() < 0.5:
            act()

    def commit() -> None:
        kept.commit(maybe)

    for _ in range(steps):
        if rng.random() < 0.7:
            act()
        elif rng.random() < 0.7:
            commit()
        else:
            kept.clean(lambda: commit() if rng.random() < 0.5 else maybe())
