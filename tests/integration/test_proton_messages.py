"""What proton sends through the broker is what proton receives: every body, property, annotation."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from proton import (
    AnnotationDict,
    Array,
    Data,
    Delivery,
    Described,
    Message,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.sections import locate
from amqp10broker.protocols.amqp10.types import Described as OwnDescribed
from amqp10broker.protocols.amqp10.types import Symbol as OwnSymbol
from amqp10broker.protocols.amqp10.types import ULong as OwnULong
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient, Received

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


def through(client: ProtonClient, queue: str, *payloads: bytes | Message) -> list[Received]:
    """Send messages and receive them again."""
    sender = client.sender(queue)
    assert [each.state for each in sender.send(*payloads)] == [Delivery.ACCEPTED] * len(payloads)
    receiver = client.receiver(queue, credit=len(payloads))
    received = receiver.take(len(payloads))
    receiver.settle(received)
    receiver.close()
    sender.close()
    return received


def bare(payload: bytes) -> bytes:
    """Properties, application-properties, body and footer."""
    return payload[locate(payload).bare :]


def section(code: int, value: Any) -> bytes:
    """One section of a message, encoded without proton."""
    return encode(OwnDescribed(OwnULong(code), value))


VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "ubyte": ubyte(255),
    "ushort": ushort(65_535),
    "uint": uint(2**32 - 1),
    "uint 0": uint(0),
    "ulong": ulong(2**64 - 1),
    "ulong 0": ulong(0),
    "byte": byte(-128),
    "short": short(-32_768),
    "int": int32(-(2**31)),
    "long": -(2**63),
    "float": float32(1.5),
    "double": 2.5,
    "decimal32": decimal32(0x22500000),
    "decimal64": decimal64(0x2238000000000000),
    "decimal128": decimal128(bytes(range(16))),
    "char": char("\U0001f407"),
    "timestamp": timestamp(1_700_000_000_123),
    "timestamp before 1970": timestamp(-1),
    "uuid": uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    "binary": b"\x00\xff" * 200,
    "empty binary": b"",
    "string": "Käse € \U0001f9c0",
    "long string": "x" * 300,
    "symbol": symbol("amqp:accepted:list"),
    "list": [1, "two", None, [3.0, []]],
    "empty list": [],
    "map": {"a": 1, symbol("b"): [True], ulong(7): {"deep": None}},
    "array": Array(None, Data.INT, 1, 2, 3),
    "array of strings": Array(None, Data.STRING, "a", "b" * 300),
    "described": Described(symbol("example:point"), [1, 2]),
}


@pytest.mark.rabbitmq("amqp_client_SUITE", "decimal_types")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "data_types")
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_an_amqp_value_of_every_type_arrives_as_sent(
    broker: BrokerProcess, client: ProtonClient, queue: str, value: Any
) -> None:
    """Section 3.2.8: any AMQP type may be the body."""
    sent = bytes(Message(body=value, inferred=False).encode())
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == bare(sent)
    body = received.message.body
    assert body == value
    if type(value) is not bytes:  # of which proton makes a memoryview when they are few
        assert type(body) is type(value)


def test_null_is_a_value(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 3.2.8: an amqp-value section may hold null."""
    sent = section(0x77, None)
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == sent
    assert received.message.body is None


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "message_without_body", differs="taken")
def test_message_without_body_is_given_back_without_one(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2 wants a body; Proton writes none for ``Message(body=None)``."""
    sent = bytes(Message(subject="ping").encode())
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == bare(sent)
    assert (received.message.subject, received.message.body) == ("ping", None)


def test_data_sections_arrive_as_sent(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 3.2.6: a body of binary data, of any bytes, also none."""
    for body in (b"", b"x", bytes(range(256)), b"\x00" * 70_000):
        sent = bytes(Message(body=body, inferred=True).encode())
        (received,) = through(client, queue, sent)
        assert bare(received.raw) == bare(sent)
        assert received.message.body == body
        assert received.message.inferred


def test_several_data_sections_are_not_joined(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2: "one or more data sections"; the bare message is immutable, so they stay apart."""
    sent = section(0x75, b"one") + section(0x75, b"") + section(0x75, b"three" * 100)
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == sent


def test_sequence_bodies_arrive_as_sent(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 3.2.7: one or more amqp-sequence sections."""
    sent = section(0x76, [1, "two", None]) + section(0x76, [])
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == sent


def full_message() -> Message:
    """A message with every property that proton knows."""
    return Message(
        id=uuid.uuid4(),
        user_id=b"guest",
        address="/queues/elsewhere",
        subject="a subject",
        reply_to="/queues/replies",
        correlation_id="correlated",
        content_type=symbol("text/plain"),
        content_encoding=symbol("gzip"),
        expiry_time=1_800_000_000,
        creation_time=1_700_000_000,
        group_id="group",
        group_sequence=7,
        reply_to_group_id="answers",
        properties={"string": "s", "int": 1, "none": None, "binary": b"\x00", "yes": True, "double": 0.5},
        body="the body",
    )


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "roundtrip")
def test_properties_and_application_properties_arrive_as_sent(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Sections 3.2.4 and 3.2.5 belong to the bare message."""
    sent = full_message()
    (received,) = through(client, queue, sent)
    got = received.message
    for name in (
        *("id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type"),
        *("content_encoding", "expiry_time", "creation_time", "group_id", "group_sequence"),
        *("reply_to_group_id", "properties", "body"),
    ):
        assert getattr(got, name) == getattr(sent, name), name
    assert bare(received.raw) == bare(bytes(sent.encode()))


@pytest.mark.parametrize(
    "identifier",
    ["text", uuid.UUID(int=5), ulong(2**63), b"\x01\x02"],
    ids=["string", "uuid", "ulong", "binary"],
)
def test_every_type_of_message_id_arrives(
    broker: BrokerProcess, client: ProtonClient, queue: str, identifier: Any
) -> None:
    """Sections 3.2.11 to 3.2.14."""
    (received,) = through(client, queue, Message(id=identifier, correlation_id=identifier, body=1))
    assert received.message.id == identifier
    assert received.message.correlation_id == identifier


@pytest.mark.rabbitmq("amqp_client_SUITE", "immutable_bare_message")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "footer")
def test_bare_message_and_footer_are_byte_identical(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2: "the bare message is immutable"; also where the encoding is not the shortest."""
    wide_list = b"\x00\x53\x73\xd0\x00\x00\x00\x0c\x00\x00\x00\x02\xb1\x00\x00\x00\x02id\x40"
    long_descriptor = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x03abc"
    footer = section(0x78, {OwnSymbol("x-digest"): b"\x01\x02"})
    sent = wide_list + long_descriptor + footer
    header = b"\x00\x53\x70\xc0\x02\x01\x41"
    (received,) = through(client, queue, header + sent)
    assert bare(received.raw) == sent
    assert received.message.durable


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "message_annotations")
def test_annotations_of_the_publisher_are_kept_and_the_broker_adds_its_own(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Keys with x- are the publisher's; x-exchange and x-routing-key are always the broker's."""
    mine = {symbol("x-text"): "v", symbol("x-number"): ulong(5), symbol("x-map"): {"a": [1, b"2"]}}
    forged = {symbol("x-exchange"): "forged", symbol("x-routing-key"): "forged"}
    address = f"/queues/{queue}"
    client.sender(queue).close()  # declares it
    (received,) = through(client, address, Message(body=1, annotations=AnnotationDict(mine | forged)))
    assert received.message.annotations == {
        **mine,
        symbol("x-exchange"): "",
        symbol("x-routing-key"): queue,
    }


def test_delivery_annotations_end_at_the_broker(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2.2: they are for the next hop only."""
    sent = Message(body=1, instructions=AnnotationDict({symbol("x-hop"): 1}))
    (received,) = through(client, queue, sent)
    assert locate(received.raw).message_annotations is not None
    assert not received.message.instructions


@pytest.mark.rabbitmq("amqp_client_SUITE", "reserved_annotation")
def test_annotation_without_prefix_detaches(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 3.2.10: annotations without x- are reserved; the link ends, the session goes on."""
    sender = client.sender(queue)
    sender.transfer(Message(body=1, annotations=AnnotationDict({symbol("mine"): 1})))
    assert sender.wait_refused() == "amqp:invalid-field"
    assert "reserved_annotation_key" in (sender.description or "")
    assert client.sender(queue).send("next")[0].state == Delivery.ACCEPTED


def test_foreign_user_id_detaches(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 3.2.4: the broker checks that user-id is the user's who logged in."""
    sender = client.sender(queue)
    sender.transfer(Message(body=1, user_id=b"somebody"))
    assert sender.wait_refused() == "amqp:unauthorized-access"
    assert sender.description == "user_id property set to 'somebody' but authenticated user was 'guest'"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"garbage", id="garbage"),
        pytest.param(section(0x75, b"x") + section(0x73, []), id="sections out of order"),
        pytest.param(section(0x75, b"x") + section(0x77, 1), id="two kinds of body"),
        pytest.param(section(0x77, 1) + section(0x77, 2), id="two values"),
        pytest.param(section(0x99, 1), id="unknown section"),
        pytest.param(section(0x75, b"x")[:-1], id="cut off"),
    ],
)
def test_malformed_message_ends_its_link_only(
    broker: BrokerProcess, client: ProtonClient, queue: str, payload: bytes
) -> None:
    """What is no message is answered by detach with amqp:decode-error."""
    sender = client.sender(queue)
    other = client.sender(queue)
    sender.transfer(payload)
    assert sender.wait_refused() == "amqp:decode-error"
    assert (sender.description or "").startswith("failed to parse message")
    assert other.send("fine")[0].state == Delivery.ACCEPTED
    broker.wait_for_counts(queue, ready=1)


