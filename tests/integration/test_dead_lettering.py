"""Dead-lettering with real clients: the cases of RabbitMQ's dead_lettering suite, by pika and proton.

Queue types are the suite's: each case runs with a classic and a quorum queue as source, where both can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError
from proton import Delivery, Message, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Delivered, Inbox, Properties, get, get_all, put, until
from tests.support.proton_client import ProtonClient

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

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
        """With the dead-letter exchange."""
        self.declare(self.source, **{"dead_letter_exchange": self.exchange, **arguments})

    def publish(self, *texts: str, queue: str | None = None, **properties: Any) -> None:
        """Messages into the source."""
        put(self.channel, queue or self.source, *texts, properties=Properties(**properties))

    def take(self, count: int, queue: str | None = None) -> list[int]:
        """Get messages; their delivery tags."""
        name = queue or self.source
        until(self.channel, lambda: self.ready(name) >= count, f"{count} messages in {name}")
        return [get(self.channel, name).tag for _ in range(count)]

    def ready(self, queue: str) -> int:
        """Messages that are ready in a queue."""
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

    def dead_headers(self, text: str, queue: str | None = None) -> Headers:
        """The headers of the one dead letter."""
        (taken,) = self.await_dead(text, queue=queue)
        return headers_of(taken)


def headers_of(delivered: Delivered) -> Headers:
    """Its headers, which it must have."""
    assert delivered.properties.headers is not None
    return dict(delivered.properties.headers)


def events(headers: Headers) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each record, newest first."""
    return [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]]


@pytest.fixture(params=["classic", "quorum"])
def scene(request: pytest.FixtureRequest, channel: BlockingChannel, queue: str) -> Iterator[Scene]:
    """With queues of either kind."""
    built = Scene(channel, queue, request.param)
    yield built
    if channel.is_open:
        channel.exchange_delete(built.exchange)


@pytest.fixture
def classic(channel: BlockingChannel, queue: str) -> Scene:
    """With classic queues."""
    return Scene(channel, queue, "classic")


# --- rejected ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_nack")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "dead_letter_to_quorum_queue", note="both queues are quorum queues"
)
def test_dead_letter_nack(scene: Scene) -> None:
    """basic.nack with requeue=false, one by one."""
    scene.declare_source()
    scene.publish("1", "2", "3")
    tags = scene.take(3)
    scene.channel.basic_nack(tags[1], requeue=False)
    scene.await_dead("2")
    scene.channel.basic_ack(tags[0])
    scene.channel.basic_nack(tags[2], requeue=False)
    scene.await_dead("3")


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_nack_requeue_nack_norequeue_basic_get")
@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "dead_letter_nack_requeue_nack_norequeue_basic_consume",
    "dead_letter_reject_requeue_reject_norequeue",
)
@pytest.mark.parametrize("how", ["basic_nack", "basic_reject"])
def test_dead_letter_requeue_then_norequeue_by_consume(scene: Scene, how: str) -> None:
    """The same by a consumer."""
    scene.declare_source()
    inbox = Inbox(scene.channel, scene.source)
    scene.publish("1")
    delivery_outcome = getattr(scene.channel, how)
    delivery_outcome(inbox.take()[0].tag, requeue=True)
    again = inbox.take()[0]
    assert again.method.redelivered
    delivery_outcome(again.tag, requeue=False)
    (dead,) = scene.await_dead("1")
    assert not dead.method.redelivered


# --- other reasons ----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_ttl")
def test_dead_letter_ttl(scene: Scene) -> None:
    """The queue's x-message-ttl."""
    scene.declare_source(message_ttl=1)
    scene.publish("1", "2", "3")
    scene.await_dead("1", "2", "3")


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_drop_head")
def test_dead_letter_max_length_drop_head(scene: Scene) -> None:
    """The oldest go."""
    scene.declare_source(max_length=1)
    scene.publish("1", "2", "3")
    scene.await_dead("1", "2")
    assert get_all(scene.channel, scene.source) == ["3"]


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_reject_publish_dlx")
def test_dead_letter_max_length_reject_publish_dlx(classic: Scene) -> None:
    """What does not fit is refused, and dead-lettered as well; a classic queue can."""
    classic.declare_source(max_length=1, overflow="reject-publish-dlx")
    classic.channel.confirm_delivery()
    classic.publish("1")
    for text in ("2", "3"):
        with pytest.raises(NackError):
            classic.publish(text)
    headers = [headers_of(each) for each in classic.await_dead("2", "3")]
    assert [events(each) for each in headers] == [[(classic.source, "maxlen", 1)]] * 2
    assert get_all(classic.channel, classic.source) == ["1"]


# --- routing ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "dead_letter_from_classic_to_quorum_queue", "dead_letter_to_classic_queue"
)
def test_dead_letters_go_from_one_kind_of_queue_to_the_other(scene: Scene) -> None:
    """dead_letter_from_classic_to_quorum_queue and dead_letter_to_classic_queue of the quorum suite."""
    other = f"{scene.source}-other"
    kind = "classic" if scene.kind == "quorum" else "quorum"
    scene.channel.queue_declare(other, durable=True, arguments={"x-queue-type": kind})
    scene.declare_source(dead_letter_exchange="", dead_letter_routing_key=other)
    scene.publish("1", "2", "3")
    scene.channel.basic_nack(scene.take(3)[-1], multiple=True, requeue=False)
    for each in scene.await_dead("1", "2", "3", queue=other):
        assert events(headers_of(each)) == [(scene.source, "rejected", 1)]


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


