"""Settlement both ways: what publishers hear, and what becomes of a message by a consumer's outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Link, Message, symbol

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


def test_settled_deliveries_get_no_disposition(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """A link in mode settled: everything arrives and nothing is answered."""
    sender = client.sender(queue, snd_settle_mode=Link.SND_SETTLED)
    assert sender.link.remote_snd_settle_mode == Link.SND_SETTLED
    sender.send(*(str(number) for number in range(500)), settled=True)
    broker.wait_for_counts(queue, ready=500)
    assert not sender.outcomes


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


def test_receiver_settle_mode_second_is_honoured_for_publishers(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 2.8.3 second: the broker says the outcome and settles when the publisher has."""
    sender = client.sender(queue, rcv_settle_mode=Link.RCV_SECOND)
    assert sender.link.remote_rcv_settle_mode == Link.RCV_SECOND
    tag = sender.transfer(Message(body="x"))
    outcome = sender.outcome(tag)
    assert (outcome.state, outcome.settled) == (Delivery.ACCEPTED, False)
    broker.wait_for_counts(queue, ready=1)


# --- consumers ------------------------------------------------------------------------------------


def test_settled_consumer_has_nothing_to_settle(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """snd-settle-mode settled on a consuming link: what is sent has left the queue."""
    fill(client, queue, 10)
    receiver = client.receiver(queue, credit=4, snd_settle_mode=Link.SND_SETTLED)
    assert receiver.link.remote_snd_settle_mode == Link.SND_SETTLED
    assert all(each.settled for each in receiver.take(4))
    broker.wait_for_counts(queue, ready=6)
    receiver.close()
    broker.wait_for_counts(queue, ready=6)


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_classic_queue")
@pytest.mark.parametrize("failed", [False, True])
def test_undeliverable_here_leaves_the_queue(
    broker: BrokerProcess, client: ProtonClient, queue: str, failed: bool
) -> None:
    """As RabbitMQ: modified with undeliverable-here is dead-lettered, so dropped without an exchange."""
    fill(client, queue, 1)
    receiver = client.receiver(queue, credit=2)
    receiver.modify(receiver.take()[0], failed=failed, undeliverable=True)
    broker.wait_for_counts(queue, ready=0)


@pytest.mark.rabbitmq("amqp_client_SUITE", "receiver_settle_mode_first")
def test_outcome_without_settling_is_answered_by_the_broker(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """The consumer says accepted, unsettled: the broker applies it and settles."""
    fill(client, queue, 2)
    receiver = client.receiver(queue, credit=2)
    first, second = receiver.take(2)
    first.delivery.update(Delivery.ACCEPTED)
    second.delivery.update(Delivery.RELEASED)
    client.wait(lambda: first.delivery.settled and second.delivery.settled, "the broker settles")
    broker.wait_for_counts(queue, ready=1)


def test_modified_annotations_need_the_prefix(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 3.2.10: keys without x- are reserved; here, too, it is the client's fault and said so."""
    fill(client, queue, 1)
    session = client.session()
    receiver = client.receiver(queue, credit=1, session=session)
    (item,) = receiver.take()
    item.delivery.local.annotations = {symbol("fruit"): "apple"}
    item.delivery.update(Delivery.MODIFIED)
    item.delivery.settle()
    client.wait(lambda: receiver.closed or session.closed, "the refusal")
    words = f"{receiver.description} {session.description}"
    assert "reserved_annotation_key" in words
    broker.wait_for_counts(queue, ready=1)


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


def test_redelivery_order_with_several_consumers(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """Interleaved messages of two consumers that vanish are merged into the original order."""
    one, two, three = clients(broker), clients(broker), clients(broker)
    first = one.receiver(queue)
    second = two.receiver(queue)
    fill(three, queue, 12)
    for _ in range(3):
        first.grant(2)
        first.take(2)
        second.grant(2)
        second.take(2)
    assert (first.bodies, second.bodies) == ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11])
    second.settle(second.received[2])
    two.lose()
    one.lose()
    broker.wait_for_counts(queue, ready=11)
    last = three.receiver(queue, credit=11)
    last.take(11)
    assert last.bodies == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


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


def test_release_after_settling_is_a_matter_of_the_consumer_only(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """An outcome of one consumer does not touch what another holds."""
    fill(client, queue, 4)
    first = client.receiver(queue, credit=2)
    first.take(2)
    second = client.receiver(queue, credit=2)
    taken = second.take(2)
    second.settle(taken[0], Delivery.RELEASED)
    broker.wait_for_counts(queue, ready=1, unsettled=3)
    first.close()
    broker.wait_for_counts(queue, ready=3, unsettled=1)
