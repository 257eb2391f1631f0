"""Staged stalls of clients that receive, have credit, and get nothing: empty is said only when it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Message, symbol

from amqp10broker.protocols.amqp10.performatives import Transfer
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient, ReceivingEnd
from tests.support.rawprocess import RawSocket
from tests.support.stalls import waits

pytestmark = pytest.mark.integration

Declare = Callable[..., None]
KINDS = ("classic", "quorum")


@pytest.fixture
def declare(channel: BlockingChannel, queue: str) -> Declare:
    """Declare the test's queue, of a kind and with arguments."""

    def call(kind: str = "classic", **arguments: Any) -> None:
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **given})

    return call


def take(client: RawSocket, count: int) -> None:
    for _ in range(count):
        client.until(Transfer)


def reader(client: ProtonClient, stream: str, **described: Any) -> ReceivingEnd:
    """A receiver of a stream with filters, and credit for a hundred."""
    given = {
        symbol(f"rabbitmq:stream-{name.replace('_', '-')}"): Described(
            symbol(f"rabbitmq:stream-{name.replace('_', '-')}"), value
        )
        for name, value in described.items()
    }
    return client.receiver(stream, credit=100, apply=[lambda link: link.source.filter.put_dict(given)])


# --- empty, and why -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_queue_is_empty(
    broker: BrokerProcess, client: ProtonClient, queue: str, kind: str, declare: Declare
) -> None:
    """All messages were taken and settled."""
    declare(kind)
    client.sender(queue).send("1")
    receiver = client.receiver(queue, credit=10)
    receiver.settle(receiver.take(1))
    waits(broker, "queue-empty", address=queue, says=("has no ready message, the last one was handed out",))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_was_ever_routed_to_the_queue(
    broker: BrokerProcess,
    client: ProtonClient,
    channel: BlockingChannel,
    queue: str,
    kind: str,
    declare: Declare,
) -> None:
    """A publisher has the wrong routing key: what it sends is routed to no queue, and both sides say so."""
    declare(kind)
    channel.exchange_declare(f"x-{queue}", "topic")
    channel.queue_bind(queue, f"x-{queue}", "right.*")
    receiver = client.receiver(queue, credit=10)
    sender = client.sender(f"/exchanges/x-{queue}/wrong")
    (outcome,) = sender.send("lost")
    assert outcome.state == Delivery.RELEASED
    waits(
        broker,
        "queue-empty-nothing-routed",
        address=queue,
        says=(f"nothing was ever put into queue '{queue}'", f"it is bound to 'x-{queue}'"),
    )
    link = waits(broker, None, role="sender", address=f"x-{queue}", says=("last outcome: released",))
    assert link["waits_why"].startswith("its turn: ")
    channel.exchange_delete(f"x-{queue}")
    waits(broker, "queue-empty-nothing-routed", name=receiver.link.name, says=("no exchange is bound to it",))


@pytest.mark.parametrize("kind", KINDS)
def test_messages_have_expired(
    broker: BrokerProcess, client: ProtonClient, queue: str, kind: str, declare: Declare
) -> None:
    """Before the consumer came."""
    declare(kind, message_ttl=1)
    client.sender(queue).send("1", "2", "3")
    broker.wait_for_counts(queue, ready=0)
    client.receiver(queue, credit=10)
    waits(broker, "queue-empty-expired", address=queue, says=("3 messages expired in it, the last",))


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_limit_dropped_everything(
    broker: BrokerProcess, client: ProtonClient, queue: str, kind: str, declare: Declare
) -> None:
    """The publisher was told that it was accepted."""
    declare(kind, max_length=0)
    client.sender(queue).send("1", "2", "3")
    client.receiver(queue, credit=10)
    waits(broker, "queue-empty", address=queue, says=("its length limit has dropped 3 and rejected 0",))


