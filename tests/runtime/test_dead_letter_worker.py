"""Dead letters from queue to queue in a running broker: at most once, and at least once by a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from amqp10broker.metadata.policies import Policy
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.routing.exchange_types import Binding, Destination
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.queues.dead_letter_worker import DeadLetterWorker
from amqp10broker.sessions.dead_letters import RETRY_MS, DeadLetterTarget
from tests.runtime.conftest import LogRecorder
from tests.support import declaring
from tests.support.dead_letters import held
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, frame, transfer
from tests.support.trioclient import connect, running_broker
from tests.support.trioclient091 import Client091, connect091, message

DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@asynccontextmanager
async def open_client(**arguments: dict[str, Any]) -> AsyncIterator[tuple[Broker, Client091]]:
    """Open a client with the queue dead, and a queue for each argument."""
    async with running_broker() as broker:
        client = await connect091(broker).open()
        for name, given in (("dead", {}), *arguments.items()):
            await client.call(
                1, methods.QueueDeclare(name, durable=True, arguments=given), methods.QueueDeclareOk
            )
        yield broker, client


async def get(client: Client091, queue: str) -> tuple[int, BasicProperties, bytes] | None:
    await client.send(1, methods.BasicGet(queue))
    _, got = await client.next()
    if isinstance(got, methods.BasicGetEmpty):
        return None
    assert isinstance(got, Content)
    return got.method.delivery_tag, decode_properties(got.properties), bytes(got.body)


async def bodies(client: Client091, queue: str) -> str:
    found = []
    while (got := await get(client, queue)) is not None:
        found.append(got[2].decode())
    return "".join(found)


def counts(broker: Broker, queue: str) -> dict[str, Any]:
    (found,) = [each for each in broker.status()["queues"] if each["name"] == queue]
    return dict(found["dead_lettered"])


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "metric_expired_per_msg_msg_ttl",
    "metric_expired_queue_msg_ttl",
    "metric_maxlen",
    "metric_rejected",
    differs="counted for queues that have a dead-letter exchange only",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "untracked_enq_deq_test", note="what no client publishes arrives like any message"
)
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "untracked_enqueue")
@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "dead_letter_nack",
    "dead_letter_nack_requeue_nack_norequeue_basic_consume",
    "dead_letter_nack_requeue_nack_norequeue_basic_get",
    "dead_letter_reject_requeue_reject_norequeue",
)
@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_reject")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "dead_letter_from_classic_to_quorum_queue",
    "dead_letter_to_classic_queue",
    "dead_letter_to_quorum_queue",
)
async def test_rejected_messages_go_to_the_dead_letter_exchange() -> None:
    """They go in queue order, for settlements of either protocol; status counts them."""
    async with open_client(q=DLX) as (broker, client):
        await client.send(1, *[message(1, "q", body) for body in (b"1", b"2", b"3", b"4")])
        for _ in range(4):
            last = await get(client, "q")
        await client.send(1, methods.BasicNack(last[0], multiple=True, requeue=False))
        assert await bodies(client, "dead") == "1234"
        assert counts(broker, "q") == {"rejected": 4}


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_ttl")
async def test_expired_messages_go_when_their_time_has_come() -> None:
    """No request reaches the queue; the record has the time, and the time to live is gone."""
    async with open_client(q={**DLX, "x-message-ttl": 60_000}) as (broker, client):
        began_ms = broker.clock.now_ms()
        await client.send(1, message(1, "q", b"1", expiration="5000"), message(1, "q", b"2"))
        await trio.sleep(4.9)
        assert await bodies(client, "dead") == ""
        await trio.sleep(0.2)
        got = await get(client, "dead")
        assert got is not None
        _, properties, body = got
        assert (body, properties.expiration) == (b"1", None)
        (death,) = properties.headers["x-death"]
        assert death["original-expiration"] == "5000"
        # A timer wakes a millisecond late rather than early, which may be the next second.
        assert (began_ms + 5000) // 1000 <= death["time"] <= broker.clock.now_ms() // 1000
        await trio.sleep(60)
        assert await bodies(client, "dead") == "2"
        assert counts(broker, "q") == {"expired": 2}


async def test_an_automatic_cycle_ends_and_is_logged_once(log: LogRecorder) -> None:
    """Two queues exchange their expired messages: a message is dropped when it comes round."""
    there = {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}
    back = {**there, "x-dead-letter-routing-key": "a"}
    async with open_client(a=there, b=back) as (broker, client):
        await client.send(1, message(1, "a", b"1"), message(1, "a", b"2"))
        await trio.sleep(1)
        assert (counts(broker, "a"), counts(broker, "b")) == ({"expired": 2}, {"expired": 2})
        assert await bodies(client, "a") == await bodies(client, "b") == ""
        assert [fields for _, fields in log.of("warning")] == [{"vhost": "/", "queue": "b", "target": "a"}]


# --- at least once ----------------------------------------------------------------------------------


class Source:
    """A queue that hands out dead messages to a worker, and what it was told to drop."""

    def __init__(self, broker: Broker, exchange: str = "", key: str | None = "target") -> None:
        self.settled: list[int] = []
        self.worker = DeadLetterWorker(
            broker.catalog,
            "/",
            "source",
            DeadLetterTarget(exchange, key),
            self._settle,
            broker.reply_registry,
            broker.clock,
        )

    def _settle(self, keys: Sequence[int]) -> None:
        self.settled += keys

    def offer(self, *keys: int) -> None:
        self.worker.offer(held(*keys))


@asynccontextmanager
async def running_source(
    broker: Broker, exchange: str = "", key: str | None = "target"
) -> AsyncIterator[Source]:
    source = Source(broker, exchange, key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.worker.run)
        yield source
        source.worker.end()


def ready(broker: Broker, queue: str) -> int:
    return int(broker.catalog.lookup_vhost("/").lookup(queue).handle.figures().messages_ready)


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "dlx_missing")
async def test_the_worker_tries_again_when_the_exchange_is_missing(log: LogRecorder) -> None:
    async with running_broker() as broker, running_source(broker, "later", None) as source:
        vhost = broker.catalog.lookup_vhost("/")
        declaring.declare(broker.catalog, vhost, "target")
        source.offer(1)
        await trio.sleep(2.5 * RETRY_MS / 1000)
        assert (source.settled, len(source.worker._forwarding)) == ([], 1)
        assert [fields["exchange"] for _, fields in log.of("warning")] == ["later"]
        source.worker.redirect(DeadLetterTarget("", "target"))
        await trio.testing.wait_all_tasks_blocked()
        assert source.settled == [1]


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "dlx_missing")
async def test_the_worker_tries_again_when_the_exchange_and_the_binding_appear() -> None:
    """It does so within a second, and does not wait for the confirm's time limit."""
    async with running_broker() as broker, running_source(broker, "later", None) as source:
        vhost = broker.catalog.lookup_vhost("/")
        source.offer(1)
        await trio.sleep(5.5)
        declaring.declare(broker.catalog, vhost, "target")
        declaring.declare_exchange(broker.catalog, vhost, "later", "fanout", durable=True)
        await trio.sleep(1)
        assert source.settled == []
        declaring.bind(broker.catalog, vhost, Binding("later", Destination("queue", "target")))
        await trio.sleep(1)
        assert (source.settled, ready(broker, "target")) == ([1], 1)


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE",
    "reject_publish_max_length_target_quorum_queue",
    "reject_publish_target_classic_queue",
)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_the_worker_tries_again_when_the_target_is_full(kind: str) -> None:
    """It does so within a second after a consumer makes room; a full target gets none meanwhile."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish", "x-queue-type": kind}
    async with running_broker() as broker, running_source(broker) as source:
        declaring.declare(broker.catalog, "/", "target", arguments=full)
        source.offer(1, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert source.settled == [1]
        client = await connect091(broker).open()
        await trio.sleep(5.5)
        assert broker.catalog.lookup_vhost("/").lookup("target").handle.counters.rejected == 1
        assert await bodies(client, "target") == "1"
        await trio.sleep(1)
        assert source.settled == [1, 2]
        assert await bodies(client, "target") == "2"


async def test_the_worker_survives_the_end_of_its_virtual_host(broker: Broker) -> None:
    """The worker waits until the queue reports its end."""
    declaring.add_vhost(broker.catalog, "other")
    worker = DeadLetterWorker(
        broker.catalog,
        "other",
        "source",
        DeadLetterTarget("none", None),
        print,
        broker.reply_registry,
        broker.clock,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        worker.offer(held(1))
        await trio.testing.wait_all_tasks_blocked()
        assert len(worker._forwarding) == 1
        declaring.delete_vhost(broker.catalog, "other")
        await trio.sleep(2 * RETRY_MS / 1000)
        assert len(worker._forwarding) == 0
        worker.end()


@pytest.mark.parametrize("say", ["forget", "end"])
async def test_the_worker_sends_nothing_again_that_was_dropped(say: str) -> None:
    """A purge or the queue's end drops them."""
    async with running_broker() as broker, running_source(broker) as source:
        source.offer(1)
        await trio.testing.wait_all_tasks_blocked()
        getattr(source.worker, say)()
        declaring.declare(broker.catalog, "/", "target")
        await trio.sleep(2 * RETRY_MS / 1000)
        assert (ready(broker, "target"), source.settled) == (0, [])


async def test_what_is_rejected_just_before_a_temporary_queue_goes_is_a_dead_letter() -> None:
    """The queue is deleted with its link, after all dispositions that the client sent."""
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    async with running_broker() as broker:
        dead, _ = declaring.declare(broker.catalog, "/", "dead")
        declaring.put_policy(broker.catalog, "/", Policy("dlx", r"^amq\.dyn", definition))
        client = await connect(broker).open()
        source = amqp10.Source(dynamic=True, capabilities=(Symbol("temporary-queue"),))
        await client.send(attach_receiver(0, "", source=source), credit(0, 1))
        name = (await client.until(amqp10.Attach)).source.address
        await client.send(attach_sender(1, name), transfer(1, 0, b"x", settled=True))
        delivery = await client.until(amqp10.Transfer)
        await client.send(
            disposition(delivery.delivery_id, state=amqp10.Rejected()),
            frame(0, amqp10.Detach(handle=0, closed=True)),
        )
        await client.until(amqp10.Detach)
        await client.idle()
        assert dead.handle.ready == 1
        assert broker.catalog.lookup_vhost("/").declared == 1
