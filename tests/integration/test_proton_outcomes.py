"""Settlement both ways: what publishers hear, and what becomes of a message by a consumer's outcome."""

from __future__ import annotations

import pytest
from proton import Delivery, Link, Message

from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


def fill(client: ProtonClient, queue: str, count: int) -> None:
    """Put messages with the bodies 0, 1, 2, ... into a queue."""
    sender = client.sender(queue)
    outcomes = sender.send(*(Message(body=number) for number in range(count)))
    assert {each.state for each in outcomes} == {Delivery.ACCEPTED}
    sender.close()


# --- publishers -----------------------------------------------------------------------------------


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


# --- what goes away without settling --------------------------------------------------------------


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
