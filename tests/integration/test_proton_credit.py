"""Link credit as proton uses it: credit in advance, stops that cross deliveries, fairness, slow targets."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = pytest.mark.integration


def fill(client: ProtonClient, queue: str, count: int, *, first: int = 0, body: bytes | None = None) -> None:
    """Put numbered messages into a queue and wait until all are accepted."""
    sender = client.sender(queue)
    tags = [
        sender.transfer(Message(body=number if body is None else body))
        for number in range(first, first + count)
    ]
    for tag in tags:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    sender.close()


def fence(receiver: ReceivingEnd) -> None:
    """Wait until the broker has answered everything said before on this link."""
    receiver.drain()


# --- F5 -------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "stop_classic_queue", "stop_quorum_queue", "stop_stream")
def test_stop_while_deliveries_are_on_the_wire(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Deliveries that cross the stop are taken; the broker does not send beyond what it had sent by then.

    proton's own count of credit is then negative, and it writes that as link-credit 2**32 - n in its
    next flow, counted from a higher delivery-count: read as what it is, a limit that is not new.
    """
    fill(client, queue, 2000, body=b"x" * 2000)
    receiver = client.receiver(queue, credit=2000)
    client.wait(lambda: len(receiver.received) >= 50, "the first deliveries")
    receiver.stop()
    stopped_at = len(receiver.received)
    fence(receiver)
    fill(client, queue, 1)
    fence(receiver)
    assert len(receiver.received) == stopped_at
    assert stopped_at < 2000, "the broker went on delivering after the stop"
    broker.wait_for_counts(queue, ready=2001 - stopped_at, unsettled=stopped_at)


# --- fairness and isolation -----------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "link_flow_control")
def test_slow_target_does_not_delay_a_fast_one_on_the_same_session(
    start_broker: StartBroker, clients: Any
) -> None:
    """F2: a queue that confirms late withholds credit from its link only.

    Asserted by counts: the fast link takes ten times what the slow one may have unconfirmed, while
    not a single message of the slow one has been confirmed.
    """
    broker = start_broker("--test-mode", "--confirm-delay", "slow*=120000", "--shutdown-timeout-ms", "500")
    client = clients(broker)
    slow = client.sender("slow-queue")
    fast = client.sender("fast-queue")
    assert slow.link.session == fast.link.session
    for number in range(170 + 85):  # the credit at first, and one top-up at half of it
        slow.transfer(Message(body=number))
    client.flush()
    broker.wait_until(
        lambda: broker.links("slow-queue")[0]["waits"] == "credit-withheld", "the slow link out of credit"
    )
    tags = [fast.transfer(Message(body=number)) for number in range(1700)]
    for tag in tags:
        assert fast.outcome(tag).state == Delivery.ACCEPTED
    assert not slow.outcomes
    assert slow.link.credit == 0
    (link,) = broker.links("slow-queue")
    assert link["unsettled"] == 255
    consumer = client.receiver("fast-queue", credit=1700)
    consumer.settle(consumer.take(1700))
    broker.wait_for_counts("fast-queue", ready=0)
    assert not slow.outcomes
