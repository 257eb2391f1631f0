"""pika as a consumer: its own loops, many messages in order, direct reply-to."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_client import (
    Connect,
    get_all,
    put,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


@pytest.fixture
def filled(channel: BlockingChannel, queue: str) -> str:
    """A durable queue with the messages 0 .. 9."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, *map(str, range(10)))
    return queue


# --- deliveries -----------------------------------------------------------------------------------


def test_consuming_with_the_generator(channel: BlockingChannel, filled: str) -> None:
    """pika's `consume`, with inactivity at the end; cancelling gives the rest back."""
    taken = []
    for method, _, body in channel.consume(filled, inactivity_timeout=30):
        assert method is not None
        assert body is not None
        taken.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 4:
            break
    channel.cancel()
    assert taken == ["0", "1", "2", "3"]
    assert get_all(channel, filled) == [*"456789"]


def test_thousands_of_messages_in_order_through_several_connections(connect: Connect, queue: str) -> None:
    """Published on one connection, consumed with prefetch on another, acknowledged in groups."""
    count = 3000
    publisher = connect().channel()
    publisher.queue_declare(queue, durable=True)
    consumer_channel = connect().channel()
    consumer_channel.basic_qos(prefetch_count=100)
    seen: list[int] = []

    def on_message(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        seen.append(int(body))
        if len(seen) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)

    consumer_channel.basic_consume(queue, on_message)
    for number in range(count):
        publisher.basic_publish("", queue, str(number).encode())
    until(consumer_channel, lambda: len(seen) == count, "all messages")
    assert seen == [*range(count)]


# --- direct reply-to ------------------------------------------------------------------------------
