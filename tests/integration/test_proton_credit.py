"""Link credit as proton uses it: credit in advance, stops that cross deliveries, fairness, slow targets."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient, ReceivingEnd

pytestmark = pytest.mark.integration

BIG_CREDIT = 1000


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


# --- F1 -------------------------------------------------------------------------------------------


def test_credit_granted_before_the_attach_is_answered_counts_once(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """proton sends attach and flow in one go, the flow counted from 0: it grants what it says."""
    fill(client, queue, 10)
    receiver = client.receiver(queue, credit=1, wait=False)
    receiver.take(1)
    fence(receiver)
    assert receiver.bodies == [0]


def test_unsettled_deliveries_take_no_credit(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Credit does not bound what is unsettled: a client that grants on gets on."""
    fill(client, queue, 600)
    receiver = client.receiver(queue)
    for _ in range(60):
        receiver.grant(10)
        receiver.take(10)
    assert receiver.bodies == list(range(600))
    broker.wait_for_counts(queue, ready=0, unsettled=600)


# --- F3 -------------------------------------------------------------------------------------------


def test_credit_works_as_before_after_drains(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """The delivery-count that a drain advances is what later credit is counted from."""
    receiver = client.receiver(queue)
    for round_ in range(5):
        receiver.drain(50)
        receiver.link.drained()
        fill(client, queue, 8, first=8 * round_)
        receiver.grant(3)
        receiver.take(3)
        receiver.drain(5)
        client.wait(lambda: receiver.link.credit == 0, "drained")
        receiver.take(5)
    assert receiver.bodies == list(range(40))


# --- F5 -------------------------------------------------------------------------------------------


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


def test_stop_by_taking_back_all_that_proton_calls_credit(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """``flow(-credit)``, the obvious way, also takes back the credit of what proton has buffered.

    It then writes link-credit 2**32 - n, meaning that n deliveries too many have come. To take that
    for four thousand million credits would be the opposite of a stop.
    """
    fill(client, queue, 300)
    receiver = client.receiver(queue, credit=100)
    # Deliveries pile up in proton's buffer: 100 are read from the socket in one turn, and the first
    # of them takes back the credit of all.
    stopping: list[int] = []
    on_delivery = receiver.on_delivery

    def stop_at_once(event: Any) -> None:
        on_delivery(event)
        if not stopping:
            stopping.append(receiver.link.queued)
            receiver.link.flow(-receiver.link.credit)

    receiver.on_delivery = stop_at_once  # type: ignore[method-assign]
    client.wait(lambda: stopping, "the first delivery")
    client.flush()
    fence(receiver)
    assert len(receiver.received) <= 100
    broker.wait_for_counts(queue, ready=300 - len(receiver.received), unsettled=len(receiver.received))


# --- fairness and isolation -----------------------------------------------------------------------


def delivery_counts(broker: BrokerProcess, queue: str) -> list[int]:
    """How many deliveries each link of a queue has had."""
    return [link["delivery_count"] for link in broker.links(queue)]


def test_two_consumers_share_a_queue_by_their_credit(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """Both with credit to spare: neither gets everything, and together they get each message once."""
    one, two, sender = clients(broker), clients(broker), clients(broker)
    first = one.receiver(queue, credit=BIG_CREDIT)
    second = two.receiver(queue, credit=BIG_CREDIT)
    fill(sender, queue, 400)
    # A link counts what it has sent, some time after the queue has handed it out.
    shares = broker.wait_until(
        lambda: counts if sum(counts := delivery_counts(broker, queue)) == 400 else None, "400 deliveries"
    )
    broker.wait_for_counts(queue, ready=0, unsettled=400)
    assert min(shares) >= 150, shares
    first.take(shares[0])
    second.take(shares[1])
    assert sorted([*first.bodies, *second.bodies]) == list(range(400))
    assert first.bodies == sorted(first.bodies)
    assert second.bodies == sorted(second.bodies)


def test_consumer_without_credit_gets_no_share(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """A consumer that used its credit leaves the rest to the other."""
    one, two = clients(broker), clients(broker)
    first = one.receiver(queue, credit=10)
    second = two.receiver(queue, credit=BIG_CREDIT)
    broker.wait_until(
        lambda: sorted(link["credit"] for link in broker.links(queue)) == [10, BIG_CREDIT], "both credits"
    )
    # Its turns are one message, between those of the other of 32 (`queues/round_robin.py`).
    fill(two, queue, 500)
    second.take(490)
    first.take(10)
    fence(first)
    assert len(first.received) == 10


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
        lambda: broker.links("slow-queue")[0]["waits"] == "credit-withheld",
        "the slow link out of credit",
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


@pytest.mark.rabbitmq("amqp_client_SUITE", "link_flow_control")
def test_slow_target_gets_credit_again(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """When confirms come the link goes on: nothing is lost, everything is accepted in the end."""
    sender = client.sender(f"slow-{queue}")
    tags = [sender.transfer(Message(body=number)) for number in range(1000)]
    assert all(sender.outcome(tag).state == Delivery.ACCEPTED for tag in tags)
    broker.wait_for_counts(f"slow-{queue}", ready=1000)


def test_publisher_credit_is_the_setting_and_is_topped_up_at_half(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """F2: max_link_credit (170) at attach; after 85 deliveries it is 170 again."""
    sender = client.sender(queue)
    client.wait(lambda: sender.link.credit, "credit")
    assert sender.link.credit == 170
    for number in range(84):
        sender.outcome(sender.transfer_now(Message(body=number)))
    client.flush()
    assert sender.link.credit == 86
    sender.outcome(sender.transfer_now(Message(body=84)))
    client.wait(lambda: sender.link.credit == 170, "the top-up")
