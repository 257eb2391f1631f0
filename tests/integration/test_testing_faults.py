"""Faults that a test asks for, each with two real clients: what they see, and that nothing is left of it."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from proton import ConnectionException, Delivery, Message
from proton.utils import LinkDetached, SendException

from amqp10broker.client.errors import ClientError, LinkRefusedError
from amqp10broker.client.message import data_message
from amqp10broker.testing.broker import AmqpBroker
from tests.support.faults import (
    TIMEOUT_S,
    beside,
    broker,
    channel,
    ours_until,
    pika_until,
    proton,
    sent,
    servers,
    until,
)

__all__ = ["broker", "channel", "proton", "servers"]


def publish(channel: Any, body: bytes = b"pika's") -> None:
    channel.basic_publish("", "q", body)


def test_a_publish_is_refused_and_not_stored(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    """The fault refuses a number of messages from any client, and then ends."""
    sender = proton.create_sender("/queues/q")
    with broker.faults.reject_publishes(2, queue="q") as fault:
        with pytest.raises(pika.exceptions.NackError):
            publish(channel)
        (refused,) = sent(proton, sender, "proton's")
        until(proton, lambda: refused.settled)
        assert fault.hits == 2
        publish(channel)
        sender.send(Message(body="proton's"))
    assert refused.remote_state == Delivery.REJECTED
    publish(channel)
    assert broker.queue("q").messages == 3


def test_a_fault_is_for_the_clients_queues_and_links_that_it_names(
    broker: AmqpBroker, channel: Any, proton: Any
) -> None:
    sender = proton.create_sender("/queues/q", name="proton's link")
    with broker.faults.reject_publishes(client="pika*"):
        sender.send(Message(body="taken"))
        with pytest.raises(pika.exceptions.NackError):
            publish(channel)
    with broker.faults.reject_publishes(link="proton*"):
        publish(channel)
        with pytest.raises(SendException):
            sender.send(Message(body="refused"))
    with broker.faults.reject_publishes(queue="other"):
        publish(channel)
        sender.send(Message(body="taken"))
    assert broker.queue("q").messages == 4


def test_confirms_come_late_and_so_out_of_order(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    """The messages are in the queue; the first one's confirm comes when the fault is lifted."""
    sender = proton.create_sender("/queues/q")
    with broker.faults.hold_confirms(1) as fault:
        first, second = sent(proton, sender, "first", "second")
        until(proton, lambda: second.settled)
        assert (fault.held, first.settled, broker.queue("q").messages) == (1, False, 2)
        fault.lift()
        until(proton, lambda: first.settled)
        assert first.remote_state == second.remote_state == Delivery.ACCEPTED
    with broker.faults.hold_confirms(1) as fault, beside(lambda: publish(channel)) as publisher:
        until(proton, lambda: fault.held == 1)
        assert (publisher.is_alive(), broker.queue("q").messages) == (True, 3)
        fault.lift()


def test_credit_is_withheld_and_comes_when_the_fault_is_lifted(broker: AmqpBroker, proton: Any) -> None:
    """Links that attach meanwhile get only the limit; earlier links keep their credit."""
    early = proton.create_sender("/queues/q", name="early")
    with broker.client() as client:
        with broker.faults.limit_credit(3) as fault, broker.faults.limit_credit(0, link="none") as other:
            late = proton.create_sender("/queues/q", name="late")
            none = proton.create_sender("/queues/q", name="none")
            until(proton, lambda: late.link.credit == 3)
            ours = client.sender("/queues/q")
            ours_until(client, lambda: ours.end.credit == 3)
            for number in range(3):
                late.send(Message(body=number))
            assert (late.link.credit, none.link.credit) == (0, 0)
            early.send(Message(body="from before"))
            assert other.hits == 1
            assert fault.hits >= 3
        until(proton, lambda: late.link.credit and none.link.credit)
        late.send(Message(body="again"))
        ours_until(client, lambda: ours.end.credit > 3)
        ours.send(data_message(b"ours"))
    assert broker.queue("q").messages == 6


