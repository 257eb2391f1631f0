"""pika as a consumer: deliveries, acknowledgements, prefetch, order, cancellation, direct reply-to."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import (
    Connect,
    Delivered,
    Inbox,
    Properties,
    get,
    get_all,
    put,
    settle_down,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


@pytest.fixture
def filled(channel: BlockingChannel, queue: str) -> str:
    """A durable queue with the messages 0 .. 9."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, *map(str, range(10)))
    return queue


def closes(channel: BlockingChannel) -> tuple[int, str]:
    """Code and text with which the broker closes a channel that waits for nothing."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        settle_down(channel)
    return caught.value.reply_code, caught.value.reply_text


# --- deliveries -----------------------------------------------------------------------------------


def test_deliveries_tell_where_they_come_from(channel: BlockingChannel, queue: str) -> None:
    """Consumer tag, delivery tag, exchange, routing key, redelivered."""
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, "amq.topic", "a.#")
    consumer = Inbox(channel, queue, consumer_tag="mine")
    channel.basic_publish("amq.topic", "a.b", b"x")
    method = consumer.take()[0].method
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("mine", 1, False)
    assert (method.exchange, method.routing_key) == ("amq.topic", "a.b")


def test_get_says_how_many_are_left(channel: BlockingChannel, filled: str) -> None:
    """get-ok counts what is ready behind the message; get-empty is the end."""
    assert [get(channel, filled, auto_ack=True).method.message_count for _ in range(10)] == [
        *range(9, -1, -1)
    ]
    assert channel.basic_get(filled) == (None, None, None)


def test_delivery_tags_are_shared_by_get_and_consume(channel: BlockingChannel, filled: str) -> None:
    """They count from 1 per channel."""
    assert get(channel, filled).tag == 1
    consumer = Inbox(channel, filled)
    assert [each.tag for each in consumer.take(9)] == [*range(2, 11)]
    assert [each.tag for each in Inbox(channel.connection.channel(), filled).messages] == []


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


def test_start_consuming_ends_with_stop_consuming(channel: BlockingChannel, filled: str) -> None:
    """pika's own loop."""
    bodies = []

    def on_message(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == 10:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(filled, on_message)
    channel.start_consuming()
    assert b"".join(bodies) == b"0123456789"


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


# --- acknowledgements -----------------------------------------------------------------------------


@pytest.mark.rabbitmq("queue_type_SUITE", "smoke")
def test_acknowledging_one_and_several(channel: BlockingChannel, broker: BrokerProcess, filled: str) -> None:
    """multiple covers all up to the tag, tag 0 all there are; what is acknowledged does not come again."""
    Inbox(channel, filled).take(10)
    channel.basic_ack(2)
    channel.basic_ack(4, multiple=True)
    settle_down(channel)
    broker.wait_for_counts(filled, ready=0, unsettled=6)
    channel.basic_ack(7)
    channel.basic_ack(0, multiple=True)
    channel.basic_ack(0, multiple=True)
    settle_down(channel)
    broker.wait_for_counts(filled, ready=0)


def test_acknowledging_twice_is_an_unknown_tag(connection: BlockingConnection, filled: str) -> None:
    """406, and what the channel held goes back; another channel's tags are unknown too."""
    channel = connection.channel()
    Inbox(channel, filled).take(10)
    channel.basic_ack(3)
    channel.basic_ack(3)
    assert closes(channel) == (406, "PRECONDITION_FAILED - unknown delivery tag 3")
    other = connection.channel()
    assert get_all(other, filled) == [*"013456789"]


def test_tags_of_another_channel_are_unknown(connection: BlockingConnection, filled: str) -> None:
    """A delivery tag belongs to its channel."""
    first, second = connection.channel(), connection.channel()
    Inbox(first, filled).take(10)
    second.basic_ack(1)
    assert closes(second)[0] == 406
    first.basic_ack(1)
    settle_down(first)


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_a_returned_message_has_its_old_place(channel: BlockingChannel, filled: str, method: str) -> None:
    """Redelivered, before those that were never delivered."""
    held = [get(channel, filled) for _ in range(4)]
    for each in (held[2], held[0]):
        getattr(channel, f"basic_{method}")(each.tag)
    again = [get(channel, filled, auto_ack=True) for _ in range(3)]
    assert [(each.text, each.method.redelivered) for each in again] == [
        ("0", True),
        ("2", True),
        ("4", False),
    ]


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_a_discarded_message_is_gone(
    channel: BlockingChannel, broker: BrokerProcess, filled: str, method: str
) -> None:
    """requeue=false."""
    getattr(channel, f"basic_{method}")(get(channel, filled).tag, requeue=False)
    settle_down(channel)
    broker.wait_for_counts(filled, ready=9)
    assert get_all(channel, filled) == [*"123456789"]


def test_nack_multiple_requeues_in_the_original_order(channel: BlockingChannel, filled: str) -> None:
    """Three of four come again, in their order, before what was not delivered."""
    held = [get(channel, filled) for _ in range(4)]
    channel.basic_nack(held[2].tag, multiple=True)
    again = [get(channel, filled) for _ in range(4)]
    assert [(each.text, each.method.redelivered) for each in again] == [
        *(("0", True), ("1", True), ("2", True)),
        ("4", False),
    ]


def test_recover_requeues_all_that_is_unacknowledged(channel: BlockingChannel, filled: str) -> None:
    """They come again to the same consumer, marked; new tags, old ones are unknown."""
    consumer = Inbox(channel, filled)
    consumer.take(10)
    channel.basic_ack(4, multiple=True)
    channel.basic_recover(requeue=True)
    again = consumer.take(6)
    assert [(each.text, each.method.redelivered) for each in again] == [(str(n), True) for n in range(4, 10)]
    assert [each.tag for each in again] == [*range(11, 17)]
    channel.basic_ack(10)
    assert closes(channel) == (406, "PRECONDITION_FAILED - unknown delivery tag 10")


def test_the_order_survives_requeues_and_closed_channels(connection: BlockingConnection, filled: str) -> None:
    """Messages are always held in the order of publication."""
    first, second = connection.channel(), connection.channel()
    held = {each.text: each.tag for each in (get(first, filled) for _ in range(6))}
    Inbox(second, filled).take(4)
    first.basic_nack(held["3"])
    first.basic_ack(held["1"])
    first.basic_reject(held["0"])
    second.close()
    first.close()
    third = connection.channel()
    left = [get(third, filled) for _ in range(9)]
    assert [each.text for each in left] == [*"023456789"]
    assert all(each.method.redelivered for each in left)


def test_what_a_closed_channel_held_goes_to_other_consumers(
    connection: BlockingConnection, queue: str
) -> None:
    """Two channels share a queue; the first one's messages go to the second, in order."""
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue, durable=True)
    for channel in (first, second):
        channel.basic_qos(prefetch_count=10)
    inboxes = [Inbox(first, queue), Inbox(second, queue)]
    put(first, queue, "1", "2", "3", "4")
    until(first, lambda: sum(len(each.messages) for each in inboxes) == 4, "four messages")
    mine = inboxes[0].texts
    theirs = len(inboxes[1].messages)
    first.close()
    until(second, lambda: len(inboxes[1].messages) == 4, "the rest")
    assert inboxes[1].texts[theirs:] == mine
    assert all(each.method.redelivered for each in inboxes[1].messages[theirs:])


