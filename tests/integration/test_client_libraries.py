"""What programs do most, through each library of AMQP 0-9-1: one list of scenarios, one adapter a library.

The rules themselves are shown without sockets in ``tests/conformance``; here each library must understand the
answers. What only one library has (adapters, patterns, pools) is in the file of that library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.client_libraries import (
    LIBRARIES,
    PROPERTIES,
    Channel,
    Client,
    LoginRefused,
    Unroutable,
    timestamp,
)
from tests.support.deadline import turn_until

pytestmark = pytest.mark.usefixtures("deadline")

Connect = Callable[..., Client]


@pytest.fixture(params=LIBRARIES)
def connect(request: pytest.FixtureRequest, broker: BrokerProcess, deadline: None) -> Iterator[Connect]:
    opened: list[Client] = []

    def connect_to(**options: Any) -> Client:
        client = LIBRARIES[request.param](broker, **options)
        opened.append(client)
        return client

    yield connect_to
    for client in opened:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def channel(client: Client) -> Channel:
    return client.channel()


def refused(client: Client, operation: Callable[[], Any]) -> int:
    """Return the code with which the broker closes the channel of an operation."""
    with pytest.raises(client.channel_errors) as caught:
        operation()
    return client.code(caught.value)


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"vhost": "nowhere"}], ids=str)
def test_a_refused_login(connect: Connect, wrong: dict[str, str]) -> None:
    """The library raises at once and does not time out."""
    with pytest.raises(LoginRefused):
        connect(**wrong)


def test_properties_and_headers_of_every_type(client: Client, channel: Channel, queue: str) -> None:
    """Values and their types arrive as they were sent."""
    headers = {
        "text": "grün",
        "true": True,
        "int": -5,
        "long": 2**40,
        "number": 1.5 if client.encodes_floats else 1,
        "decimal": Decimal("1.25"),
        "time": timestamp(client),
        "none": None,
        "list": [1, "a", [2, None], {"x": "y"}],
        "table": {"a": {"b": {"c": 1}}},
    }
    channel.declare_queue(queue, exclusive=True)
    channel.publish(b"body", queue, headers=headers, properties=PROPERTIES)
    received = channel.get(queue, no_ack=True)
    assert received.body == b"body"
    assert received.properties == PROPERTIES
    assert received.headers == headers


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "publisher_confirms")
@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_ack")
def test_confirmed_messages_are_in_the_queue(channel: Channel, queue: str) -> None:
    channel.declare_queue(queue, exclusive=True)
    for number in range(20):
        channel.publish(str(number).encode(), queue)
        assert channel.declare_queue(queue, passive=True) == (queue, number + 1)


def test_an_unroutable_message_is_returned(channel: Channel, queue: str) -> None:
    """The return comes before the confirm, and the next publish is confirmed as usual."""
    channel.declare_queue(queue, exclusive=True)
    for number in range(1, 4):
        with pytest.raises(Unroutable) as caught:
            channel.publish(b"lost", queue + "-missing")
        assert caught.value.args == (b"lost",)
        channel.publish(b"kept", queue)
        assert channel.declare_queue(queue, passive=True)[1] == number


@pytest.mark.rabbitmq("queue_type_SUITE", "smoke")
def test_prefetch_and_acknowledgements(
    client: Client, channel: Channel, broker: BrokerProcess, queue: str
) -> None:
    """An ack lets the next message come; a close requeues all that was not acknowledged."""
    channel.declare_queue(queue)
    for number in range(5):
        channel.publish(str(number).encode(), queue)
    consumer = channel.consume(queue, 2)
    held = channel.take(consumer, 2)
    broker.wait_for_counts(queue, ready=3, unsettled=2)
    for each in held:
        channel.acknowledge(each)
    assert [each.body for each in channel.take(consumer, 4)] == [b"0", b"1", b"2", b"3"]
    channel.cancel(consumer)
    channel.reject(consumer.messages[2], requeue=False)
    broker.wait_for_counts(queue, ready=1, unsettled=1)
    client.close()
    broker.wait_for_counts(queue, ready=2)


def test_requeue_and_reject(channel: Channel, queue: str) -> None:
    """A requeued message comes first, marked redelivered; a rejected one does not come."""
    channel.declare_queue(queue, exclusive=True)
    for text in (b"a", b"b"):
        channel.publish(text, queue)
    first = channel.get(queue)
    assert (first.body, first.redelivered) == (b"a", False)
    channel.reject(first, requeue=True)
    again = channel.get(queue)
    assert (again.body, again.redelivered) == (b"a", True)
    channel.reject(again, requeue=False)
    last = channel.get(queue)
    assert last.body == b"b"
    channel.acknowledge(last)
    assert channel.get(queue) is None


def test_the_consumers_of_a_deleted_queue_are_cancelled(client: Client, channel: Channel, queue: str) -> None:
    channel.declare_queue(queue)
    consumer = channel.consume(queue, 1)
    assert not consumer.cancelled
    client.channel().delete_queue(queue)
    turn_until(channel.step, lambda: consumer.cancelled, "the cancellation")


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (lambda c, q: c.declare_queue(q, passive=True), 404),
        (lambda c, q: c.get(q), 404),
        (lambda c, q: c.declare_exchange("amq." + q, "direct"), 403),
        (lambda c, q: c.declare_exchange(q, "no-such-type"), 406),
        (lambda c, q: c.declare_queue(q) and c.declare_queue(q, exclusive=True), 405),
    ],
)
def test_a_refused_operation_closes_the_channel_only(
    client: Client, queue: str, operation: Any, code: int
) -> None:
    """The library has the code, and another channel of the connection still works."""
    channel = client.channel()
    assert refused(client, lambda: operation(channel, queue)) == code
    assert client.channel().declare_queue("", exclusive=True)[0].startswith("amq.gen-")
    client.channel().delete_queue(queue)


def test_an_exclusive_queue_is_locked_until_its_connection_ends(connect: Connect, queue: str) -> None:
    owner, other = connect(), connect()
    owner.channel().declare_queue(queue, exclusive=True)
    locked = other.channel()
    assert refused(other, lambda: locked.declare_queue(queue, exclusive=True)) == 405
    owner.close()
    other.channel().declare_queue(queue, exclusive=True)


def test_a_transaction(client: Client, queue: str) -> None:
    channel = client.channel(confirms=False)
    channel.declare_queue(queue, exclusive=True)
    channel.begin_transaction()
    channel.publish(b"a", queue)
    channel.roll_back()
    channel.publish(b"b", queue)
    assert channel.get(queue) is None
    channel.commit()
    message = channel.get(queue)
    assert message.body == b"b"
    channel.acknowledge(message)
    channel.commit()
    assert channel.get(queue) is None


@pytest.mark.parametrize(
    ("kind", "binding", "arguments", "key", "headers"),
    [
        ("direct", "k", {}, "k", {}),
        ("fanout", "", {}, "any", {}),
        ("topic", "a.#", {}, "a.b", {}),
        ("headers", "", {"x-match": "any", "a": 1}, "", {"a": 1}),
    ],
)
def test_routing(
    channel: Channel, queue: str, kind: str, binding: str, arguments: Any, key: str, headers: Any
) -> None:
    channel.declare_exchange(queue, kind)
    channel.declare_queue(queue, exclusive=True)
    channel.bind(queue, queue, binding, arguments)
    channel.publish(b"yes", key, exchange=queue, headers=headers)
    if kind != "fanout":
        with pytest.raises(Unroutable):
            channel.publish(b"no", "no", exchange=queue)
    message = channel.get(queue, no_ack=True)
    assert message.body == b"yes"
    assert channel.get(queue) is None


def test_a_body_of_many_frames(channel: Channel, queue: str) -> None:
    channel.declare_queue(queue, exclusive=True)
    body = b"\x00\x01\xff" * 400_000
    channel.publish(body, queue, properties={"content_encoding": "binary"})
    message = channel.get(queue, no_ack=True)
    assert message.body == body
