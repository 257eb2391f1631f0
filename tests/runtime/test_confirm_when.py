"""Classic queues that confirm when a message is written, beside those that do so when it is synced.

A whole broker on a disk in memory (`tests.support.node`) is killed, or loses power, at random moments; the
clock jumps, so that moments are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

import pytest
import trio
import trio.testing

from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues.commands import Confirmed, Publish
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.journal.journal_task import SOON_S
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.messages import SessionMessage
from tests.support.declaring import declare
from tests.support.disks import PowerLoss
from tests.support.journal_harness import LONG, files_of
from tests.support.node import History, Kind, Node, Seat
from tests.support.reply_addresses import reply_to_at
from tests.support.stored_queue import make_message

LIVES: Final = 200 if LONG else 8
NAMES: Final = ("synced", "written")
PERSISTENT: Final = (0, 1, 2, 4)
"""Of five consecutive numbers, those that are published (`stored_queue.is_persistent`)."""


@dataclass
class Told:
    """What a client knows of a queue that nobody consumes.

    Attributes:
        content: what was there at the last start.
        sent: numbers published since, in order.
        confirmed: when each of these was confirmed.
        waited: the longest time from a publish to its confirm.
    """

    content: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    confirmed: dict[int, float] = field(default_factory=dict)
    waited: float = 0.0

    def compare(self, found: list[int], promised: set[int]) -> None:
        behind = found[len(self.content) :]
        assert found[: len(self.content)] == self.content, "what was there at a start is gone"
        assert behind == self.sent[: len(behind)], "a hole, or out of order"
        assert promised <= set(found), f"confirmed, and lost: {sorted(promised - set(found))}"
        self.content, self.sent, self.confirmed = found, [], {}


class Confirming(Node):
    """A node with a queue of each sort, that ends at a random moment.

    Attributes:
        told: what is known of each queue.
        sync_s: how long the disk takes.
        killed: the last life ended by a kill, not by a loss of power.
        ended_at: when it ended.
        risked: lives that ended when something was confirmed and not synced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        super().__init__(monkeypatch, seed)
        self.told = {name: Told() for name in NAMES}
        self.sync_s = 0.0004
        self.killed = False
        self.ended_at = 0.0
        self.number = 0
        self.risked = 0

    def _queue(self, broker: Broker, name: str) -> DeclaredQueue:
        vhost = broker.catalog.lookup_vhost("/")
        given = {"x-confirm-when": name} if name == "written" else {}
        return vhost.find(name) or declare(broker.catalog, vhost, name, arguments=given)[0]

    async def _compare(self, broker: Broker, *, look: bool) -> None:
        for name, told in self.told.items():
            promised = set(told.confirmed)
            if name == "written" and not self.killed:
                # What the disk was not given yet, and what it had not done.
                last = self.ended_at - SOON_S - 3 * self.sync_s
                promised = {number for number, when in told.confirmed.items() if when < last}
            found = await Seat(self._queue(broker, name), History(Kind("classic"))).look()
            told.compare(found, promised)

    async def _work(self, broker: Broker, rng: random.Random, steps: int) -> None:
        async with trio.open_nursery() as nursery:
            publishers = {name: _Publisher(self._queue(broker, name), self.told[name]) for name in NAMES}
            for each in publishers.values():
                nursery.start_soon(each.listen)
            for _ in range(steps):
                numbers = [5 * self.number + rest for rest in PERSISTENT[: rng.randrange(1, 5)]]
                self.number += 1
                publishers[rng.choice(NAMES)].publish(numbers)
                await trio.sleep(rng.choice((0, 0, 0.0003, 0.01, 0.08, 0.5)))
            publishers["written"].publish([5 * self.number])
            self.number += 1
            await publishers["written"].confirmed.wait()
            self.risked += broker.journal_task.journal.unsynced_bytes > 0
            self.ended_at = trio.current_time()
            raise PowerLoss(0)

    async def sync(self, fds: object) -> None:
        await trio.sleep(self.sync_s)
        await super().sync(fds)  # type: ignore[arg-type]


class _Publisher:
    def __init__(self, queue: DeclaredQueue, told: Told) -> None:
        self._mailbox: Mailbox[SessionMessage] = Mailbox()
        self._ref = reply_to_at(queue, self._mailbox).publisher()
        self._queue = queue
        self._told = told
        self._sent: dict[int, float] = {}
        self.confirmed = trio.Event()
        """Set when all that was sent is."""

    def publish(self, numbers: list[int]) -> None:
        self.confirmed = trio.Event()
        self._told.sent += numbers
        self._sent |= dict.fromkeys(numbers, trio.current_time())
        messages = [make_message(number) for number in numbers]
        self._queue.handle.post(Publish(self._ref, numbers, messages, False))

    async def listen(self) -> None:
        told = self._told
        while True:
            for letter in await self._mailbox.take_all():
                assert isinstance(letter, list)
                for effect in letter:
                    assert isinstance(effect, Confirmed)
                    now = trio.current_time()
                    told.confirmed |= dict.fromkeys(effect.ids, now)
                    told.waited = max(told.waited, *(now - self._sent[number] for number in effect.ids))
            if told.confirmed.keys() >= set(told.sent):
                self.confirmed.set()


@pytest.mark.parametrize("seed", range(10 if LONG else 1))
def test_what_was_written_is_lost_with_the_power_only_and_only_the_last_of_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses no confirmed message; a loss of power loses only the end of queues that chose it."""
    rng = random.Random(seed)
    node = Confirming(monkeypatch, seed)
    for _ in range(LIVES):
        node.sync_s = rng.choice((0.0004, 0.005, 0.05))
        node.live(rng, rng.randrange(5, 60))
        assert node.refused is None, node.refused
        node.killed = rng.random() < 0.4
        disk = node.disk
        node.disk = disk.after_kill() if node.killed else disk.after_power_loss(rng.randrange(1 << 30))
    node.live(rng, 0)
    assert node.refused is None, node.refused
    assert node.risked > LIVES // 2
    assert all(told.content for told in node.told.values())


def test_a_confirm_of_what_is_written_waits_for_no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Confirming(monkeypatch, 7)
    monkeypatch.setattr("amqp10broker.runtime.journal.journal_task.journal_sizes", files_of(1_000_000))
    node.live(random.Random(1), 1)
    node.killed = True
    node.disk = node.disk.after_kill()
    node.sync_s = 2.0
    for told in node.told.values():
        told.waited = 0.0
    node.live(random.Random(2), 60)
    assert node.told["synced"].waited > node.sync_s
    assert node.told["written"].waited == 0.0
