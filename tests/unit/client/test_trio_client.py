"""The Trio client against a whole broker in the same program, over streams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from amqp10broker.client.core import ClientCore
from amqp10broker.client.errors import (
    ConnectionEndedError,
    LinkRefusedError,
)
from amqp10broker.client.message import data_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.trio import TrioClient, over
from amqp10broker.protocols.amqp10.performatives import Accepted
from amqp10broker.runtime.broker import Broker
from tests.support.logins import verify_passwords_at_once  # noqa: F401 - a fixture for every test
from tests.support.trioclient import queue_counts, running_broker, settle_down

GUEST = {"user": "guest", "password": "guest"}


@pytest.fixture
async def broker(autojump_clock: MockClock) -> AsyncIterator[Broker]:
    async with running_broker(idle_timeout_ms=60_000) as running:
        yield running


@asynccontextmanager
async def client_of(broker: Broker, **options: Any) -> AsyncIterator[TrioClient]:
    ours, theirs = memory_stream_pair()
    broker.serve(theirs, peer="client")
    async with over(ours, **{**GUEST, **options}) as client:
        yield client


async def test_many_messages_from_several_tasks(autojump_clock: MockClock, broker: Broker) -> None:
    """Tasks share a sender; each gets the outcomes of its own messages."""
    async with client_of(broker) as client, trio.open_nursery() as nursery:
        sender = await client.sender("q")

        async def send() -> None:
            assert await sender.send_many([data_message(b"x")] * 700, in_flight_max=100) == [Accepted()] * 700

        for _ in range(3):
            nursery.start_soon(send)
        receiver = await client.receiver("q", credit=50)
        seen = 0
        while seen < 2100:
            deliveries = await receiver.receive_many(64)
            receiver.settle(deliveries)
            seen += len(deliveries)


async def test_a_refused_link_is_an_error_and_not_a_group(autojump_clock: MockClock, broker: Broker) -> None:
    """What the block raises leaves it as it is, not wrapped by the client's nursery."""
    with pytest.raises(LinkRefusedError):
        async with client_of(broker) as client:
            await client.receiver("/queues/missing")
    assert not broker.connections


async def test_cancelled_while_sending_takes_back_what_had_not_begun(
    autojump_clock: MockClock, broker: Broker
) -> None:
    async with client_of(broker) as client:
        sender = await client.sender("q")
        broker.resource_monitor.set_alarm("memory", on=True)
        await settle_down()
        with trio.move_on_after(1.0):
            await sender.send_many([data_message(b"x")] * 3)
        assert sender.end.in_flight == 0
        broker.resource_monitor.set_alarm("memory", on=False)
        await settle_down()
        assert queue_counts(broker, "q") == (0, 0)


async def test_a_link_whose_attach_is_cancelled_takes_no_messages(
    autojump_clock: MockClock, broker: Broker
) -> None:
    async with client_of(broker) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.receiver("q", credit=10)
        await settle_down()
        await (await client.sender("q")).send(data_message(b"x"))
        await settle_down()
        assert queue_counts(broker, "q") == (1, 0)


async def test_heartbeats_keep_an_idle_connection(autojump_clock: MockClock, broker: Broker) -> None:
    """Ten time-outs of both sides pass, and the connection is there."""
    async with client_of(broker) as client:
        await trio.sleep(600)
        sender = await client.sender("q")
        await sender.send(data_message(b"still here"))


async def receive_for_ever(stream: trio.abc.Stream) -> None:
    async with over(stream, user="guest", password="guest") as client:
        receiver = await client.receiver("q")
        await receiver.receive(timeout_s=1000)


async def test_a_broker_that_stops_ends_the_waiting(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    raised: list[ConnectionEndedError] = []

    async def wait() -> None:
        with pytest.raises(ConnectionEndedError) as caught:
            await receive_for_ever(ours)
        raised.append(caught.value)

    async with trio.open_nursery() as nursery, running_broker() as broker:
        broker.serve(theirs, peer="client")
        nursery.start_soon(wait)
        await trio.sleep(1.0)
    assert raised[0].condition == "amqp:connection:forced"
    assert trio.current_time() < 10


async def test_a_stream_that_breaks_ends_the_waiting(autojump_clock: MockClock, broker: Broker) -> None:
    ours, theirs = memory_stream_pair()
    broker.serve(theirs, peer="client")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_close_later, theirs)
        with pytest.raises(ConnectionEndedError, match="lost"):
            await receive_for_ever(ours)
    assert trio.current_time() < 10


async def test_flush_tells_that_the_connection_is_lost(autojump_clock: MockClock) -> None:
    """Or settled messages would be taken for written."""
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    client = TrioClient(ours, ClientCore(ClientOptions()))
    client.core.start(None, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run_reader)
        nursery.start_soon(client.run_writer)
        with pytest.raises(ConnectionEndedError):
            await client.flush()


async def _close_later(stream: trio.abc.Stream) -> None:
    await trio.sleep(1.0)
    await trio.aclose_forcefully(stream)


async def test_a_cancelled_block_closes_the_stream(autojump_clock: MockClock, broker: Broker) -> None:
    with trio.move_on_after(1.0) as scope:
        async with client_of(broker):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    await settle_down()
    assert not broker.connections
