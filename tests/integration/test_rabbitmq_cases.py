"""Cases of RabbitMQ's suites that take clients of both protocols at once.

`make docs` writes a page with the test of each case.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Message, symbol, ulong

from tests.support.pika_client import Properties, get, put
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "roundtrip_to_amqp_091")
def test_a_message_goes_from_one_protocol_to_the_other_and_back(
    channel: BlockingChannel, client: ProtonClient, queue: str
) -> None:
    """roundtrip_to_amqp_091, amqp_amqpl: properties keep their meaning on the way."""
    channel.queue_declare(queue, durable=True)
    sent = Message(
        body=b"body",
        inferred=True,
        durable=True,
        id="id",
        correlation_id="correlation",
        content_type="text/plain",
        group_id="group",
        properties={"key": "value", "number": ulong(5)},
        annotations={symbol("x-note"): "note"},
    )
    sender = client.sender(f"/queues/{queue}")
    sender.send(sent)
    got = get(channel, queue, auto_ack=True)
    assert got.body == b"body"
    assert got.properties.delivery_mode == 2
    assert (got.properties.message_id, got.properties.correlation_id) == ("id", "correlation")
    assert (got.properties.content_type, got.properties.app_id) == ("text/plain", "group")
    assert got.properties.headers == {"key": "value", "number": 5, "x-note": "note"}
    put(channel, queue, "body", properties=got.properties)
    receiver = client.receiver(f"/queues/{queue}", credit=1)
    back = receiver.take()[0].message
    assert bytes(back.body) == b"body"
    assert back.durable is True
    assert (back.id, back.correlation_id, back.group_id) == ("id", "correlation", "group")
    assert back.properties == {"key": "value", "number": 5}
    assert back.annotations[symbol("x-note")] == "note"


@pytest.mark.rabbitmq("unicode_SUITE", "classic_queue_v2", "quorum_queue", "stream")
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_queue_with_a_name_of_any_letters(
    channel: BlockingChannel, client: ProtonClient, queue: str, kind: str
) -> None:
    """One name, in UTF-8 on the one side and percent-encoded on the other."""
    name = f"\u65e5\u672c\u8a9e-\U0001f407-{queue[-8:]}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    receiver = client.receiver(f"/queues/{quote(name)}", credit=1)
    put(channel, name, "\u6771", properties=Properties(content_type="text/plain"))
    received = receiver.take()[0].message
    assert bytes(received.body).decode() == "\u6771"
    assert received.annotations[symbol("x-routing-key")] == name
