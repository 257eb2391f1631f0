"""Who of several consumers gets messages: priorities and the single active consumer, in both protocols."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from proton import symbol

from tests.support.pika_client import Inbox, put
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

KINDS = ("classic", "quorum")


def declare(channel: BlockingChannel, queue: str, kind: str, *, single_active: bool = False) -> None:
    """A durable queue."""
    arguments: dict[str, Any] = {"x-queue-type": kind}
    if single_active:
        arguments["x-single-active-consumer"] = True
    channel.queue_declare(queue, durable=True, arguments=arguments)


def numbers(first: int, last: int) -> list[str]:
    """Bodies."""
    return [str(number) for number in range(first, last + 1)]


# --- priorities -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "consumer_priority_classic_queue", "consumer_priority_quorum_queue"
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_priority_is_served_first_over_amqp_10(
    kind: str, channel: BlockingChannel, client: ProtonClient, queue: str
) -> None:
    """rabbitmq:priority: the lower one gets what the higher one's credit leaves."""
    declare(channel, queue, kind)

    def receiver(priority: int | None) -> ReceivingEnd:
        properties = None if priority is None else {symbol("rabbitmq:priority"): priority}
        return client.receiver(f"/queues/{queue}", credit=2, properties=properties)

    low, normal, high = receiver(-1), receiver(None), receiver(100)
    put(channel, queue, *numbers(1, 5))
    assert [bytes(each.message.body).decode() for each in high.take(2)] == ["1", "2"]
    assert [bytes(each.message.body).decode() for each in normal.take(2)] == ["3", "4"]
    assert [bytes(each.message.body).decode() for each in low.take(1)] == ["5"]


# --- the single active consumer -------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE",
    "all_messages_go_to_one_consumer",
    "fallback_to_another_consumer_when_exclusive_consumer_channel_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled_qos1",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_the_next_consumer_takes_over(
    how: str, kind: str, connection: BlockingConnection, queue: str
) -> None:
    """single_active_consumer_SUITE all_messages_go_to_one_consumer, fallback_to_another_consumer_when_*:
    everything goes to the first; when it is cancelled, or its channel closed, to the next."""
    publisher, first, second = (connection.channel() for _ in range(3))
    declare(publisher, queue, kind, single_active=True)
    one, other = Inbox(first, queue, auto_ack=True), Inbox(second, queue, auto_ack=True)
    put(publisher, queue, *numbers(1, 5))
    assert [each.text for each in one.take(5)] == numbers(1, 5)
    if how == "cancel":
        first.basic_cancel(one.tag)
    else:
        first.close()
    put(publisher, queue, *numbers(6, 10))
    assert [each.text for each in other.take(5)] == numbers(6, 10)
    assert (one.texts, other.texts) == (numbers(1, 5), numbers(6, 10))


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "single_active_consumer_classic_queue", "single_active_consumer_quorum_queue"
)
@pytest.mark.parametrize("kind", KINDS)
def test_links_take_over_in_turn(
    kind: str, channel: BlockingChannel, client: ProtonClient, queue: str
) -> None:
    """amqp_client_SUITE single_active_consumer_*: the second link gets what comes when the first has gone,
    and before it what the first has given back."""
    declare(channel, queue, kind, single_active=True)
    first = client.receiver(f"/queues/{queue}", credit=10)
    second = client.receiver(f"/queues/{queue}", credit=10)
    put(channel, queue, *numbers(1, 3))
    held = first.take(3)
    first.settle(held[:1])
    assert not second.received
    first.close()
    assert [bytes(each.message.body).decode() for each in second.take(2)] == ["2", "3"]
    put(channel, queue, "4")
    assert [bytes(each.message.body).decode() for each in second.take(1)] == ["4"]


# --- deciding, and hearing of it ------------------------------------------------------------------
