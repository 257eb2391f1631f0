"""kombu: producers, consumers, simple queues, pools, the event loop's hub, and what it declares by itself."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub, set_event_loop
from kombu.common import Broadcast, QoS
from kombu.mixins import ConsumerMixin
from kombu.pidbox import Mailbox
from kombu.pools import connections, producers, reset

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import WAIT_S, turn_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    """The broker for kombu."""
    return f"amqp://guest:guest@{broker.host}:{broker.port}//"


@pytest.fixture
def kombu(url: str, deadline: None) -> Iterator[Connection]:
    """A connection, released at the end."""
    with Connection(url) as connection:
        connection.ensure_connection(max_retries=1)
        yield connection


def drain(connection: Connection, condition: Callable[[], Any], what: str) -> None:
    """Handle events until the condition holds."""

    def turn() -> None:
        try:
            connection.drain_events(timeout=0.02)
        except TimeoutError:
            return

    turn_until(turn, condition, what)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_producer_and_a_consumer(
    kombu: Connection, queue: str, serializer: str, compression: str | None
) -> None:
    """Serialized and compressed bodies, declared by the producer, acknowledged by the consumer."""
    exchange = Exchange(queue, "direct", durable=False, auto_delete=True)
    declared = Queue(queue, exchange, routing_key="k", exclusive=True)
    payload = {"text": "grün", "numbers": [1, 2.5, None], "deep": {"true": True}}
    seen: list[Any] = []

    def on_message(body: Any, message: Any) -> None:
        seen.append((body, message.properties, message.headers))
        message.ack()

    with Consumer(kombu, declared, callbacks=[on_message], accept=[serializer], prefetch_count=1):
        producer = kombu.Producer(serializer=serializer)
        for number in range(3):
            producer.publish(
                {**payload, "number": number},
                exchange=exchange,
                routing_key="k",
                declare=[declared],
                compression=compression,
                priority=number,
                expiration=60,
                headers={"number": number},
                correlation_id=str(number),
            )
        drain(kombu, lambda: len(seen) == 3, "three messages")
    assert [body for body, _, _ in seen] == [{**payload, "number": number} for number in range(3)]
    assert [properties["priority"] for _, properties, _ in seen] == [0, 1, 2]
    assert {properties["expiration"] for _, properties, _ in seen} == {"60000"}
    assert [headers["number"] for _, _, headers in seen] == [0, 1, 2]


def test_a_simple_queue(kombu: Connection, queue: str) -> None:
    """put, qsize, clear, get, empty."""
    simple = kombu.SimpleQueue(queue)
    for number in range(3):
        simple.put(number)
    assert simple.qsize() == 3
    assert simple.clear() == 3
    for number in range(2):
        simple.put({"number": number})
    for number in range(2):
        message = simple.get(timeout=WAIT_S)
        assert message.payload == {"number": number}
        message.ack()
    with pytest.raises(simple.Empty):
        simple.get(block=False)
    simple.close()
    Queue(queue)(kombu.default_channel).delete()


def test_a_simple_buffer(kombu: Connection, queue: str) -> None:
    """A transient auto-delete queue without acknowledgements."""
    buffer = kombu.SimpleBuffer(queue)
    buffer.put("x")
    assert buffer.get(timeout=WAIT_S).payload == "x"
    buffer.close()


def test_the_arguments_that_kombu_translates(kombu: Connection, queue: str) -> None:
    """Times, lengths and priorities become x-arguments of the right types."""
    declared = Queue(
        queue,
        durable=True,
        expires=60.0,
        message_ttl=30.0,
        max_length=100,
        max_length_bytes=1000,
        max_priority=9,
    )
    with kombu.channel() as channel:
        bound = declared(channel)
        bound.declare()
        bound.declare()
        bound.delete()


def test_qos_is_per_consumer(kombu: Connection) -> None:
    """kombu reads the server's properties: RabbitMQ 4 means global=false."""
    assert kombu.qos_semantics_matches_spec
    with kombu.channel() as channel:
        limit = QoS(lambda prefetch_count: channel.basic_qos(0, prefetch_count, False), 2)
        limit.set(2)
        limit.increment_eventually(3)
        limit.update()
        assert limit.prev == 5


