"""Dead-lettering with real clients: the cases of RabbitMQ's dead_lettering suite, by pika and proton.

Queue types are the suite's: each case runs with a classic and a quorum queue as source, where both can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Message, symbol

from tests.support.pika_client import Delivered, Inbox, Properties, get, put, until
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")

Headers = dict[str, Any]


class Scene:
    """A source, its dead-letter exchange of type direct, and a queue for dead letters that is bound.

    Attributes:
        source: name of the queue that gives messages up; not declared yet.
        exchange: name of the dead-letter exchange.
        dead: name of the queue for dead letters; it is bound with the name of the source, and its own.
    """

    def __init__(self, channel: BlockingChannel, name: str, kind: str) -> None:
        self.channel = channel
        self.kind = kind
        self.source, self.exchange, self.dead = name, f"{name}-dlx", f"{name}-dead"
        channel.exchange_declare(self.exchange, "direct")
        self.declare(self.dead)
        for key in (self.source, self.dead):
            channel.queue_bind(self.dead, self.exchange, key)

    def declare(self, queue: str, **arguments: Any) -> None:
        """A durable queue of the kind; arguments without x-, underscores for dashes."""
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": self.kind, **given})

    def declare_source(self, **arguments: Any) -> None:
        self.declare(self.source, **{"dead_letter_exchange": self.exchange, **arguments})

    def publish(self, *texts: str, queue: str | None = None, **properties: Any) -> None:
        put(self.channel, queue or self.source, *texts, properties=Properties(**properties))

    def take(self, count: int, queue: str | None = None) -> list[int]:
        name = queue or self.source
        until(self.channel, lambda: self.ready(name) >= count, f"{count} messages in {name}")
        return [get(self.channel, name).tag for _ in range(count)]

    def ready(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def await_dead(self, *texts: str, queue: str | None = None) -> list[Delivered]:
        """Dead letters with these bodies, in this order, and no others."""
        name = queue or self.dead
        self.ready(self.source)  # it answers when it has worked off, and handed on, what it was told before
        until(self.channel, lambda: self.ready(name) >= len(texts), f"{len(texts)} messages in {name}")
        taken = [get(self.channel, name, auto_ack=True) for _ in texts]
        assert [each.text for each in taken] == list(texts)
        assert self.ready(name) == 0
        return taken


def headers_of(delivered: Delivered) -> Headers:
    assert delivered.properties.headers is not None
    return dict(delivered.properties.headers)


def events(headers: Headers) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each record, newest first."""
    return [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]]


@pytest.fixture(params=["classic", "quorum"])
def scene(request: pytest.FixtureRequest, channel: BlockingChannel, queue: str) -> Iterator[Scene]:
    built = Scene(channel, queue, request.param)
    yield built
    if channel.is_open:
        channel.exchange_delete(built.exchange)


@pytest.fixture
def classic(channel: BlockingChannel, queue: str) -> Scene:
    return Scene(channel, queue, "classic")


# --- rejected ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "dead_letter_from_classic_to_quorum_queue", "dead_letter_to_classic_queue"
)
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_nack_requeue_nack_norequeue_basic_get")
@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "dead_letter_nack_requeue_nack_norequeue_basic_consume",
    "dead_letter_reject_requeue_reject_norequeue",
)
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_nack")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "dead_letter_to_quorum_queue", note="both queues are quorum queues"
)
def test_dead_letter_nack(scene: Scene) -> None:
    scene.declare_source()
    scene.publish("1", "2", "3")
    tags = scene.take(3)
    scene.channel.basic_nack(tags[1], requeue=False)
    scene.await_dead("2")
    scene.channel.basic_ack(tags[0])
    scene.channel.basic_nack(tags[2], requeue=False)
    scene.await_dead("3")


# --- routing ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_into_stream")
@pytest.mark.rabbitmq("dead_lettering_SUITE", "stream")
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "dead_letter_target")
def test_dead_letters_go_into_a_stream(scene: Scene) -> None:
    """dead_letter_into_stream, and the case `stream`: a stream takes them and gives up none itself."""
    stream = f"{scene.source}-stream"
    scene.channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    scene.declare_source(dead_letter_exchange="", dead_letter_routing_key=stream)
    scene.publish("1", headers={"CC": ["cc"]})
    scene.publish("2", expiration="1")
    scene.channel.basic_reject(scene.take(1)[0], requeue=False)
    scene.channel.basic_qos(prefetch_count=10)
    inbox = Inbox(scene.channel, stream, arguments={"x-stream-offset": "first"})
    by_text = {each.text: each for each in inbox.take(2)}
    assert events(headers_of(by_text["1"])) == [(scene.source, "rejected", 1)]
    assert headers_of(by_text["1"])["x-death"][0]["routing-keys"] == [scene.source, "cc"]
    assert events(headers_of(by_text["2"])) == [(scene.source, "expired", 1)]
    assert headers_of(by_text["2"])["x-death"][0]["original-expiration"] == "1"
    assert by_text["2"].method.routing_key == stream


# --- AMQP 1.0 ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_reject")
@pytest.mark.parametrize("modified", [False, True], ids=["rejected", "undeliverable-here"])
def test_outcomes_of_amqp10_dead_letter(scene: Scene, client: ProtonClient, modified: bool) -> None:
    """dead_letter_reject of RabbitMQ's amqp_client suite: annotations, delivery-count, first-acquirer."""
    scene.declare_source()
    message = Message(body="1", durable=True, priority=6, annotations={symbol("x-mine"): "kept"})
    client.sender(scene.source).send(message)
    receiver = client.receiver(scene.source, credit=1)
    if modified:
        receiver.modify(receiver.take()[0], failed=True, undeliverable=True)
    else:
        receiver.settle(receiver.take(), Delivery.REJECTED)
    dead = client.receiver(scene.dead, credit=1).take()[0].message
    assert (dead.body, dead.durable, dead.priority) == ("1", True, 6)
    assert (dead.first_acquirer, dead.delivery_count) == (False, 1)
    annotations = dict(dead.annotations or {})
    assert annotations["x-mine"] == "kept"
    assert annotations["x-exchange"] == scene.exchange
    assert annotations["x-routing-key"] == scene.source
    for which in ("first", "last"):
        assert annotations[f"x-{which}-death-queue"] == scene.source
        assert annotations[f"x-{which}-death-reason"] == "rejected"
        assert annotations[f"x-{which}-death-exchange"] == ""
    (record,) = annotations["x-opt-deaths"].elements
    times = record.pop("first-time"), record.pop("last-time")
    assert times[0] == times[1] > 1_700_000_000_000
    assert list(record.pop("routing-keys").elements) == [scene.source]
    assert record == {"queue": scene.source, "reason": symbol("rejected"), "count": 1, "exchange": ""}
