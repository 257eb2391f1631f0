"""pika as a publisher: properties, sizes, returns, confirms, transactions."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.broker_process import SLOW_QUEUES, BrokerProcess
from tests.support.pika_client import (
    Connect,
    Delivered,
    Inbox,
    Properties,
    get,
    get_all,
    put,
    settle_down,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

MIB = 1024 * 1024

HEADERS: dict[str, Any] = {
    "text": "grün",
    "empty": "",
    "long text": "x" * 10_000,
    "bytes": b"\x00\xff\xfe",
    "true": True,
    "false": False,
    "int": -5,
    "largest int": 2**31 - 1,
    "long": 2**31,
    "largest long": 2**63 - 1,
    "smallest long": -(2**63),
    "decimal": Decimal("123.45"),
    "timestamp": datetime(2026, 2, 3, 4, 5, 6),
    "nothing": None,
    "array": [1, "two", None, [-3, {"deep": True}]],
    "empty array": [],
    "table": {"a": 1, "b": {"c": [b"d"]}},
    "empty table": {},
}

EVERY_PROPERTY: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "cluster",
}


def decoded(**given: Any) -> Properties:
    """Properties as pika decodes what it has encoded itself: integers and times change their class."""
    properties = Properties(**given)
    return properties.decode(b"".join(properties.encode()))


def through(channel: BlockingChannel, queue: str, properties: Properties, body: bytes = b"x") -> Delivered:
    """Publish one message and get it again."""
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("", queue, body, properties)
    return get(channel, queue, auto_ack=True)


# --- properties and bodies --------------------------------------------------------------------------


def test_all_properties_arrive_as_they_were(channel: BlockingChannel, queue: str) -> None:
    """All fourteen, with headers of every type that pika can encode."""
    received = through(channel, queue, Properties(**EVERY_PROPERTY))
    expected = decoded(**EVERY_PROPERTY)
    assert received.properties == expected
    assert received.properties.headers is not None
    assert expected.headers is not None
    assert list(received.properties.headers) == list(HEADERS)
    assert [*map(type, received.properties.headers.values())] == [*map(type, expected.headers.values())]


@pytest.mark.parametrize("name", EVERY_PROPERTY)
def test_each_property_arrives_alone(channel: BlockingChannel, queue: str, name: str) -> None:
    """What was not given is not there."""
    properties = Properties(**{name: EVERY_PROPERTY[name]})
    assert through(channel, queue, properties).properties == decoded(**{name: EVERY_PROPERTY[name]})


def test_a_message_without_properties(channel: BlockingChannel, queue: str) -> None:
    """None are made up; nor are headers."""
    assert through(channel, queue, Properties()).properties == Properties()
    assert through(channel, queue, Properties(headers={})).properties.headers == {}


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 131_064, 131_065, 5 * MIB])
@pytest.mark.parametrize("frame_max", [8192, 131_072])
def test_bodies_of_all_sizes(connect: Connect, queue: str, size: int, frame_max: int) -> None:
    """Empty ones, those that just fit a frame, and those of many frames; got and delivered."""
    channel = connect(frame_max=frame_max).channel()
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    assert through(channel, queue, Properties(delivery_mode=1), body).body == body
    channel.basic_publish("", queue, body)
    assert Inbox(channel, queue, auto_ack=True).take()[0].body == body


def test_a_message_goes_from_large_frames_to_small_ones(connect: Connect, queue: str) -> None:
    """frame_max is a matter of each connection."""
    large = connect().channel()
    small = connect(frame_max=8192).channel()
    large.queue_declare(queue, durable=True)
    body = b"0123456789" * 100_000
    large.basic_publish("", queue, body)
    assert Inbox(small, queue, auto_ack=True).take()[0].body == body


def test_large_and_small_messages_keep_their_order(channel: BlockingChannel, queue: str) -> None:
    """Bodies of one and of many frames one behind the other."""
    channel.queue_declare(queue, exclusive=True)
    sizes = [10, 300_000, 0, 131_065, 1, 200_000, 7]
    for size in sizes:
        channel.basic_publish("", queue, bytes(size))
    assert [len(each.body) for each in Inbox(channel, queue).take(len(sizes))] == sizes


# --- returns --------------------------------------------------------------------------------------


def test_a_mandatory_message_without_a_queue_comes_back(channel: BlockingChannel, queue: str) -> None:
    """basic.return 312 with exchange, key, properties and body."""
    returned: list[Delivered] = []
    channel.add_on_return_callback(lambda _, *what: returned.append(Delivered(*what)))
    properties = Properties(**EVERY_PROPERTY)
    body = b"y" * 300_000
    channel.basic_publish("amq.topic", queue, body, properties, mandatory=True)
    channel.basic_publish("amq.topic", queue, b"not mandatory", properties)
    until(channel, lambda: returned, "the return")
    settle_down(channel)
    assert len(returned) == 1
    method = returned[0].method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("amq.topic", queue)
    assert (returned[0].properties, returned[0].body) == (decoded(**EVERY_PROPERTY), body)


def test_with_confirms_the_return_comes_before_the_ack(channel: BlockingChannel, queue: str) -> None:
    """pika raises UnroutableError only if it does; the next message is confirmed as usual."""
    channel.confirm_delivery()
    channel.queue_declare(queue, exclusive=True)
    for _ in range(3):
        with pytest.raises(UnroutableError) as caught:
            channel.basic_publish("", queue + "-missing", b"lost", mandatory=True)
        assert [each.body for each in caught.value.messages] == [b"lost"]
        channel.basic_publish("", queue, b"kept", mandatory=True)
    channel.basic_publish("", queue + "-missing", b"dropped")
    assert get_all(channel, queue) == ["kept"] * 3


# --- confirms -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_ack")
def test_confirmed_messages_are_in_the_queue(channel: BlockingChannel, queue: str) -> None:
    """A blocking publish on a confirm channel returns when the message is there."""
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", queue, b"", Properties(delivery_mode=1 + number % 2))
        assert channel.queue_declare(queue, passive=True).method.message_count == number + 1
    channel.queue_delete(queue)


def test_confirms_of_a_slow_queue_come_in_time(channel: BlockingChannel, queue: str) -> None:
    """A queue that confirms late, beside another; the fanout counts when both have confirmed."""
    slow = SLOW_QUEUES.removesuffix("*") + queue
    channel.exchange_declare(queue, "fanout", auto_delete=True)
    for name in (slow, queue):
        channel.queue_declare(name, exclusive=True)
        channel.queue_bind(name, queue)
    channel.confirm_delivery()
    channel.basic_publish(queue, "", b"both")
    assert get_all(channel, slow) == get_all(channel, queue) == ["both"]


def test_a_queue_that_is_deleted_before_it_confirms_counts_as_confirmed(connect: Connect, queue: str) -> None:
    """The publisher does not wait for ever."""
    slow = SLOW_QUEUES.removesuffix("*") + queue
    channel = connect().channel()
    channel.queue_declare(slow, durable=True)
    acks: list[tuple[int, bool]] = []
    # pika's blocking channel waits for each confirm; the channel below it does not.
    plain = channel._impl
    plain.confirm_delivery(lambda frame: acks.append((frame.method.delivery_tag, frame.method.multiple)))
    for _ in range(10):
        plain.basic_publish("", slow, b"x")
    plain.queue_delete(slow)
    until(channel, lambda: confirmed(acks) == set(range(1, 11)), "all confirms")


def confirmed(acks: list[tuple[int, bool]]) -> set[int]:
    """The sequence numbers that acks confirm."""
    tags: set[int] = set()
    for tag, multiple in acks:
        tags.update(range(1, tag + 1) if multiple else [tag])
    return tags


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "publisher_confirms")
def test_thousands_of_messages_without_waiting_are_all_confirmed(connect: Connect, queue: str) -> None:
    """Acks may be merged, never left out and never given twice."""
    count = 5000
    channel = connect().channel()
    channel.queue_declare(queue, durable=True)
    acks: list[tuple[int, bool]] = []
    plain = channel._impl
    plain.confirm_delivery(lambda frame: acks.append((frame.method.delivery_tag, frame.method.multiple)))
    for number in range(count):
        plain.basic_publish("", queue, str(number).encode())
    until(channel, lambda: len(confirmed(acks)) == count, "all confirms")
    singles = [tag for tag, multiple in acks if not multiple]
    assert len(set(singles)) == len(singles)
    consumer = Inbox(channel, queue, auto_ack=True)
    consumer.take(count)
    assert consumer.texts == [str(number) for number in range(count)]
    channel.queue_delete(queue)


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_is_seen_at_commit(connect: Connect, broker: BrokerProcess, queue: str) -> None:
    """Publishes wait for the commit; rolled back ones never come."""
    channel = connect().channel()
    other = connect().channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    put(channel, queue, "a", "b")
    settle_down(channel)
    assert get_all(other, queue) == []
    channel.tx_commit()
    assert get_all(other, queue) == ["a", "b"]
    put(channel, queue, "c")
    channel.tx_rollback()
    put(channel, queue, "d")
    channel.tx_commit()
    assert get_all(other, queue) == ["d"]
    channel.tx_select()
    put(channel, queue, "e")
    channel.close()
    assert get_all(other, queue) == []


def test_acknowledgements_in_a_transaction_count_at_commit(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """After a rollback the client still holds the messages and may decide again: nothing is redelivered."""
    channel = connect().channel()
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "a", "b", "c")
    channel.tx_select()
    consumer = Inbox(channel, queue)
    first, second, third = consumer.take(3)
    channel.basic_ack(first.tag)
    channel.basic_reject(second.tag)
    channel.tx_rollback()
    broker.wait_for_counts(queue, ready=0, unsettled=3)
    channel.basic_ack(first.tag)
    channel.basic_reject(second.tag, requeue=False)
    channel.basic_reject(third.tag)
    settle_down(channel)
    broker.wait_for_counts(queue, ready=0, unsettled=3)
    channel.tx_commit()
    again = consumer.take()[0]
    assert (again.text, again.method.redelivered) == ("c", True)
    broker.wait_for_counts(queue, ready=0, unsettled=1)
    assert consumer.texts == ["a", "b", "c", "c"]
    channel.close()
    assert get_all(connect().channel(), queue) == ["c"]


def test_errors_in_a_transaction_are_immediate(connection: BlockingConnection, queue: str) -> None:
    """Unknown exchanges and unknown tags do not wait for the commit; the channel's end is a rollback."""
    for operation in (lambda c: c.basic_publish(queue + "-none", "", b""), lambda c: c.basic_ack(99)):
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        put(channel, queue, "never seen")
        operation(channel)
        with pytest.raises(ChannelClosedByBroker):
            settle_down(channel)
    assert get_all(connection.channel(), queue) == []


