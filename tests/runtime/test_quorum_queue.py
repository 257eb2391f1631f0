"""Quorum queues in a running broker: confirms, deliveries, time, dead letters; also over a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from amqp10broker.config import Config
from amqp10broker.errors import StorageFailed
from amqp10broker.message.amqp10 import decode_head, make_head
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp10.performatives import Transfer
from amqp10broker.queues.commands import (
    Answer,
    Confirmed,
    Credit,
    CreditReply,
    Delete,
    Deliver,
    DeliveryOutcome,
    Effect,
    Publish,
    PublishRejected,
    Settle,
    Settled,
    Subscribe,
    Unconfirmed,
)
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues import queues
from tests.support.askers import asker_at
from tests.support.declaring import declare
from tests.support.journals import files_of
from tests.support.rawframes import attach_receiver, begin, credit
from tests.support.trioclient import connect

HEAD = make_head(None, None, "", "q")
"""Not durable: a quorum queue keeps it all the same."""

QUORUM = {"x-queue-type": "quorum"}

LIFE_S = 90.0
"""In which a broker's life must end. Some lives have many syncs, and a disk may take long for each."""


class Client:
    """Posts to one queue, as a session does, and keeps what it hears."""

    def __init__(self, queue: DeclaredQueue) -> None:
        self.mailbox: Mailbox[list[Effect]] = Mailbox()
        self.reply_to = asker_at(queue, self.mailbox)
        self.queue = queue
        self.publisher = self.reply_to.publisher()
        self.consumer = self.reply_to.consumer()
        self.told: list[Effect] = []
        self.seen = 0

    def publish(self, *numbers: int) -> None:
        messages = [(HEAD, b"%d" % number) for number in numbers]
        self.queue.handle.post(Publish(self.publisher, numbers, messages, False))

    def subscribe(self, credit: int = 10) -> None:
        self.queue.handle.post(Subscribe(self.consumer, False))
        self.queue.handle.post(Credit(self.consumer, 0, credit, False, 0))

    def settle(self, delivery_outcome: DeliveryOutcome, *, answer: bool = False) -> None:
        self.queue.handle.post(
            Settle(self.consumer, list(self.deliveries()), delivery_outcome, answer=answer)
        )

    async def hear(self, kind: type[Effect], times: int = 1) -> None:
        """Take what comes, until there were so many effects of a kind."""
        while sum(isinstance(each, kind) for each in self.told) < times:
            for letter in await self.mailbox.take_all():
                self.told += letter

    def ids(self, kind: type[Confirmed | PublishRejected | Unconfirmed]) -> list[int]:
        return [number for each in self.told if isinstance(each, kind) for number in each.ids]

    def deliveries(self) -> dict[int, Message]:
        return {
            key: message
            for each in self.told
            if isinstance(each, Deliver)
            for key, message in zip(each.keys, each.messages, strict=True)
        }

    def got(self) -> list[int]:
        return [int(body) for _, body in self.deliveries().values()]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@asynccontextmanager
async def broker_on(folder: str | None) -> AsyncIterator[Broker]:
    with trio.fail_after(LIFE_S):
        async with Broker(Config(port=0, data_dir=folder)) as broker:
            yield broker


def client_of(broker: Broker, name: str = "q", **arguments: Any) -> Client:
    vhost = broker.catalog.lookup_vhost("/")
    return Client(
        vhost.find(name) or declare(broker.catalog, vhost, name, arguments={**QUORUM, **arguments})[0]
    )


def counts(client: Client) -> tuple[int, int, int]:
    found = client.queue.handle.figures()
    return found.messages_ready, found.messages_unsettled, found.messages_dlx or 0


@pytest.mark.real_clock
async def test_a_consumer_that_reads_gets_thousands_of_messages_a_sync(folder: str) -> None:
    """Each request of credit waits for a sync: what a slow disk hands out is what one of them asks for."""
    async with broker_on(folder) as broker:
        publisher = client_of(broker)
        publisher.publish(*range(9_000))
        await publisher.hear(Confirmed)
        before = broker.journal_task.committer.commits
        consumer = await connect(broker).open(channels=0)
        await consumer.send(begin(0, incoming_window=100_000), attach_receiver(0, "q"), credit(0, 100_000))
        assert len(await consumer.take(Transfer, 9_000)) == 9_000
        # The subscription, 256, 512, 1 024, and three times 2 048, some in two parts on a busy machine;
        # with 256 each time there were 36.
        assert broker.journal_task.committer.commits - before <= 16


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def where(request: pytest.FixtureRequest, folder: str) -> str | None:
    return folder if request.param else None


