"""How AMQP 1.0 clients drain each kind of queue."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Link, Message, symbol

from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])


def from_the_first(receiver: Link) -> None:
    """The stream's consumer begins at the oldest message."""
    receiver.source.filter.put_dict(
        {symbol("offset"): Described(symbol("rabbitmq:stream-offset-spec"), "first")}
    )


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "timed_get_classic_queue", "timed_get_quorum_queue", "timed_get_stream"
)
@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "drain_many_quorum_queue",
    "drain_many_stream",
    "roundtrip_with_drain_classic_queue",
    "roundtrip_with_drain_quorum_queue",
    "roundtrip_with_drain_stream",
)
@KINDS
@pytest.mark.parametrize(("ready", "credit"), [(0, 5), (3, 10), (300, 1000), (400, 300)])
def test_drain_delivers_what_is_there_and_forfeits_the_rest(
    channel: BlockingChannel, client: ProtonClient, queue: str, kind: str, ready: int, credit: int
) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    outcomes = client.sender(f"/queues/{queue}").send(*[Message(body=number) for number in range(ready)])
    assert {each.state for each in outcomes} <= {Delivery.ACCEPTED}
    receiver = client.receiver(f"/queues/{queue}", apply=[from_the_first] if kind == "stream" else [])
    receiver.link.drain(credit)
    client.wait(lambda: receiver.link.credit == 0 and not receiver.link.draining(), "drained")
    assert receiver.bodies == list(range(min(ready, credit)))
    assert receiver.link.drained() == max(credit - ready, 0)