# --- with somebody --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_messages_are_unsettled_at_another_link(
    broker: BrokerProcess, clients: Any, queue: str, kind: str, declare: Declare
) -> None:
    """It is named, with what it holds."""
    declare(kind)
    first, second = clients(broker), clients(broker)
    first.sender(queue).send("1", "2", "3")
    holder = first.receiver(queue, credit=3)
    holder.take(3)
    idle = second.receiver(queue, credit=10)
    waits(
        broker,
        "unsettled-elsewhere",
        name=idle.link.name,
        says=(
            f"all 3 messages of queue '{queue}' are unsettled",
            f"session 0, link '{holder.link.name}'",
            "(it has never settled any)",
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_all_messages_are_unsettled_here(
    broker: BrokerProcess, client: ProtonClient, queue: str, kind: str, declare: Declare
) -> None:
    """The client has credit for more, and settles nothing: there is nothing else."""
    declare(kind)
    client.sender(queue).send("1", "2", "3")
    receiver = client.receiver(queue, credit=10)
    receiver.settle(receiver.take(3)[:1])
    waits(
        broker,
        "unsettled-here",
        address=queue,
        says=(f"all 2 messages of queue '{queue}' are unsettled, here", "it settled last"),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_another_consumer_is_the_active_one(
    broker: BrokerProcess, clients: Any, queue: str, kind: str, declare: Declare
) -> None:
    """Which one, and that it does not take more itself."""
    declare(kind, single_active_consumer=True)
    first, second = clients(broker), clients(broker)
    active = first.receiver(queue, credit=1)
    waiting = second.receiver(queue, credit=10)
    says = ("single active consumer", f"link '{active.link.name}'", "would take the next message")
    waits(broker, "not-active", name=waiting.link.name, says=says)
    first.sender(queue).send("1", "2", "3")
    active.take(1)
    waits(
        broker,
        "not-active",
        name=waiting.link.name,
        says=("holds 1 unsettled delivery for", "it takes no more at present"),
    )
    waits(broker, "no-credit-used-up", name=active.link.name)


def test_messages_wait_to_be_tried_again(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """A quorum queue with a delayed retry."""
    declare("quorum", delayed_retry_type="all", delayed_retry_min=600_000)
    client.sender(queue).send("1")
    receiver = client.receiver(queue, credit=10)
    receiver.settle(receiver.take(1), Delivery.RELEASED)
    waits(broker, "messages-delayed", address=queue, says=("1 message", "came back", "the first in"))


def test_a_consumer_let_a_delivery_time_out(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """It gets nothing until it is heard of, although there is a message and it has credit."""
    declare("quorum", consumer_timeout=1)
    client.sender(queue).send("1")
    receiver = client.receiver(queue, credit=10)
    receiver.take(1)
    waits(broker, "timed-out", address=queue, says=("taken back after the consumer timeout",))
    broker.wait_for_counts(queue, ready=1)


# --- streams --------------------------------------------------------------------------------------


def test_a_consumer_of_a_stream_begins_at_its_end(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """Which is the default, and a riddle to who expects what is there."""
    declare("stream")
    client.sender(queue).send("1", "2", "3")
    client.receiver(queue, credit=10)
    waits(
        broker,
        "stream-end",
        address=queue,
        says=("the next offset is 3", "it began there: older messages are only given to who asks"),
    )


def test_a_consumer_has_read_a_stream_to_its_end(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """What it holds unsettled does not matter."""
    declare("stream")
    client.sender(queue).send("1", "2", "3")
    receiver = reader(client, queue, offset_spec="first")
    receiver.take(3)
    link = waits(broker, "stream-end", address=queue, says=("the next offset is 3",))
    assert "began there" not in link["waits_why"]


def test_a_filter_lets_nothing_through(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """Of three messages none; and with one that passes it says how many did."""
    declare("stream")
    sender = client.sender(queue)
    for text in ("1", "2", "3"):
        sender.send(Message(body=text, annotations={symbol("x-stream-filter-value"): "a"}))
    receiver = reader(client, queue, offset_spec="first", filter="b", match_unfiltered=False)
    waits(
        broker, "filter-passed-none", address=queue, says=("its filter passed 0 of 3 messages", "(offset 3)")
    )
    sender.send(Message(body="4", annotations={symbol("x-stream-filter-value"): "b"}))
    receiver.take(1)
    waits(broker, "stream-end", address=queue, says=("its filter passed 1 of 4 messages",))


def test_nothing_was_ever_published_to_a_stream(
    broker: BrokerProcess, client: ProtonClient, queue: str, declare: Declare
) -> None:
    """So there is no end to be at."""
    declare("stream")
    client.receiver(queue, credit=10)
    waits(broker, "queue-empty-nothing-routed", address=queue)


# --- 0-9-1 ----------------------------------------------------------------------------------------