@pytest.mark.real_clock
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "basics", "two_quick_enqueues")
async def test_messages_are_confirmed_delivered_and_settled(where: str | None) -> None:
    async with broker_on(where) as broker:
        client = client_of(broker)
        client.publish(1, 2, 3)
        await client.hear(Confirmed)
        assert client.ids(Confirmed) == [1, 2, 3]
        client.subscribe(2)
        await client.hear(CreditReply)
        assert client.got() == [1, 2]
        client.settle(DeliveryOutcome.ACCEPT, answer=True)
        await client.hear(Settled)
        assert counts(client) == (1, 0, 0)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_rejected")
@pytest.mark.real_clock
async def test_dead_letters_go_at_most_once(where: str | None) -> None:
    async with broker_on(where) as broker:
        target = client_of(broker, "target")
        client = client_of(broker, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"})
        client.publish(1)
        client.subscribe()
        await client.hear(Deliver)
        client.settle(DeliveryOutcome.DISCARD)
        target.subscribe()
        await target.hear(Deliver)
        assert target.got() == [1]
        assert client.queue.handle.counters.dead_lettered == {"rejected": 1}


AT_LEAST_ONCE = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "target",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "delivery_limit", "expired")
@pytest.mark.real_clock
@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "rejected")
async def test_dead_letters_go_at_least_once(where: str | None) -> None:
    async with broker_on(where) as broker:
        target = client_of(broker, "target")
        client = client_of(broker, **AT_LEAST_ONCE)
        client.publish(*range(100))
        client.subscribe(100)
        while len(client.got()) < 100:
            await client.hear(Deliver, sum(isinstance(each, Deliver) for each in client.told) + 1)
        client.settle(DeliveryOutcome.DISCARD_FAILED)
        target.subscribe(200)
        while len(target.got()) < 100:
            await target.hear(Deliver, sum(isinstance(each, Deliver) for each in target.told) + 1)
        assert sorted(target.got()) == list(range(100))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert counts(client) == (0, 0, 0)


@pytest.mark.real_clock
@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "target_queue_not_bound")
async def test_dead_letters_without_a_target_stay_over_a_restart(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = client_of(broker, **AT_LEAST_ONCE)
        client.publish(1, 2)
        client.subscribe()
        await client.hear(Deliver)
        client.settle(DeliveryOutcome.DISCARD, answer=True)
        await client.hear(Settled)
        assert counts(client) == (0, 0, 2)
    async with broker_on(folder) as broker:
        assert counts(client_of(broker, **AT_LEAST_ONCE)) == (0, 0, 2)
        client_of(broker, "target")
    # They may have been tried before there was a target, and would then be tried again in three minutes only.
    async with broker_on(folder) as broker:
        target = client_of(broker, "target")
        target.subscribe()
        while len(target.got()) < 2:
            await target.hear(Deliver, sum(isinstance(each, Deliver) for each in target.told) + 1)
        assert target.got() == [1, 2]


@pytest.mark.real_clock
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "idempotent_recover",
    "publish_and_restart",
    "restart_all_types",
    "restart_queue",
    "server_system_recover",
    "stop_start_rabbit_app",
)
async def test_everything_confirmed_is_there_after_a_restart_and_nothing_settled(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = client_of(broker)
        client.publish(*range(10))
        await client.hear(Confirmed)
        client.subscribe(4)
        await client.hear(CreditReply)
        keys = list(client.deliveries())
        client.queue.handle.post(Settle(client.consumer, keys[1:3], DeliveryOutcome.ACCEPT, answer=True))
        await client.hear(Settled)
    async with broker_on(folder) as broker:
        again = client_of(broker)
        again.subscribe(20)
        await again.hear(CreditReply)
        assert again.got() == [0, 3, 4, 5, 6, 7, 8, 9]
        annotations = decode_head(next(iter(again.deliveries().values()))[0])[1]
        assert (annotations["x-acquired-count"], annotations["x-delivery-count"]) == (1, 1)


@pytest.mark.real_clock
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "rabbit_fifo_returns_correlation")
async def test_nobody_hears_before_the_disk_has_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirm, a delivery and an answer are all promises that a restart must not break."""
    async with broker_on(folder) as broker:
        client = client_of(broker)
        client.publish(0)
        await client.hear(Confirmed)
        gate = trio.Event()
        sync = broker.journal_task.committer._sync

        async def slow(fds: list[int]) -> None:
            await gate.wait()
            await sync(fds)

        monkeypatch.setattr(broker.journal_task.committer, "_sync", slow)
        client.told.clear()
        client.publish(1)
        client.subscribe()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert client.mailbox.waiting == 0
        gate.set()
        await client.hear(CreditReply)
        assert client.ids(Confirmed) == [1]
        assert client.got() == [0, 1]


@pytest.mark.real_clock
async def test_a_broker_stops_while_the_end_of_a_queue_is_not_durable(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes to that queue in the meantime is for nobody, and the others keep what was put into them."""
    monkeypatch.setattr(queues, "SETTLE_S", 0.0)
    async with broker_on(folder) as broker:
        client, other = client_of(broker), client_of(broker, "other")
        client.subscribe()
        await client.hear(CreditReply)
        gate = trio.Event()
        sync = broker.journal_task.committer._sync

        async def slow(fds: list[int]) -> None:
            await gate.wait()
            await sync(fds)

        def finish(self: queues.Queues) -> None:
            try:
                finished(self)
            finally:
                gate.set()

        finished = queues.Queues.finish
        monkeypatch.setattr(queues.Queues, "finish", finish)
        monkeypatch.setattr(broker.journal_task.committer, "_sync", slow)
        client.queue.handle.post(Delete())
        await trio.testing.wait_all_tasks_blocked(0.05)
        client.publish(1)
        other.publish(2)
    async with broker_on(folder) as broker:
        assert counts(client_of(broker, "other")) == (1, 0, 0)
        assert broker.catalog.lookup_vhost("/").find("q") is None


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_what_comes_when_nothing_is_kept_any_more_is_not_answered(folder: str, kind: str) -> None:
    """Other nodes are connected a little longer than the queues of one that stops."""
    async with broker_on(folder) as broker:
        client = client_of(broker, **{"x-queue-type": kind})
        client.publish(1)
        await client.hear(Confirmed)
    client.publish(2)
    assert client.mailbox.waiting == 0
    async with broker_on(folder) as broker:
        assert counts(client_of(broker)) == (1 if kind == "quorum" else 0, 0, 0)


