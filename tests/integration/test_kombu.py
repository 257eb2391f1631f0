"""kombu: producers, consumers, simple queues, pools, the event loop's hub, and what it declares by itself."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.common import QoS

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import turn_until

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}//"


@pytest.fixture
def kombu(url: str, deadline: None) -> Iterator[Connection]:
    with Connection(url) as connection:
        connection.ensure_connection(max_retries=1)
        yield connection


def drain(connection: Connection, condition: Callable[[], Any], what: str) -> None:

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
    """The producer declares and sends serialized and compressed bodies; the consumer acknowledges them."""
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


def test_heartbeat_check(url: str, deadline: None) -> None:
    with Connection(url, heartbeat=10) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 10
        assert connection.supports_heartbeats
        connection.heartbeat_check()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.01)
