"""Stalls of AMQP 0-9-1 staged with pika, and what status and listings say: code, what shows it, how long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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
    rows = CommandLine(broker).json("list-consumers", "tag", "waits", "waits_why")
    row = next(row for row in rows if row["tag"] == queue)
    assert row["waits"] == "prefetch-full"
    assert "the client has acknowledged none" in row["waits_why"]


def test_a_prefetch_of_the_whole_channel(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """One consumer has taken what all may have."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, *"abcde")
    channel.basic_qos(prefetch_count=2, global_qos=True)
    channel.basic_consume(queue, ignore, consumer_tag=queue)
    channel.basic_consume(queue, ignore, consumer_tag=f"{queue}-second")
    consumer_waits(broker, "channel-prefetch-full", f"{queue}-second", says=("2 of 2 deliveries",))


def test_an_empty_queue(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """To which nothing ever came; and later one from which all was taken."""
    channel.queue_declare(queue, durable=True)
    inbox = Inbox(channel, queue, consumer_tag=queue)
    consumer_waits(broker, "queue-empty-nothing-routed", queue, says=("nothing was ever put into",))
    put(channel, queue, "a")
    (delivered,) = inbox.take()
    channel.basic_ack(delivered.tag)
    channel.basic_qos(prefetch_count=1)  # answered, so the acknowledgement has arrived
    consumer_waits(broker, "queue-empty", queue, says=("no ready message",))


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


def test_another_consumer_is_the_active_one(
    connect: Connect, channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    connect().channel().basic_consume(queue, ignore, consumer_tag=f"{queue}-first")
    channel.basic_consume(queue, ignore, consumer_tag=queue)
    consumer_waits(broker, "not-active", queue, says=(f"consumer '{queue}-first'",))


def test_a_client_that_does_not_read(
    connect: Connect, channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    """Nobody turns pika's loop after basic.consume, so its socket fills up."""
    channel.queue_declare(queue)
    lazy = connect().channel()
    lazy.basic_consume(queue, ignore, auto_ack=True, consumer_tag=queue)
    for _ in range(200):
        channel.basic_publish("", queue, bytes(100_000), TRANSIENT)
    consumer_waits(broker, "writer-blocked", queue, says=("the client does not read its socket",))


def test_acknowledgements_of_a_transaction(
    channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    """It is not true that the client has acknowledged none; it has not committed."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "a", "b", "c")
    channel.tx_select()
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, queue, consumer_tag=queue)
    channel.basic_ack(inbox.take(2)[-1].tag, multiple=True)
    says = "the client has decided on 2 of them in a transaction and not committed it"
    consumer_waits(broker, "prefetch-full", queue, says=("2 of 2 deliveries", says))
    channel.tx_commit()
    inbox.take(1)
    consumer_waits(broker, "unsettled-here", queue)


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
        run("alarm", "memory", "on")
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
        run("alarm", "memory", "off")
        inbox.take(2)


def test_an_acknowledgement_behind_a_method(start_broker: StartBroker, queue: str) -> None:
    """Which a queue does not answer. The reader does not wait for credit, but for the method, too."""
    busy = f"{queue}-busy"
    broker = start_broker("--test-mode", "--confirm-delay", f"{busy}=600000")
    with connected(broker, f"{queue}-publishes") as publisher, connected(broker, queue) as client:
        publish(publisher, busy, 1)
        channel, other = client.channel(), client.channel()
        channel.queue_declare(queue)
        put(channel, queue, "a", "b")
        channel.basic_qos(prefetch_count=1)
        (held,) = Inbox(channel, queue, consumer_tag=queue).take()
        channel._impl.queue_declare(busy, passive=True, callback=ignore)
        channel._impl.basic_ack(held.tag)
        client.process_data_events(0)
        says = f"queue.declare of queue '{busy}' waits for an answer of the queue; "
        consumer_waits(broker, "method-in-flight", queue, says=("acknowledgements have to wait: " + says,))
        for _ in range(1000):
            channel.basic_publish("", queue, b"x", TRANSIENT)
        channel_of(broker, queue, other.channel_number, "reader-held", "channel 1 of it takes nothing")
        channel_of(broker, queue, channel.channel_number, "method-in-flight", says)


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
        rows = CommandLine(broker).json("list-channels", "channel", "waits")
        assert {row["channel"]: row["waits"] for row in rows} == {1: "credit-flow", 2: "reader-held"}


def test_an_alarm(start_broker: StartBroker, queue: str) -> None:
    """Which one it is stands in the sentence; a connection that only consumes is not blocked."""
    broker = start_broker()
    run = CommandLine(broker)
    run("alarm", "memory", "on")
    with connected(broker, queue) as client:
        publish(client, queue, 1)
        channel_of(broker, queue, 1, "blocked-by-alarm", "the alarm of memory is on")
        channel_of(broker, queue, 2, "blocked-by-alarm")
        run("alarm", "memory", "off")
        broker.wait_for_counts(queue, ready=1)


def test_a_method_that_a_queue_does_not_answer(start_broker: StartBroker, queue: str) -> None:
    """The queue is at work on what was published; who asks it something waits."""
    broker = start_broker("--test-mode", "--confirm-delay", f"{queue}=600000")
    with connected(broker, queue) as client, connected(broker, f"{queue}-asks") as asking:
        publish(client, queue, 1)
        asking.channel()._impl.queue_declare(queue, passive=True, callback=ignore)
        asking.process_data_events()
        says = f"queue.declare of queue '{queue}' waits for an answer"
        channel_of(broker, f"{queue}-asks", 1, "method-in-flight", says)


def test_a_method_that_waits_for_the_disk(start_broker: StartBroker, tmp_path: Path, queue: str) -> None:
    """A quorum queue answers when the disk has what it was asked; a sync that does not end is named."""
    definitions = tmp_path / "definitions.json"
    declared = {"name": queue, "vhost": "/", "durable": True, "arguments": {"x-queue-type": "quorum"}}
    definitions.write_text(json.dumps({"queues": [declared]}))
    broker = start_broker(
        *("--data-dir", str(tmp_path / "data"), "--definitions", str(definitions)),
        *("--test-mode", "--sync-delay", "600000"),
    )
    with connected(broker, queue) as client:
        client.channel()._impl.basic_consume(queue, ignore, consumer_tag=queue)
        client.process_data_events(0)
        says = (
            f"basic.consume of queue '{queue}' waits for an answer of the queue: a sync has been running for "
        )
        channel_of(broker, queue, 1, "method-in-flight", says)


def test_a_client_whose_turn_it_is(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """No code, and a sentence that says so."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "a")

    def found() -> bool:
        return any(
            each["waits"] is None and (each["waits_why"] or "").startswith("its turn: ")
            for connection in broker.status()["connections"]
            for each in connection.get("channels", ())
        )

    broker.wait_until(found, "its turn")
