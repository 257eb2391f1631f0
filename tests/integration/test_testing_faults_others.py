"""Faults that are of one protocol alone, with the second client of that protocol: rhea, and py-amqp."""

from __future__ import annotations

from collections.abc import Iterator

import amqp as py_amqp
import pytest

from amqp10broker.testing.broker import AmqpBroker
from tests.support.faults import (
    broker,
    connect_py_amqp,
    py_amqp_until,
    servers,
)
from tests.support.rhea import AskedRhea

__all__ = ["broker", "servers"]

pytestmark = pytest.mark.integration

OPENED = "sender.is_remote_open() && receiver.is_remote_open()"


@pytest.fixture(scope="module")
def asked_rhea() -> Iterator[AskedRhea]:
    rhea = AskedRhea()
    yield rhea
    rhea.close()


@pytest.fixture
def rhea(broker: AmqpBroker, asked_rhea: AskedRhea) -> Iterator[AskedRhea]:
    """With a `connection`, and what it has `heard`."""
    place = f"host: '{broker.host}', port: {broker.port}, hostname: '{broker.hostname}'"
    asked_rhea(f"connection = connect({{{place}, username: '{broker.user}', password: '{broker.password}'}})")
    yield asked_rhea
    asked_rhea("connection.close()")


def attach(rhea: AskedRhea, of: str = "connection") -> None:
    """A `sender` and a `receiver`, without credit."""
    rhea(f"sender = {of}.open_sender('/queues/q')")
    rhea(f"receiver = {of}.open_receiver({{source: '/queues/q', credit_window: 0}})")
    rhea.until(OPENED)


def works(rhea: AskedRhea) -> None:
    """A message goes and comes, and a drain is answered."""
    rhea("heard.length = 0; sender.send({body: 'after'}); receiver.add_credit(5)")
    rhea.until("heard.includes('accepted') && heard.includes('message after')")
    rhea("receiver.drain_credit()")
    rhea.until("heard.includes('receiver_drained')")


def test_rhea_is_given_little_credit_until_the_fault_is_lifted(broker: AmqpBroker, rhea: AskedRhea) -> None:
    with broker.faults.limit_credit(3), broker.faults.limit_credit(0, link="none") as none:
        rhea("none = connection.open_sender({name: 'none', target: '/queues/q'})")
        attach(rhea)
        rhea.until("sender.credit === 3")
        rhea("for (let count = 0; count < 4; count += 1) sender.send({body: 'limited'})")
        rhea.until("heard.filter((each) => each === 'accepted').length === 3")
        assert (rhea("sender.credit"), rhea("none.credit"), none.hits) == (0, 0, 1)
    rhea.until("none.credit && heard.filter((each) => each === 'accepted').length === 4")
    broker.queue("q").purge()
    works(rhea)


def test_rhea_is_told_of_links_and_sessions_that_end(broker: AmqpBroker, rhea: AskedRhea) -> None:
    """Each time it comes again and is at work."""
    with broker.faults.refuse_attaches(2, "amqp:not-allowed"):
        rhea("connection.open_sender('/queues/q'); connection.open_receiver('/queues/q')")
        rhea.until("heard.includes('sender amqp:not-allowed') && heard.includes('receiver amqp:not-allowed')")
    attach(rhea)
    for condition in ("amqp:link:stolen", "amqp:link:detach-forced"):
        assert broker.faults.detach(condition) == 2
        rhea.until(f"heard.includes('sender {condition}') && heard.includes('receiver {condition}')")
        attach(rhea)
        works(rhea)
    assert broker.faults.end("amqp:resource-limit-exceeded") == 1
    rhea.until("heard.includes('session amqp:resource-limit-exceeded')")
    rhea("session = connection.create_session(); session.begin()")
    attach(rhea, "session")
    works(rhea)


