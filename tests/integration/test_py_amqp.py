"""py-amqp, the client below kombu: handshake, every table type, channels, confirms, heartbeats, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp.sasl import AMQPLAIN, PLAIN

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import turn_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

Connect = Callable[..., amqp.Connection]


@pytest.fixture
def dial(broker: BrokerProcess, deadline: None) -> Iterator[Connect]:
    """Open connections; they are closed when the test is over."""
    opened: list[amqp.Connection] = []

    def connect(**options: Any) -> amqp.Connection:
        options = {"userid": "guest", "password": "guest", **options}
        connection = amqp.Connection(f"{broker.host}:{broker.port}", **options)
        opened.append(connection)
        connection.connect()
        return connection

    yield connect
    for connection in opened:
        if connection.connected:
            connection.close()
        connection.collect()


def turn(connection: amqp.Connection) -> None:
    """Handle what the broker sends, for a moment."""
    try:
        connection.drain_events(timeout=0.02)
    except TimeoutError:
        return


def wait(connection: amqp.Connection, condition: Callable[[], Any], what: str) -> None:
    """Handle what the broker sends until the condition holds."""
    turn_until(lambda: turn(connection), condition, what)


@pytest.mark.parametrize("mechanism", [PLAIN, AMQPLAIN], ids=lambda kind: str(kind.__name__))
def test_the_mechanisms_of_the_client(dial: Connect, mechanism: Any) -> None:
    """PLAIN and AMQPLAIN, as kombu uses them."""
    dial(login_method=mechanism("guest", "guest").mechanism.decode()).channel().close()
    with pytest.raises(amqp.AccessRefused, match="Login was refused using authentication mechanism"):
        dial(login_method=mechanism("guest", "guest").mechanism.decode(), password="wrong")


def test_tuning(dial: Connect) -> None:
    """py-amqp takes the broker's channel-max and frame-max, and the smaller heartbeat."""
    connection = dial(heartbeat=30)
    assert (connection.channel_max, connection.frame_max, connection.heartbeat) == (2047, 131_072, 30)
    channels = [connection.channel() for _ in range(5)]
    assert len({channel.channel_id for channel in channels}) == 5


def test_the_server_properties_that_kombu_reads(dial: Connect) -> None:
    """Product RabbitMQ and a version from 4 on select qos per consumer."""
    properties = dial().server_properties
    assert properties["product"] == "RabbitMQ"
    assert int(properties["version"].split(".")[0]) >= 4
    assert properties["capabilities"]["consumer_cancel_notify"] is True


def test_a_missing_virtual_host(dial: Connect) -> None:
    """530."""
    with pytest.raises(amqp.NotAllowed, match="vhost nowhere not found"):
        dial(virtual_host="nowhere")


HEADERS: dict[str, Any] = {
    "text": "grün",
    "bytes that are no text": b"\xff\xfe",
    "true": True,
    "int": -5,
    "long": 2**40,
    "double": 1.5,
    "decimal": Decimal("-1.25"),
    "time": datetime(2026, 2, 3, 4, 5, 6),
    "none": None,
    "list": [1, "a", [2.5, None], {"x": "y"}],
    "table": {"a": {"b": {"c": 1}}},
}


def test_headers_of_every_type(dial: Connect, queue: str) -> None:
    """What py-amqp can encode it gets back as it was."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    properties = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    channel.basic_publish(amqp.Message("body", application_headers=HEADERS, **properties), routing_key=queue)
    received = channel.basic_get(queue, no_ack=True)
    assert received is not None
    assert received.body == "body"
    for name, given in properties.items():
        assert received.properties[name] == given, name
    headers = received.headers
    assert headers == HEADERS
    assert [*map(type, headers.values())] == [*map(type, HEADERS.values())]


def test_line_ends_are_removed_from_names(dial: Connect, queue: str) -> None:
    """CR and LF in a declared queue's name vanish, and the answer shows it."""
    channel = dial().channel()
    assert channel.queue_declare(queue + "\r\n", exclusive=True).queue == queue


def test_confirms_by_transport_option(dial: Connect, queue: str) -> None:
    """confirm_publish makes each publish wait for its ack."""
    connection = dial(confirm_publish=True)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, auto_delete=False)
    for number in range(50):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
        assert channel.queue_declare(queue, passive=True).message_count == number + 1
    assert channel.queue_purge(queue) == 50
    channel.queue_delete(queue)


def test_a_return_is_raised_or_handled(dial: Connect, queue: str) -> None:
    """basic.return reaches the channel's handlers with the message."""
    channel = dial().channel()
    returned: list[tuple[Any, ...]] = []
    channel.events["basic_return"].add(lambda *what: returned.append(what))
    channel.basic_publish(amqp.Message("lost"), exchange="amq.direct", routing_key=queue, mandatory=True)
    wait(channel.connection, lambda: returned, "the return")
    error, exchange, key, message = returned[0]
    assert (error.reply_code, exchange, key, message.body) == (312, "amq.direct", queue, "lost")


