"""Quorum queues as pika sees them: RabbitMQ's quorum_queue_SUITE, as far as one node goes."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.support.pika_client import Connect, Properties, get, get_all, put, until

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


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consume_redelivery_count")
def test_a_redelivery_says_how_often_it_was_had_and_failed(channel: BlockingChannel, queue: str) -> None:
    """consume_redelivery_count: reject counts as a failure, nack does not."""
    declare(channel, queue)
    put(channel, queue, "a")
    first = get(channel, queue)
    assert counts(first) == (False, None, None)
    channel.basic_reject(first.tag, requeue=True)
    second = get(channel, queue)
    assert counts(second) == (True, 1, 1)
    channel.basic_nack(second.tag, requeue=True)
    assert counts(get(channel, queue)) == (True, 2, 1)


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


@pytest.mark.parametrize("requeue", ["reject", "nack"])
def test_beyond_the_limit_a_message_is_dead_lettered(
    channel: BlockingChannel, queue: str, requeue: str
) -> None:
    """subscribe_redelivery_limit_with_dead_letter; and a loop of nack ends as well."""
    target = f"{queue}-target"
    declare(channel, target)
    declare(
        channel,
        queue,
        **{"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target},
    )
    put(channel, queue, "a")
    for _ in range(3):
        delivered = get(channel, queue)
        if requeue == "nack":
            channel.basic_nack(delivered.tag, requeue=True)
        else:
            channel.basic_reject(delivered.tag, requeue=True)
    until(channel, lambda: ready(channel, target) == 1, "the dead letter")
    found = get(channel, target)
    assert found.properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_without_a_limit_returns_go_to_the_tail(channel: BlockingChannel, queue: str) -> None:
    """subscribe_redelivery_limit_disable."""
    declare(channel, queue, **{"x-delivery-limit": -1})
    put(channel, queue, "a", "b")
    for expected in [b"a", b"b"] * 15:
        delivered = get(channel, queue)
        assert delivered.body == expected
        channel.basic_reject(delivered.tag, requeue=True)
    assert ready(channel, queue) == 2


def test_with_a_limit_returns_are_next(channel: BlockingChannel, queue: str) -> None:
    declare(channel, queue)
    put(channel, queue, "a", "b")
    channel.basic_reject(get(channel, queue).tag, requeue=True)
    assert get_all(channel, queue) == ["a", "b"]


@pytest.mark.parametrize("multiple", [True, False])
def test_requeued_messages_keep_their_order(channel: BlockingChannel, queue: str, multiple: bool) -> None:
    """requeue_multiple_true, requeue_multiple_false."""
    declare(channel, queue)
    put(channel, queue, *"abcd")
    tags = [get(channel, queue).tag for _ in range(4)]
    for tag in tags[-1:] if multiple else tags:
        channel.basic_nack(tag, multiple=multiple, requeue=True)
    assert get_all(channel, queue) == list("abcd")


def test_two_of_high_priority_for_one_of_normal(channel: BlockingChannel, queue: str) -> None:
    """priority_queue_2_1_ratio."""
    declare(channel, queue)
    put(channel, queue, "n1", "n2", "n3")
    put(channel, queue, "h1", "h2", "h3", "h4", properties=Properties(priority=5))
    assert get_all(channel, queue) == ["h1", "h2", "n1", "h3", "h4", "n2", "n3"]


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "target_queue_not_bound")
def test_dead_letters_at_least_once_stay_until_there_is_a_target(
    channel: BlockingChannel, queue: str
) -> None:
    """target_queue_not_bound, reject_publish_source_queue_max_length: what has no target counts still."""
    exchange = f"{queue}-dlx"
    declare(
        channel,
        queue,
        **{
            "x-dead-letter-exchange": exchange,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-max-length": 1,
        },
    )
    channel.confirm_delivery()
    put(channel, queue, "a")
    channel.basic_reject(get(channel, queue).tag, requeue=False)
    with pytest.raises(NackError):
        put(channel, queue, "b")


def test_a_transient_message_survives_as_any_other(channel: BlockingChannel, queue: str) -> None:
    """Quorum queues do not look at the delivery mode; it stays as it was published."""
    declare(channel, queue)
    put(channel, queue, "a", properties=Properties(delivery_mode=1))
    assert get(channel, queue).properties.delivery_mode == 1
