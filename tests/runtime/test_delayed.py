"""Delayed messages in a running broker, as clients of both protocols meet them (docs/jms.md)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Attach, Disposition, Header, Source, Transfer
from amqp10broker.protocols.amqp10.types import Described, Long, Symbol, ULong
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.rawframes import attach_receiver, attach_sender, body_of, credit, frame, message, transfer
from tests.support.trioclient import Client, connect, settle_down
from tests.support.trioclient091 import connect091

LATE_S = 0.010
"""So late a message may be delivered, and not early."""


def delayed(body: bytes, **annotations: int) -> bytes:
    """Encode a message with these annotations, whose names lack their prefix."""
    given = {Symbol(f"x-opt-delivery-{name}"): Long(value) for name, value in annotations.items()}
    return Header().encode() + encode(Described(ULong(0x72), given)) + message(body)


async def next_body(client: Client) -> tuple[bytes, float]:
    (got,) = await client.take(Transfer, 1)
    return body_of(got.payload), trio.current_time()


async def attached(broker: Broker, *frames: bytes) -> Client:
    """Return a client with these links, and credit for the first."""
    client = await connect(broker).open()
    await client.send(*frames, credit(0, 10))
    await client.take(Attach, len(frames))
    return client


def declared(broker: Broker, arguments: dict[str, Any]) -> DeclaredQueue:
    return declare(broker.catalog, broker.catalog.lookup_vhost("/"), "q", arguments=arguments)[0]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "tick_test")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_messages_come_at_their_time_and_never_before(broker: Broker, kind: str) -> None:
    """This is exact to 10 ms, for an absolute time and for a delay from the arrival."""
    declared(broker, {"x-queue-type": kind})
    client = await attached(broker, attach_receiver(0, "q"), attach_sender(1, "q"))
    start_s, start_ms = trio.current_time(), broker.clock.now_ms()
    sent = {b"b": {"time": start_ms + 3_000}, b"a": {"delay": 1_500}, b"c": {"time": start_ms + 3_007}}
    for number, (body, when) in enumerate(sent.items()):
        await client.send(transfer(1, number, delayed(body, **when), raw=True))
    await client.send(transfer(1, 3, b"now"))
    assert (await next_body(client))[0] == b"now"
    for body, after_s in ((b"a", 1.5), (b"b", 3.0), (b"c", 3.007)):
        got, came_s = await next_body(client)
        assert got == body
        assert 0 <= came_s - start_s - after_s <= LATE_S


async def test_every_subscriber_of_a_topic_gets_a_delayed_message_at_its_time(broker: Broker) -> None:
    """Subscriptions are queues that delay it."""
    links = [
        frame(0, Attach(name=f"s{number}", handle=number, role=True, source=Source(address="/topics/t")))
        for number in range(2)
    ]
    client = await attached(broker, *links, attach_sender(2, "/topics/t"))
    await client.send(credit(1, 10))
    start_s = trio.current_time()
    await client.call(Disposition, transfer(2, 0, delayed(b"m", delay=700), raw=True))
    for _ in range(2):
        body, came_s = await next_body(client)
        assert (body, 0 <= came_s - start_s - 0.7 <= LATE_S) == (b"m", True)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
async def test_a_stream_is_a_log_and_delays_nothing(broker: Broker, kind: str) -> None:
    """Its readers get a message when it was appended."""
    queue = declared(broker, {"x-queue-type": kind})
    publisher = connect091(broker)
    await publisher.open()
    await publisher.publish("", "q", b"m", headers={"x-opt-delivery-delay": 60_000})
    await settle_down()
    assert queue.handle.figures().messages_ready == (1 if kind == "stream" else 0)
