"""pika as a consumer: its own loops, many messages in order, direct reply-to."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.pika_client import (
    Connect,
    Delivered,
    Inbox,
    Properties,
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
