"""One queue, two protocols: proton (AMQP 1.0) and pika (0-9-1) read what the other has published."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Message, byte, int32, short, symbol, timestamp, ubyte, uint, ulong, ushort

from amqp10broker.protocols.amqp10.codec import decode
from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Inbox, Properties, get, put
from tests.support.proton_client import ProtonClient, Received

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


@pytest.fixture
def declared(channel: BlockingChannel, queue: str) -> str:
    """A durable queue, empty."""
    channel.queue_declare(queue, durable=True)
    return queue


def to_proton(
    channel: BlockingChannel, client: ProtonClient, queue: str, body: bytes, **given: Any
) -> Message:
    """Publish with pika, receive with proton."""
    channel.basic_publish("", queue, body, Properties(**given))
    receiver = client.receiver(queue, credit=1)
    received: Received = receiver.take()[0]
    receiver.settle(received)
    return received.message


def to_pika(client: ProtonClient, channel: BlockingChannel, queue: str, message: Message) -> Any:
    """Send with proton, get with pika."""
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
    assert message.annotations is not None
    assert message.annotations["x-basic-type"] == "order"
    assert message.annotations["x-exchange"] == ""
    assert message.annotations["x-routing-key"] == declared


def test_headers_of_pika_become_application_properties(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """Simple values with their types; x- headers become annotations; tables and arrays are left out."""
    message = to_proton(
        channel,
        client,
        declared,
        b"",
        headers={
            "text": "grün",
            "true": True,
            "int": -5,
            "long": 2**40,
            "none": None,
            "time": datetime(2026, 2, 3, 4, 5, 6),
            "bytes": b"\xff\x00",
            "list": [1],
            "table": {"a": 1},
            "x-text": "annotation",
            "x-list": ["a", 1],
            "x-table": {"b": True},
        },
    )
    properties = dict(message.properties)
    assert bytes(properties.pop("bytes")) == b"\xff\x00"
    moment = int(datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp())
    assert properties == {
        "text": "grün",
        "true": True,
        "int": -5,
        "long": 2**40,
        "none": None,
        "time": timestamp(1000 * moment),
    }
    assert type(properties["int"]) is int32
    annotations = message.annotations
    assert annotations is not None
    assert annotations["x-text"] == "annotation"
    assert list(annotations["x-list"]) == ["a", 1]
    assert dict(annotations["x-table"]) == {"b": True}


def test_a_uuid_in_message_id_becomes_a_uuid(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """`urn:uuid:` text is how 0-9-1 writes one."""
    identity = uuid.UUID("12345678-1234-5678-1234-567812345678")
    message = to_proton(channel, client, declared, b"", message_id=f"urn:uuid:{identity}")
    assert message.id == identity


def test_an_empty_and_a_large_body_of_pika(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """One data section each."""
    for body in (b"", bytes(range(256)) * 4096):
        assert bytes(to_proton(channel, client, declared, body).body) == body


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (uuid.UUID(int=1), "urn:uuid:00000000-0000-0000-0000-000000000001"),
        (ulong(2**64 - 1), "18446744073709551615"),
        ("text", "text"),
    ],
    ids=["uuid", "ulong", "text"],
)
def test_message_ids_of_all_types(
    client: ProtonClient, channel: BlockingChannel, declared: str, given: Any, expected: str
) -> None:
    """As text where that is possible."""
    received = to_pika(
        client, channel, declared, Message(body=b"", inferred=True, id=given, correlation_id=given)
    )
    assert (received.properties.message_id, received.properties.correlation_id) == (expected, expected)


def test_a_message_id_that_is_no_short_text_is_a_header(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """Binary, and longer than 255 bytes."""
    received = to_pika(
        client, channel, declared, Message(body=b"", inferred=True, id=b"\xff\x00", correlation_id="l" * 300)
    )
    properties = received.properties
    assert (properties.message_id, properties.correlation_id) == (None, None)
    assert properties.headers["x-message-id"] == b"\xff\x00"
    assert properties.headers["x-correlation-id"] == "l" * 300


def test_application_properties_and_annotations_become_headers(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """All simple types; x- annotations with lists and maps."""
    given = {
        "text": "grün",
        "true": True,
        "byte": byte(-5),
        "ubyte": ubyte(200),
        "short": short(-300),
        "ushort": ushort(60_000),
        "int": int32(-70_000),
        "uint": uint(3_000_000_000),
        "long": 2**40,
        "double": 2.0,  # pika reads doubles as integers
        "none": None,
        "bytes": b"\xff",
        "symbol": symbol("s"),
        "time": timestamp(1_700_000_000_000),
    }
    received = to_pika(
        client,
        channel,
        declared,
        Message(
            body=b"",
            inferred=True,
            properties=given,
            annotations={symbol("x-text"): "a", symbol("x-list"): [1, "b"], symbol("x-map"): {"c": True}},
        ),
    )
    headers = received.properties.headers
    moment = headers.pop("time")
    assert moment.replace(tzinfo=UTC).timestamp() == 1_700_000_000
    expected: dict[str, Any] = {name: value for name, value in given.items() if name != "time"}
    expected |= {"symbol": "s", "x-text": "a", "x-list": [1, "b"], "x-map": {"c": True}}
    assert headers == expected


def test_a_body_that_is_not_binary_is_marked(
    client: ProtonClient, channel: BlockingChannel, declared: str
) -> None:
    """amqp-value comes encoded, with type amqp-1.0; published again by pika it is the same for proton."""
    received = to_pika(client, channel, declared, Message(body={"a": [1, "two"]}))
    assert received.properties.type == "amqp-1.0"
    section = decode(received.body)
    section = section[0] if isinstance(section, tuple) else section
    assert dict(section.value)["a"] == [1, "two"]
    back = to_proton(channel, client, declared, received.body, type="amqp-1.0")
    assert back.body == {"a": [1, "two"]}


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
