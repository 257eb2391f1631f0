"""What proton sends through the broker is what proton receives: every body, property, annotation."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.sections import locate
from amqp10broker.protocols.amqp10.types import Described as OwnDescribed
from amqp10broker.protocols.amqp10.types import ULong as OwnULong
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient, Received

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


def through(client: ProtonClient, queue: str, *payloads: bytes | Message) -> list[Received]:
    sender = client.sender(queue)
    assert [each.state for each in sender.send(*payloads)] == [Delivery.ACCEPTED] * len(payloads)
    receiver = client.receiver(queue, credit=len(payloads))
    received = receiver.take(len(payloads))
    receiver.settle(received)
    receiver.close()
    sender.close()
    return received


def bare(payload: bytes) -> bytes:
    return payload[locate(payload).bare :]


def section(code: int, value: Any) -> bytes:
    return encode(OwnDescribed(OwnULong(code), value))


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
