"""RabbitMQ's quorum_queue_SUITE case by case, as far as one node can show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import (
    Delivered,
    Inbox,
    Properties,
    get,
    get_all,
    parameters,
    put,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    """A quorum queue; arguments without x-, underscores for dashes."""
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **given})


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def await_ready(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait for so many."""
    until(channel, lambda: ready(channel, queue) == count, f"{count} messages in {queue}")


def counts(delivered: Delivered) -> tuple[bool, Any, Any]:
    """Redelivered, x-acquired-count and x-delivery-count."""
    headers = delivered.properties.headers or {}
    return delivered.method.redelivered, headers.get("x-acquired-count"), headers.get("x-delivery-count")


# --- declaring and deleting ---------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "consume_invalid_arg_1",
    "consume_invalid_arg_2",
    "consume_invalid_consumer_timeout_negative",
    "consume_invalid_consumer_timeout_wrong_type",
)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-stream-offset", 0),
        ("x-priority", "high"),
        ("x-consumer-timeout", -1),
        ("x-consumer-timeout", "long"),
    ],
)
def test_an_argument_that_its_consumers_cannot_have(
    channel: BlockingChannel, queue: str, argument: str, value: Any
) -> None:
    """consume_invalid_arg_1, consume_invalid_arg_2, consume_invalid_consumer_timeout_negative and
    _wrong_type: 406."""
    declare(channel, queue)
    with pytest.raises(ChannelClosedByBroker, match=argument) as caught:
        channel.basic_consume(queue, lambda *_: None, arguments={argument: value})
    assert caught.value.reply_code == 406


# --- publishing and consuming -------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "cancel_and_consume_with_same_tag",
    "cancel_consumer_gh_12424",
    "cancel_consumer_gh_3729",
)
def test_a_tag_may_be_used_again(channel: BlockingChannel, queue: str) -> None:
    """cancel_and_consume_with_same_tag, cancel_consumer_gh_3729, cancel_consumer_gh_12424: the second
    consumer of a tag gets messages; what the first held stays held, and may be acknowledged."""
    declare(channel, queue)
    put(channel, queue, "1")
    first = Inbox(channel, queue, consumer_tag="tag")
    (held,) = first.take()
    channel.basic_cancel("tag")
    second = Inbox(channel, queue, consumer_tag="tag")
    put(channel, queue, "2")
    assert [each.text for each in second.take()] == ["2"]
    channel.basic_nack(held.tag, requeue=True)
    assert [each.text for each in second.take()] == ["1"]


# --- redelivery ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_count")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "consume_redelivery_count")
def test_a_redelivery_says_how_often(channel: BlockingChannel, queue: str) -> None:
    """consume_redelivery_count: basic.nack counts as acquired, basic.reject as a failed attempt too."""
    declare(channel, queue)
    put(channel, queue, "1")
    await_ready(channel, queue, 1)
    seen = []
    for give_back in (channel.basic_nack, channel.basic_reject, channel.basic_reject):
        delivered = get(channel, queue)
        seen.append(counts(delivered))
        give_back(delivered.tag, requeue=True)
        await_ready(channel, queue, 1)
    seen.append(counts(get(channel, queue)))
    assert seen[0][0] is False
    assert seen[0][1:] == (None, None)
    assert [each[0] for each in seen[1:]] == [True] * 3
    assert [each[1] for each in seen[1:]] == [1, 2, 3]
    assert [each[2] or 0 for each in seen[1:]] == [0, 1, 2]


# --- dead letters -------------------------------------------------------------------------------------


def order_of_the_dead(channel: BlockingChannel, queue: str, texts: str) -> None:
    """The dead letters of a queue are these."""
    dead = f"{queue}-dead"
    await_ready(channel, dead, len(texts))
    assert get_all(channel, dead) == [*texts]