# --- prefetch -------------------------------------------------------------------------------------


def test_prefetch_limits_what_a_consumer_holds(
    channel: BlockingChannel, broker: BrokerProcess, filled: str
) -> None:
    """n for consumers begun afterwards; each acknowledgement lets one more come."""
    channel.basic_qos(prefetch_count=3)
    consumer = Inbox(channel, filled)
    consumer.take(3)
    broker.wait_for_counts(filled, ready=7, unsettled=3)
    channel.basic_ack(1)
    assert [each.text for each in consumer.take()] == ["3"]
    channel.basic_nack(2, requeue=False)
    channel.basic_reject(3)
    assert {each.text for each in consumer.take(2)} == {"2", "4"}
    settle_down(channel)
    assert len(consumer.messages) == 6
    broker.wait_for_counts(filled, ready=5, unsettled=3)


def test_prefetch_1_is_one_after_the_other(channel: BlockingChannel, filled: str) -> None:
    """A message comes when the one before is acknowledged."""
    channel.basic_qos(prefetch_count=1)
    consumer = Inbox(channel, filled)
    for number in range(10):
        each = consumer.take()[0]
        settle_down(channel)
        assert len(consumer.messages) == number + 1
        channel.basic_ack(each.tag)
    assert consumer.texts == [*"0123456789"]


