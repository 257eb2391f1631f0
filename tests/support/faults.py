"""What tests of faults on request are written with: a broker that commits them, and real clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pika
import pytest
from proton import ConnectionException, Message, SSLUnavailable
from proton import _reactor as proton_reactor
from proton.reactor import Container
from proton.utils import BlockingConnection

from amqp10broker.client.blocking import Client
from amqp10broker.testing.broker import AmqpBroker
from amqp10broker.testing.servers import Servers
from tests.support.deadline import turn_until

TIMEOUT_S = 60.0
LOOK_S = 0.01


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    servers = Servers([], "20", None)
    yield servers
    servers.close()


@pytest.fixture
def broker(servers: Servers) -> Iterator[AmqpBroker]:
    with servers.host("faults", {}) as broker:
        broker.declare("q")
        yield broker
        nothing_is_left(broker)


@pytest.fixture
def channel(broker: AmqpBroker) -> Iterator[Any]:
    """Open a channel of pika with confirms, on a named connection."""
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": "pika's"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def connect_proton(broker: AmqpBroker, **options: Any) -> Any:
    # Without TLS and hashes of passwords, which are 0.1 s of a processor a connection.
    with patch.object(proton_reactor, "SSLConfig", side_effect=SSLUnavailable):
        container = Container()
    return BlockingConnection(
        f"amqp://{broker.host}:{broker.port}",
        user=broker.user,
        password=broker.password,
        virtual_host=broker.hostname,
        timeout=TIMEOUT_S,
        allowed_mechs="PLAIN",
        container=container,
        **options,
    )


def nothing_is_left(broker: AmqpBroker) -> None:
    """After a fault a new client gets confirms, each message once, and the usual credit."""
    assert broker.ask("list-faults") == []
    status = broker.ask("status")["broker"]
    assert status["alarms"] == []
    broker.declare("afterwards")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "afterwards", b"pika's", mandatory=True)
    theirs = connect_proton(broker)
    sender = theirs.create_sender("/queues/afterwards")
    until(theirs, lambda: sender.link.credit == status["flow"]["max_link_credit"])
    sender.send(Message(body="proton's"))
    receiver = theirs.create_receiver("/queues/afterwards", credit=2)
    for body in (b"pika's", "proton's"):
        message = receiver.receive(timeout=TIMEOUT_S)
        assert (message.body, message.delivery_count) == (body, 0)
        receiver.accept()
    theirs.close()
    broker.assert_drained("afterwards")


@pytest.fixture
def proton(broker: AmqpBroker) -> Iterator[Any]:
    connection = connect_proton(broker)
    yield connection
    try:
        connection.close()
    except ConnectionException:
        pass  # it was to be closed


def sent(proton: Any, sender: Any, *bodies: str) -> list[Any]:
    """Return the deliveries that are written and whose outcomes are not awaited."""
    deliveries = [sender.link.send(Message(body=body)) for body in bodies]
    until(proton, lambda: not sender.link.queued)
    return deliveries


def until(proton: Any, condition: Callable[[], Any]) -> None:
    container = proton.container
    before, container.timeout = container.timeout, LOOK_S
    turn_until(container.process, condition, "what is awaited")
    container.timeout = before


def ours_until(client: Client, condition: Callable[[], Any]) -> None:
    turn_until(lambda: client.poll(LOOK_S), condition, "what is awaited")


@contextmanager
def beside(action: Callable[[], None]) -> Iterator[threading.Thread]:
    """Run a blocking call in a thread, which must end before the block does."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield thread
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def pika_until(channel: Any, condition: Callable[[], Any]) -> None:
    turn_until(
        lambda: channel.connection.process_data_events(time_limit=LOOK_S), condition, "what is awaited"
    )
