"""pika's blocking connection: opening, tuning, heartbeats, alarms, and how it ends."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    ConnectionClosedByBroker,
)

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.deadline import turn_until
from tests.support.pika_client import Connect, Inbox, parameters, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def shown(broker: BrokerProcess, name: str) -> dict[str, Any]:
    """The status of the connection that calls itself so."""
    found: dict[str, Any] = next(
        each
        for each in broker.status()["connections"]
        if each.get("client", {}).get("connection_name") == name
    )
    return found


def named(name: str, **options: Any) -> dict[str, Any]:
    """Parameters of a connection that the status shows under a name."""
    return {"client_properties": {"connection_name": name}, **options}


def test_a_client_that_sends_no_heartbeats_is_cut_off_and_another_is_not(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """Two missed intervals end a connection; pika's own heartbeats keep another alive meanwhile."""
    kept = connect(**named(f"{queue}-kept", heartbeat=3))
    silent = BlockingConnection(parameters(broker, **named(f"{queue}-silent", heartbeat=3)))
    kept_id, silent_id = (shown(broker, f"{queue}-{which}")["id"] for which in ("kept", "silent"))

    def cut_off(connection_id: int) -> bool:
        expected = {"event": "missed heartbeats from client", "connection": connection_id}
        return any(expected.items() <= entry.items() for entry in broker.log)

    turn_until(
        lambda: kept.process_data_events(0.1), lambda: cut_off(silent_id), "the end of the silent client"
    )
    assert not cut_off(kept_id)
    kept.channel().basic_qos(prefetch_count=1)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        silent.channel()


# --- a broker of its own: alarms, shutting down -------------------------------------


def test_a_publisher_is_blocked_by_an_alarm_and_goes_on_after_it(
    start_broker: StartBroker, connect: Connect, queue: str
) -> None:
    """connection.blocked comes after the first publish, with the reason; then unblocked."""
    broker = start_broker()
    publisher = connect(broker)
    told: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda _, frame: told.append("unblocked"))
    channel = publisher.channel()
    channel.queue_declare(queue, durable=True)
    consumer = connect(broker).channel()
    inbox = Inbox(consumer, queue, auto_ack=True)

    assert broker.run_command("alarm", "set", "memory", "on").returncode == 0
    assert broker.run_command("alarm", "set", "disk", "on").returncode == 0
    channel.basic_publish("", queue, b"first")
    channel.basic_publish("", queue, b"second")
    until(channel, lambda: told, "connection.blocked")
    assert told == ["low on memory & low on disk"]
    # The consumers' connection is not touched.
    consumer.basic_qos(prefetch_count=3)
    assert broker.run_command("alarm", "set", "memory", "off").returncode == 0
    assert broker.run_command("alarm", "set", "disk", "off").returncode == 0
    until(channel, lambda: len(told) > 1, "connection.unblocked")
    assert told == ["low on memory & low on disk", "unblocked"]
    inbox.take(2)
    assert inbox.texts == ["first", "second"]


def test_a_stopping_broker_closes_connections_with_320(start_broker: StartBroker) -> None:
    """CONNECTION_FORCED, with the reason."""
    process = start_broker()
    connection = BlockingConnection(parameters(process))
    process.terminate()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        turn_until(lambda: connection.process_data_events(1), lambda: False, "the close")
    assert caught.value.reply_code == 320
    assert caught.value.reply_text.startswith("CONNECTION_FORCED - ")
    assert process.wait_ended() == 0
