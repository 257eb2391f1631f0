"""What the log of the real process says of clients: pika, proton, and the commands."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.command_line import CommandLine
from tests.support.pika_client import Connect, parameters
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


def entries(broker: BrokerProcess, event: str, **values: Any) -> list[dict[str, Any]]:
    """All of the log that are so."""
    return [each for each in broker.log if each.get("event") == event and values.items() <= each.items()]


def test_a_channel_error_stands_once_in_the_log_and_in_status(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """With user, virtual host, channel, method, queue, and the text that pika shows."""
    connection = connect(client_properties={"connection_name": queue})
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, passive=True)
    entry = broker.wait_for_log("channel closed by the broker", queue=queue)
    assert entry["text"] == caught.value.reply_text
    assert entry["code"] == 404
    assert entry["level"] == "warning"
    assert (entry["user"], entry["vhost"], entry["channel"]) == ("guest", "/", 1)
    assert entry["method"] == "queue.declare"
    connection.channel()
    assert len(entries(broker, "channel closed by the broker", queue=queue)) == 1
    (status,) = (each for each in broker.status()["connections"] if each["id"] == entry["connection"])
    assert status["last_error"]["text"] == entry["text"]
    assert status["last_error"]["queue"] == queue


def test_a_queue_deleted_under_a_consumer_is_told(
    connect: Connect, channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    """By its tag, whoever deleted it."""
    channel.queue_declare(queue, durable=True)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="mine")
    connect().channel().queue_delete(queue)
    entry = broker.wait_for_log("consumer cancelled: its queue was deleted", queue=queue)
    assert entry["consumer"] == "mine"
    assert entry["text"] == "basic.cancel"


def test_a_password_typed_as_a_name_is_nowhere_in_the_log(start_broker: StartBroker) -> None:
    """Of pika, over AMQP 0-9-1; a known user is named."""
    broker = start_broker("--auth-failure-delay-ms", "0")
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(parameters(broker, user="h4libut-Passw0rd", password="x"))
    broker.wait_for_log(
        "login failed",
        reason="unknown user (the name is not shown, it may be a password): invalid credentials",
    )
    with pytest.raises(ProbableAuthenticationError) as caught:
        pika.BlockingConnection(parameters(broker, user="guest", password="h4libut-Passw0rd"))
    entry = broker.wait_for_log("login failed", user="guest")
    assert entry["text"] in str(caught.value)
    assert "h4libut-Passw0rd" not in json.dumps(broker.log)


def test_a_refused_attach_of_proton_is_told(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """With the address and the link, the condition and the description."""
    end = client.receiver(f"/queues/{queue}", wait=False)
    condition = end.wait_refused()
    entry = broker.wait_for_log("attach refused", queue=queue)
    assert (entry["condition"], entry["text"]) == (condition, end.description)
    assert entry["address"] == f"/queues/{queue}"
    assert entry["link"] == end.link.name


def test_commands_name_their_object_and_their_door(broker: BrokerProcess, queue: str) -> None:
    """What was declared by whom; what was refused, too."""
    run = CommandLine(broker)
    run("declare", "queue", queue, "--argument", "x-max-length=5")
    entry = broker.wait_for_log("operation", object=f"queue name='{queue}'")
    assert (entry["operation"], entry["vhost"], entry["by"]) == ("declare-queue", "/", "admin socket")
    complaint = run.fails(1, "declare", "queue", queue, "--argument", "x-max-length=6")
    refused = broker.wait_for_log("operation refused", object=f"queue name='{queue}'")
    assert refused["text"] in complaint


def test_a_client_of_the_management_node_is_named_with_what_it_did(broker: BrokerProcess, queue: str) -> None:
    """Connection, user, operation, object; a refused one with the text that it got."""
    from rabbitmq_amqp_python_client import ClassicQueueSpecification, Environment, ValidationCodeException

    environment = Environment(uri=broker.url.replace("amqp://", "amqp://guest:guest@"))
    connection = environment.connection()
    connection.dial()
    try:
        management = connection.management()
        management.declare_queue(ClassicQueueSpecification(name=queue))
        entry = broker.wait_for_log("operation", object=f"queue name='{queue}'")
        assert (entry["operation"], entry["by"], entry["user"]) == ("declare-queue", "/management", "guest")
        assert isinstance(entry["connection"], int)
        with pytest.raises(ValidationCodeException):
            management.declare_queue(ClassicQueueSpecification(name=queue, max_len=5))
        refused = broker.wait_for_log("operation refused", object=f"queue name='{queue}'")
        assert refused["connection"] == entry["connection"]
        assert "x-max-length" in refused["text"]
    finally:
        connection.close()
        environment.close()
