"""Connections from end to end: login, heartbeats, many of everything, and the end of the broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from proton import Delivery, Message, symbol

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import Disconnected, ProtonClient

pytestmark = pytest.mark.integration


# --- login ----------------------------------------------------------------------------------------


def test_open_tells_who_the_broker_is(broker: BrokerProcess, client: ProtonClient) -> None:
    """Container-id and platform do; product and version name what it is compatible with."""
    assert client.connection.remote_container.startswith("amqp10broker@")
    properties = client.connection.remote_properties
    assert properties["product"] == "RabbitMQ"
    assert properties["version"].startswith("4.")
    assert properties["platform"].startswith("amqp10broker ")


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_plain_failure")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "auth_failure")
@pytest.mark.parametrize(
    ("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("guest", "guestx"), ("gues", "guest")]
)
def test_wrong_password_and_unknown_user_are_refused_alike(
    broker: BrokerProcess, clients: Any, user: str, password: str
) -> None:
    """The client hears an authentication failure, not which of the two it was."""
    client = clients(broker, user=user, password=password, wait=False)
    client.wait_disconnected()
    assert client.disconnected.startswith("amqp:unauthorized-access")
    assert not client.remote_open


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_success")
def test_anonymous_login(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """SASL ANONYMOUS logs in as the configured user, guest by default."""
    client = clients(broker, user=None, password=None, mechanisms="ANONYMOUS", container_id=queue)
    assert client.sender(queue).send("x")[0].state == Delivery.ACCEPTED
    connection = broker.connection(queue)
    assert connection is not None
    assert connection["user"] == "guest"


def test_users_are_a_setting(start_broker: StartBroker, clients: Any) -> None:
    """--user replaces guest; ANONYMOUS goes with it."""
    broker = start_broker("--user", "ada:love:lace", "--auth-failure-delay-ms", "0")
    client = clients(broker, user="ada", password="love:lace")
    client.sender("q").send(Message(body=1, user_id=b"ada"))
    for refused in (
        clients(broker, wait=False),
        clients(broker, user=None, password=None, mechanisms="ANONYMOUS", wait=False),
    ):
        refused.wait_disconnected()
        assert not refused.remote_open


def test_virtual_host_other_than_the_default_is_refused(broker: BrokerProcess, clients: Any) -> None:
    """hostname vhost:NAME chooses a virtual host; there is only one."""
    # Without properties it might be RabbitMQ's client for Python (test_refused_open.py).
    said = {symbol("product"): "a program"}
    client = clients(broker, virtual_host="vhost:other", properties=said, wait=False)
    condition, description = client.wait_closed()
    assert condition == "amqp:unauthorized-access"
    assert "virtual host 'other' does not exist" in (description or "")
    clients(broker, virtual_host="vhost:/").sender("q")
    clients(broker, virtual_host="example.org").sender("q")


# --- heartbeats -----------------------------------------------------------------------------------


def test_idle_client_is_kept_alive_by_heartbeats(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """proton's heartbeat of 6 s asks for an idle-time-out of 3 s: the broker sends empty frames in time."""
    client = clients(broker, heartbeat=6, container_id=queue)

    def bytes_out() -> int:
        connection = broker.connection(queue)
        assert connection is not None
        count: int = connection["bytes_out"]
        return count

    before = bytes_out()
    client.wait(lambda: bytes_out() >= before + 3 * 8, "three empty frames")
    assert client.disconnected is None
    client.sender(queue).send("still here")


