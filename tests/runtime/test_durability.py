"""A broker with a data folder, stopped and started again: what queues keep, and when they say so."""

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
from amqp10broker.message.amqp10 import header_of, make_head
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp10.performatives import Header, Transfer
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues import commands
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues import queues
from tests.runtime.test_queue_faults import break_at_publish
from tests.support.declaring import declare, remove
from tests.support.journal_harness import files_of
from tests.support.rawframes import attach_receiver, begin, credit
from tests.support.reply_addresses import reply_to_at
from tests.support.trioclient import connect, eventually

pytestmark = pytest.mark.real_clock

SAFE = make_head(Header(durable=True), None, "", "q")
LOST = make_head(None, None, "", "q")
both_kinds = pytest.mark.parametrize("kind", ["classic", "quorum"])
LIFE_S = 90.0
"""In which a broker's life must end. Some lives have a hundred syncs, and a disk may take long for each."""


class Client:
    """Posts to one queue, as a session does; notes publishes confirmed and refused, and deliveries by key."""

    def __init__(self, queue: DeclaredQueue) -> None:
        self.mailbox: Mailbox[list[commands.Effect]] = Mailbox()
        self.reply_to = reply_to = reply_to_at(queue, self.mailbox)
        self.queue = queue
        self.publisher = reply_to.publisher()
        self.consumer = reply_to.consumer()
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self.got: dict[int, Message] = {}
        self.replies = self.answers = self.published = 0

    def publish(self, *numbers: int, head: bytes = SAFE) -> None:
        messages = [(head, b"%d" % number) for number in numbers]
        self.queue.handle.post(commands.Publish(self.publisher, numbers, messages, False))
        self.published += len(numbers)

    async def post(self, *numbers: int, head: bytes = SAFE) -> None:
        """Publish, and take effects until each publish has been answered."""
        self.publish(*numbers, head=head)
        await self.listen(until=self.published)

    async def listen(self, *, until: int = 0) -> None:
        while len(self.confirmed) + len(self.refused) < until:
            await self._take()

    def subscribe(self, credit: int, *, drain: bool = False) -> None:
        self.queue.handle.post(commands.Subscribe(self.consumer, False))
        self.queue.handle.post(commands.Credit(self.consumer, 0, credit, drain, 0))

    async def get(self, count: int) -> list[int]:
        """Return the ready messages, up to this number."""
        self.subscribe(count, drain=True)
        while not self.replies:
            await self._take()
        return self.numbers()

    async def receive(self, count: int) -> list[int]:
        while len(self.got) < count:
            await self._take()
        return self.numbers()

    def numbers(self) -> list[int]:
        return [int(body) for _, body in self.got.values()]

    def settle(
        self, *numbers: int, delivery_outcome: commands.DeliveryOutcome = commands.DeliveryOutcome.ACCEPT
    ) -> None:
        keys = [key for key, (_, body) in self.got.items() if int(body) in numbers]
        self.queue.handle.post(commands.Settle(self.consumer, keys, delivery_outcome))

    async def ask(self, command: commands.Inspect | commands.Delete) -> None:
        self.queue.handle.post(command)
        while not self.answers:
            await self._take()

    async def _take(self) -> None:
        for letter in await self.mailbox.take_all():
            for effect in letter:
                self._note(effect)

    def _note(self, effect: commands.Effect) -> None:
        if isinstance(effect, commands.Confirmed):
            self.confirmed += effect.ids
        elif isinstance(effect, commands.Unconfirmed | commands.PublishRejected):
            self.refused += effect.ids
        elif isinstance(effect, commands.Deliver):
            self.got.update(zip(effect.keys, effect.messages, strict=True))
        elif isinstance(effect, commands.CreditReply):
            self.replies += 1
        elif isinstance(effect, commands.Answer):
            self.answers += 1


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@asynccontextmanager
async def broker_on(folder: str, **settings: object) -> AsyncIterator[Broker]:
    config = Config(port=0, data_dir=folder, **settings)  # type: ignore[arg-type]
    with trio.fail_after(LIFE_S):
        async with Broker(config) as broker:
            yield broker


def queue_of(broker: Broker, name: str = "q", kind: str = "classic", **given: Any) -> Client:
    vhost = broker.catalog.lookup_vhost("/")
    given["arguments"] = {"x-queue-type": kind, **given.get("arguments", {})}
    return Client(vhost.find(name) or declare(broker.catalog, vhost, name, **given)[0])


def counts(client: Client) -> tuple[int, int, int]:
    found = client.queue.handle.figures()
    return found.messages_ready, found.messages_unsettled, found.messages_dlx or 0


