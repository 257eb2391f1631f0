"""What AMQP 1.0 clients see of each kind of queue: cases of RabbitMQ's amqp_client_SUITE."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Link, Message, Terminus, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Inbox
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def from_the_first(receiver: Link) -> None:
    """A stream's consumer that begins at the oldest message."""
    receiver.source.filter.put_dict(
        {symbol("offset"): Described(symbol("rabbitmq:stream-offset-spec"), "first")}
    )


class Scene:
    """One queue of a kind, and a client.

    Attributes:
        address: of the queue.
        keeps: nothing that a consumer does takes a message away.
    """

    def __init__(self, kind: str, name: str, channel: BlockingChannel, client: ProtonClient) -> None:
        self.kind, self.name, self.client, self.channel = kind, name, client, channel
        self.address = f"/queues/{name}"
        self.keeps = kind == "stream"
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})

    def receiver(
        self, credit: int = 0, *, client: ProtonClient | None = None, **options: Any
    ) -> ReceivingEnd:
        """A consumer of all that was ever published."""
        apply = (from_the_first,) if self.kind == "stream" else ()
        return (client or self.client).receiver(self.address, credit=credit, apply=apply, **options)

    def publish(self, first: int, end: int, **fields: Any) -> None:
        """Messages whose bodies are numbers; each is accepted when this returns."""
        sender = self.client.sender(self.address)
        tags = [sender.transfer(Message(body=number, **fields)) for number in range(first, end)]
        assert {sender.outcome(tag).state for tag in tags} <= {Delivery.ACCEPTED}
        sender.close()

    def ready(self) -> int:
        """Messages that are ready."""
        return int(self.channel.queue_declare(self.name, passive=True).method.message_count)

    def await_ready(self, count: int) -> None:
        """Wait for so many."""
        self.client.wait(lambda: self.ready() == count, f"{count} messages in {self.name}")


@pytest.fixture(params=["classic", "quorum", "stream"])
def scene(
    request: pytest.FixtureRequest, channel: BlockingChannel, client: ProtonClient, queue: str
) -> Scene:
    """A queue of each kind."""
    return Scene(request.param, queue, channel, client)


@pytest.fixture(params=["classic", "quorum"])
def settling(
    request: pytest.FixtureRequest, channel: BlockingChannel, client: ProtonClient, queue: str
) -> Scene:
    """A queue of each kind from which settled messages go."""
    return Scene(request.param, queue, channel, client)


@pytest.fixture
def quorum(channel: BlockingChannel, client: ProtonClient, queue: str) -> Scene:
    """A quorum queue."""
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
    """sync_get_*: as many as were asked for, none without asking."""
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
def test_fetch_with_time_out(scene: Scene) -> None:
    """timed_get_*: a fetch that found nothing leaves no credit behind."""
    receiver = scene.receiver()

    def fetch(wait_s: float) -> Any:
        before = len(receiver.received)
        receiver.grant(1)
        end = time.monotonic() + wait_s
        scene.client.wait(lambda: len(receiver.received) > before or time.monotonic() > end, "fetch")
        if len(receiver.received) == before:
            receiver.drain()
            receiver.link.drained()
        return receiver.received[-1].message.body if len(receiver.received) > before else None

    assert fetch(0.02) is None
    scene.publish(0, 2)
    assert receiver.link.credit == 0
    assert [fetch(20), fetch(20), fetch(0.02)] == [0, 1, None]


@pytest.mark.rabbitmq("amqp_client_SUITE", "stop_classic_queue", "stop_quorum_queue", "stop_stream")
def test_stop_and_resume(scene: Scene) -> None:
    """stop_*: after the answer to credit 0 nothing comes; new credit gets the rest in order."""
    scene.publish(0, 60)
    receiver = scene.receiver(10)
    receiver.take(10)
    receiver.grant(5)
    receiver.stop()
    stopped_at = len(receiver.received)
    assert 10 <= stopped_at <= 15
    scene.publish(60, 70)
    receiver.drain()
    assert len(receiver.received) == stopped_at
    receiver.grant(70 - stopped_at)
    client = scene.client
    client.wait(lambda: len(receiver.received) == 70, "the rest")
    assert receiver.bodies == list(range(70))


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
    """drain_many_*, roundtrip_with_drain_*: also over several batches."""
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
    """receive_many_auto_flow_*: in order, with never more on their way than the credit."""
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
    "accept_multiple_message_order_classic_queue",
    "accept_multiple_message_order_quorum_queue",
    "release_multiple_message_order_classic_queue",
    "release_multiple_message_order_quorum_queue",
)
@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "delivery_count_classic_queue",
    "delivery_count_quorum_queue",
    "reliable_send_receive_with_outcomes_classic_queue",
    "reliable_send_receive_with_outcomes_quorum_queue",
)
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "reject", "released")
def test_each_outcome_has_its_effect(settling: Scene) -> None:
    """reliable_send_receive_with_outcomes_*, delivery_count_*: accepted and rejected
    take a message away, released brings it back, modified with delivery-failed counts."""
    receiver = settling.receiver()
    for state, counts in ((Delivery.ACCEPTED, None), (Delivery.REJECTED, None), (Delivery.RELEASED, 0)):
        settling.publish(0, 1)
        receiver.grant(1)
        (got,) = receiver.take()
        assert (got.message.first_acquirer, got.message.delivery_count) == (True, 0)
        receiver.settle(got, state)
        settling.await_ready(0 if counts is None else 1)
    for failed, counts in ((False, 0), (True, 0), (True, 1)):
        receiver.grant(1)
        (got,) = receiver.take()
        assert (got.message.first_acquirer, got.message.delivery_count) == (False, counts)
        receiver.modify(got, failed=failed, undeliverable=False)
        settling.await_ready(1)


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
    """detach_requeues_one_session_*, detach_requeues_two_connections_*: in order."""
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


