"""proton end to end: what is particular to its credit, frames and kept links, and the broker's end."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, Message, Terminus

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient


@pytest.mark.rabbitmq("amqp_client_SUITE", "stop_classic_queue", "stop_quorum_queue", "stop_stream")
def test_stop_while_deliveries_are_on_the_wire(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Deliveries that cross the stop are taken; the broker sends no more than it had sent by then. proton's
    credit is then negative, and its next flow has link-credit 2**32 - n, counted from a higher delivery-
    count; the broker reads it as a limit that is not new.
    """
    sender = client.sender(queue)
    sender.send(*[Message(body=b"x" * 2000)] * 2000)
    receiver = client.receiver(queue, credit=2000)
    client.wait(lambda: len(receiver.received) >= 50, "the first deliveries")
    receiver.stop()
    stopped_at = len(receiver.received)
    receiver.drain()
    sender.send(Message(body=0))
    receiver.drain()
    assert len(receiver.received) == stopped_at
    assert stopped_at < 2000, "the broker went on delivering after the stop"
    broker.wait_for_counts(queue, ready=2001 - stopped_at, unsettled=stopped_at)


def test_clients_hear_of_a_shutdown(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """On SIGTERM each client gets a close with amqp:connection:forced; the broker soon exits with 0."""
    broker = start_broker("--shutdown-timeout-ms", "60000")
    sending, receiving, idle = (clients(broker) for _ in range(3))
    sender = sending.sender(queue)
    sender.send(*(str(number) for number in range(20)))
    receiving.receiver(queue, credit=10).take(10)
    broker.terminate()
    for client in (sending, receiving, idle):
        condition, description = client.wait_closed()
        assert condition == "amqp:connection:forced"
        assert description == "Connection forced: the broker is shutting down"
        client.close()
    assert broker.wait_ended() == 0  # long before the time that clients have to leave
    broker.stop()


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "fragmentation")
@pytest.mark.parametrize("frame_size", [512, 4096, 131_072, None])
def test_one_mebibyte_through_every_frame_size(
    broker: BrokerProcess, clients: Any, queue: str, frame_size: int | None
) -> None:
    """Section 2.6.14: the peer's max-frame-size, at least 512 bytes, cuts messages into transfers."""
    client = clients(broker, **({} if frame_size is None else {"max_frame_size": frame_size}))
    body = bytes(range(256)) * 4096
    outcomes = client.sender(queue).send(*[Message(body=body, inferred=True)] * 2)
    assert [each.state for each in outcomes] == [Delivery.ACCEPTED] * 2
    received = client.receiver(queue, credit=2).take(2)
    assert [each.message.body for each in received] == [body] * 2


def kept(link: Link) -> None:
    """The kept link outlives its connection by half a minute."""
    terminus = link.source if link.is_receiver else link.target
    terminus.timeout = 30
    terminus.expiry_policy = Terminus.EXPIRE_WITH_CONNECTION


def test_proton_reads_what_is_granted(client: ProtonClient, queue: str) -> None:
    """proton has no maps, so its kept links begin anew and unsettled deliveries come again."""
    sender = client.sender(queue, apply=[kept])
    granted = sender.link.remote_target
    assert (granted.timeout, granted.expiry_policy) == (30, Terminus.EXPIRE_WITH_CONNECTION)
    sender.send("one")
    receiver = client.receiver(queue, apply=[kept])
    granted = receiver.link.remote_source
    assert (granted.timeout, granted.expiry_policy) == (30, Terminus.EXPIRE_WITH_CONNECTION)
    receiver.grant(1)
    (delivery,) = receiver.take(1)
    assert delivery.message.body == "one"
    receiver.close()
    other = client.receiver(queue)
    other.grant(1)
    again = other.take(1)
    assert [each.message.body for each in again] == ["one"]
    other.settle(again)
