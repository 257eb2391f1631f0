"""Quorum queues in a broker that is killed, and started again with what was durable then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from amqp10broker.queues import commands
from tests.runtime.test_durability import broker_on, counts, queue_of

pytestmark = pytest.mark.real_clock


class Killed:
    """The data folders of a broker's lives: each begins with what is on the disk when the one before is
    killed, and nothing of how that one ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._life = 0

    @property
    def folder(self) -> str:
        return str(self._path / f"life{self._life}")

    def kill(self) -> None:
        """The next life begins with the present content of the disk."""
        before = self.folder
        self._life += 1
        shutil.copytree(before, self.folder)


@pytest.fixture
def lives(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


async def test_a_session_is_not_taken_for_one_of_the_life_before(lives: Killed) -> None:
    """Both have the same count of sessions since the start, but each start has a number of its own."""
    async with broker_on(lives.folder) as broker:
        before = queue_of(broker, kind="quorum")
        before.publish(0, 1)
        await before.listen(until=2)
        assert await before.get(10) == [0, 1]
        assert before.reply_to.id.incarnation == 1
        lives.kill()
    for life in range(2):
        async with broker_on(lives.folder) as broker:
            client = queue_of(broker)
            assert client.reply_to.id == before.reply_to.id._replace(incarnation=2 + life)
            assert counts(client) == (2 + life, 0, 0)
            assert client.queue.handle.figures().consumers == 0
            # Neither has anything, so none of this is about anything: it holds none, and has no credit.
            for consumer in (before.consumer, client.consumer):
                settle = commands.Settle(consumer, list(before.got), commands.DeliveryOutcome.ACCEPT)
                client.queue.handle.post(settle)
                client.queue.handle.post(commands.Credit(consumer, 0, 10, False, 2))
                client.queue.handle.post(
                    commands.Unsubscribe(consumer, [], [], 2, commands.DeliveryOutcome.ACCEPT)
                )
            client.publish(2 + life)
            await client.ask(commands.Inspect(client.reply_to.request()))
            assert (client.got, client.replies) == ({}, 0)
            assert counts(client) == (3 + life, 0, 0)
            # What came back first is first, and only as much as this one has asked for.
            assert await client.get(1) == [life]
            assert counts(client) == (2 + life, 1, 0)
            lives.kill()


async def test_what_dies_of_the_kill_is_dead_lettered_though_nobody_asks_the_queue(lives: Killed) -> None:
    """A delivery that was lost with the broker counts, and may be one too many."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target", "x-delivery-limit": 0}
    async with broker_on(lives.folder) as broker:
        queue_of(broker, "target", "quorum")
        client = queue_of(broker, kind="quorum", arguments=arguments)
        client.publish(1)
        client.subscribe(10)
        assert await client.receive(1) == [1]
        lives.kill()
    async with broker_on(lives.folder) as broker:
        target = queue_of(broker, "target")
        target.subscribe(10)
        with trio.fail_after(120):
            assert await target.receive(1) == [1]
        assert counts(queue_of(broker)) == (0, 0, 0)


async def test_a_queue_whose_end_the_catalog_does_not_know_is_gone(lives: Killed) -> None:
    """Journal and catalog are synced together; power may fail with only one of them on the disk."""
    async with broker_on(lives.folder) as broker:
        client = queue_of(broker, kind="quorum")
        client.publish(1)
        await client.listen(until=1)
        client.queue.handle._on_deleted = lambda gone: None  # type: ignore[attr-defined]
        await client.ask(commands.Delete(client.reply_to.request()))
        lives.kill()
    async with broker_on(lives.folder) as broker:
        assert broker.catalog.lookup_vhost("/").find("q") is None
        client = queue_of(broker, kind="quorum")
        client.publish(2)
        await client.listen(until=1)
        lives.kill()
    async with broker_on(lives.folder) as broker:
        assert await queue_of(broker).get(10) == [2]