def test_a_stream_keeps_what_was_settled(channel: BlockingChannel, client: ProtonClient, queue: str) -> None:
    """Outcomes mean nothing to a stream; distribution-mode is copy."""
    scene = Scene("stream", queue, channel, client)
    scene.publish(0, 3)
    receiver = scene.receiver(3)
    for each, state in zip(
        receiver.take(3), (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED), strict=True
    ):
        receiver.settle(each, state)
    assert receiver.link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
    assert scene.ready() == 3
    again = scene.receiver(3)
    again.take(3)
    assert again.bodies == [0, 1, 2]
    offsets = [each.message.annotations[symbol("x-stream-offset")] for each in again.received]
    assert offsets == [0, 1, 2]


# --- messages -----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_quorum_queue", "durable_field_stream")
def test_durable_is_delivered_as_sent(scene: Scene) -> None:
    """durable_field_*: what the publisher said, though all are written."""
    for durable in (True, False):
        scene.publish(0, 1, durable=durable)
    receiver = scene.receiver(2)
    assert [each.message.durable for each in receiver.take(2)] == [True, False]


@pytest.mark.rabbitmq("amqp_client_SUITE", "amqp_quorum_queue_amqpl", "amqp_stream_amqpl")
def test_a_consumer_of_the_other_protocol(scene: Scene) -> None:
    """amqp_quorum_queue_amqpl, amqp_stream_amqpl: published with AMQP 1.0, consumed with AMQP 0-9-1."""
    client, channel = scene.client, scene.channel
    client.sender(scene.address).send(
        Message(body=b"one", inferred=True, id="a", properties={"key": "value"}),
        Message(body=b"two", inferred=True),
    )
    channel.basic_qos(prefetch_count=10)
    arguments = {"x-stream-offset": "first"} if scene.keeps else {}
    inbox = Inbox(channel, scene.name, arguments=arguments)
    first, second = inbox.take(2)
    assert [first.body, second.body] == [b"one", b"two"]
    assert first.properties.message_id == "a"
    assert first.properties.headers is not None
    assert first.properties.headers["key"] == "value"
    offsets = [(each.properties.headers or {}).get("x-stream-offset") for each in (first, second)]
    assert offsets == ([0, 1] if scene.keeps else [None, None])


# --- ends and refusals --------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "link_target_quorum_queue_deleted",
    "server_closes_link_quorum_queue",
    "server_closes_link_stream",
)
def test_links_hear_that_their_queue_was_deleted(scene: Scene) -> None:
    """server_closes_link_*, link_target_*_deleted: both ends are detached; what was settled stands."""
    sender = scene.client.sender(scene.address)
    sender.send(Message(body=1))
    receiver = scene.receiver(1)
    receiver.take()
    scene.channel.queue_delete(scene.name)
    assert receiver.wait_refused() == "amqp:resource-deleted"
    assert sender.wait_refused() == "amqp:resource-deleted"


# --- time and priority --------------------------------------------------------------------------------


# --- dead letters of modified -------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "modified_dead_letter_headers_exchange", "modified_dead_letter_history"
)
def test_annotations_of_modified_route_the_dead_letter(quorum: Scene) -> None:
    """modified_dead_letter_headers_exchange, modified_dead_letter_history: a headers exchange sees what the
    consumer wrote; it stays with the message, beside the history of its death."""
    channel, name = quorum.channel, f"{quorum.name}-dead"
    channel.queue_delete(quorum.name)
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": name}
    channel.queue_declare(quorum.name, durable=True, arguments=arguments)
    channel.exchange_declare(name, "headers", auto_delete=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, arguments={"x-match": "any-with-x", "x-opt-fruit": "apple"})
    quorum.publish(0, 2)
    receiver = quorum.receiver(2)
    for got, fruit in zip(receiver.take(2), ("pear", "apple"), strict=True):
        annotations = {symbol("x-opt-fruit"): fruit}
        receiver.modify(got, failed=True, undeliverable=True, annotations=annotations)
    dead = quorum.client.receiver(f"/queues/{name}", credit=2)
    (message,) = [each.message for each in dead.take()]
    assert message.body == 1
    assert message.annotations[symbol("x-opt-fruit")] == "apple"
    (record,) = message.annotations[symbol("x-opt-deaths")].elements
    assert (record["queue"], record["reason"], record["count"]) == (quorum.name, "rejected", 1)
    dead.drain()
    assert len(dead.received) == 1