@pytest.mark.real_clock
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "handles_reject_notification")
async def test_publishers_hear_when_nothing_can_be_kept(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageFailed, match="the sync failed"):  # noqa: PT012
        async with broker_on(folder) as broker:
            client = client_of(broker)
            client.publish(0)
            await client.hear(Confirmed)

            async def broken(fds: list[int]) -> None:
                raise StorageFailed("journal", "the sync failed", "look at the disk")

            monkeypatch.setattr(broker.journal_task.committer, "_sync", broken)
            client.publish(1)
            await client.hear(Unconfirmed)
            assert client.ids(Unconfirmed) == [1]
            assert client.ids(Confirmed) == [0]


@pytest.mark.real_clock
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "delete_declare",
    "no_messages_after_queue_reincarnation",
    "restart_after_queue_reincarnation",
)
async def test_a_deleted_queue_leaves_nothing_for_one_declared_anew(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = client_of(broker)
        client.publish(1, 2)
        await client.hear(Confirmed)
        client.queue.handle.post(Delete(client.reply_to.request()))
        await client.hear(Answer)
        client_of(broker)
    async with broker_on(folder) as broker:
        client = client_of(broker)
        client.subscribe()
        await client.hear(CreditReply)
        assert client.got() == []


@pytest.mark.real_clock
async def test_space_comes_back_while_old_messages_stay(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut by snapshots with what lives: a queue that is consumed does not grow on the disk."""
    monkeypatch.setattr("amqp10broker.runtime.journal.journal_task.journal_sizes", files_of(20_000))
    async with broker_on(folder) as broker:
        client = client_of(broker)
        client.publish(0)
        await client.hear(Confirmed)
        client.subscribe(1)
        await client.hear(Deliver)
        worker = client_of(broker)
        worker.subscribe(10_000)
        for first in range(1, 4001, 100):
            worker.publish(*range(first, first + 100))
            before = len(worker.got())
            while len(worker.got()) < before + 100:
                await worker.hear(Deliver, sum(isinstance(each, Deliver) for each in worker.told) + 1)
            keys = list(worker.deliveries())[before:]
            worker.queue.handle.post(Settle(worker.consumer, keys, DeliveryOutcome.ACCEPT))
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert broker.journal_task.journal.size_bytes < 100_000
    async with broker_on(folder) as broker:
        again = client_of(broker)
        again.subscribe(20)
        await again.hear(CreditReply)
        assert again.got() == [0]
