"""pika's blocking connection: opening, tuning, heartbeats, logging in, alarms, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.deadline import turn_until
from tests.support.pika_client import Connect, Inbox, get, get_all, parameters, put, until

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


def test_a_frame_size_below_the_minimum_is_refused(broker: BrokerProcess) -> None:
    """pika offers 4096 when asked to, less than the 8192 of RabbitMQ 4: 530."""
    with pytest.raises(ProbableAccessDeniedError) as caught:
        BlockingConnection(parameters(broker, frame_max=4096))
    assert "(530)" in str(caught.value)
    assert "negotiated frame_max = 4096 is lower than the minimum allowed value (8192)" in str(caught.value)


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


def test_a_wrong_password_is_told_to_a_client_that_wants_to_know(broker: BrokerProcess) -> None:
    """pika announces authentication_failure_close, and shows the text of the 403."""
    with pytest.raises(ProbableAuthenticationError) as caught:
        BlockingConnection(parameters(broker, password="wrong"))
    assert (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the "
        "broker logfile." in str(caught.value)
    )


def test_a_missing_virtual_host_is_530(broker: BrokerProcess) -> None:
    """connection.open names the virtual host that is not there."""
    with pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - vhost nowhere not found"):
        BlockingConnection(parameters(broker, virtual_host="nowhere"))


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


@pytest.mark.parametrize("secret", ["guest", "wrong"])
def test_update_secret_is_answered_whatever_it_says(connect: Connect, secret: str) -> None:
    """As RabbitMQ does for users with passwords, which do not expire; the connection goes on."""
    connection = connect()
    connection.update_secret(secret, "renewed")
    connection.channel().basic_qos(prefetch_count=1)


def test_a_client_property_is_shown_as_the_name_of_the_connection(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """connection_name of client-properties, with product and version."""
    connect(**named(queue))
    client = shown(broker, queue)["client"]
    assert client["connection_name"] == queue
    assert client["version"] == pika.__version__


# --- a broker of its own: alarms, users, limits, shutting down -------------------------------------

DEFINITIONS = {
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": "nobody", "password": "secret", "tags": ""},
        {"name": "reader", "password": "secret", "tags": ""},
        {"name": "writer", "password": "secret", "tags": ""},
    ],
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "guest", "vhost": "other", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "reader", "vhost": "/", "configure": "", "write": "", "read": "^shared$"},
        {"user": "writer", "vhost": "/", "configure": "^own", "write": "^(own.*|amq\\.default)$", "read": ""},
    ],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [],
    "policies": [],
    "queues": [{"name": "shared", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    "exchanges": [],
    "bindings": [],
}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with several users and virtual hosts, and small limits."""
    directory: Path = tmp_path_factory.mktemp("own")
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
    with BrokerProcess(
        directory,
        *(
            "--definitions",
            str(definitions),
            "--max-message-size-bytes",
            "5000",
            "--consumer-max-per-channel",
            "2",
        ),
    ) as process:
        yield process


def test_a_virtual_host_without_permission_is_refused(own_broker: BrokerProcess) -> None:
    """530 names the virtual host and the user."""
    with pytest.raises(
        ProbableAccessDeniedError, match="NOT_ALLOWED - access to vhost '/' refused for user 'nobody'"
    ):
        BlockingConnection(parameters(own_broker, user="nobody", password="secret"))


def test_virtual_hosts_are_apart(connect: Connect, own_broker: BrokerProcess, queue: str) -> None:
    """The same name is another queue in another virtual host."""
    first = connect(own_broker).channel()
    second = connect(own_broker, virtual_host="other").channel()
    for channel, text in ((first, "in the first"), (second, "in the other")):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
        channel.basic_publish("amq.fanout", "", text.encode())
    assert (get_all(first, queue), get_all(second, queue)) == (["in the first"], ["in the other"])