@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_classic_queue")
@pytest.mark.parametrize("durable", [True, False])
def test_durable_is_delivered_as_sent(
    broker: BrokerProcess, client: ProtonClient, queue: str, durable: bool
) -> None:
    """Section 3.2.1; the field left out is false."""
    (received,) = through(client, queue, Message(body=1, durable=durable))
    assert received.message.durable is durable


@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_classic_queue")
def test_message_without_header_gets_one(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """A header is always there at delivery: durable false, first-acquirer true, delivery-count 0."""
    (received,) = through(client, queue, section(0x75, b"x"))
    assert locate(received.raw).header is not None
    message = received.message
    assert (message.durable, message.first_acquirer, message.delivery_count) == (False, True, 0)


def test_priority_and_ttl_are_delivered_as_sent(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2.1: the original values, ttl in ms on the wire."""
    plain, special = through(client, queue, Message(body=1), Message(body=2, priority=9, ttl=3600.0))
    assert (plain.message.priority, plain.message.ttl) == (4, 0)
    assert (special.message.priority, special.message.ttl) == (9, 3600.0)


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "enqueued_msg_with_delivery_count_test",
    note="a count that the publisher wrote is not the queue's",
)
def test_first_acquirer_and_delivery_count_of_publishers_are_ignored(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """They are the broker's to set."""
    (received,) = through(client, queue, Message(body=1, first_acquirer=False, delivery_count=12))
    assert (received.message.first_acquirer, received.message.delivery_count) == (True, 0)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "fragmentation")
@pytest.mark.parametrize("frame_size", [512, 4096, 131_072, None])
def test_one_mebibyte_through_every_frame_size(
    broker: BrokerProcess, clients: Any, queue: str, frame_size: int | None
) -> None:
    """Section 2.6.14: messages are cut by the peer's max-frame-size, 512 bytes being the least."""
    options = {} if frame_size is None else {"max_frame_size": frame_size}
    client = clients(broker, **options)
    sent = section(0x75, bytes(range(256)) * (MIB // 256))
    first, second = through(client, queue, sent, sent)
    assert bare(first.raw) == sent
    assert bare(second.raw) == sent


def test_message_of_exactly_the_maximum_size(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """16 MiB are accepted, with the header that proton adds not counted twice, and come back whole."""
    head = len(section(0x75, b"x" * 1000)) - 1000
    sent = section(0x75, b"m" * (16 * MIB - head))
    assert len(sent) == 16 * MIB
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == sent


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "max_message_size_client_to_server",
    differs="the link is detached, not the session ended",
)
def test_message_above_the_maximum_detaches(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Section 2.7.3: "If a message is sent that exceeds it, the link is detached"; the session lives."""
    head = len(section(0x75, b"x" * 1000)) - 1000
    sender = client.sender(queue)
    assert sender.link.remote_max_message_size == 16 * MIB
    other = client.sender(queue)
    sender.transfer(section(0x75, b"m" * (16 * MIB - head + 1)))
    assert sender.wait_refused() == "amqp:link:message-size-exceeded"
    assert other.send("fine")[0].state == Delivery.ACCEPTED
    broker.wait_for_counts(queue, ready=1)


def test_maximum_size_is_a_setting(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """--max-message-size-bytes is announced and kept."""
    client = clients(start_broker("--max-message-size-bytes", "1000"))
    sender = client.sender(queue)
    assert sender.link.remote_max_message_size == 1000
    assert sender.send(section(0x75, b"m" * 900))[0].state == Delivery.ACCEPTED
    sender.transfer(section(0x75, b"m" * 1000))
    assert sender.wait_refused() == "amqp:link:message-size-exceeded"


def test_message_too_large_for_the_consumer_is_not_sent_to_it(
    broker: BrokerProcess, clients: Any, queue: str
) -> None:
    """Section 2.7.3: the consumer's max-message-size ends that link; the message stays in the queue."""
    client = clients(broker)
    sender = client.sender(queue)
    sender.send(section(0x75, b"m" * 5000), section(0x75, b"small"))
    small = client.receiver(queue, credit=2, max_message_size=1000, wait=False)
    assert small.wait_refused() == "amqp:link:message-size-exceeded"
    assert not small.received
    large = client.receiver(queue, credit=2)
    assert [len(bare(each.raw)) for each in large.take(2)] == [5008, 10]


def test_many_messages_of_many_sizes_keep_their_order(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Multi-frame and single-frame deliveries mixed on one link, in order."""
    sizes = [0, 1, 255, 256, 100_000, 131_000, 131_072, 3, 400_000, 7] * 4
    received = through(client, queue, *(section(0x75, bytes([at]) * size) for at, size in enumerate(sizes)))
    assert [bare(each.raw) for each in received] == [
        section(0x75, bytes([at]) * size) for at, size in enumerate(sizes)
    ]
