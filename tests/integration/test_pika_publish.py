"""pika as a publisher: sizes, late confirms, many messages without waiting, many channels."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from tests.support.broker_process import SLOW_QUEUES
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


def through(channel: BlockingChannel, queue: str, properties: Properties, body: bytes = b"x") -> Delivered:
    """Publish one message and get it again."""
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("", queue, body, properties)
    return get(channel, queue, auto_ack=True)


# --- properties and bodies --------------------------------------------------------------------------


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


# --- confirms -------------------------------------------------------------------------------------


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
