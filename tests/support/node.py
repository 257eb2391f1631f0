"""A whole broker on a disk in memory, that loses power, fails calls, and is started again: `Node`.

The broker is the real one, with catalog, journal, streams and their tasks; only the disk is `SimDisk`, the
helper process that syncs is a coroutine, and the clock jumps. Clients post to queues as sessions do. What
they were promised is noted, and compared at each start.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.cli.serve import leaves
from amqp10broker.config import Config
from amqp10broker.errors import BrokerError, StorageError, StorageFailed
from amqp10broker.message.filters.stream_filters import OffsetWord
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_requests import DeleteQueue
from amqp10broker.queues import commands
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.journal import data as data_module
from amqp10broker.runtime.journal import journal_task as journal_module
from amqp10broker.runtime.journal.bootstrap import Contents
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.messages import SessionMessage
from amqp10broker.storage.check import check_folder
from amqp10broker.storage.folder import inspect_data_folder
from tests.support.crash_history import CLASSIC, QUORUM, Kind
from tests.support.declaring import declare
from tests.support.disks import PowerLoss, SimDisk
from tests.support.journal_harness import files_of
from tests.support.reply_addresses import reply_to_at
from tests.support.stored_queue import is_persistent, make_message, number_of, shorten_pages

FOLDER: Final = "/data"
CONFIG: Final = Config(port=0, data_dir=FOLDER, admin_socket="")
ALL: Final = 100_000
PATIENCE_S: Final = 300.0
"""Then whoever looks after the machine makes room on a disk that is full."""
LIFE_S: Final = 1000.0
"""In which a life must end, by a clock that jumps when all wait: longer means for ever."""


STREAM: Final = Kind(
    "stream", {"x-stream-max-segment-size-bytes": 1500}, keeps_transient=True, keeps_all=True
)
KINDS: Final = (CLASSIC, QUORUM, STREAM)


@dataclass
class History:
    """What clients know of a queue; numbers are those of messages.

    Attributes:
        promised: confirmed, and nobody has begun to settle them.
        settled: somebody has.
        gone: were not there at some start, or somebody was told that they are gone for good.
        content: what was found at the last start, in order.
        consumed: somebody may have been given messages since then, and given them back.
        published: how many numbers have been given.
        deleting: somebody has begun to delete the queue.
    """

    kind: Kind
    promised: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    content: list[int] = field(default_factory=list)
    consumed: bool = False
    published: int = 0
    deleting: bool = False

    def keeps(self, number: int) -> bool:
        return self.kind.keeps_transient or is_persistent(number)

    def compare(self, found: list[int]) -> None:
        here = set(found)
        assert len(here) == len(found), "a message is there twice"
        assert here <= set(range(self.published)), "a message was never published"
        assert all(self.keeps(number) for number in here), "a message that is not persistent is there"
        assert not here & self.gone, f"gone for good, and there: {sorted(here & self.gone)}"
        assert self.promised <= here, f"confirmed, and lost: {sorted(self.promised - here)}"
        if self.kind.keeps_place:
            assert found == sorted(found), f"out of order: {found}"
        elif not self.consumed:
            # Who looked has given them back, in order of their numbers, unless the power went before.
            old = set(self.content)
            as_before = [number for number in self.content if number in here] + sorted(here - old)
            assert found in (sorted(found), as_before), f"out of order: {found}"
        self.content = found
        self.promised = here
        self.settled = set()
        self.gone |= set(range(self.published)) - here


class Seat:
    """A client of one queue during one life."""

    def __init__(self, queue: DeclaredQueue, history: History) -> None:
        self.mailbox: Mailbox[SessionMessage] = Mailbox()
        self.here = reply_to_at(queue, self.mailbox)
        self.handle = queue.handle
        self.history = history
        self.publisher = self.here.publisher()
        self.held: dict[int, int] = {}
        self.consumer: commands.ConsumerRef | None = None
        self.granted = self.seen = 0
        self.settling: dict[int, int] = {}

    def publish(self, count: int) -> None:
        history = self.history
        numbers = range(history.published, history.published + count)
        history.published += count
        messages = [make_message(number) for number in numbers]
        self.handle.post(commands.Publish(self.publisher, list(numbers), messages, False))

    def consume(self, credit: int) -> None:
        self.history.consumed = True
        if self.consumer is None:
            self.consumer = self.here.consumer()
            self.handle.post(commands.Subscribe(self.consumer, False, position=OffsetWord.FIRST))
        self.handle.post(commands.Credit(self.consumer, self.granted, credit, True, self.granted))
        self.granted += credit

    def settle(self, rng: random.Random) -> None:
        if self.consumer is None or not self.held:
            return
        keys = rng.sample(sorted(self.held), rng.randrange(1, len(self.held) + 1))
        by_key = {key: self.held.pop(key) for key in keys}
        numbers = set(by_key.values())
        delivery_outcome = (
            commands.DeliveryOutcome.ACCEPT if rng.random() < 0.8 else commands.DeliveryOutcome.REQUEUE
        )
        if delivery_outcome is commands.DeliveryOutcome.ACCEPT and not self.history.kind.keeps_all:
            self.history.settled |= numbers
            self.history.promised -= numbers
        final = delivery_outcome is commands.DeliveryOutcome.ACCEPT and self.history.kind.settles_for_good
        if final:
            self.settling |= by_key
        self.handle.post(commands.Settle(self.consumer, keys, delivery_outcome, answer=final))

    def leave(self) -> None:
        if self.consumer is not None:
            self.handle.post(
                commands.Unsubscribe(self.consumer, [], [], self.seen, commands.DeliveryOutcome.REQUEUE)
            )
            self.consumer = None
            self.held.clear()
            self.granted = self.seen = 0

    async def look(self) -> list[int]:
        """Return all messages in order, and requeue them."""
        consumer = self.here.consumer()
        self.handle.post(commands.Subscribe(consumer, False, position=OffsetWord.FIRST))
        self.handle.post(commands.Credit(consumer, 0, ALL, True, 0))
        found: list[int] = []
        while True:
            for effect in await self.effects():
                if isinstance(effect, commands.Deliver):
                    found += [number_of(message) for message in effect.messages]
                elif isinstance(effect, commands.CreditReply):
                    self.handle.post(
                        commands.Unsubscribe(consumer, [], [], len(found), commands.DeliveryOutcome.REQUEUE)
                    )
                    return found

    async def listen(self) -> None:
        if self.mailbox.waiting:
            self._note(await self.effects())

    def end(self) -> None:
        """End the broker; the effects that it emitted before still count."""
        self._note([each for letter in self.mailbox.close() for each in letter])  # type: ignore[union-attr]

    def _note(self, effects: list[Any]) -> None:
        history = self.history
        for effect in effects:
            if isinstance(effect, commands.Confirmed):
                if not history.deleting:
                    safe = {number for number in effect.ids if history.keeps(number)}
                    history.promised |= safe - history.settled
            elif isinstance(effect, commands.Deliver) and effect.consumer == self.consumer:
                self.seen += len(effect.keys)
                for key, message in zip(effect.keys, effect.messages, strict=True):
                    self.held[key] = number_of(message)
            elif isinstance(effect, commands.Settled):
                history.gone |= {self.settling.pop(key) for key in effect.keys}

    async def effects(self) -> list[Any]:
        return [each for letter in await self.mailbox.take_all() for each in letter]  # type: ignore[union-attr]


class Node:
    """See the module.

    Attributes:
        disk: where the next life begins.
        queues: by name, whatever became of them.
        incarnations: of each time the broker came up.
        made: how many queues were declared; no name is used twice.
        refused: what the last life ended with, if that was an error of storage.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0, kinds: Sequence[Kind] = KINDS) -> None:
        self.disk = SimDisk(seed)
        self.kinds = kinds
        self.queues: dict[str, History] = {}
        self.incarnations: list[int] = []
        self.made = 0
        self.refused: StorageError | None = None
        self._faults: list[str] = []
        monkeypatch.setattr(data_module, "Disk", lambda: self.disk)
        monkeypatch.setattr(journal_module, "open_syncer", self._open_syncer)
        monkeypatch.setattr(journal_module, "journal_sizes", files_of(3000))
        shorten_pages(monkeypatch)
        for module in ("queues.queues", "broker", "journal.journal_task", "queues.queue_task"):
            monkeypatch.setattr(f"amqp10broker.runtime.{module}._log", self)

    # --- a log that notes faults --------------------------------------------------------------------

    def __getattr__(self, level: str) -> Any:
        if level not in ("debug", "info", "warning", "error", "critical"):
            raise AttributeError(level)

        def note(event: str, **fields: Any) -> None:
            error = fields.get("exc_info")
            if error is not None and not isinstance(error, StorageError):
                self._faults.append(f"{event}: {error!r}")

        return note

    # --- lives --------------------------------------------------------------------------------------

    def live(self, rng: random.Random, steps: int) -> None:
        """Run one life: start, compare, work, and stop, unless the disk ends it."""
        self.refused = None
        try:
            trio.run(self._live, rng, steps, clock=MockClock(autojump_threshold=0))
        except StorageError as error:
            self.refused = error
        except BaseExceptionGroup as group:
            found = list(leaves(group))
            if len(found) == 1 and isinstance(found[0], StorageError):
                self.refused = found[0]  # which `serve` tells in the same sentence
            elif not any(isinstance(each, PowerLoss) for each in found):
                raise
            # What else failed when the power went did so because of it.
        except PowerLoss:
            pass
        assert not self._faults, self._faults

    async def _live(self, rng: random.Random, steps: int) -> None:
        with trio.fail_after(LIFE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_after_disk)
                async with Broker(CONFIG, meter=NoMeter()) as broker:
                    self.incarnations.append(broker.reply_registry.incarnation)
                    await self._compare(broker, look=steps == 0 or rng.random() < 0.7)
                    await self._work(broker, rng, steps)
                nursery.cancel_scope.cancel()
            journal = broker.journal_task.journal
            if journal.durable == journal.ticket:
                # In order, and the disk was not full: all that was decided is durable.
                for history in self.queues.values():
                    history.gone |= history.settled

    async def _look_after_disk(self) -> None:
        """Work cannot continue without more space once the reserve is full."""
        await trio.sleep(PATIENCE_S)
        self.disk.capacity = None

    async def _compare(self, broker: Broker, *, look: bool) -> None:
        """Compare the state after a start; without `look` queues stay as started."""
        vhost = broker.catalog.lookup_vhost("/")
        for name, history in list(self.queues.items()):
            queue = vhost.find(name)
            if queue is None:
                lost = history.promised and not history.deleting
                assert not lost, f"queue {name} is gone, with confirmed messages"
                del self.queues[name]
                continue
            if not look:
                # Of what was settled in a life that did not end in order nobody knows.
                history.settled = set()
                continue
            async with _while_well(broker):
                consumed, history.consumed = history.consumed, True
                found = await Seat(queue, history).look()
                history.consumed = consumed
                history.compare(found)
                history.deleting = history.consumed = False
        made = {queue.name for queue in vhost}
        assert made <= set(self.queues), f"queues from nowhere: {made - set(self.queues)}"

    async def _work(self, broker: Broker, rng: random.Random, steps: int) -> None:
        seats: dict[str, Seat] = {}
        try:
            for _ in range(steps):
                if broker.over.is_set():
                    return
                self._act(broker.catalog, seats, rng)
                await trio.sleep(rng.choice((0, 0, 0.0005, 0.002, 0.3, 1.5)))
                for each in seats.values():
                    await each.listen()
        finally:
            for each in seats.values():
                each.end()

    def _act(self, catalog: Catalog, seats: dict[str, Seat], rng: random.Random) -> None:
        vhost = catalog.lookup_vhost("/")
        names = [name for name in self.queues if vhost.find(name) is not None]
        if len(names) < 3 or (len(names) < 8 and rng.random() < 0.1):
            name = self._declare(catalog, rng)
        else:
            name = rng.choice(names)
        queue = vhost.find(name)
        if queue is None:
            return
        seat = seats.get(name)
        if seat is None:
            seat = seats[name] = Seat(queue, self.queues[name])
        deed = rng.randrange(100)
        if deed < 40 or not seat.history.published:
            seat.publish(rng.choice((1, 1, 3, 20)))
        elif deed < 60:
            seat.consume(rng.randrange(1, 40))
        elif deed < 80:
            seat.settle(rng)
        elif deed < 83:
            seat.leave()
        elif deed < 87:
            seat.history.deleting = True
            catalog.propose(DeleteQueue("/", name, send_delete=False))
            seat.history.promised = set()
            seats.pop(name).end()

    def _declare(self, catalog: Catalog, rng: random.Random) -> str:
        self.made += 1
        kind = rng.choice(self.kinds)
        name = f"{kind.name}{self.made}"
        self.queues[name] = History(kind)
        try:
            declare(catalog, "/", name, arguments={"x-queue-type": kind.name, **dict(kind.arguments)})
        except BrokerError:
            pass  # refused in words; it may be there all the same, or not
        return name

    @asynccontextmanager
    async def _open_syncer(self, *, delay_ms: int = 0) -> AsyncIterator[Node]:
        yield self

    async def sync(self, fds: Sequence[int]) -> None:
        """Sync as `runtime.journal.journal_task.Syncer.sync` does: the helper has its own descriptors."""
        theirs = [self.disk.duplicate(fd) for fd in fds]
        for fd in theirs:
            await trio.sleep(0.0004)
            try:
                self.disk.sync(fd)
            except OSError as error:
                raise StorageFailed("the data folder", f"cannot be synced: {error}", "look") from error
            finally:
                self.disk.close(fd)


def faults_of(disk: SimDisk) -> list[StorageError]:
    """Return what `storage check` reports of the folder on a disk."""
    try:
        folder = inspect_data_folder(disk, FOLDER)
    except StorageError as error:
        return [error]
    try:
        found = list(check_folder(disk, folder, Contents()))
    except StorageError as error:
        return [error]
    finally:
        folder.close()
    return [checked.fault for checked in found if checked.fault is not None]


class NoMeter:
    """A machine with room for everything."""

    def memory_used(self) -> int | None:
        return 1 << 20

    def memory_total(self) -> int | None:
        return 1 << 34

    def disk_free(self, path: str) -> int | None:
        return 1 << 40

    def busy_s(self) -> float:
        return 0.0

    def give_back(self) -> None:
        """Nothing is held."""


@asynccontextmanager
async def _while_well(broker: Broker) -> AsyncIterator[None]:
    """Stop waiting when the broker cannot continue."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await broker.over.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()
