"""Topics and subscriptions as proton uses them, and as operators see them."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Link, Terminus, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.proton_client import ReceivingEnd

pytestmark = pytest.mark.integration


def durable(link: Link) -> None:
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def topic(link: Link) -> None:
    (link.source if link.is_receiver else link.target).capabilities.put_object(symbol("topic"))


def bodies(receiver: ReceivingEnd, count: int) -> list[Any]:
    receiver.grant(count)
    taken = receiver.take(count)
    receiver.settle(taken)
    return [each.message.body for each in taken]


def test_a_durable_subscription_is_seen_and_deleted_by_an_operator(
    broker: BrokerProcess, clients: Any, queue: str
) -> None:
    """Its queue has a name that says whose it is, an argument that says what it is, and a command ends it."""
    client = clients(broker, container_id=queue)
    first = client.receiver(queue, name="sub", apply=[topic, durable])
    assert first.link.remote_source.durability == Terminus.CONFIGURATION
    assert first.link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    first.detach()
    sender = client.sender(f"/topics/{queue}")
    sender.send("kept")
    name = f"subscription:{queue}:sub"
    command_line = CommandLine(broker)
    listed = command_line.json("queue", "list", "name", "arguments")
    queues = {each["name"]: each["arguments"] for each in listed}
    assert queues[name]["x-subscription"] == {
        "topic": queue,
        "container": queue,
        "name": "sub",
        "durable": True,
    }
    again = client.receiver(queue, name="sub", apply=[topic, durable])
    assert bodies(again, 1) == ["kept"]
    assert name in command_line("binding", "list")
    command_line("queue", "delete", name)
    assert again.wait_refused() == "amqp:resource-deleted"
