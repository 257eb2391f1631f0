"""Streams as pika uses them, after RabbitMQ's rabbit_stream_queue_SUITE; and what is left after a SIGKILL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.pika_client import Inbox, Properties, settle_down

pytestmark = pytest.mark.usefixtures("deadline")

STREAM = {"x-queue-type": "stream"}


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=STREAM | given)


def publish(channel: BlockingChannel, queue: str, bodies: Sequence[str], **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), Properties(**properties) if properties else None)


@pytest.fixture
def stream(channel: BlockingChannel, queue: str) -> str:
    """A stream with the messages 0 .. 9, each confirmed and so in a chunk of its own."""
    declare(channel, queue)
    channel.confirm_delivery()
    publish(channel, queue, [str(number) for number in range(10)])
    channel.basic_qos(prefetch_count=100)
    return queue


def reader(channel: BlockingChannel, queue: str, offset: Any = None, **options: Any) -> Inbox:
    arguments = {} if offset is None else {"x-stream-offset": offset}
    return Inbox(channel, queue, arguments=arguments | options.pop("arguments", {}), **options)


def bodies(inbox: Inbox) -> list[str]:
    return [each.body.decode() for each in inbox.messages]


def refused(channel: BlockingChannel, do: Any) -> tuple[int, str]:
    """Code and text with which the broker closes the channel."""

    def all_of_it() -> None:
        do()
        settle_down(channel)

    with pytest.raises(ChannelClosedByBroker) as caught:
        all_of_it()
    return caught.value.reply_code, caught.value.reply_text


def ends(do: Any) -> tuple[int, str]:
    """Code and text with which the broker closes the connection."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        do()
    return caught.value.reply_code, caught.value.reply_text


# --- declaring ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_server_named")
def test_declare_without_a_name(channel: BlockingChannel) -> None:
    code, text = refused(channel, lambda: channel.queue_declare("", durable=True, arguments=STREAM))
    assert (code, text.split(" - ")[1]) == (
        406, "Cannot declare a server-named queue for type stream; give it a name"
    )  # fmt: skip


# --- what streams refuse --------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "basic_get")
def test_basic_get(channel: BlockingChannel, stream: str) -> None:
    code, text = ends(lambda: channel.basic_get(stream))
    assert code == 540
    assert f"basic.get not supported by stream queues queue '{stream}' in vhost '/'" in text


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "purge")
def test_purge(channel: BlockingChannel, stream: str) -> None:
    code, text = ends(lambda: channel.queue_purge(stream))
    assert code == 540
    assert f"purge not supported by queue '{stream}' in vhost '/'" in text


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_without_qos")
def test_consume_without_prefetch(channel: BlockingChannel, stream: str) -> None:
    channel.basic_qos(prefetch_count=0)
    code, text = refused(channel, lambda: reader(channel, stream, "first"))
    assert (code, text.split(" - ")[1]) == (
        406, f"consumer prefetch count is not set for stream '{stream}' in vhost '/'"
    )  # fmt: skip


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_with_autoack")
def test_consume_without_acknowledgements(channel: BlockingChannel, stream: str) -> None:
    code, text = ends(lambda: reader(channel, stream, "first", auto_ack=True))
    assert code == 540
    assert f"automatic acknowledgement not supported by stream '{stream}' in vhost '/'" in text


# --- consuming ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("queue_type_SUITE", "stream")
@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume", "consume_and_ack", "consume_and_nack", "consume_and_reject"
)
def test_every_consumer_gets_everything_with_its_offset(channel: BlockingChannel, stream: str) -> None:
    """Nothing is taken away, whatever becomes of the deliveries."""
    inbox = reader(channel, stream, "first")
    inbox.take(10)
    assert [each.properties.headers["x-stream-offset"] for each in inbox.messages] == [*range(10)]
    assert bodies(inbox) == [str(number) for number in range(10)]
    tags = [each.tag for each in inbox.messages]
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_nack(tags[2], requeue=False)
    channel.basic_reject(tags[3], requeue=True)
    channel.basic_reject(tags[4], requeue=False)
    channel.basic_ack(tags[9], multiple=True)
    settle_down(channel)
    assert len(inbox.messages) == 10
    channel.basic_qos(prefetch_count=100)
    again = reader(channel, stream, "first")
    again.take(10)
    assert bodies(again) == bodies(inbox)
    assert channel.queue_declare(stream, passive=True).method.message_count == 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume_from_last", "consume_from_relative_time_offset", "consume_offset"
)
@pytest.mark.parametrize(
    ("offset", "first"), [(0, 0), (4, 4), ("first", 0), ("last", 9), ("1h", 0)], ids=str
)  # fmt: skip
def test_consume_from_an_offset(channel: BlockingChannel, stream: str, offset: Any, first: int) -> None:
    inbox = reader(channel, stream, offset)
    inbox.take(10 - first)
    assert bodies(inbox) == [str(number) for number in range(first, 10)]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_from_default", "consume_from_next")
@pytest.mark.parametrize("offset", [None, "next", 10, 10**12], ids=str)
def test_consume_from_the_end(channel: BlockingChannel, stream: str, offset: Any) -> None:
    """The default: what is published from now on."""
    inbox = reader(channel, stream, offset)
    settle_down(channel)
    assert bodies(inbox) == []
    publish(channel, stream, ["later"])
    assert inbox.take()[0].properties.headers["x-stream-offset"] == 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "consume_credit",
    "consume_credit_multiple_ack",
    "consume_credit_out_of_order_ack",
)
def test_an_acknowledgement_is_credit_and_nothing_else(channel: BlockingChannel, stream: str) -> None:
    """Out of order and multiple alike: as many come as were acknowledged."""
    channel.basic_qos(prefetch_count=3)
    inbox = reader(channel, stream, "first")
    inbox.take(3)
    settle_down(channel)
    assert len(inbox.messages) == 3
    channel.basic_ack(inbox.messages[2].tag)
    inbox.take(1)
    settle_down(channel)
    assert bodies(inbox) == ["0", "1", "2", "3"]
    channel.basic_ack(inbox.messages[1].tag, multiple=True)
    inbox.take(2)
    settle_down(channel)
    assert bodies(inbox) == ["0", "1", "2", "3", "4", "5"]
