"""Topics and subscriptions as proton uses them, and as operators see them."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, Message, Terminus, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = pytest.mark.integration


def durable(link: Link) -> None:
    """A source that is to outlive its link."""
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def topic(link: Link) -> None:
    """A bare name is a topic's."""
    (link.source if link.is_receiver else link.target).capabilities.put_object(symbol("topic"))


def bodies(receiver: ReceivingEnd, count: int) -> list[Any]:
    """What comes next."""
    receiver.grant(count)
    taken = receiver.take(count)
    receiver.settle(taken)
    return [each.message.body for each in taken]


def test_subscribers_get_a_copy_each(client: ProtonClient, queue: str) -> None:
    """Of two links on one topic; without any the message is accepted all the same."""
    sender = client.sender(queue, apply=[topic])
    assert sender.send("nobody listens")[0].state == Delivery.ACCEPTED
    receivers = [client.receiver(queue, apply=[topic]), client.receiver(f"/topics/{queue}")]
    (outcome,) = sender.send("one")
    assert outcome.state == Delivery.ACCEPTED
    relay = client.sender(None)
    relay.send(Message(address=f"/topics/{queue}", body="two"))
    relay.send(Message(address=queue, body="three"))
    for receiver in receivers:
        assert bodies(receiver, 3) == ["one", "two", "three"]


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


def test_a_temporary_topic(broker: BrokerProcess, clients: Any) -> None:
    """Made by a dynamic target; others send to it, and only its connection listens."""
    one, other = clients(broker), clients(broker)

    def temporary(link: Link) -> None:
        link.target.dynamic = True
        link.target.capabilities.put_object(symbol("temporary-topic"))

    creator = one.sender(None, apply=[temporary])
    address = creator.link.remote_target.address
    receiver = one.receiver(address)
    other.sender(address).send("theirs")
    assert bodies(receiver, 1) == ["theirs"]
    assert other.receiver(address, wait=False).wait_refused() == "amqp:resource-locked"
    creator.close()
    assert other.sender(address, wait=False).wait_refused() == "amqp:not-found"
