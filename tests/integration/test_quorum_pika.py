"""Quorum queues as pika sees them: RabbitMQ's quorum_queue_SUITE, as far as one node goes."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_client import Connect, Properties, get, put, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    """A quorum queue; arguments are written with their names."""
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **arguments})


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def counts(delivered: Any) -> tuple[bool, Any, Any]:
    """The redelivered flag, x-acquired-count and x-delivery-count; None: there is no such header."""
    headers = delivered.properties.headers or {}
    return delivered.method.redelivered, headers.get("x-acquired-count"), headers.get("x-delivery-count")


def test_a_lost_connection_counts_as_a_failure(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    declare(channel, queue)
    put(channel, queue, "a", "b")
    assert ready(channel, queue) == 2  # before the other connection asks for them
    other = connect()
    lost = other.channel()
    get(lost, queue)
    get(lost, queue)
    other.close()
    until(channel, lambda: ready(channel, queue) == 2, "both to come back")
    found = [get(channel, queue), get(channel, queue)]
    assert [each.body for each in found] == [b"a", b"b"]
    assert [counts(each) for each in found] == [(True, 1, 1), (True, 1, 1)]


def test_a_transient_message_survives_as_any_other(channel: BlockingChannel, queue: str) -> None:
    """Quorum queues do not look at the delivery mode; it stays as it was published."""
    declare(channel, queue)
    put(channel, queue, "a", properties=Properties(delivery_mode=1))
    assert get(channel, queue).properties.delivery_mode == 1
