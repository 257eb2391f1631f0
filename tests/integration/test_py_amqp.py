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