# --- headers ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers")
def test_dead_letter_headers(scene: Scene) -> None:
    """x-death of a rejected message, the summary, and what the publisher gave."""
    scene.declare_source()
    scene.publish("1", headers={"mine": 1}, delivery_mode=2, priority=3, message_id="m")
    scene.channel.basic_reject(scene.take(1)[0], requeue=False)
    (dead,) = scene.await_dead("1")
    headers = headers_of(dead)
    assert (dead.properties.delivery_mode, dead.properties.priority) == (2, 3)
    assert (dead.properties.message_id, headers["mine"]) == ("m", 1)
    (record,) = headers["x-death"]
    assert record.pop("time") is not None
    assert record == {
        "count": 1,
        "reason": "rejected",
        "queue": scene.source,
        "exchange": "",
        "routing-keys": [scene.source],
    }
    for which in ("first", "last"):
        assert headers[f"x-{which}-death-reason"] == "rejected"
        assert headers[f"x-{which}-death-queue"] == scene.source
        assert headers[f"x-{which}-death-exchange"] == ""


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "metric_expired_per_msg_msg_ttl",
    "metric_expired_queue_msg_ttl",
    "metric_maxlen",
    "metric_rejected",
    differs="counted for queues that have a dead-letter exchange only",
)
def test_metrics(scene: Scene, broker: BrokerProcess) -> None:
    """status counts dead letters by reason: rejected, expired by queue and by message, maxlen."""
    scene.declare_source(max_length=3, message_ttl=60_000)
    scene.publish("1", "2", "3", "4")
    scene.channel.basic_nack(scene.take(2)[-1], multiple=True, requeue=False)
    assert get_all(scene.channel, scene.source) == ["4"]
    scene.publish("5", expiration="1")
    scene.await_dead("1", "2", "3", "5")
    status = broker.queue(scene.source)
    assert status is not None
    assert status["dead_lettered"] == {"rejected": 2, "expired": 1, "maxlen": 1}


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


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "dead_letter_reject_many_message_order_classic_queue",
    "dead_letter_reject_many_message_order_quorum_queue",
    "dead_letter_reject_message_order_classic_queue",
    "dead_letter_reject_message_order_quorum_queue",
)
def test_many_rejected_by_amqp10_keep_their_order(scene: Scene, client: ProtonClient) -> None:
    """dead_letter_reject_many_message_order: a hundred, each with its own disposition."""
    scene.declare_source()
    client.sender(scene.source).send(
        *(Message(body=f"{number}".encode(), inferred=True) for number in range(100))
    )
    receiver = client.receiver(scene.source, credit=100)
    for received in receiver.take(100):
        receiver.settle(received, Delivery.REJECTED)
    client.wait(lambda: scene.ready(scene.dead) == 100, "a hundred dead letters")
    scene.await_dead(*map(str, range(100)))


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_headers_exchange")
def test_dead_letter_headers_exchange_of_amqp10(scene: Scene, client: ProtonClient) -> None:
    """Dead letters are routed by application-properties and by the publisher's annotations."""
    by_headers = f"{scene.source}-headers"
    scene.channel.exchange_declare(by_headers, "headers", auto_delete=True)
    for name, match in (
        ("property", {"x-match": "any", "kind": "invoice"}),
        ("annotation", {"x-match": "any-with-x", "x-kind": "order"}),
    ):
        scene.declare(f"{scene.source}-{name}")
        scene.channel.queue_bind(f"{scene.source}-{name}", by_headers, arguments=match)
    scene.declare_source(dead_letter_exchange=by_headers, message_ttl=1)
    client.sender(scene.source).send(
        Message(body=b"1", inferred=True, properties={"kind": "invoice"}),
        Message(body=b"2", inferred=True, annotations={symbol("x-kind"): "order"}),
        Message(body=b"3", inferred=True),
    )
    scene.await_dead("1", queue=f"{scene.source}-property")
    scene.await_dead("2", queue=f"{scene.source}-annotation")


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_dead_letter_history")
def test_history_reads_the_same_in_both_protocols(scene: Scene, client: ProtonClient) -> None:
    """Published with pika, died twice, received with proton; and the other way round."""
    scene.declare_source(dead_letter_exchange="", dead_letter_routing_key=scene.source)
    scene.publish("1")
    client.sender(scene.source).send(Message(body=b"2", inferred=True))
    for _ in range(2):
        for tag in scene.take(2):
            scene.channel.basic_reject(tag, requeue=False)
    receiver = client.receiver(scene.source, credit=2)
    for received in receiver.take(2):
        (record,) = dict(received.message.annotations or {})["x-opt-deaths"].elements
        assert (record["queue"], record["count"]) == (scene.source, 2)
        assert record["last-time"] >= record["first-time"]
        receiver.settle(received, Delivery.RELEASED)
    receiver.close()
    for text in ("1", "2"):
        got = get(scene.channel, scene.source)
        assert got.text == text
        assert events(headers_of(got)) == [(scene.source, "rejected", 2)]
