"""What AMQP 1.0 clients see of each kind of queue: cases of RabbitMQ's amqp_client_SUITE."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Link, Message, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def from_the_first(receiver: Link) -> None:
    """A stream's consumer that begins at the oldest message."""
    receiver.source.filter.put_dict(
        {symbol("offset"): Described(symbol("rabbitmq:stream-offset-spec"), "first")}
    )


class Scene:
    """One queue of a kind, and a client; of one that `keeps`, no consumer takes a message away."""

    def __init__(self, kind: str, name: str, channel: BlockingChannel, client: ProtonClient) -> None:
        self.kind, self.name, self.client, self.channel = kind, name, client, channel
        self.address = f"/queues/{name}"
        self.keeps = kind == "stream"
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})

    def receiver(
        self, credit: int = 0, *, client: ProtonClient | None = None, **options: Any
    ) -> ReceivingEnd:
        apply = (from_the_first,) if self.kind == "stream" else ()
        return (client or self.client).receiver(self.address, credit=credit, apply=apply, **options)

    def publish(self, first: int, end: int, **fields: Any) -> None:
        """Messages whose bodies are numbers; each is accepted when this returns."""
        sender = self.client.sender(self.address)
        tags = [sender.transfer(Message(body=number, **fields)) for number in range(first, end)]
        assert {sender.outcome(tag).state for tag in tags} <= {Delivery.ACCEPTED}
        sender.close()

    def ready(self) -> int:
        return int(self.channel.queue_declare(self.name, passive=True).method.message_count)

    def await_ready(self, count: int) -> None:
        self.client.wait(lambda: self.ready() == count, f"{count} messages in {self.name}")


@pytest.fixture(params=["classic", "quorum", "stream"])
def scene(
    request: pytest.FixtureRequest, channel: BlockingChannel, client: ProtonClient, queue: str
) -> Scene:
    return Scene(request.param, queue, channel, client)


@pytest.fixture(params=["classic", "quorum"])
def settling(
    request: pytest.FixtureRequest, channel: BlockingChannel, client: ProtonClient, queue: str
) -> Scene:
    """A queue of each kind from which settled messages go."""
    return Scene(request.param, queue, channel, client)


@pytest.fixture
def quorum(channel: BlockingChannel, client: ProtonClient, queue: str) -> Scene:
    return Scene("quorum", queue, channel, client)


SETTLED = {"snd_settle_mode": Link.SND_SETTLED}
UNSETTLED: dict[str, Any] = {}
MODES = pytest.mark.parametrize("mode", [SETTLED, UNSETTLED], ids=["settled", "unsettled"])


# --- credit -------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "sync_get_unsettled_classic_queue",
    "sync_get_settled_quorum_queue",
    "sync_get_settled_stream",
    "sync_get_unsettled_2_quorum_queue",
    "sync_get_unsettled_2_stream",
    "sync_get_unsettled_quorum_queue",
    "sync_get_unsettled_stream",
)
@MODES
@pytest.mark.parametrize("credit", [1, 2])
def test_each_grant_gets_so_many_messages(scene: Scene, mode: dict[str, Any], credit: int) -> None:
    """As many as were asked for, none without asking."""
    scene.publish(0, 3 * credit)
    receiver = scene.receiver(**mode)
    for number in range(3):
        receiver.grant(credit)
        got = receiver.take(credit)
        if not mode:
            receiver.settle(got)
        receiver.drain()
        assert len(receiver.received) == credit * (number + 1)
    assert receiver.bodies == list(range(3 * credit))


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
@pytest.mark.parametrize(("ready", "credit"), [(0, 5), (3, 10), (300, 1000), (400, 300)])
def test_drain_delivers_what_is_there_and_forfeits_the_rest(scene: Scene, ready: int, credit: int) -> None:
    scene.publish(0, ready)
    receiver = scene.receiver()
    receiver.link.drain(credit)
    scene.client.wait(lambda: receiver.link.credit == 0 and not receiver.link.draining(), "drained")
    assert receiver.bodies == list(range(min(ready, credit)))
    assert receiver.link.drained() == max(credit - ready, 0)


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "async_notify_settled_quorum_queue",
    "async_notify_settled_stream",
    "async_notify_unsettled_quorum_queue",
    "async_notify_unsettled_stream",
    "receive_many_made_available_over_time_classic_queue",
    "receive_many_made_available_over_time_quorum_queue",
    "receive_many_made_available_over_time_stream",
)
@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "receive_many_auto_flow_quorum_queue", "receive_many_auto_flow_stream"
)
@MODES
def test_a_consumer_that_renews_its_credit_gets_everything(scene: Scene, mode: dict[str, Any]) -> None:
    """In order, with never more on their way than the credit."""
    scene.publish(0, 500)
    receiver = scene.receiver(100, **mode)
    for _ in range(0, 500, 50):
        got = receiver.take(50)
        if not mode:
            receiver.settle(got)
        receiver.grant(50)
    assert receiver.bodies == list(range(500))


# --- outcomes -----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "detach_requeues_one_session_quorum_queue",
    "detach_requeues_two_connections_classic_queue",
    "detach_requeues_two_connections_quorum_queue",
)
@pytest.mark.parametrize("how", ["close", "connection"])
def test_what_a_consumer_held_goes_to_the_next_one(
    settling: Scene, how: str, clients: Any, broker: BrokerProcess
) -> None:
    settling.publish(0, 6)
    other = clients(broker) if how == "connection" else settling.client
    first = settling.receiver(4, client=other)
    got = first.take(4)
    first.settle(got[1])
    second = settling.receiver(10)
    second.take(2)
    if how == "connection":
        other.lose()
    else:
        first.close()
    second.take(3)
    assert second.bodies == [4, 5, 0, 2, 3]
    second.settle(second.received)
    settling.await_ready(0)
