"""Streams as pika uses them, after RabbitMQ's rabbit_stream_queue_SUITE."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_client import Inbox, put, settle_down

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.fixture
def stream(channel: BlockingChannel, queue: str) -> str:
    """The stream has messages 0 .. 9, each confirmed and so in a chunk of its own."""
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    put(channel, queue, *map(str, range(10)))
    channel.basic_qos(prefetch_count=100)
    return queue


def reader(channel: BlockingChannel, queue: str, offset: Any = None) -> Inbox:
    return Inbox(channel, queue, arguments={} if offset is None else {"x-stream-offset": offset})


@pytest.mark.rabbitmq("queue_type_SUITE", "stream")
@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume", "consume_and_ack", "consume_and_nack", "consume_and_reject"
)
def test_every_consumer_gets_everything_with_its_offset(channel: BlockingChannel, stream: str) -> None:
    """Deliveries and their outcomes remove no message from the stream."""
    inbox = reader(channel, stream, "first")
    inbox.take(10)
    assert [each.properties.headers["x-stream-offset"] for each in inbox.messages] == [*range(10)]
    assert inbox.texts == [str(number) for number in range(10)]
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
    assert again.texts == inbox.texts
    assert channel.queue_declare(stream, passive=True).method.message_count == 10


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_from_default", "consume_from_next")
@pytest.mark.parametrize("offset", [None, "next", 10, 10**12], ids=str)
def test_consume_from_the_end(channel: BlockingChannel, stream: str, offset: Any) -> None:
    """By default only new messages are delivered."""
    inbox = reader(channel, stream, offset)
    settle_down(channel)
    assert inbox.texts == []
    put(channel, stream, "later")
    assert inbox.take()[0].properties.headers["x-stream-offset"] == 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "consume_credit",
    "consume_credit_multiple_ack",
    "consume_credit_out_of_order_ack",
)
def test_an_acknowledgement_is_credit_and_nothing_else(channel: BlockingChannel, stream: str) -> None:
    """Out of order or multiple, it grants as many deliveries as it acknowledges."""
    channel.basic_qos(prefetch_count=3)
    inbox = reader(channel, stream, "first")
    inbox.take(3)
    settle_down(channel)
    assert len(inbox.messages) == 3
    channel.basic_ack(inbox.messages[2].tag)
    inbox.take(1)
    settle_down(channel)
    assert inbox.texts == ["0", "1", "2", "3"]
    channel.basic_ack(inbox.messages[1].tag, multiple=True)
    inbox.take(2)
    settle_down(channel)
    assert inbox.texts == ["0", "1", "2", "3", "4", "5"]