def test_returns_of_a_transaction_come_before_commit_ok(channel: BlockingChannel, queue: str) -> None:
    """Not before the commit, and not after it."""
    returned: list[Delivered] = []
    channel.add_on_return_callback(lambda _, *what: returned.append(Delivered(*what)))
    channel.tx_select()
    put(channel, queue, "a", "b", mandatory=True)
    settle_down(channel)
    assert returned == []
    channel.tx_commit()
    channel.connection.process_data_events(0)
    assert [each.text for each in returned] == ["a", "b"]


# --- many channels --------------------------------------------------------------------------------


def test_many_channels_interleaved(connection: BlockingConnection, queue: str) -> None:
    """A hundred channels publish and consume in turn, each its own queue."""
    channels = [connection.channel() for _ in range(100)]
    for number, channel in enumerate(channels):
        channel.queue_declare(f"{queue}-{number}", exclusive=True)
    for turn in range(10):
        for number, channel in enumerate(channels):
            put(channel, f"{queue}-{number}", f"{number}.{turn}")
    inboxes = [Inbox(channel, f"{queue}-{number}") for number, channel in enumerate(channels)]
    for number, inbox in enumerate(inboxes):
        assert [each.text for each in inbox.take(10)] == [f"{number}.{turn}" for turn in range(10)]
        inbox.channel.basic_ack(0, multiple=True)
    for channel in channels:
        channel.close()


def test_publishing_on_after_a_channel_error_does_not_stop_the_connection(
    connect: Connect, queue: str
) -> None:
    """What was under way on the broken channel is dropped, and takes no credit from the connection."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    for _ in range(3):
        broken = connection.channel()
        broken._impl.basic_publish(queue + "-none", "", b"")
        for _ in range(1500):
            broken._impl.basic_publish("", queue, b"dropped")
        put(channel, queue, "kept")
        with pytest.raises(ChannelClosedByBroker):
            settle_down(broken)
    assert get_all(channel, queue) == ["kept"] * 3
