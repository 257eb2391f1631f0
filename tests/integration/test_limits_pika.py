"""Lengths and priorities as pika sees them: RabbitMQ's queue_length_limits_SUITE and priority_queue_SUITE."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from tests.support.pika_client import Connect, Inbox, Properties, get, get_all, put, until

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


@pytest.mark.rabbitmq("queue_length_limits_SUITE", "max_length_bytes_drop_publish", "max_length_drop_publish")
@KINDS
@LIMITS
def test_without_confirms_it_is_dropped_silently(
    channel: BlockingChannel, queue: str, kind: str, limit: dict[str, Any], room: int
) -> None:
    """max_length_drop_publish, max_length_bytes_drop_publish."""
    declare(channel, queue, kind, **limit, **{"x-overflow": "reject-publish"})
    put(channel, queue, *bodies(1, 2, 3))
    assert ready(channel, queue) == room
    assert get_all(channel, queue) == bodies(1)


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


@pytest.mark.rabbitmq("priority_queue_SUITE", "matching")
def test_a_priority_above_the_maximum_or_none(channel: BlockingChannel, queue: str) -> None:
    """matching: too high is the maximum, none is 0; first in, first out in each level."""
    declare(channel, queue, **{"x-max-priority": 5})
    publish(channel, queue, 20, 10, 5, None, 0, 3)
    assert get_all(channel, queue) == ["20", "10", "5", "3", "None", "0"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "straight_through")
def test_a_consumer_that_waits_gets_each_at_once(channel: BlockingChannel, queue: str) -> None:
    """straight_through: priorities change nothing for who takes everything as it comes."""
    declare(channel, queue, **{"x-max-priority": 3})
    inbox = Inbox(channel, queue, auto_ack=True)
    for priority in (1, 3, 2):
        publish(channel, queue, priority)
        inbox.take()
    assert inbox.texts == ["1", "3", "2"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "requeue", "resume")
def test_a_returned_message_keeps_its_priority(channel: BlockingChannel, queue: str) -> None:
    """requeue, resume: back to its place, before lower ones and behind higher ones that came meanwhile."""
    declare(channel, queue, **{"x-max-priority": 5})
    publish(channel, queue, 1, 3)
    held = get(channel, queue)
    assert held.text == "3"
    publish(channel, queue, 2, 4)
    channel.basic_reject(held.tag, requeue=True)
    assert get_all(channel, queue) == ["4", "3", "2", "1"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "purge")
def test_a_purge_takes_all_levels(channel: BlockingChannel, queue: str) -> None:
    """purge: all that are ready, whatever their priority; the queue goes on."""
    declare(channel, queue, **{"x-max-priority": 3})
    publish(channel, queue, 1, 2, 3)
    assert channel.queue_purge(queue).method.message_count == 3
    publish(channel, queue, 2)
    assert get_all(channel, queue) == ["2"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "reject")
def test_a_full_queue_with_levels_refuses(channel: BlockingChannel, queue: str) -> None:
    """reject: the length counts all levels together."""
    declare(channel, queue, **{"x-max-priority": 2, "x-max-length": 3, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    publish(channel, queue, 1, 2, 1)
    with pytest.raises(NackError):
        publish(channel, queue, 2)
    assert get_all(channel, queue) == ["2", "1", "1"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "dropwhile_fetchwhile")
def test_each_level_expires_at_its_head(channel: BlockingChannel, queue: str) -> None:
    """dropwhile_fetchwhile: what has expired goes from each level, and is never delivered."""
    declare(channel, queue, **{"x-max-priority": 2})
    for priority in (0, 1, 2):
        for ttl in ("1", None):
            put(channel, queue, f"{priority}{ttl}", properties=Properties(priority=priority, expiration=ttl))
    until(channel, lambda: ready(channel, queue) == 3, "three to expire")
    assert get_all(channel, queue) == ["2None", "1None", "0None"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "max_priorities_above_hard_limit", "negative_max_priorities")
@pytest.mark.parametrize("maximum", [-1, 256, 3000])
def test_a_maximum_is_0_to_255(connect: Connect, queue: str, maximum: int) -> None:
    """negative_max_priorities, max_priorities_above_hard_limit: 406."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        declare(connect().channel(), queue, **{"x-max-priority": maximum})
    assert caught.value.reply_code == 406
    assert "x-max-priority" in caught.value.reply_text
