"""pika as a publisher: sizes, late confirms, many messages without waiting, many channels."""

from __future__ import annotations

import pytest

from tests.support.pika_client import (
    Connect,
    Inbox,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


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
