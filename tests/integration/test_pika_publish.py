"""pika as a publisher: sizes, late confirms, many messages without waiting, many channels."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_client import (
    Connect,
    Delivered,
    Inbox,
    Properties,
    get,
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


# --- confirms -------------------------------------------------------------------------------------


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
