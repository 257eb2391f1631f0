"""Connections from end to end: login, heartbeats, many of everything, and the end of the broker."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from tests.support.broker_process import BrokerProcess, StartBroker

pytestmark = pytest.mark.integration


# --- login ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_success")
def test_anonymous_login(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """SASL ANONYMOUS logs in as the configured user, guest by default."""
    client = clients(broker, user=None, password=None, mechanisms="ANONYMOUS", container_id=queue)
    assert client.sender(queue).send("x")[0].state == Delivery.ACCEPTED
    connection = broker.connection(queue)
    assert connection is not None
    assert connection["user"] == "guest"


# --- the end of the broker ------------------------------------------------------------------------


def test_clients_hear_of_a_shutdown(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """SIGTERM: every client gets a close with amqp:connection:forced, and the broker ends with 0, soon."""
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


def test_shutdown_in_the_middle_of_traffic(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """Publishers and consumers at full speed: all hear of it, and the broker ends in order."""
    broker = start_broker()
    publishing, consuming = clients(broker), clients(broker)
    sender = publishing.sender(queue)
    receiver = consuming.receiver(queue, credit=100_000)
    sent = 0
    terminated = False
    while publishing.remote_close is None:
        if sender.link.credit > 0:
            sender.transfer_now(Message(body=sent))
            sent += 1
        else:
            publishing._turn()
        if sent > 1000 and not terminated:
            terminated = True
            broker.terminate()
        assert sent < 1_000_000, "the broker goes on taking messages"
    assert publishing.remote_close[0] == "amqp:connection:forced"
    assert consuming.wait_closed()[0] == "amqp:connection:forced"
    assert receiver.bodies == list(range(len(receiver.received)))
    publishing.close()
    consuming.close()
    assert broker.wait_ended() == 0
    broker.stop()
