"""The Trio client against a whole broker in the same program, over streams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from amqp10broker.amqp10.performatives import Accepted
from amqp10broker.client.errors import (
    ConnectError,
    ConnectionEndedError,
    LinkRefusedError,
    LoginError,
    NotAcceptedError,
    TimedOutError,
)
from amqp10broker.client.message import Message, Properties, data_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.outcomes import RELEASED
from amqp10broker.client.trio import Client, connect, over
from amqp10broker.tasks.broker import Broker
from tests.support.logins import verify_passwords_at_once  # noqa: F401 - a fixture for every test
from tests.support.trioclient import queue_counts, running_broker, settle_down

GUEST = {"user": "guest", "password": "guest"}


@pytest.fixture
async def broker(autojump_clock: MockClock) -> AsyncIterator[Broker]:
    async with running_broker(idle_timeout_ms=60_000) as running:
        yield running


@asynccontextmanager
async def client_of(broker: Broker, **options: Any) -> AsyncIterator[Client]:
    ours, theirs = memory_stream_pair()
    broker.serve(theirs, peer="client")
    async with over(ours, **{**GUEST, **options}) as client:
        yield client


async def test_send_and_receive(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        sender = await client.sender("q")
        await sender.send(data_message(b"one"))
        await sender.send(Message("two"))
        receiver = await client.receiver("q", credit=10)
        deliveries = await receiver.receive_many(5, count_min=2)
        assert [each.message().body for each in deliveries] == [b"one", "two"]
        receiver.settle(deliveries)
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)
    assert not broker.connections


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


async def test_large_messages(autojump_clock: MockClock, broker: Broker) -> None:
    options = ClientOptions(container_id="client", frame_size_max_bytes=512, incoming_window=3)
    async with client_of(broker, options=options) as client:
        sender = await client.sender("q")
        await sender.send(data_message(bytes(50_000)))
        receiver = await client.receiver("q", credit=1)
        delivery = await receiver.receive()
        assert delivery is not None
        assert delivery.message().body == bytes(50_000)


async def test_nothing_there_in_time(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        receiver = await client.receiver("q")
        assert await receiver.receive(timeout_s=2.0) is None


async def test_fetch_leaves_no_credit_behind(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        sender = await client.sender("q")
        await sender.send_many([data_message(b"x")] * 3)
        receiver = await client.receiver("q", credit=0)
        assert len(await receiver.fetch(2, timeout_s=1.0)) == 2
        assert len(await receiver.fetch(5, timeout_s=1.0)) == 1
        assert await receiver.fetch(5, timeout_s=0) == []
        await sender.send(data_message(b"late"))
        await settle_down()
        assert not receiver.end.ready


async def test_released_messages_come_again(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        sender = await client.sender("q")
        await sender.send(data_message(b"x"))
        receiver = await client.receiver("q", credit=0)
        (first,) = await receiver.fetch(1)
        receiver.settle(first, RELEASED)
        (second,) = await receiver.fetch(1)
        assert second.payload.endswith(data_message(b"x"))
        await receiver.detach()
        await sender.detach()


async def test_a_message_without_queue_is_an_error_of_send(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        await client.sender("q")
        sender = await client.sender(None)
        with pytest.raises(NotAcceptedError, match="correct the address"):
            await sender.send(Message(b"", Properties(to="/queues/missing")))


async def test_a_refused_link_is_an_error_and_not_a_group(autojump_clock: MockClock, broker: Broker) -> None:
    """What the block raises leaves it as it is, not wrapped by the client's nursery."""
    with pytest.raises(LinkRefusedError):
        async with client_of(broker) as client:
            await client.receiver("/queues/missing")
    assert not broker.connections


async def test_a_wrong_password(autojump_clock: MockClock, broker: Broker) -> None:
    with pytest.raises(LoginError):
        async with client_of(broker, password="wrong"):
            raise AssertionError("logged in")


async def test_no_credit_in_time_takes_the_messages_back(autojump_clock: MockClock, broker: Broker) -> None:
    """During an alarm the window is shut: what was not begun will not be sent after the time-out."""
    async with client_of(broker) as client:
        sender = await client.sender("q")
        broker.set_alarm("memory", on=True)
        await settle_down()
        with pytest.raises(TimedOutError) as raised:
            await sender.send_many([data_message(b"x")] * 3, timeout_s=5.0)
        assert raised.value.outcomes == [None, None, None]
        broker.set_alarm("memory", on=False)
        await settle_down()
        assert queue_counts(broker, "q") == (0, 0)
        await sender.send(data_message(b"y"))


async def test_cancelled_while_sending_takes_back_what_had_not_begun(
    autojump_clock: MockClock, broker: Broker
) -> None:
    async with client_of(broker) as client:
        sender = await client.sender("q")
        broker.set_alarm("memory", on=True)
        await settle_down()
        with trio.move_on_after(1.0):
            await sender.send_many([data_message(b"x")] * 3)
        assert sender.end.in_flight == 0
        broker.set_alarm("memory", on=False)
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
    """Wait for a message that does not come."""
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


async def _close_later(stream: trio.abc.Stream) -> None:
    await trio.sleep(1.0)
    await trio.aclose_forcefully(stream)


async def test_a_peer_that_says_nothing_is_timed_out(autojump_clock: MockClock) -> None:
    ours, _theirs = memory_stream_pair()
    with pytest.raises(TimedOutError, match="answer to our open frame"):
        async with over(ours, user="guest", password="guest", timeout_s=3.0):
            raise AssertionError("opened")


async def test_a_cancelled_block_closes_the_stream(autojump_clock: MockClock, broker: Broker) -> None:
    with trio.move_on_after(1.0) as scope:
        async with client_of(broker):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    await settle_down()
    assert not broker.connections


async def test_a_fault_of_the_program_leaves_the_block_as_it_is(
    autojump_clock: MockClock, broker: Broker
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client_of(broker):
            _ = 1 / 0


async def test_sessions_can_be_begun_and_ended(autojump_clock: MockClock, broker: Broker) -> None:
    async with client_of(broker) as client:
        session = await client.begin_session()
        sender = await client.sender("q", session=session)
        await sender.send(data_message(b"x"))
        await client.end_session(session)
        assert session.ended
        await (await client.sender("q")).send(data_message(b"y"))


async def test_over_tcp() -> None:
    async with running_broker(host="127.0.0.1") as broker:
        host, port = broker.addresses[0]
        async with connect(host, port, user="guest", password="guest") as client:
            await (await client.sender("q")).send(data_message(b"x"))


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectError, match="start the broker"):
        async with connect("127.0.0.1", 1):
            raise AssertionError("connected")


async def test_an_argument_that_fits_no_frame(autojump_clock: MockClock, broker: Broker) -> None:
    """An error of the call, and no group out of the task that writes; the connection goes on."""
    async with client_of(broker) as client:
        for attempt in (
            lambda: client.sender("\ud800"),
            lambda: client.sender("q", properties={"a": object()}),
            lambda: client.receiver("q", credit=2**32),
        ):
            with pytest.raises(ValueError):
                await attempt()
        await (await client.sender("q")).send(data_message(b"x"))


async def test_no_room_for_what_is_there(autojump_clock: MockClock, broker: Broker) -> None:
    """Asked for none, or for fewer than the least number: it does not wait for room."""
    async with client_of(broker) as client:
        await (await client.sender("q")).send_many([data_message(b"x")] * 3)
        receiver = await client.receiver("q")
        assert len(await receiver.receive_many(1)) == 1
        assert await receiver.receive_many(0) == []
        assert len(await receiver.receive_many(1, count_min=5)) == 1