@pytest.mark.parametrize(
    ("user", "operation", "refused"),
    [
        (
            "reader",
            lambda c: c.basic_publish("", "shared", b"") or c.basic_qos(),
            "write access to exchange 'amq.default'",
        ),
        ("reader", lambda c: c.queue_declare("shared2", durable=True), "configure access to queue 'shared2'"),
        ("reader", lambda c: c.exchange_declare("x"), "configure access to exchange 'x'"),
        ("reader", lambda c: c.queue_bind("shared", "amq.direct", "k"), "write access to queue 'shared'"),
        ("reader", lambda c: c.queue_delete("shared"), "configure access to queue 'shared'"),
        ("writer", lambda c: c.basic_get("shared"), "read access to queue 'shared'"),
        ("writer", lambda c: c.queue_purge("shared"), "read access to queue 'shared'"),
        ("writer", lambda c: c.basic_consume("shared", print), "read access to queue 'shared'"),
        (
            "writer",
            lambda c: c.exchange_declare("own", arguments={"alternate-exchange": "amq.fanout"}),
            "read access to exchange 'own'",
        ),
    ],
)
def test_what_a_user_may_not_do_is_403(
    connect: Connect, own_broker: BrokerProcess, user: str, operation: Any, refused: str
) -> None:
    """The channel is closed with the permission, the resource, the virtual host and the user named."""
    channel = connect(own_broker, user=user, password="secret").channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        operation(channel)
    assert caught.value.reply_code == 403
    assert caught.value.reply_text == f"ACCESS_REFUSED - {refused} in vhost '/' refused for user '{user}'"


def test_what_a_user_may_do_works(connect: Connect, own_broker: BrokerProcess) -> None:
    """Permissions are regular expressions per virtual host."""
    writer = connect(own_broker, user="writer", password="secret").channel()
    writer.queue_declare("own", durable=True)
    writer.confirm_delivery()
    writer.basic_publish("", "shared", b"from the writer", mandatory=True)
    reader = connect(own_broker, user="reader", password="secret").channel()
    assert Inbox(reader, "shared", auto_ack=True).take()[0].body == b"from the writer"


def test_a_message_above_the_limit_closes_the_channel(connect: Connect, own_broker: BrokerProcess) -> None:
    """406 with both sizes; the connection goes on."""
    connection = connect(own_broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "shared", bytes(5000))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", "shared", bytes(5001))
    assert caught.value.reply_code == 406
    assert "message size 5001 is larger than" in caught.value.reply_text
    connection.channel().queue_purge("shared")


def test_more_consumers_than_allowed_end_the_connection(connect: Connect, own_broker: BrokerProcess) -> None:
    """530 with the limit."""
    channel = connect(own_broker).channel()
    for _ in range(2):
        channel.basic_consume("shared", print)
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.basic_consume("shared", print)
    assert caught.value.reply_text == "NOT_ALLOWED - reached maximum (2) of consumers per channel"


def test_a_publisher_is_blocked_by_an_alarm_and_goes_on_after_it(
    connect: Connect, own_broker: BrokerProcess, queue: str
) -> None:
    """connection.blocked comes after the first publish, with the reason; then unblocked."""
    publisher = connect(own_broker)
    told: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda _, frame: told.append("unblocked"))
    channel = publisher.channel()
    channel.queue_declare(queue, durable=True)
    consumer = connect(own_broker).channel()
    inbox = Inbox(consumer, queue, auto_ack=True)

    assert own_broker.run_command("alarm", "memory", "on").returncode == 0
    assert own_broker.run_command("alarm", "disk", "on").returncode == 0
    channel.basic_publish("", queue, b"first")
    channel.basic_publish("", queue, b"second")
    until(channel, lambda: told, "connection.blocked")
    assert told == ["low on memory & low on disk"]
    # The consumers' connection is not touched.
    consumer.basic_qos(prefetch_count=3)
    assert own_broker.run_command("alarm", "memory", "off").returncode == 0
    assert own_broker.run_command("alarm", "disk", "off").returncode == 0
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
