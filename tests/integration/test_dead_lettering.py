"""Dead letters of classic and quorum queues, as pika and proton get them."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Message, symbol

from tests.support.pika_client import Inbox, Properties, get, put
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")


def declare(channel: BlockingChannel, queue: str, kind: str, dead: str) -> None:
    """A queue of the kind, whose dead letters go to the queue `dead`."""
    arguments = {"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_into_stream")
@pytest.mark.rabbitmq("dead_lettering_SUITE", "stream")
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "dead_letter_target")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_dead_letters_go_into_a_stream(channel: BlockingChannel, queue: str, kind: str) -> None:
    """A stream takes them and gives up none itself."""
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


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_reject")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "dead_letter_from_classic_to_quorum_queue",
    "dead_letter_to_classic_queue",
    "dead_letter_to_quorum_queue",
)
@pytest.mark.parametrize(("kind", "to"), [("classic", "quorum"), ("quorum", "classic"), ("quorum", "quorum")])
@pytest.mark.parametrize("modified", [False, True], ids=["rejected", "undeliverable-here"])
def test_outcomes_of_amqp10_dead_letter(
    channel: BlockingChannel, client: ProtonClient, queue: str, kind: str, to: str, modified: bool
) -> None:
    """Annotations, delivery-count, first-acquirer."""
    dead = f"{queue}-dead"
    declare(channel, dead, to, "")
    declare(channel, queue, kind, dead)
    message = Message(body="1", durable=True, priority=6, annotations={symbol("x-mine"): "kept"})
    client.sender(queue).send(message)
    receiver = client.receiver(queue, credit=1)
    if modified:
        receiver.modify(receiver.take()[0], failed=True, undeliverable=True)
    else:
        receiver.settle(receiver.take(), Delivery.REJECTED)
    letter = client.receiver(dead, credit=1).take()[0].message
    assert (letter.body, letter.durable, letter.priority) == ("1", True, 6)
    assert (letter.first_acquirer, letter.delivery_count) == (False, 1)
    annotations: dict[Any, Any] = dict(letter.annotations or {})
    assert annotations["x-mine"] == "kept"
    assert annotations["x-exchange"] == ""
    assert annotations["x-routing-key"] == dead
    for which in ("first", "last"):
        assert annotations[f"x-{which}-death-queue"] == queue
        assert annotations[f"x-{which}-death-reason"] == "rejected"
        assert annotations[f"x-{which}-death-exchange"] == ""
    (record,) = annotations["x-opt-deaths"].elements
    times = record.pop("first-time"), record.pop("last-time")
    assert times[0] == times[1] > 1_700_000_000_000
    assert list(record.pop("routing-keys").elements) == [queue]
    assert record == {"queue": queue, "reason": symbol("rejected"), "count": 1, "exchange": ""}