def test_prefetch_is_each_consumers_own(channel: BlockingChannel, broker: BrokerProcess, filled: str) -> None:
    """Two consumers of one channel hold n each; a later qos is for later consumers."""
    channel.basic_qos(prefetch_count=2)
    first = Inbox(channel, filled)
    first.take(2)
    channel.basic_qos(prefetch_count=3)
    second = Inbox(channel, filled)
    second.take(3)
    broker.wait_for_counts(filled, ready=5, unsettled=5)
    channel.basic_qos(prefetch_count=0)
    Inbox(channel, filled).take(5)


def test_prefetch_does_not_limit_automatic_acknowledgement(channel: BlockingChannel, filled: str) -> None:
    """no_ack deliveries are never outstanding."""
    channel.basic_qos(prefetch_count=1)
    Inbox(channel, filled, auto_ack=True).take(10)


def test_global_prefetch_limits_the_channel(
    channel: BlockingChannel, broker: BrokerProcess, filled: str
) -> None:
    """All consumers together; it can be changed while deliveries are out."""
    channel.basic_qos(prefetch_count=4, global_qos=True)
    inboxes = [Inbox(channel, filled), Inbox(channel, filled)]

    def held() -> int:
        return sum(len(each.messages) for each in inboxes)

    until(channel, lambda: held() == 4, "four messages")
    broker.wait_for_counts(filled, ready=6, unsettled=4)
    channel.basic_ack(2, multiple=True)
    until(channel, lambda: held() == 6, "two more")
    broker.wait_for_counts(filled, ready=4, unsettled=4)
    channel.basic_qos(prefetch_count=6, global_qos=True)
    until(channel, lambda: held() == 8, "two more by the larger limit")
    broker.wait_for_counts(filled, ready=2, unsettled=6)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    until(channel, lambda: held() == 10, "the rest")


def test_messages_are_shared_among_consumers(connection: BlockingConnection, queue: str) -> None:
    """With prefetch 1 each consumer holds one message at a time, and both are served.

    Both messages are there before either is acknowledged: the acknowledgements of two channels overtake
    each other, so that one consumer could get a third message before the other has got its second.
    """
    channels = [connection.channel() for _ in range(2)]
    channels[0].queue_declare(queue, durable=True)
    for channel in channels:
        channel.basic_qos(prefetch_count=1)
    inboxes = [Inbox(channel, queue) for channel in channels]
    put(channels[0], queue, *"abcdef")
    for turn in range(3):
        held = [inbox.take()[0] for inbox in inboxes]
        assert [len(inbox.messages) for inbox in inboxes] == [turn + 1] * 2
        for inbox, message in zip(inboxes, held, strict=True):
            inbox.channel.basic_ack(message.tag)
    assert sorted(inboxes[0].texts + inboxes[1].texts) == [*"abcdef"]


# --- consumers come and go ------------------------------------------------------------------------


def test_a_cancelled_consumer_gets_no_more_and_keeps_what_it_has(
    channel: BlockingChannel, broker: BrokerProcess, filled: str
) -> None:
    """What was delivered can still be acknowledged; what was not is ready."""
    channel.basic_qos(prefetch_count=4)
    consumer = Inbox(channel, filled)
    consumer.take(4)
    channel.basic_cancel(consumer.tag)
    assert channel.queue_declare(filled, passive=True).method.consumer_count == 0
    channel.basic_ack(4, multiple=True)
    settle_down(channel)
    broker.wait_for_counts(filled, ready=6)
    assert len(consumer.messages) == 4


def test_the_broker_cancels_consumers_of_a_deleted_queue(connect: Connect, filled: str) -> None:
    """basic.cancel to a client with consumer_cancel_notify; old tags may be acknowledged."""
    consumer_channel, other = connect().channel(), connect().channel()
    cancelled: list[str] = []
    consumer_channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Inbox(consumer_channel, filled)
    consumer.take(10)
    other.queue_delete(filled)
    until(consumer_channel, lambda: cancelled, "the cancellation")
    assert cancelled == [consumer.tag]
    consumer_channel.basic_ack(10, multiple=True)
    settle_down(consumer_channel)


