"""Dead letters of classic and quorum queues, as pika and proton get them."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_client import Inbox, Properties, get, put

pytestmark = pytest.mark.usefixtures("deadline")


def declare(channel: BlockingChannel, queue: str, kind: str, dead: str) -> None:
    arguments = {"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_into_stream")
@pytest.mark.rabbitmq("dead_lettering_SUITE", "stream")
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "dead_letter_target")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_dead_letters_go_into_a_stream(channel: BlockingChannel, queue: str, kind: str) -> None:
    """A stream takes dead letters and has none of its own."""
    stream = f"{queue}-stream"
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    declare(channel, queue, kind, stream)
    channel.confirm_delivery()
    put(channel, queue, "1", properties=Properties(headers={"CC": ["cc"]}))
    put(channel, queue, "2", properties=Properties(expiration="1"))
    channel.basic_reject(get(channel, queue).tag, requeue=False)
    channel.basic_qos(prefetch_count=10)
    inbox = Inbox(channel, stream, arguments={"x-stream-offset": "first"})
    by_text = {each.text: each for each in inbox.take(2)}
    deaths = {text: each.properties.headers["x-death"][0] for text, each in by_text.items()}
    assert [(each["queue"], each["reason"], each["count"]) for each in (deaths["1"], deaths["2"])] == [
        (queue, "rejected", 1),
        (queue, "expired", 1),
    ]
    assert deaths["1"]["routing-keys"] == [queue, "cc"]
    assert deaths["2"]["original-expiration"] == "1"
    assert by_text["2"].method.routing_key == stream