def test_consuming_with_prefetch_and_cancelling(dial: Connect, queue: str) -> None:
    """qos, consume, ack, cancel; what the broker cancels is told to on_cancel."""
    connection = dial()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, auto_delete=False)
    for number in range(5):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
    channel.basic_qos(0, 2, False)
    seen: list[Any] = []
    cancelled: list[str] = []
    tag = channel.basic_consume(queue, callback=seen.append, on_cancel=cancelled.append)
    wait(connection, lambda: len(seen) == 2, "two messages")
    for message in list(seen):
        channel.basic_ack(message.delivery_tag)
    wait(connection, lambda: len(seen) == 4, "two more")
    channel.basic_cancel(tag)
    channel.basic_recover(requeue=True)
    assert channel.queue_declare(queue, passive=True)[1:] == (3, 0)
    channel.basic_consume(queue, callback=seen.append, on_cancel=cancelled.append, consumer_tag="again")
    dial().channel().queue_delete(queue)
    wait(connection, lambda: cancelled, "the cancellation")
    assert cancelled == ["again"]


def test_consumer_tags_of_the_broker(dial: Connect, queue: str) -> None:
    """py-amqp leaves the tag to the broker: amq.ctag- and 22 letters, each another."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    tags = {channel.basic_consume(queue, callback=print) for _ in range(5)}
    assert len(tags) == 5
    assert all(tag.startswith("amq.ctag-") and len(tag) == len("amq.ctag-") + 22 for tag in tags)


def test_a_tag_in_use_ends_the_connection(dial: Connect, queue: str) -> None:
    """530 `attempt to reuse consumer tag`."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    channel.basic_consume(queue, consumer_tag="mine", callback=print)
    with pytest.raises(amqp.NotAllowed, match="attempt to reuse consumer tag 'mine'"):
        channel.basic_consume(queue, consumer_tag="mine", callback=print)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda c, q: c.queue_declare(q, passive=True), amqp.NotFound),
        (lambda c, q: c.exchange_declare(q, "no-such-type"), amqp.PreconditionFailed),
        (lambda c, q: c.exchange_declare("amq.nothing", "direct"), amqp.AccessRefused),
        (lambda c, q: c.basic_get(q), amqp.NotFound),
    ],
)
def test_channel_errors_and_a_new_channel(dial: Connect, queue: str, operation: Any, error: Any) -> None:
    """The right class of error; the connection goes on."""
    connection = dial()
    for _ in range(3):
        with pytest.raises(error):
            operation(connection.channel(), queue)
    connection.channel().queue_declare(queue, exclusive=True)


def test_a_locked_queue(dial: Connect, queue: str) -> None:
    """405 is ResourceLocked."""
    dial().channel().queue_declare(queue, exclusive=True)
    with pytest.raises(amqp.ResourceLocked):
        dial().channel().queue_declare(queue, exclusive=True)


def test_transactions(dial: Connect, queue: str) -> None:
    """tx of py-amqp."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    channel.tx_select()
    channel.basic_publish(amqp.Message("a"), routing_key=queue)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("b"), routing_key=queue)
    assert channel.basic_get(queue) is None
    channel.tx_commit()
    message = channel.basic_get(queue)
    assert message is not None
    assert message.body == "b"


def test_binding_and_routing(dial: Connect, queue: str) -> None:
    """Exchanges and bindings with arguments, to queues and exchanges, and nowait for all of them."""
    channel = dial().channel()
    channel.exchange_declare(queue, "headers", nowait=True)
    channel.exchange_declare(queue + "-end", "fanout", nowait=True)
    channel.queue_declare(queue, exclusive=True, nowait=True)
    channel.exchange_bind(queue + "-end", queue, arguments={"x-match": "any", "a": 1}, nowait=True)
    channel.queue_bind(queue, queue + "-end", nowait=True)
    channel.basic_publish(amqp.Message("yes", application_headers={"a": 1}), exchange=queue)
    channel.basic_publish(amqp.Message("no", application_headers={"a": 2}), exchange=queue)
    bodies = [message.body for message in iter(lambda: channel.basic_get(queue, no_ack=True), None)]
    assert bodies == ["yes"]
    channel.exchange_unbind(queue + "-end", queue, arguments={"x-match": "any", "a": 1})
    channel.exchange_delete(queue)
    channel.exchange_delete(queue + "-end")


def test_heartbeats_both_ways(dial: Connect) -> None:
    """heartbeat_tick sends ours and watches the broker's."""
    connection = dial(heartbeat=3)
    # Two intervals in which one side saw nothing of the other would end it.
    before = connection.bytes_recv
    wait(
        connection, lambda: (connection.heartbeat_tick(), connection.bytes_recv > before + 1)[1], "heartbeats"
    )
    connection.channel().close()


def test_a_large_body(dial: Connect, queue: str) -> None:
    """Several frames both ways."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    body = b"\x00\x01\xff" * 400_000
    channel.basic_publish(amqp.Message(body, content_encoding="binary"), routing_key=queue)
    message = channel.basic_get(queue)
    assert message is not None
    assert message.body == body


def test_channel_flow(dial: Connect) -> None:
    """active=true is answered; active=false is not implemented."""
    channel = dial().channel()
    channel.flow(True)
    with pytest.raises(amqp.AMQPNotImplementedError, match="active=false"):
        channel.flow(False)
