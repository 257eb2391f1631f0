"""A consumer whose client does not read holds some megabytes, however large the messages are."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10.performatives import Attach, Transfer
from amqp10broker.queues.commands import ROOM_BYTES
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, flow, transfer
from tests.support.trioclient import connect, pipe_pair, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import connect091, message

SIZE = 300_000
COUNT = 60
HELD_MAX = 2 * (ROOM_BYTES // SIZE + 1)
"""What was asked for twice: a request may follow one whose messages have not been written."""

KINDS = ["classic", "quorum"]


async def filled(broker: Broker, kind: str, *sizes: int) -> None:
    vhost = broker.catalog.lookup_vhost("/")
    declare(broker.catalog, vhost, "q", arguments={"x-queue-type": kind})
    publisher = await connect(broker).open()
    await publisher.call(Attach, attach_sender(0, "q"))
    for number, size in enumerate(sizes):
        await publisher.submit(transfer(0, number, b"%08d" % number + b"x" * size))
    assert queue_counts(broker, "q") == (len(sizes), 0)


def numbers_of(payloads: list[bytes]) -> list[int]:
    return [int(payload[-SIZE - 8 : -SIZE]) for payload in payloads]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_link_whose_window_is_closed(kind: str) -> None:
    """The client grants four thousand million credits per flow: bytes held by the session are bounded."""
    async with running_broker(max_frame_size_bytes=0) as broker:
        await filled(broker, kind, *[SIZE] * COUNT)
        client = await connect(broker).open(channels=0)
        await client.send(begin(0, incoming_window=0), attach_receiver(0, "q"))
        for more in range(100):
            await client.submit(credit(0, 4_000_000_000 - more, incoming_window=0))
        _, held = queue_counts(broker, "q")
        assert 0 < held <= HELD_MAX
        # A batch at a time, in order, and to the end.
        await client.send(flow(incoming_window=1_000_000))
        got = await client.take(Transfer, COUNT)
        assert numbers_of([each.payload for each in got]) == list(range(COUNT))
        assert queue_counts(broker, "q") == (0, COUNT)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_link_whose_socket_is_not_read(kind: str) -> None:
    """The writer's unsent bytes bound the messages that leave the queue."""
    async with running_broker(max_frame_size_bytes=0) as broker:
        await filled(broker, kind, *[SIZE] * COUNT)
        client = await connect(broker, pair=partial(pipe_pair, 65_536, direct=True)).open()
        await client.submit(attach_receiver(0, "q"), credit(0, 1000))
        _, held = queue_counts(broker, "q")
        assert 0 < held <= HELD_MAX + 1
        got = await client.take(Transfer, COUNT)
        assert numbers_of([each.payload for each in got]) == list(range(COUNT))


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_messages_larger_than_the_room_and_small_ones_all_arrive(kind: str, drain: bool) -> None:
    """No delivery stalls, even with a drain: a flow returns the unused credit once, at the end."""
    sizes = [10, 5_000_000, 10, 10, 3_000_000, 4_000_000, *[10] * 300, ROOM_BYTES, 10]
    async with running_broker(max_frame_size_bytes=0) as broker:
        await filled(broker, kind, *sizes)
        client = await connect(broker).open()
        await client.send(attach_receiver(0, "q"), credit(0, 1_000, drain=drain))
        got = await client.take(Transfer, len(sizes))
        assert [len(each.payload) > 1_000_000 for each in got] == [size > 1_000_000 for size in sizes]
        rest = [each.body for each in await client.idle()]
        assert [(each.delivery_count, each.link_credit) for each in rest] == [(1_000, 0)] * drain


@pytest.mark.parametrize("prefetch", [0, 10, 1_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_of_amqp091_whose_socket_is_not_read(
    broker: Broker, kind: str, prefetch: int
) -> None:
    """The bound is the same; when it reads it gets all messages in order."""
    await filled_091(broker, kind)
    client = await connect091(broker, pair=partial(pipe_pair, 65_536, direct=True)).open()
    await client.call(1, methods.BasicQos(prefetch_count=prefetch), methods.BasicQosOk)
    await client.submit(1, methods.BasicConsume("q", "c"))
    _, held = queue_counts(broker, "q")
    assert 0 < held <= HELD_MAX + 1
    await client.until(methods.BasicConsumeOk)
    bodies: list[bytes] = []
    while len(bodies) < COUNT:
        _, got = await client.next()
        assert isinstance(got, Content)
        bodies.append(got.body)
        await client.send(1, methods.BasicAck(len(bodies)))
    assert [int(body[:8]) for body in bodies] == list(range(COUNT))
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)


async def filled_091(broker: Broker, kind: str) -> None:
    vhost = broker.catalog.lookup_vhost("/")
    declare(broker.catalog, vhost, "q", arguments={"x-queue-type": kind})
    client: Any = await connect091(broker).open()
    for number in range(COUNT):
        await client.submit(1, message(1, "q", b"%08d" % number + b"x" * SIZE))
    assert queue_counts(broker, "q") == (COUNT, 0)
