"""py-amqp, the client below kombu: handshake, returns, heartbeats, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def test_a_return_is_raised_or_handled(dial: Connect, queue: str) -> None:
    """basic.return reaches the channel's handlers with the message."""
    channel = dial().channel()
    returned: list[tuple[Any, ...]] = []
    channel.events["basic_return"].add(lambda *what: returned.append(what))
    channel.basic_publish(amqp.Message("lost"), exchange="amq.direct", routing_key=queue, mandatory=True)
    wait(channel.connection, lambda: returned, "the return")
    error, exchange, key, message = returned[0]
    assert (error.reply_code, exchange, key, message.body) == (312, "amq.direct", queue, "lost")


def test_a_tag_in_use_ends_the_connection(dial: Connect, queue: str) -> None:
    """530 `attempt to reuse consumer tag`."""
    channel = dial().channel()
    channel.queue_declare(queue, exclusive=True)
    channel.basic_consume(queue, consumer_tag="mine", callback=print)
    with pytest.raises(amqp.NotAllowed, match="attempt to reuse consumer tag 'mine'"):
        channel.basic_consume(queue, consumer_tag="mine", callback=print)


def test_heartbeats_both_ways(dial: Connect) -> None:
    """heartbeat_tick sends ours and watches the broker's."""
    connection = dial(heartbeat=3)
    # Two intervals in which one side saw nothing of the other would end it.
    before = connection.bytes_recv
    wait(
        connection, lambda: (connection.heartbeat_tick(), connection.bytes_recv > before + 1)[1], "heartbeats"
    )
    connection.channel().close()


def test_channel_flow(dial: Connect) -> None:
    """active=true is answered; active=false is not implemented."""
    channel = dial().channel()
    channel.flow(True)
    with pytest.raises(amqp.AMQPNotImplementedError, match="active=false"):
        channel.flow(False)