def test_an_exclusive_consumer_is_alone(connect: Connect, filled: str) -> None:
    """403 for the second, whoever of the two wants to be exclusive."""
    expected = (403, f"ACCESS_REFUSED - queue '{filled}' in vhost '/' in exclusive use")
    connection = connect()
    channel = connection.channel()
    consumer = Inbox(channel, filled, exclusive=True)
    for exclusive in (True, False):
        with pytest.raises(ChannelClosedByBroker) as caught:
            connection.channel().basic_consume(filled, print, exclusive=exclusive)
        assert (caught.value.reply_code, caught.value.reply_text) == expected
    channel.basic_cancel(consumer.tag)
    shared = Inbox(channel, filled)
    with pytest.raises(ChannelClosedByBroker) as caught:
        connection.channel().basic_consume(filled, print, exclusive=True)
    assert (caught.value.reply_code, caught.value.reply_text) == expected
    channel.basic_cancel(shared.tag)
    Inbox(connection.channel(), filled, exclusive=True)


@pytest.mark.parametrize("arguments", [{"x-priority": 5}, {"x-priority": -1}, {}])
def test_consumer_arguments_are_taken(channel: BlockingChannel, filled: str, arguments: Any) -> None:
    """x-priority is an integer of any sign."""
    Inbox(channel, filled, arguments=arguments).take(10)


def test_a_consumer_argument_of_a_wrong_type_is_406(channel: BlockingChannel, filled: str) -> None:
    """x-priority must be an integer."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_consume(filled, print, arguments={"x-priority": "high"})
    assert caught.value.reply_code == 406


# --- direct reply-to ------------------------------------------------------------------------------


def test_request_and_reply_without_a_reply_queue(connect: Connect, queue: str) -> None:
    """amq.rabbitmq.reply-to: the server sees an address of its own and answers to it."""
    server, client = connect().channel(), connect().channel()
    server.queue_declare(queue, exclusive=False, durable=True)
    requests = Inbox(server, queue, auto_ack=True)
    replies = Inbox(client, "amq.rabbitmq.reply-to", auto_ack=True)
    for number in range(5):
        client.basic_publish(
            "",
            queue,
            str(number).encode(),
            Properties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)),
        )
        request = requests.take()[0]
        address = request.properties.reply_to
        assert address is not None
        assert address.startswith("amq.rabbitmq.reply-to.")
        assert server.queue_declare(address, passive=True).method.consumer_count == 1
        server.basic_publish(
            "", address, request.body * 2, Properties(correlation_id=request.properties.correlation_id)
        )
        reply = replies.take()[0]
        assert (reply.text, reply.properties.correlation_id) == (str(number) * 2, str(number))
        assert (reply.method.exchange, reply.method.routing_key) == ("", address)


def test_a_reply_to_a_client_that_has_gone_is_returned(connect: Connect, queue: str) -> None:
    """mandatory works for replies, and asking for the address is 404."""
    server = connect().channel()
    client_connection = connect()
    client = client_connection.channel()
    server.queue_declare(queue, durable=True)
    Inbox(client, "amq.rabbitmq.reply-to", auto_ack=True)
    client.basic_publish("", queue, b"?", Properties(reply_to="amq.rabbitmq.reply-to"))
    address = Inbox(server, queue, auto_ack=True).take()[0].properties.reply_to
    assert address is not None
    client_connection.close()
    returned: list[Delivered] = []
    server.add_on_return_callback(lambda _, *what: returned.append(Delivered(*what)))
    server.basic_publish("", address, b"!", mandatory=True)
    until(server, lambda: returned, "the return")
    with pytest.raises(ChannelClosedByBroker) as caught:
        server.queue_declare(address, passive=True)
    assert caught.value.reply_code == 404


def test_one_reply_consumer_a_channel(channel: BlockingChannel) -> None:
    """406 for the second; after a cancel there may be another."""
    first = Inbox(channel, "amq.rabbitmq.reply-to", auto_ack=True)
    channel.basic_cancel(first.tag)
    Inbox(channel, "amq.rabbitmq.reply-to", auto_ack=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_consume("amq.rabbitmq.reply-to", print, auto_ack=True)
    assert caught.value.reply_text == "PRECONDITION_FAILED - reply consumer already set"