async def test_persistent_messages_survive_in_order_and_transient_ones_do_not(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        client.publish(1, 2, 3)
        client.publish(4, head=LOST)
        await client.post(5)
    async with broker_on(folder) as broker:
        assert await queue_of(broker).get(9) == [1, 2, 3, 5]


@both_kinds
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "idempotent_recover",
    "publish_and_restart",
    "restart_all_types",
    "restart_queue",
    "server_system_recover",
    "stop_start_rabbit_app",
)
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "basics", "two_quick_enqueues")
async def test_what_was_settled_is_gone_and_what_was_held_is_redelivered(folder: str, kind: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind=kind)
        await client.post(*range(10))
        assert await client.get(6) == list(range(6))
        client.settle(0, 2, 3)
        client.settle(5, delivery_outcome=commands.DeliveryOutcome.REQUEUE)
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        # A quorum queue hands out what was given back before what a consumer held at the end.
        returned = [1, 4, 5] if kind == "classic" else [5, 1, 4]
        assert await client.get(20) == [*returned, 6, 7, 8, 9]
        redelivered = [not header_of(head).first_acquirer for head, _ in client.got.values()]
        assert redelivered == [True, True, True, False, False, False, False]


async def test_priorities_are_kept(folder: str) -> None:
    urgent = make_head(Header(durable=True, priority=3), None, "", "q")
    async with broker_on(folder) as broker:
        client = queue_of(broker, arguments={"x-max-priority": 5})
        client.publish(1, 2)
        await client.post(3, 4, head=urgent)
    async with broker_on(folder) as broker:
        assert await queue_of(broker).get(9) == [3, 4, 1, 2]


@both_kinds
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "delete_declare",
    "no_messages_after_queue_reincarnation",
    "restart_after_queue_reincarnation",
)
async def test_a_queue_that_was_deleted_leaves_nothing_for_one_declared_anew(folder: str, kind: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind=kind)
        await client.post(1)
        remove(broker.catalog, "/", "q")
    async with broker_on(folder) as broker:
        assert broker.catalog.lookup_vhost("/").find("q") is None
        assert await queue_of(broker, kind=kind).get(9) == []


async def test_a_queue_that_is_not_durable_keeps_nothing(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker, durable=False)
        await client.post(1)
        assert broker.journal_task.journal.live_bytes == 0


def hold_syncs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    release = trio.Event()
    real = broker.journal_task.committer._sync

    async def held(fds: list[int]) -> None:
        await release.wait()
        await real(fds)

    monkeypatch.setattr(broker.journal_task.committer, "_sync", held)
    return release


async def test_a_transient_message_is_confirmed_when_it_is_in_its_queue(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 002: this includes one in a batch with persistent ones."""
    async with broker_on(folder) as broker:
        release = hold_syncs(broker, monkeypatch)
        client = queue_of(broker, arguments={"x-max-priority": 5})
        urgent = make_head(Header(priority=3), None, "", "q")
        delayed = make_head(None, {"x-opt-delivery-delay": Long(60_000)}, "", "q")
        heads = [SAFE, LOST, SAFE, urgent, delayed, SAFE]
        messages = [(head, b"%d" % number) for number, head in enumerate(heads)]
        client.queue.handle.post(commands.Publish(client.publisher, range(6), messages, False))
        await client.listen(until=3)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert client.confirmed == [1, 3, 4]
        release.set()
        await client.listen(until=6)
        assert client.confirmed == [1, 3, 4, 0, 2, 5]
        assert await client.get(9) == [3, 0, 1, 2, 5]


@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "rabbit_fifo_returns_correlation")
async def test_a_quorum_queue_says_nothing_before_the_disk_has_it(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confirm, a delivery and an answer are all promises that a restart must not break."""
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind="quorum")
        await client.post(0)
        release = hold_syncs(broker, monkeypatch)
        client.publish(1)
        client.subscribe(10)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert client.mailbox.waiting == 0
        release.set()
        await client.listen(until=2)
        assert await client.receive(2) == [0, 1]


