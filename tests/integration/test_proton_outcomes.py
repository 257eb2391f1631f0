"""Settlement both ways: what publishers hear, and what becomes of a message by a consumer's outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Link, Message

from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient, Received, ReceivingEnd

pytestmark = pytest.mark.integration


def flags(received: Received) -> tuple[Any, bool, int]:
    """Body, first-acquirer and delivery-count of a delivery."""
    message = received.message
    return message.body, message.first_acquirer, message.delivery_count


def fill(client: ProtonClient, queue: str, count: int) -> None:
    """Put messages with the bodies 0, 1, 2, ... into a queue."""
    sender = client.sender(queue)
    outcomes = sender.send(*(Message(body=number) for number in range(count)))
    assert {each.state for each in outcomes} == {Delivery.ACCEPTED}
    sender.close()


# --- publishers -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "sender_settle_mode_unsettled")
def test_unsettled_deliveries_are_accepted_and_settled(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """A link in mode unsettled: each delivery gets the outcome accepted, settled."""
    sender = client.sender(queue, snd_settle_mode=Link.SND_UNSETTLED)
    assert sender.link.remote_snd_settle_mode == Link.SND_UNSETTLED
    outcomes = sender.send(*(str(number) for number in range(30)))
    assert [(each.state, each.settled) for each in outcomes] == [(Delivery.ACCEPTED, True)] * 30
    assert sender.link.unsettled == 0
    broker.wait_for_counts(queue, ready=30)


@pytest.mark.rabbitmq("amqp_client_SUITE", "sender_settle_mode_mixed")
def test_mixed_link_answers_the_unsettled_deliveries_only(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 2.8.2 mixed: settled and unsettled transfers on one link."""
    sender = client.sender(queue)
    assert sender.link.remote_snd_settle_mode == Link.SND_MIXED
    tags = [sender.transfer(Message(body=number), settled=number % 2 == 0) for number in range(20)]
    for tag in tags[1::2]:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    assert set(sender.outcomes) == set(tags[1::2])
    broker.wait_for_counts(queue, ready=20)
    receiver = client.receiver(queue, credit=20)
    receiver.take(20)
    assert receiver.bodies == list(range(20))


# --- consumers ------------------------------------------------------------------------------------


# --- what goes away without settling --------------------------------------------------------------


def _close_link(client: ProtonClient, receiver: ReceivingEnd) -> None:
    receiver.close()


def _detach_link(client: ProtonClient, receiver: ReceivingEnd) -> None:
    receiver.detach()


def _end_session(client: ProtonClient, receiver: ReceivingEnd) -> None:
    receiver.link.session.close()
    client.flush()


def _close_connection(client: ProtonClient, receiver: ReceivingEnd) -> None:
    client.close()


def _lose_connection(client: ProtonClient, receiver: ReceivingEnd) -> None:
    client.lose()


@pytest.mark.parametrize(
    "leave", [_close_link, _detach_link, _end_session, _close_connection, _lose_connection]
)
def test_unsettled_messages_return_in_their_original_order(
    broker: BrokerProcess,
    clients: Any,
    queue: str,
    leave: Callable[[ProtonClient, ReceivingEnd], None],
) -> None:
    """Detach, end, close and a lost socket alike; settled ones are gone, the others marked as redelivered."""
    leaving, staying = clients(broker), clients(broker)
    fill(staying, queue, 10)
    session = leaving.session()
    receiver = leaving.receiver(queue, credit=7, session=session)
    received = receiver.take(7)
    receiver.settle([received[1], received[4]])
    broker.wait_for_counts(queue, ready=3, unsettled=5)
    leave(leaving, receiver)
    broker.wait_for_counts(queue, ready=8)
    other = staying.receiver(queue, credit=8)
    assert [flags(each)[:2] for each in other.take(8)] == [
        *((number, False) for number in (0, 2, 3, 5, 6)),
        *((number, True) for number in (7, 8, 9)),
    ]
    assert {flags(each)[2] for each in other.received} == {0}


def test_disposition_after_detach_is_ignored(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """The deliveries of a link that has gone are no longer its client's to settle; the session lives."""
    fill(client, queue, 2)
    receiver = client.receiver(queue, credit=2)
    received = receiver.take(2)
    receiver.detach()
    broker.wait_for_counts(queue, ready=2)
    for each in received:
        each.delivery.update(Delivery.ACCEPTED)
        each.delivery.settle()
    client.flush()
    second = client.receiver(queue, credit=2)
    second.take(2)
    assert second.bodies == [0, 1]