def test_silent_client_is_closed(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """A client that sends nothing for --idle-timeout-ms is taken for dead, and what it held is requeued."""
    broker = start_broker("--idle-timeout-ms", "4000")
    lively = clients(broker)
    lively.sender(queue).send("x")
    silent = clients(broker, container_id="silent")
    silent.receiver(queue, credit=1).take()
    # Nobody turns the event loop of `silent` from here, so it sends no heartbeats.
    lively.wait(lambda: broker.connection("silent") is None, "the end of the silent connection")
    lively.wait(lambda: (broker.queue(queue) or {})["messages_ready"] == 1, "the message in the queue")
    assert lively.disconnected is None
    broker.wait_for_log(
        "connection closed by the broker",
        condition="amqp:resource-limit-exceeded",
        text="no frame received from client within idle timeout threshold",
        timeout_ms=4000,
    )
    assert silent.wait_closed()[0] == "amqp:resource-limit-exceeded"


# --- many -----------------------------------------------------------------------------------------


def test_255_links_on_one_session(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """handle-max is 255, so 256 links; each carries a message to and from a queue of its own or shared."""
    senders = [client.sender(f"{queue}-{at % 16}", wait=False) for at in range(128)]
    receivers = [client.receiver(f"{queue}-{at % 16}", credit=1, wait=False) for at in range(127)]
    for link in (*senders, *receivers):
        link.wait_attached()
    tags = [(sender, sender.transfer(Message(body=at))) for at, sender in enumerate(senders)]
    for sender, tag in tags:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    for receiver in receivers:
        receiver.take(1)
    bodies = sorted(receiver.bodies[0] for receiver in receivers)
    assert len(set(bodies)) == 127
    assert len(broker.links(f"{queue}-0")) == 16


@pytest.mark.rabbitmq("amqp_client_SUITE", "multiple_sessions")
def test_many_sessions_of_one_connection(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """channel-max is 63; deliveries go to the session of their link. (One channel is left for `flush`.)"""
    ends = []
    for at in range(63):
        session = client.session()
        sender = client.sender(f"{queue}-{at}", session=session, wait=False)
        ends.append((at, sender, client.receiver(f"{queue}-{at}", credit=1, session=session, wait=False)))
    for at, sender, _ in ends:
        sender.transfer(Message(body=at))
    for at, _, receiver in ends:
        receiver.settle(receiver.take())
        assert receiver.bodies == [at]


def test_channels_are_used_again(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """More sessions than channels, one after the other."""
    for at in range(200):
        session = client.session()
        sender = client.sender(queue, session=session)
        sender.send(str(at))
        session.session.close()
        client.wait(lambda session=session: session.closed, "end")
    broker.wait_for_counts(queue, ready=200)


def test_many_connections(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """Fifty clients at one time, each sending to the next one's queue."""
    count = 50
    connected = [clients(broker) for _ in range(count)]
    receivers = [client.receiver(f"{queue}-{at}", credit=1) for at, client in enumerate(connected)]
    for at, client in enumerate(connected):
        client.sender(f"/queues/{queue}-{(at + 1) % count}").send(str(at))
    for at, receiver in enumerate(receivers):
        receiver.take()
        assert receiver.bodies == [str((at - 1) % count)]


def test_handles_are_used_again(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """More links than handles, one after the other, of the same name."""
    for at in range(300):
        sender = client.sender(queue, name="the-link")
        sender.send(str(at))
        sender.close()
    broker.wait_for_counts(queue, ready=300)


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


def test_shutdown_does_not_wait_for_a_client_that_is_gone_silent(
    start_broker: StartBroker, clients: Any, queue: str
) -> None:
    """A client that does not answer the close, and reads nothing, is left behind at the deadline."""
    broker = start_broker("--shutdown-timeout-ms", "1000")
    client = clients(broker)
    client.receiver(queue, credit=1)
    broker.terminate()
    before = time.monotonic()
    assert broker.wait_ended() == 0
    assert time.monotonic() - before < 10
    broker.stop()
    with pytest.raises(Disconnected):
        client.sender(queue).send("too late")


def test_nobody_is_accepted_after_shutdown_began(start_broker: StartBroker, clients: Any) -> None:
    """Stop accepting comes first."""
    broker = start_broker()
    clients(broker)
    broker.terminate()
    broker.wait_ended()
    late = clients(broker, wait=False)
    late.wait_disconnected()
    assert not late.remote_open