def test_what_was_held_is_confirmed_in_one_range(broker: AmqpBroker, rhea: AskedRhea) -> None:
    """To rhea, and to py-amqp by one basic.ack."""
    attach(rhea)
    rhea("ranges = []; session = sender.session; handle = session.on_disposition")
    rhea(
        "session.on_disposition = function (frame) { "
        "const {first, last} = frame.performative; ranges.push([first, last]); handle.call(this, frame); }"
    )
    ranges: list[tuple[int, bool]] = []
    with connect_py_amqp(broker, confirm_publish=False) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(lambda *told: ranges.append(told))
        with broker.faults.hold_confirms() as fault:
            for number in (1, 2, 3):
                rhea("sender.send({body: 'held'})")
                channel.basic_publish(py_amqp.Message(b"held"), routing_key="q")
                rhea.until_held(fault, 2 * number)
            assert rhea("ranges") == ranges == []
        py_amqp_until(connection, lambda: ranges)
        rhea.until("heard.filter((each) => each === 'accepted').length === 3")
        assert rhea("ranges") == [[0, 2]]
        assert ranges == [(3, True)]
        channel.basic_publish(py_amqp.Message(b"after"), routing_key="q")
        py_amqp_until(connection, lambda: len(ranges) == 2)
    broker.queue("q").purge()
    works(rhea)


def test_py_amqp_is_refused_what_it_publishes(broker: AmqpBroker) -> None:
    with connect_py_amqp(broker, confirm_publish=True) as connection:
        channel = connection.channel()
        with broker.faults.reject_publishes(1), pytest.raises(py_amqp.exceptions.MessageNacked):
            channel.basic_publish(py_amqp.Message(b"refused"), routing_key="q")
        channel.basic_publish(py_amqp.Message(b"taken"), routing_key="q")
    assert broker.queue("q").messages == 1


def test_py_amqp_is_cancelled_and_its_channel_and_connection_are_closed(broker: AmqpBroker) -> None:
    """Each time it comes again and is at work."""
    cancelled: list[str] = []
    connection = connect_py_amqp(broker)
    connection.connect()
    channel = connection.channel()
    channel.basic_consume("q", callback=lambda _: None, consumer_tag="theirs", on_cancel=cancelled.append)
    assert broker.faults.detach(queue="q") == 1
    py_amqp_until(connection, lambda: cancelled)
    assert (cancelled, broker.queue("q").consumers) == (["theirs"], 0)
    assert broker.faults.end(code=405) == 1
    with pytest.raises(py_amqp.exceptions.ResourceLocked):
        py_amqp_until(connection, lambda: False)
    connection.channel().basic_publish_confirm(py_amqp.Message(b"a"), routing_key="q")
    broker.faults.close(code=541)
    with pytest.raises(py_amqp.exceptions.InternalError):
        py_amqp_until(connection, lambda: False)
    with connect_py_amqp(broker) as again:
        again.channel().basic_publish_confirm(py_amqp.Message(b"b"), routing_key="q")
    assert broker.queue("q").messages == 2


def test_py_amqp_is_blocked_while_an_alarm_is_on(broker: AmqpBroker) -> None:
    heard: list[str] = []
    told = {
        "on_blocked": lambda _: heard.append("blocked"),
        "on_unblocked": lambda: heard.append("unblocked"),
    }
    with connect_py_amqp(broker, **told) as connection:
        channel = connection.channel()
        with broker.faults.alarm("memory"):
            channel.basic_publish(py_amqp.Message(b"makes it hear"), routing_key="q")
            py_amqp_until(connection, lambda: heard)
            channel.basic_publish(py_amqp.Message(b"waits"), routing_key="q")
            assert broker.queue("q").messages == 1
        py_amqp_until(connection, lambda: len(heard) == 2)
        channel.basic_publish_confirm(py_amqp.Message(b"after"), routing_key="q")
    assert (heard, broker.queue("q").messages) == (["blocked", "unblocked"], 3)
