"""Lengths and priorities as pika sees them: RabbitMQ's queue_length_limits_SUITE and priority_queue_SUITE."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.support.pika_client import Properties, get, get_all, put, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
LIMITS = pytest.mark.parametrize(
    ("limit", "room"), [({"x-max-length": 1}, 1), ({"x-max-length-bytes": 100}, 1)], ids=["length", "bytes"]
)
BODY = "x" * 80


def declare(channel: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> None:
    """A durable queue of a kind; arguments are written with their names."""
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def bodies(*numbers: int) -> list[str]:
    """Bodies of 81 bytes, of which only one fits into 100."""
    return [f"{number}{BODY}" for number in numbers]


# --- lengths ------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE",
    "max_length_bytes_default",
    "max_length_bytes_drop_head",
    "max_length_default",
    "max_length_drop_head",
)
@KINDS
@LIMITS
@pytest.mark.parametrize("overflow", [{}, {"x-overflow": "drop-head"}], ids=["default", "drop-head"])
def test_the_oldest_are_dropped(
    channel: BlockingChannel,
    queue: str,
    kind: str,
    limit: dict[str, Any],
    room: int,
    overflow: dict[str, Any],
) -> None:
    """max_length_default, max_length_bytes_default, max_length_drop_head, max_length_bytes_drop_head; what is
    dropped was confirmed."""
    declare(channel, queue, kind, **limit, **overflow)
    channel.confirm_delivery()
    put(channel, queue, *bodies(1, 2, 3))
    until(channel, lambda: ready(channel, queue) == room, "the older ones to go")
    assert get_all(channel, queue) == bodies(3)


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE", "max_length_bytes_reject_confirm", "max_length_reject_confirm"
)
@KINDS
@LIMITS
def test_what_does_not_fit_is_refused(
    channel: BlockingChannel, queue: str, kind: str, limit: dict[str, Any], room: int
) -> None:
    """max_length_reject_confirm, max_length_bytes_reject_confirm: nack, and nothing of it in the queue; ack
    again when there is room."""
    declare(channel, queue, kind, **limit, **{"x-overflow": "reject-publish"})
    channel.confirm_delivery()
    put(channel, queue, *bodies(1))
    with pytest.raises(NackError):
        put(channel, queue, *bodies(2))
    assert get_all(channel, queue) == bodies(1)
    put(channel, queue, *bodies(3))
    assert get_all(channel, queue) == bodies(3)


@pytest.mark.rabbitmq("queue_length_limits_SUITE", "max_length_drop_publish_requeue")
@KINDS
def test_what_comes_back_to_a_full_queue_is_not_dropped(
    channel: BlockingChannel, queue: str, kind: str
) -> None:
    """max_length_drop_publish_requeue: a requeue is no publish."""
    declare(channel, queue, kind, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    put(channel, queue, "1")
    first = get(channel, queue)
    put(channel, queue, "2")
    channel.basic_nack(first.tag, requeue=True)
    until(channel, lambda: ready(channel, queue) == 2, "the message to come back")
    put(channel, queue, "3")
    assert get_all(channel, queue) == ["1", "2"]


# --- priorities ---------------------------------------------------------------------------------------


def publish(channel: BlockingChannel, queue: str, *priorities: int | None) -> None:
    """Messages whose bodies say their priority."""
    for priority in priorities:
        put(channel, queue, str(priority), properties=Properties(priority=priority))


@pytest.mark.rabbitmq("priority_queue_SUITE", "simple_order")
def test_higher_priorities_go_first(channel: BlockingChannel, queue: str) -> None:
    """simple_order: whatever the order of publishing."""
    declare(channel, queue, **{"x-max-priority": 10})
    publish(channel, queue, 1, 2, 3)
    assert get_all(channel, queue) == ["3", "2", "1"]
    publish(channel, queue, 2, 3, 1)
    assert get_all(channel, queue) == ["3", "2", "1"]