def test_what_is_accepted_comes_again(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    """It simulates a lost settlement: the client gets no notice; the message is marked redelivered."""
    with broker.faults.redeliver(2, queue="q") as fault:
        broker.publish("q", "proton's")
        receiver = proton.create_receiver("/queues/q", credit=1)
        assert receiver.receive(timeout=TIMEOUT_S).delivery_count == 0
        receiver.accept()
        receiver.flow(1)
        assert receiver.receive(timeout=TIMEOUT_S).delivery_count == 1
        assert fault.hits == 1
        receiver.accept()
        until(proton, lambda: fault.hits == 2)
        receiver.close()
        again, _, body = channel.basic_get("q")
        assert (again.redelivered, body) == (True, b"proton's")
        channel.basic_ack(again.delivery_tag)
    broker.assert_drained("q")
    broker.publish("q", "pika's")
    with broker.faults.redeliver(1) as fault:
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        until(proton, lambda: fault.hits == 1)
        again, _, _ = channel.basic_get("q")
        assert again.redelivered
        channel.basic_ack(again.delivery_tag)
    broker.assert_drained("q")


def test_a_queue_pauses_as_while_a_leader_is_elected(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    """Publishers, consumers and requests for counts wait, and all continue in order."""
    sender = proton.create_sender("/queues/q")
    receiver = proton.create_receiver("/queues/q", credit=0)
    with broker.faults.pause_queue("q") as fault:
        (delivery,) = sent(proton, sender, "during")
        receiver.flow(1)
        with beside(lambda: channel.queue_declare("q", passive=True)) as asking:
            until(proton, lambda: fault.held == 3)
            assert (delivery.settled, asking.is_alive(), broker.queue("q").messages) == (False, True, 0)
            fault.lift()
    assert receiver.receive(timeout=TIMEOUT_S).body == "during"
    receiver.accept()
    until(proton, lambda: delivery.settled)
    publish(channel)
    assert channel.basic_get("q", auto_ack=True)[2] == b"pika's"


def test_bytes_are_held_as_by_a_silent_network(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    sender = proton.create_sender("/queues/q")
    receiver = proton.create_receiver("/queues/q", credit=1)
    with broker.faults.hold_bytes(client=proton.container.container_id) as fault:
        publish(channel, b"to be seen")
        (delivery,) = sent(proton, sender, "not to be seen")
        until(proton, lambda: fault.hits == 2)
        assert (fault.held > 0, delivery.settled, receiver.fetcher.has_message) == (True, False, 0)
        assert broker.queue("q").messages == 1
        fault.lift()
        until(proton, lambda: delivery.settled)
        assert bytes(receiver.receive(timeout=TIMEOUT_S).body) == b"to be seen"
    with broker.faults.hold_bytes(client="pika*") as fault, beside(lambda: publish(channel)) as publisher:
        until(proton, lambda: fault.held)
        assert publisher.is_alive()
        fault.lift()


def test_connections_are_reset_after_some_frames(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    sender = proton.create_sender("/queues/q")
    with broker.faults.reset_after(2) as fault:
        publish(channel)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika_until(channel, lambda: publish(channel))
        with pytest.raises(ConnectionException):
            until(proton, lambda: not sender.send(Message(body="proton's")))
        assert fault.hits == 2
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        publish(connection.channel())


def test_an_attach_is_refused_with_a_condition(broker: AmqpBroker, proton: Any) -> None:
    """It refuses a number of them, by address or any."""
    with broker.client() as client:
        with broker.faults.refuse_attaches(2, queue="/queues/q") as fault:
            with pytest.raises(LinkRefusedError, match="amqp:unauthorized-access"):
                client.sender("/queues/q")
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                proton.create_receiver("/queues/q")
            assert fault.hits == 2
            proton.create_receiver("/queues/q", name="third")
        client.sender("/queues/q")


def test_links_are_detached_and_consumers_cancelled(broker: AmqpBroker, channel: Any, proton: Any) -> None:
    """Their unsettled messages are requeued; the client may attach again at once."""
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume("q", lambda *_: None, consumer_tag="pika's")
    receiver = proton.create_receiver("/queues/q", credit=5)
    assert broker.faults.detach("amqp:link:detach-forced", queue="q") == 2
    with pytest.raises(LinkDetached, match="amqp:link:detach-forced"):
        receiver.receive(timeout=TIMEOUT_S)
    until(proton, lambda: channel.connection.process_data_events(time_limit=0) or cancelled)
    assert cancelled == ["pika's"]
    assert broker.queue("q").consumers == 0
    broker.publish("q", "kept")
    assert proton.create_receiver("/queues/q", name="again").receive(timeout=TIMEOUT_S).body == b"kept"


def test_sessions_and_channels_end_with_a_condition_and_a_code(
    broker: AmqpBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker.client() as client:
        sender = client.sender("/queues/q")
        monkeypatch.setattr("amqp10broker.testing.broker.FAULT_FOUND_S", 0.0)
        with pytest.raises(AssertionError, match="no client is there that it is for"):
            broker.faults.end(client="nobody")
        monkeypatch.undo()
        broker.faults.end("amqp:resource-limit-exceeded", 405)
        with pytest.raises(ClientError, match="amqp:resource-limit-exceeded"):
            sender.send(data_message(b"x"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            publish(channel)
    assert closed.value.reply_code == 405
    publish(channel.connection.channel())


def test_connections_are_closed_with_a_condition_and_a_code(
    broker: AmqpBroker, channel: Any, proton: Any
) -> None:
    sender = proton.create_sender("/queues/q")
    broker.faults.close("amqp:connection:redirect", 541)
    with pytest.raises(ConnectionException, match="amqp:connection:redirect"):
        sender.send(Message(body="x"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        publish(channel)
    assert closed.value.reply_code == 541


@pytest.mark.parametrize("name", ["memory", "disk"])
def test_an_alarm_holds_publishers_back(broker: AmqpBroker, channel: Any, proton: Any, name: str) -> None:
    """pika is notified that it is blocked, and proton's messages wait; both continue afterwards."""
    heard: list[str] = []
    channel.connection.add_on_connection_blocked_callback(lambda *_: heard.append("blocked"))
    channel.connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    sender = proton.create_sender("/queues/q")
    with broker.faults.alarm(name), beside(lambda: publish(channel)):
        until(proton, lambda: any(each["state"] == "blocked" for each in broker.connections))
        until(proton, lambda: any(each["waits"] == "blocked-by-alarm" for each in broker.waiting))
        broker.ask("alarm", name=name, on=False)
    sender.send(Message(body="proton's"))
    until(proton, lambda: channel.connection.process_data_events(time_limit=0) or len(heard) == 2)
    assert heard == ["blocked", "unblocked"]
    assert broker.queue("q").messages == 2
