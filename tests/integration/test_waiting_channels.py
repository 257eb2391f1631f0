"""Stalls of AMQP 0-9-1 staged with pika, and what status and listings say: code, what shows it, how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.command_line import CommandLine
from tests.support.pika_client import Connect, Inbox, parameters, put
from tests.support.stalls import consumer_waits

pytestmark = pytest.mark.integration

TRANSIENT = pika.BasicProperties(delivery_mode=1)


def ignore(*_: Any) -> None:
    """A callback of a client that does nothing with what it gets."""


def channel_of(broker: BrokerProcess, name: str, number: int, code: str, *says: str) -> dict[str, Any]:
    """Wait until a channel of the connection with this name waits for this reason and says all of this."""

    def found() -> dict[str, Any] | None:
        for connection in broker.status()["connections"]:
            if (connection.get("client") or {}).get("connection_name") == name:
                for each in connection["channels"]:
                    if each["number"] == number and fits(each, code, says):
                        return dict(each)
        return None

    return dict(broker.wait_until(found, f"channel {number} of {name}: {code} {says}"))


def fits(thing: dict[str, Any], code: str, says: tuple[str, ...]) -> bool:
    if thing["waits"] != code or not all(part in thing["waits_why"] for part in says):
        return False
    assert thing["waits_for_s"] >= 0
    return True


# --- consumers ------------------------------------------------------------------------------------


def test_a_prefetch_that_is_used_up(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """The listing has the same code."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, *"abcde")
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, ignore, consumer_tag=queue)
    consumer_waits(
        broker,
        "prefetch-full",
        queue,
        says=(
            "2 of 2 deliveries",
            f"3 messages ready in queue '{queue}'",
        ),
    )
    rows = CommandLine(broker).json("consumer", "list", "tag", "waits", "waits_why")
    row = next(row for row in rows if row["tag"] == queue)
    assert row["waits"] == "prefetch-full"
    assert "the client has acknowledged none" in row["waits_why"]


def test_another_consumer_holds_everything(
    connect: Connect, channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    """The queue is not empty, and says who has its messages."""
    channel.queue_declare(queue, durable=True)
    holder = connect().channel()
    inbox = Inbox(holder, queue, consumer_tag=f"{queue}-holder")
    put(channel, queue, "a", "b")
    inbox.take(2)
    channel.basic_consume(queue, ignore, consumer_tag=queue)
    consumer_waits(
        broker,
        "unsettled-elsewhere",
        queue,
        says=(
            "all 2 messages",
            f"consumer '{queue}-holder'",
        ),
    )


def test_acknowledgements_that_an_alarm_keeps_unread(start_broker: StartBroker, queue: str) -> None:
    """The client acknowledges all it has; nobody reads it, and status does not say that it has not."""
    broker = start_broker()
    run = CommandLine(broker)
    with connected(broker, queue) as client:
        channel = client.channel()
        channel.queue_declare(queue)
        put(channel, queue, "a", "b", "c")
        channel.basic_qos(prefetch_count=2)
        inbox = Inbox(channel, queue, consumer_tag=queue)
        held = inbox.take(2)
        run("alarm", "set", "memory", "on")
        channel.basic_publish("", queue, b"d", TRANSIENT)
        client.process_data_events(0)
        channel_of(broker, queue, 1, "blocked-by-alarm")
        channel.basic_ack(held[-1].tag, multiple=True)
        client.process_data_events(0)
        consumer_waits(
            broker,
            "blocked-by-alarm",
            queue,
            says=("it holds 2 deliveries, and acknowledgements have to wait: the alarm of memory is on",),
        )
        run("alarm", "set", "memory", "off")
        inbox.take(2)


# --- publishers -----------------------------------------------------------------------------------


@contextmanager
def connected(broker: BrokerProcess, name: str) -> Iterator[BlockingConnection]:
    """A client that has given itself a name, and that may hang: the broker is killed before it is closed."""
    connection = BlockingConnection(
        parameters(broker, client_properties={"connection_name": name}, heartbeat=0)
    )
    try:
        yield connection
    finally:
        if not broker.ended:
            broker.kill()
        with suppress(AMQPError):
            connection.close()


def publish(connection: BlockingConnection, queue: str, count: int) -> None:
    """Publish on the first of two channels as fast as it can; the socket takes it all."""
    first, second = connection.channel(), connection.channel()
    assert (first.channel_number, second.channel_number) == (1, 2)
    first.queue_declare(queue)
    for _ in range(count):
        first.basic_publish("", queue, b"x", TRANSIENT)


def test_a_queue_that_does_not_follow(start_broker: StartBroker, queue: str) -> None:
    """Credit flow stops the reader: the channel says which queue, the other channel says which channel."""
    broker = start_broker("--test-mode", "--confirm-delay", f"{queue}=600000")
    with connected(broker, queue) as client:
        publish(client, queue, 1000)
        waiting = channel_of(broker, queue, 1, "credit-flow", f"queue '{queue}' has not confirmed ")
        assert f"has not confirmed {waiting['unconfirmed']} messages" in waiting["waits_why"]
        assert waiting["unconfirmed"] >= 400
        channel_of(broker, queue, 2, "reader-held", "because channel 1 of it takes nothing")
        rows = CommandLine(broker).json("channel", "list", "channel", "waits")
        assert {row["channel"]: row["waits"] for row in rows} == {1: "credit-flow", 2: "reader-held"}
