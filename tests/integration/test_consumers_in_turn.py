"""Who of several consumers gets messages: priorities and the single active consumer, in both protocols."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from proton import Delivery, Link, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Inbox, put, settle_down
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

KINDS = ("classic", "quorum")
CONSUMERS = ("amqp 0-9-1", "amqp 1.0")


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_priority_is_served_first_over_amqp_091(
    kind: str, channel: BlockingChannel, connection: BlockingConnection, queue: str
) -> None:
    """x-priority: the lower one gets what the higher one's prefetch leaves."""
    declare(channel, queue, kind)
    channel.basic_qos(prefetch_count=2)
    low = Inbox(channel, queue, arguments={"x-priority": -1})
    high = Inbox(channel, queue, arguments={"x-priority": 5})
    put(connection.channel(), queue, *numbers(1, 3))
    assert [each.text for each in high.take(2)] == ["1", "2"]
    assert [each.text for each in low.take(1)] == ["3"]


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
    "single_active_consumer_SUITE", "fallback_to_another_consumer_when_first_one_is_cancelled_manual_acks"
)
@pytest.mark.parametrize("prefetch", [0, 1])
def test_what_a_cancelled_consumer_holds_it_may_still_acknowledge(
    prefetch: int, connection: BlockingConnection, queue: str
) -> None:
    """fallback_to_another_consumer_when_first_one_is_cancelled_manual_acks and _qos1: the next one starts
    at once, behind what the first holds."""
    publisher, consumer = connection.channel(), connection.channel()
    declare(publisher, queue, "classic", single_active=True)
    consumer.basic_qos(prefetch_count=prefetch)
    one, other = Inbox(consumer, queue), Inbox(consumer, queue)
    put(publisher, queue, *numbers(1, 5))
    held = one.take(prefetch or 5)
    consumer.basic_cancel(one.tag)
    put(publisher, queue, *numbers(6, 10))
    came = []
    while len(came) < 10 - len(held):
        (each,) = other.take(1)
        came.append(each.text)
        consumer.basic_ack(each.tag)
    assert came == numbers(len(held) + 1, 10)
    for each in held:
        consumer.basic_ack(each.tag)
    settle_down(consumer)
    assert publisher.queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.rabbitmq("single_active_consumer_SUITE", "basic_get_is_unsupported")
@pytest.mark.parametrize("kind", KINDS)
def test_single_messages_are_not_for_such_a_queue(kind: str, channel: BlockingChannel, queue: str) -> None:
    """basic_get_is_unsupported: 405."""
    declare(channel, queue, kind, single_active=True)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.basic_get(queue)
    assert closed.value.reply_code == 405
    assert f"not supported by {kind} queues with single active consumer" in closed.value.reply_text


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "amqp_exclusive_consume_fails_on_exclusive_consumer_queue"
)
def test_an_exclusive_consumer_is_not_for_such_a_queue(channel: BlockingChannel, queue: str) -> None:
    """amqp_exclusive_consume_fails_on_exclusive_consumer_queue: 403."""
    declare(channel, queue, "classic", single_active=True)
    with pytest.raises(ChannelClosedByBroker) as closed:
        Inbox(channel, queue, exclusive=True)
    assert closed.value.reply_code == 403


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


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "single_active_consumer_drain_classic_queue",
    "single_active_consumer_drain_quorum_queue",
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_link_that_waits_is_drained_at_once(
    kind: str, channel: BlockingChannel, client: ProtonClient, broker: BrokerProcess, queue: str
) -> None:
    """amqp_client_SUITE single_active_consumer_drain_*: it has no message, however many there are."""
    declare(channel, queue, kind, single_active=True)
    active = client.receiver(f"/queues/{queue}", credit=1)
    waiting = client.receiver(f"/queues/{queue}")
    put(channel, queue, "1", "2")
    active.take(1)
    broker.wait_for_counts(queue, ready=1, unsettled=1)
    waiting.drain(10)
    client.wait(lambda: waiting.link.credit == 0, "the drain to be answered")
    assert not waiting.received
    active.drain(10)
    assert [bytes(each.message.body).decode() for each in active.take(1)] == ["2"]


# --- deciding, and hearing of it ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", [Delivery.ACCEPTED, Delivery.RELEASED, Delivery.REJECTED], ids=str)
def test_who_does_not_settle_alone_is_answered(
    state: int, kind: str, channel: BlockingChannel, client: ProtonClient, queue: str
) -> None:
    """rcv-settle-mode second: the broker settles when the decision stands; of a quorum queue, for good."""
    declare(channel, queue, kind)
    put(channel, queue, "1", "2")
    receiver = client.receiver(f"/queues/{queue}", credit=2, rcv_settle_mode=Link.RCV_SECOND)
    for each in receiver.take(2):
        each.delivery.update(state)
    client.flush()
    client.wait(lambda: all(each.delivery.settled for each in receiver.received[:2]), "both to be settled")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_consumer_holds_comes_back_when_it_is_lost(
    kind: str, broker: BrokerProcess, channel: BlockingChannel, clients: Any, queue: str
) -> None:
    """In order, whatever its verdict is called."""
    declare(channel, queue, kind)
    put(channel, queue, "1", "2", "3")
    lost = clients(broker)
    lost.receiver(f"/queues/{queue}", credit=10).take(3)
    lost.lose()
    inbox = Inbox(channel, queue)
    came = inbox.take(3)
    assert [each.text for each in came] == ["1", "2", "3"]
    assert all(each.method.redelivered for each in came)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_should_fail_when_global_qos_true")
def test_global_qos_is_not_for_quorum_queues(channel: BlockingChannel, queue: str) -> None:
    """540, which closes the connection."""
    declare(channel, queue, "quorum")
    channel.basic_qos(prefetch_count=5, global_qos=True)
    with pytest.raises(ConnectionClosedByBroker, match="does not support global qos"):
        channel.basic_consume(queue, lambda *_: None)
