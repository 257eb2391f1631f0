"""A journal and what it promises, kept side by side: for random walks, losses of power and failing disks.

Every append has a number of its own, its index, and its payload names the *message* it is about: cleaning
appends a message again under a new number. `check` recovers the journal from what a disk holds and compares.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from amqp10broker.errors import StorageError
from amqp10broker.storage.folder import Inventory
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.logfile import JOURNAL
from amqp10broker.storage.record import RECORD_BYTES, FileReader, Purpose, Record
from tests.support.disks import SimDisk
from tests.support.inventories import inventory_on, sync_inventory

LONG = bool(os.environ.get("AMQP10BROKER_LONG"))
"""Set to run the proofs of storage for minutes instead of seconds."""

FOLDER = "/journal"
GROUP, KIND, TERM = 7, 3, 11

file_name = JOURNAL.name


def files_of(count: int) -> Callable[..., tuple[int, int]]:
    """Replace `journal_task.journal_sizes`: files have this size, below the setting's minimum."""
    return lambda *_: (count, count + count // 2)


def new_disk(seed: int = 0) -> SimDisk:
    """Return a disk with a durable empty folder for the journal."""
    disk = SimDisk(seed)
    disk.make_folder(FOLDER)
    fd = disk.open_folder("/")
    disk.sync(fd)
    disk.close(fd)
    inventory_on(disk).close()
    disk.calls.clear()
    return disk


@dataclass
class Copy:
    message: int
    file: int
    offset: int
    length: int
    ticket: int


@dataclass
class Harness:
    """What was done with a journal, and what must come of it."""

    disk: SimDisk
    file_bytes_max: int = 600
    reserve_bytes: int = 0
    copies: dict[int, Copy] = field(default_factory=dict)
    """By the append's number."""
    live: dict[int, int] = field(default_factory=dict)
    """The newest append's number, by message."""
    promised: set[int] = field(default_factory=set)
    """Messages that were durable once, and are not consumed."""
    gone: set[int] = field(default_factory=set)
    """Appends in files that were dropped: a file may still be there."""
    next_number: int = 1
    next_message: int = 1
    written: int = 0
    """The ticket up to which everything is there after a kill."""

    def __post_init__(self) -> None:
        self.journal = self.fresh()

    def fresh(self) -> Journal:
        self.inventory = inventory_on(self.disk)
        return self._journal(self.disk, self.inventory)

    def _journal(self, disk: SimDisk, inventory: Inventory) -> Journal:
        return Journal(
            disk,
            FOLDER,
            inventory.part("journal"),
            file_bytes_max=self.file_bytes_max,
            reserve_bytes=self.reserve_bytes,
        )

    def kill(self) -> None:
        """Kill the process; early writes are then promised as durable ones are."""
        self.disk = self.disk.after_kill()
        self._promise(self.written)

    def check(self, disk: SimDisk) -> None:
        """Require that the disk holds what was promised; the check changes nothing."""
        disk.capacity = None  # what was full is a matter of the lives
        journal = self._journal(disk, inventory_on(disk))
        self._compare([record for batch in journal.recover() for record in batch])

    # --- what can be done ---------------------------------------------------------------------------

    def recover(self) -> list[Record]:
        """Open the journal, compare it with what was promised, and continue from it."""
        self.journal = self.fresh()
        found: list[Record] = []
        for batch in self.journal.recover():
            assert batch
            found += batch
        self._compare(found)
        self._take_over(found)
        return found

    def append(self, size: int, pieces: int = 1) -> None:
        message = self.next_message
        self.next_message += 1
        self._append(message, size, pieces)

    def put(self, size: int, count: int = 1) -> None:
        """Append this many messages and commit each."""
        for _ in range(count):
            self.append(size)
            self.commit()

    def write(self) -> int | None:
        return self.journal.write()

    def write_early(self) -> None:
        try:
            self.written = self.journal.write_early()
        except StorageError:
            return  # it is still collected, and `write` meets the same

    def sync(self, ticket: int) -> None:
        self.sync_inventory()
        for fd in self.journal.fds_to_sync():
            self.disk.sync(fd)
        self.synced(ticket)

    def sync_inventory(self) -> bool:
        """Sync, then delete what was dropped; return whether there was anything to sync."""
        synced = sync_inventory(self.disk, self.inventory)
        self.journal.remove_dropped()
        return synced

    def synced(self, ticket: int) -> None:
        self.journal.synced(ticket)
        self._promise(self.journal.durable)

    def commit(self) -> None:
        for _ in range(100):
            ticket = self.write()
            if ticket is None and self.sync_inventory():
                continue
            if ticket is None:
                assert self.journal.collected_bytes == 0
                assert self.journal.durable == self.journal.ticket
                return
            self.sync(ticket)
        raise AssertionError("there is always something left to sync")

    def consume(self, message: int) -> None:
        copy = self.copies[self.live.pop(message)]
        self.promised.discard(message)
        self.journal.add_dead(copy.file, copy.length)

    def consume_all(self) -> None:
        for message in list(self.live):
            self.consume(message)

    def restart(self) -> list[Record]:
        """Continue from what a kill leaves."""
        self.disk = self.disk.after_kill()
        return self.recover()

    def clean(self) -> bool:
        file = self.journal.to_clean()
        if file is None:
            return False
        path = self.journal._files[file].path
        reader = FileReader(self.disk, path, purpose=Purpose.JOURNAL, number=file, last=False)
        for record in [record for batch in reader.batches() for record in batch]:
            message, size = decode(record)
            if self.live.get(message) == record.index:
                self.journal.add_dead(file, record.length)
                self._append(message, size, 2)
        self.gone |= {number for number, copy in self.copies.items() if copy.file == file}
        self.journal.drop(file)
        return True

    def read_all(self) -> None:
        """Require that every live record can be read, wherever it is."""
        for message, number in self.live.items():
            copy = self.copies[number]
            payload = self.journal.read(copy.file, copy.offset)
            assert payload == encode(message, copy.length - RECORD_BYTES)
            (record,) = self.journal.read_run(copy.file, copy.offset, copy.length)
            assert (record.index, record.payload) == (number, payload)

    # --- parts --------------------------------------------------------------------------------------

    def _append(self, message: int, size: int, pieces: int) -> None:
        payload = encode(message, size)
        size = len(payload)
        cut = size // pieces
        parts = [payload[at * cut : (at + 1) * cut] for at in range(pieces - 1)]
        parts.append(payload[(pieces - 1) * cut :])
        number = self.next_number
        self.next_number += 1
        ticket, file, offset = self.journal.append(GROUP, KIND, number, parts, term=TERM)
        copy = Copy(message, file, offset, RECORD_BYTES + size, ticket)
        self.journal.add_live(file, copy.length)
        self.copies[number] = copy
        self.live[message] = number

    def _promise(self, ticket: int) -> None:
        self.promised |= {
            message for message, number in self.live.items() if self.copies[number].ticket <= ticket
        }

    def _compare(self, found: list[Record]) -> None:
        numbers = [record.index for record in found]
        assert numbers == sorted(set(numbers)), "records come in the order in which they were appended"
        for record in found:
            copy = self.copies.get(record.index)
            assert copy is not None, f"record {record.index} was never appended"
            place = (record.file, record.offset, record.length)
            assert place == (copy.file, copy.offset, copy.length)
            assert (record.group, record.kind, record.term) == (GROUP, KIND, TERM)
            assert record.payload == encode(copy.message, copy.length - RECORD_BYTES)
        last = numbers[-1] if numbers else 0
        holes = {n for n in self.copies if n <= last} - set(numbers) - self.gone
        assert not holes, f"appended before {last} and not recovered: {sorted(holes)}"
        lost = self.promised - {self.copies[number].message for number in numbers}
        assert not lost, f"durable and lost: {sorted(lost)}"

    def _take_over(self, found: list[Record]) -> None:
        copies: dict[int, Copy] = {}
        live: dict[int, int] = {}
        for record in found:
            message, _ = decode(record)
            copies[record.index] = Copy(message, record.file, record.offset, record.length, 0)
            # What was consumed may come back here; it is consumed again by nobody, which does not matter.
            live[message] = record.index
        self.copies = copies
        self.live = live
        self.written = 0
        self.promised = set(live)
        self.gone = set()
        for number in live.values():
            self.journal.add_live(copies[number].file, copies[number].length)


def encode(message: int, size: int) -> bytes:
    """Return a payload of about `size` bytes that contains the message's number."""
    text = b"%d:" % message
    return text + bytes((message + at) % 256 for at in range(size - len(text)))


def decode(record: Record) -> tuple[int, int]:
    """Return the message number in a record, and its size."""
    return int(record.payload.split(b":", 1)[0]), len(record.payload)


def walk(world: Harness, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        deed = rng.randrange(10)
        if deed < 4:
            for _ in range(rng.randrange(1, 6)):
                # Some with a stretch of zeros, some longer than several sectors.
                world.append(rng.choice((0, 5, 40, 150, 300, 1200)), rng.randrange(1, 4))
            if rng.random() < 0.3:
                world.write_early()
        elif deed < 6:
            ticket = world.write()
            if ticket is not None and rng.random() < 0.3:
                world.append(700)
                ticket = world.write()
            if ticket is not None:
                failed: StorageError | None = None
                world.sync_inventory()
                for fd in world.journal.fds_to_sync():
                    if rng.random() < 0.5:
                        world.append(rng.choice((30, 700)))
                    if rng.random() < 0.5:
                        world.write_early()
                    world.disk.sync(fd)
                    try:
                        if rng.random() < 0.3:
                            world.clean()
                    except StorageError as error:
                        failed = error  # that of others; the sync goes on
                world.synced(ticket)
                if failed is not None:
                    raise failed
        elif deed == 6 and world.live:
            for message in rng.sample(sorted(world.live), rng.randrange(1, len(world.live) + 1)):
                world.consume(message)
        elif deed == 7:
            world.clean()
        elif deed == 8:
            world.journal.mark()
        else:
            world.commit()