@both_kinds
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "handles_reject_notification")
async def test_a_failed_sync_tells_publishers_and_stops_the_broker(
    folder: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def fail(fds: list[int]) -> None:
        raise StorageFailed("the journal", "the disk is gone", "buy one")

    async def life() -> None:
        async with broker_on(folder) as broker:
            client = queue_of(broker, kind=kind)
            await client.post(1)
            monkeypatch.setattr(broker.journal_task.committer, "_sync", fail)
            client.publish(2)
            await broker.over.wait()
            await client.listen(until=2)
            assert (client.confirmed, client.refused) == ([1], [2])
            if kind == "classic":
                await client.post(3)
                assert client.refused == [2, 3]

    with pytest.raises(StorageFailed, match="the disk is gone"):
        await life()
    monkeypatch.undo()
    async with broker_on(folder) as broker:
        assert 1 in await queue_of(broker).get(9)


async def test_a_fault_in_a_durable_queue_loses_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue restarts with its messages on the disk."""
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        await client.post(1, 2)
        with monkeypatch.context() as patch:
            break_at_publish(patch, "classic")
            await client.post(3)
        assert client.refused == [3]
        assert await queue_of(broker).get(9) == [1, 2]


async def test_a_quorum_queue_that_failed_is_there_again_after_the_next_start(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then none of its records is cleaned away, and nothing is confirmed that was not durable."""
    monkeypatch.setattr("amqp10broker.runtime.journal.journal_task.journal_sizes", files_of(4_000))
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind="quorum")
        await client.post(1, 2, 3)
        other = queue_of(broker, "other")
        with monkeypatch.context() as patch:
            break_at_publish(patch, "quorum")
            await client.post(4)
            assert client.refused == [4]
        for number in range(20):
            await other.post(*range(number * 50, number * 50 + 50), head=SAFE)
            other.queue.handle.post(commands.Purge(other.reply_to.request()))
    async with broker_on(folder) as broker:
        again = Client(broker.catalog.lookup_vhost("/").queues["q"])
        assert await again.get(10) == [1, 2, 3]


async def test_a_classic_queue_that_failed_may_be_deleted_and_its_messages_with_it(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        await client.post(1, 2)
        assert broker.journal_task.journal.live_bytes > 0
        client.queue.handle.fail()  # type: ignore[attr-defined]
        assert broker.journal_task.journal.live_bytes > 0
        client.queue.handle.post(commands.DELETE)
        assert broker.journal_task.journal.live_bytes == 0


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
async def test_a_queue_that_failed_and_is_deleted_on_a_condition_is_not_found_any_more(
    folder: str, kind: str
) -> None:
    """Its own task, which would answer this, has ended."""
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind=kind)
        client.queue.handle.fail()  # type: ignore[attr-defined]
        assert broker.catalog.lookup_vhost("/").find("q") is client.queue
        client.queue.handle.post(commands.Delete(client.reply_to.request(), if_unused=True))
        assert broker.catalog.lookup_vhost("/").find("q") is None
    async with broker_on(folder) as broker:
        assert broker.catalog.lookup_vhost("/").find("q") is None


async def test_a_quorum_queue_that_failed_may_be_deleted_and_the_journal_is_cleaned_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind="quorum")
        await client.post(0)
        with monkeypatch.context() as patch:
            break_at_publish(patch, "quorum")
            await client.post(1)
        assert broker.journal_task._abandoned
        assert broker.journal_task.journal.live_bytes > 0
        client.queue.handle.post(commands.DELETE)
        assert not broker.journal_task._abandoned
        assert broker.journal_task.journal.live_bytes == 0


async def test_letters_wait_until_the_journal_was_read(folder: str) -> None:
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        await client.post(*range(100))
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        client.publish(100)
        assert await client.get(200) == list(range(101))


