"""What the log of the real process says of clients: pika, proton, and the commands."""

from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import Connect

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


def test_commands_name_their_object_and_their_door(broker: BrokerProcess, queue: str) -> None:
    """What was declared by whom; what was refused, too."""
    run = CommandLine(broker)
    run("queue", "declare", queue, "--argument", "x-max-length=5")
    entry = broker.wait_for_log("operation", object=f"queue name='{queue}'")
    assert (entry["operation"], entry["vhost"], entry["by"]) == ("declare-queue", "/", "admin socket")
    complaint = run.fails(1, "queue", "declare", queue, "--argument", "x-max-length=6")
    refused = broker.wait_for_log("operation refused", object=f"queue name='{queue}'")
    assert refused["text"] in complaint
