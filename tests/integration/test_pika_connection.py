"""pika's blocking connection: opening, tuning, heartbeats, alarms, and how it ends."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
)

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.deadline import turn_until
from tests.support.pika_client import Connect, Inbox, get, parameters, put, until

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


def test_the_broker_presents_itself_with_the_capabilities_that_pika_looks_for(connect: Connect) -> None:
    """pika switches confirms, nack, cancel notification and blocking on by server properties."""
    connection = connect()
    assert connection.publisher_confirms_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported


def test_the_smaller_values_of_the_client_are_taken(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """channel-max, frame-max and heartbeat of tune-ok hold for the connection."""
    connect(**named(queue, channel_max=7, frame_max=8192, heartbeat=33))
    status = shown(broker, queue)
    assert (status["channel_max"], status["frame_max"], status["idle_timeout_ms"]) == (7, 8192, 33_000)
    assert (status["user"], status["vhost"], status["state"]) == ("guest", "/", "running")


def test_without_wishes_the_client_gets_the_values_of_the_broker(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """tune offers 2047 channels, frames of 131072 bytes and a heartbeat of 60 s."""
    connect(**named(queue))
    status = shown(broker, queue)
    assert (status["channel_max"], status["frame_max"], status["idle_timeout_ms"]) == (2047, 131_072, 60_000)


def test_a_heartbeat_of_zero_is_none(connect: Connect, broker: BrokerProcess, queue: str) -> None:
    """A client may do without heartbeats."""
    connect(**named(queue, heartbeat=0))
    assert shown(broker, queue)["idle_timeout_ms"] is None


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


def test_all_channels_end_with_the_connection(connect: Connect, broker: BrokerProcess, queue: str) -> None:
    """connection.close needs no channel.close before; what was unacknowledged is ready again."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "a", "b")
    Inbox(channel, queue).take(2)
    connection.close()
    assert connection.is_closed
    with pytest.raises(ConnectionWrongStateError):
        channel.basic_get(queue)
    broker.wait_for_counts(queue, ready=2)
    again = connect().channel()
    assert [get(again, queue).method.redelivered for _ in "ab"] == [True, True]


def test_a_client_property_is_shown_as_the_name_of_the_connection(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """connection_name of client-properties, with product and version."""
    connect(**named(queue))
    client = shown(broker, queue)["client"]
    assert client["connection_name"] == queue
    assert client["version"] == pika.__version__


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

    assert broker.run_command("alarm", "memory", "on").returncode == 0
    assert broker.run_command("alarm", "disk", "on").returncode == 0
    channel.basic_publish("", queue, b"first")
    channel.basic_publish("", queue, b"second")
    until(channel, lambda: told, "connection.blocked")
    assert told == ["low on memory & low on disk"]
    # The consumers' connection is not touched.
    consumer.basic_qos(prefetch_count=3)
    assert broker.run_command("alarm", "memory", "off").returncode == 0
    assert broker.run_command("alarm", "disk", "off").returncode == 0
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