async def test_time_goes_on_while_the_broker_is_down(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = make_head(Header(durable=True, ttl=60_000), None, "", "q")
    async with broker_on(folder) as broker:
        client = queue_of(broker)
        client.publish(1, head=short)
        await client.post(2)
    from amqp10broker.runtime import clock

    real = clock.time.time
    monkeypatch.setattr(clock.time, "time", lambda: real() + 120)
    async with broker_on(folder) as broker:
        assert await queue_of(broker).get(9) == [2]


@both_kinds
async def test_what_was_put_before_the_broker_stops_is_worked_off(folder: str, kind: str) -> None:
    """A consumer rejects at the last moment: the message must be in one of the two queues afterwards."""
    async with broker_on(folder) as broker:
        client = queue_of(
            broker, kind=kind, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        )
        dead = queue_of(broker, "dead", kind)
        await client.post(*range(50))
        await client.get(30)
        client.settle(*range(0, 30, 2), delivery_outcome=commands.DeliveryOutcome.DISCARD)
        client.settle(*range(1, 30, 2))
        assert dead.queue.handle.figures().messages_ready == 0, "nobody has had a turn yet"
    async with broker_on(folder) as broker:
        assert await queue_of(broker, "dead").get(99) == list(range(0, 30, 2))
        assert await queue_of(broker).get(99) == list(range(30, 50))


async def test_the_configuration_says_how_long_files_are_and_how_many_dead_letters_are_on_their_way(
    folder: str,
) -> None:
    """This includes a quorum queue recovered from the disk."""
    for _ in range(2):
        async with broker_on(folder, journal_file_bytes=1024**2, dead_letter_prefetch=7) as broker:
            assert broker.journal_task.journal._file_bytes_max == 1024**2
            client = queue_of(broker, kind="quorum")
            await client.post(1)
            assert client.queue.handle.backend.queue.dead_letter_prefetch == 7  # type: ignore[attr-defined]


# --- quorum queues --------------------------------------------------------------------------------


async def test_a_consumer_that_reads_gets_thousands_of_messages_a_sync(folder: str) -> None:
    """Each request of credit waits for a sync, so on a slow disk a sync yields one request's messages."""
    async with broker_on(folder) as broker:
        publisher = queue_of(broker, kind="quorum")
        await publisher.post(*range(9_000))
        before = broker.journal_task.committer.commits
        consumer = await connect(broker).open(channels=0)
        await consumer.send(begin(0, incoming_window=100_000), attach_receiver(0, "q"), credit(0, 100_000))
        assert len(await consumer.take(Transfer, 9_000)) == 9_000
        # The subscription, 256, 512, 1 024, and three times 2 048, some in two parts on a busy machine;
        # with 256 each time there were 36.
        assert broker.journal_task.committer.commits - before <= 16


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_rejected")
@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE", "delivery_limit", "expired", "rejected", "target_queue_not_bound"
)
async def test_dead_letters_without_a_target_stay_over_a_restart(folder: str) -> None:
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "target",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind="quorum", arguments=arguments)
        client.publish(1, 2)
        client.subscribe(10)
        await client.receive(2)
        client.settle(1, 2, delivery_outcome=commands.DeliveryOutcome.DISCARD)
        await eventually(lambda: counts(client) == (0, 0, 2))
    async with broker_on(folder) as broker:
        assert counts(queue_of(broker)) == (0, 0, 2)
        queue_of(broker, "target", "quorum")
    # They may have been tried before there was a target, and would then be tried again in three minutes only.
    async with broker_on(folder) as broker:
        target = queue_of(broker, "target")
        target.subscribe(10)
        assert await target.receive(2) == [1, 2]


async def test_a_broker_stops_while_the_end_of_a_queue_is_not_durable(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages for that queue are dropped meanwhile, and the other queues keep theirs."""
    monkeypatch.setattr(queues, "SETTLE_S", 0.0)
    async with broker_on(folder) as broker:
        client, other = queue_of(broker, kind="quorum"), queue_of(broker, "other", "quorum")
        await client.get(1)
        finished = queues.Queues.finish

        def finish(self: queues.Queues) -> None:
            try:
                finished(self)
            finally:
                release.set()

        monkeypatch.setattr(queues.Queues, "finish", finish)
        release = hold_syncs(broker, monkeypatch)
        client.queue.handle.post(commands.Delete())
        await trio.testing.wait_all_tasks_blocked(0.05)
        client.publish(1)
        other.publish(2)
    async with broker_on(folder) as broker:
        assert counts(queue_of(broker, "other")) == (1, 0, 0)
        assert broker.catalog.lookup_vhost("/").find("q") is None


@both_kinds
async def test_what_comes_when_nothing_is_kept_any_more_is_not_answered(folder: str, kind: str) -> None:
    """Other nodes are connected a little longer than the queues of one that stops."""
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind=kind)
        await client.post(1)
    client.publish(2)
    assert client.mailbox.waiting == 0
    async with broker_on(folder) as broker:
        assert counts(queue_of(broker)) == (1, 0, 0)


async def test_space_comes_back_while_old_messages_stay(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots with the live messages cut the log: the disk use of a consumed queue does not grow."""
    monkeypatch.setattr("amqp10broker.runtime.journal.journal_task.journal_sizes", files_of(20_000))
    async with broker_on(folder) as broker:
        client = queue_of(broker, kind="quorum")
        client.publish(0)
        client.subscribe(1)
        await client.receive(1)
        worker = queue_of(broker)
        worker.subscribe(10_000)
        for first in range(1, 4001, 100):
            numbers = range(first, first + 100)
            worker.publish(*numbers)
            await worker.receive(first + 99)
            worker.settle(*numbers)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert broker.journal_task.journal.size_bytes < 100_000
    async with broker_on(folder) as broker:
        assert await queue_of(broker).get(20) == [0]