def declare_with_the_dead(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    """A quorum queue, and a classic one for its dead letters."""
    channel.queue_declare(f"{queue}-dead", durable=True)
    declare(channel, queue, dead_letter_exchange="", dead_letter_routing_key=f"{queue}-dead", **arguments)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_limit_with_dead_letter")
def test_beyond_the_limit_it_is_dead_lettered(channel: BlockingChannel, queue: str) -> None:
    """subscribe_redelivery_limit_with_dead_letter: reason delivery_limit."""
    declare_with_the_dead(channel, queue, delivery_limit=1)
    inbox = Inbox(channel, queue)
    put(channel, queue, "1")
    for _ in range(2):
        channel.basic_reject(inbox.take()[0].tag, requeue=True)
    await_ready(channel, f"{queue}-dead", 1)
    dead = get(channel, f"{queue}-dead")
    assert dead.properties.headers is not None
    assert dead.properties.headers["x-first-death-reason"] == "delivery_limit"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_rejected")
def test_dead_letters_of_one_nack_keep_their_order(channel: BlockingChannel, queue: str) -> None:
    """at_most_once_dead_letter_order_rejected, dead_letter_to_classic_queue."""
    declare_with_the_dead(channel, queue)
    put(channel, queue, *"123456")
    taken = Inbox(channel, queue).take(6)
    channel.basic_nack(taken[-1].tag, multiple=True, requeue=False)
    order_of_the_dead(channel, queue, "123456")


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "delivery_limit", "expired")
def test_at_least_once_dead_letters_of_each_reason(channel: BlockingChannel, queue: str) -> None:
    """rabbit_fifo_dlx_integration_SUITE expired, delivery_limit, rejected: each reason arrives."""
    declare(
        channel,
        queue,
        dead_letter_exchange=f"{queue}-dlx",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        delivery_limit=0,
    )
    channel.exchange_declare(f"{queue}-dlx", "fanout", auto_delete=True)
    channel.queue_declare(f"{queue}-dead", durable=True)
    channel.queue_bind(f"{queue}-dead", f"{queue}-dlx")
    put(channel, queue, "expired", properties=Properties(expiration="1"))
    await_ready(channel, f"{queue}-dead", 1)
    inbox = Inbox(channel, queue)
    put(channel, queue, "limit", "rejected")
    for delivered in inbox.take(2):
        channel.basic_reject(delivered.tag, requeue=delivered.text == "limit")
    await_ready(channel, f"{queue}-dead", 3)
    dead = [get(channel, f"{queue}-dead", auto_ack=True) for _ in range(3)]
    reasons = {each.text: (each.properties.headers or {})["x-first-death-reason"] for each in dead}
    assert reasons == {"expired": "expired", "limit": "delivery_limit", "rejected": "rejected"}


# --- limits and time ----------------------------------------------------------------------------------


# --- restarts -----------------------------------------------------------------------------------------


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[Any]:
    """Start a broker with the test's data folder and connect to it; the one before is stopped or killed."""
    brokers: list[BrokerProcess] = []
    connections: list[BlockingConnection] = []

    def end(*, kill: bool) -> None:
        if kill and brokers:
            brokers[-1].kill()
        for connection in connections:
            with suppress(AMQPError):
                connection.close()
        connections.clear()
        if not kill and brokers:
            brokers[-1].stop()

    def start(*, kill: bool = False) -> BlockingChannel:
        end(kill=kill)
        folder = tmp_path / f"broker{len(brokers)}"
        folder.mkdir()
        brokers.append(BrokerProcess(folder, "--data-dir", str(tmp_path / "data")))
        connections.append(BlockingConnection(parameters(brokers[-1])))
        return connections[-1].channel()

    yield start
    end(kill=True)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "idempotent_recover",
    "publish_and_restart",
    "restart_all_types",
    "restart_queue",
    "server_system_recover",
    "stop_start_rabbit_app",
)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_everything_confirmed_is_there_after_a_restart(restarts: Any, queue: str, kill: bool) -> None:
    """publish_and_restart, restart_queue, restart_all_types, stop_start_rabbit_app, idempotent_recover,
    server_system_recover: messages of either delivery mode, in order; counts stay, held ones come back."""
    channel = restarts()
    declare(channel, queue)
    channel.confirm_delivery()
    for mode in (1, 2):
        put(channel, queue, *(f"{mode}-{n}" for n in range(3)), properties=Properties(delivery_mode=mode))
    first = get(channel, queue)
    channel.basic_reject(first.tag, requeue=True)
    await_ready(channel, queue, 6)
    held = get(channel, queue)
    assert held.text == "1-0"
    done = get(channel, queue)
    channel.basic_ack(done.tag)
    await_ready(channel, queue, 4)
    channel = restarts(kill=kill)
    await_ready(channel, queue, 5)
    again = get(channel, queue, auto_ack=True)
    assert (again.text, again.method.redelivered) == ("1-0", True)
    assert counts(again)[2] >= 1
    assert get_all(channel, queue) == ["1-2", "2-0", "2-1", "2-2"]
    channel = restarts(kill=kill)
    assert ready(channel, queue) == 0