def test_pools_of_connections_and_producers(url: str, queue: str, deadline: None) -> None:
    """Producers of a pool share its connections; each can publish."""
    connection = Connection(url)
    try:
        with connections[connection].acquire(block=True) as held, held.channel() as channel:
            Queue(queue, durable=True)(channel).declare()
        for number in range(10):
            with producers[connection].acquire(block=True) as producer:
                producer.publish(number, routing_key=queue)
        with Connection(url) as other:
            simple = other.SimpleQueue(queue)
            assert [simple.get(timeout=WAIT_S).payload for _ in range(10)] == [*range(10)]
            simple.close()
            Queue(queue)(other.default_channel).delete()
    finally:
        reset()
        connection.release()


def test_the_event_loops_hub(kombu: Connection, queue: str) -> None:
    """The connection is registered with kombu's own event loop, as in a Celery worker."""
    seen: list[Any] = []
    hub = Hub()
    set_event_loop(hub)
    try:
        kombu.register_with_event_loop(hub)
        with Consumer(
            kombu,
            Queue(queue, exclusive=True),
            callbacks=[lambda body, message: (seen.append(body), message.ack())],
        ):
            producer = kombu.Producer()
            for number in range(20):
                producer.publish(number, routing_key=queue)
            turn_until(hub.run_once, lambda: len(seen) == 20, "20 messages through the hub")
        assert seen == [*range(20)]
    finally:
        hub.close()
        set_event_loop(None)


def test_a_broadcast_reaches_every_consumer(kombu: Connection, queue: str) -> None:
    """A fanout exchange with one auto-delete queue for each."""
    seen: list[tuple[int, Any]] = []
    consumers = []
    for number in range(3):
        channel = kombu.channel()
        consumer = Consumer(
            channel,
            Broadcast(queue, unique=True, exclusive=True, auto_delete=True),
            callbacks=[lambda body, message, number=number: seen.append((number, body))],
            no_ack=True,
        )
        consumer.consume()
        consumers.append(consumer)
    kombu.Producer().publish("to all", exchange=Exchange(queue, "fanout"))
    drain(kombu, lambda: len(seen) == 3, "three copies")
    assert sorted(seen) == [(0, "to all"), (1, "to all"), (2, "to all")]
    for consumer in consumers:
        consumer.cancel()
    Exchange(queue, "fanout")(kombu.default_channel).delete()


def test_a_pidbox_mailbox(kombu: Connection, queue: str) -> None:
    """What Celery's remote control is made of: a command to all nodes, and the replies."""
    mailbox = Mailbox(queue, type="fanout")
    channel = kombu.channel()
    node = mailbox(kombu).Node(
        "one", channel=channel, state=None, handlers={"echo": lambda state, text: text}
    )
    consumer = node.listen()
    with Connection(kombu.as_uri(include_password=True)) as caller:
        bound = mailbox(caller)
        ticket = queue
        reply_queue = bound.get_reply_queue()
        with caller.channel() as reply_channel:
            reply_queue(reply_channel).declare()
            bound._publish("echo", {"text": "hello"}, reply_ticket=ticket, channel=reply_channel)
            replied: list[Any] = []

            def handled() -> bool:
                message = reply_queue(reply_channel).get(no_ack=True)
                if message is not None:
                    replied.append(message.payload)
                return bool(replied)

            drain(kombu, handled, "the reply")
    assert replied == [{"one": "hello"}]
    consumer.cancel()


def test_a_consumer_mixin_program(url: str, queue: str, deadline: None) -> None:
    """The usual way to write a consumer: run until it has enough."""

    class Program(ConsumerMixin):
        def __init__(self, connection: Connection) -> None:
            self.connection = connection
            self.seen: list[Any] = []

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            self.producer = Producer(channel)
            return [consumer([Queue(queue, exclusive=True)], callbacks=[self.on_message], prefetch_count=2)]

        def on_consume_ready(self, connection: Any, channel: Any, consumers: Any, **kwargs: Any) -> None:
            for number in range(10):
                self.producer.publish(number, routing_key=queue)

        def on_message(self, body: Any, message: Any) -> None:
            self.seen.append(body)
            message.ack()
            self.should_stop = len(self.seen) == 10

    with Connection(url) as connection:
        program = Program(connection)
        program.run()
        assert program.seen == [*range(10)]


def test_heartbeat_check(url: str, deadline: None) -> None:
    """kombu's own checks at twice the rate, with nothing wrong."""
    with Connection(url, heartbeat=10) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 10
        assert connection.supports_heartbeats
        connection.heartbeat_check()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.01)
