"""One queue, two protocols: proton (AMQP 1.0) and pika (0-9-1) read what the other has published."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Message

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Inbox, Properties, get, put
from tests.support.proton_client import ProtonClient, Received

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


@pytest.fixture
def declared(channel: BlockingChannel, queue: str) -> str:
    channel.queue_declare(queue, durable=True)
    return queue


def to_proton(
    channel: BlockingChannel, client: ProtonClient, queue: str, body: bytes, **given: Any
) -> Message:
    channel.basic_publish("", queue, body, Properties(**given))
    receiver = client.receiver(queue, credit=1)
    received: Received = receiver.take()[0]
    receiver.settle(received)
    return received.message


def to_pika(client: ProtonClient, channel: BlockingChannel, queue: str, message: Message) -> Any:
    client.sender(queue).send(message)
    return get(channel, queue, auto_ack=True)


# --- 0-9-1 to 1.0 -----------------------------------------------------------------------------------


def test_every_property_of_pika_reaches_proton(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """Header, properties and the annotations that tell exchange and key."""
    message = to_proton(
        channel,
        client,
        declared,
        b"body",
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="answers",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="order",
        user_id="guest",
        app_id="shop",
    )
    assert bytes(message.body) == b"body"
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert (message.durable, message.priority) == (True, 7)
    assert 0 < message.ttl <= 60
    assert (message.id, message.correlation_id) == ("m", "c")
    assert message.creation_time == 1_700_000_000
    assert bytes(message.user_id) == b"guest"
    assert message.group_id == "shop"
    assert message.annotations["x-basic-type"] == "order"
    assert message.annotations["x-exchange"] == ""
    assert message.annotations["x-routing-key"] == declared


def test_redelivery_crosses_the_protocols(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """Rejected by pika: first-acquirer is false for proton; failed by proton: redelivered for pika."""
    put(channel, declared, "x")
    channel.basic_reject(get(channel, declared).tag)
    receiver = client.receiver(declared, credit=1)
    received = receiver.take()[0]
    assert not received.message.first_acquirer
    receiver.modify(received, failed=True, undeliverable=False)
    receiver.close()
    again = get(channel, declared, auto_ack=True)
    assert (again.text, again.method.redelivered) == ("x", True)


# --- 1.0 to 0-9-1 -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "amqp_quorum_queue_amqpl", "amqp_stream_amqpl")
def test_every_property_of_proton_reaches_pika(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """What 0-9-1 can say; the rest is left out."""
    received = to_pika(
        client,
        channel,
        declared,
        Message(
            body=b"body",
            inferred=True,
            id="m",
            correlation_id="c",
            user_id=b"guest",
            subject="left out",
            content_type="text/plain",
            content_encoding="gzip",
            creation_time=1_700_000_000,
            group_id="shop",
            durable=True,
            priority=7,
            ttl=60,
        ),
    )
    properties = received.properties
    assert received.body == b"body"
    assert (properties.message_id, properties.correlation_id, properties.user_id) == ("m", "c", "guest")
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "gzip")
    assert (properties.timestamp, properties.app_id) == (1_700_000_000, "shop")
    assert (properties.delivery_mode, properties.priority) == (2, 7)
    assert properties.expiration == "60000"
    assert properties.type is None
    assert (received.method.exchange, received.method.routing_key) == ("", declared)


def test_a_publisher_of_one_protocol_and_consumers_of_both(
    broker: BrokerProcess, client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """Many messages, shared between a proton receiver and a pika consumer; none is lost or doubled."""
    consumer = Inbox(channel, declared, auto_ack=True)
    receiver = client.receiver(declared, credit=50)
    sender = client.sender(declared)
    for number in range(100):
        sender.transfer(Message(body=str(number).encode(), inferred=True))
        put(channel, declared, str(100 + number))

    def bodies() -> list[int]:
        channel.connection.process_data_events(0)
        return [int(bytes(body)) for body in receiver.bodies] + [int(text) for text in consumer.texts]

    def all_there() -> bool:
        if receiver.link.credit < 10:
            receiver.grant(50)
        return len(bodies()) >= 200

    client.wait(all_there, "200 messages")
    assert sorted(bodies()) == [*range(200)]
