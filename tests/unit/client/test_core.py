"""The client's engine against a broker's, and its Trio driver."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from amqp10broker.client import blocking, errors
from amqp10broker.client.core import ClientCore
from amqp10broker.client.links import modified, rejected
from amqp10broker.client.message import data_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.session import ClientSession, ReceiverEnd
from amqp10broker.client.trio import TrioClient, over
from amqp10broker.config import Config
from amqp10broker.protocols.amqp10.connection import HEARTBEAT
from amqp10broker.protocols.amqp10.errors import (
    AmqpConnectionError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Modified,
    Rejected,
    Released,
    SenderSettleMode,
    Source,
    Target,
    Transfer,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from tests.support.client_drivers import Connect, connect
from tests.support.engine import CLOSE, frame, kinds
from tests.support.trioclient import queue_counts, running_broker, settle_down
from tests.unit.client.back_to_back import BackToBack


def numbered(count: int, size: int = 8) -> list[bytes]:
    return [data_message(number.to_bytes(4, "big").ljust(size, b".")) for number in range(count)]


def filled(pair: BackToBack, session: ClientSession, count: int, size: int = 8) -> list[bytes]:
    messages = numbered(count, size)
    sender = session.sender("q")
    keys = sender.send(messages)
    pair.carry()
    assert sender.take_outcomes(keys) == [Accepted()] * count
    return messages


def bodies(receiver: ReceiverEnd, count: int = 1 << 30) -> list[bytes]:
    return [delivery.message().body for delivery in receiver.take(count)]


def failure_of(thing: Any, kind: type[errors.ClientError]) -> errors.ClientError:
    failure = thing.failure
    assert type(failure) is kind, repr(failure)
    return failure


# --- connection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_a_whole_dialogue_under_any_chunking(chunk_bytes: int) -> None:
    pair = BackToBack(chunk_bytes=chunk_bytes, frame_size_max_bytes=512)
    session = pair.opened()
    filled(pair, session, 5, size=2000)
    receiver = session.receiver("q", credit_limit=2)
    pair.carry()
    taken = []
    while deliveries := receiver.take(10):
        receiver.settle(deliveries)
        taken += [delivery.message().body[:4] for delivery in deliveries]
        pair.carry()
    assert taken == [number.to_bytes(4, "big") for number in range(5)]
    assert pair.broker.queue("q") == (0, 0)
    pair.client.close()
    pair.carry()
    assert pair.client.closed
    assert pair.client.failure is None


@pytest.fixture
def pair() -> BackToBack:
    return BackToBack()


@pytest.fixture
def session(pair: BackToBack) -> ClientSession:
    return pair.opened()


def test_a_wrong_password_is_a_login_error(pair: BackToBack) -> None:
    pair.client.start("guest", "wrong")
    pair.carry()
    assert "correct them" in str(failure_of(pair.client, errors.LoginError))
    assert pair.client.closed


def test_an_open_that_is_refused_tells_condition_and_description() -> None:
    pair = BackToBack(hostname="vhost:other")
    pair.client.start("guest", "guest")
    pair.carry()
    failure = failure_of(pair.client, errors.ConnectionEndedError)
    assert failure.condition == "amqp:unauthorized-access"
    assert "'other' does not exist" in failure.description


@pytest.mark.parametrize("opened", [False, True])
def test_a_socket_that_ends_is_a_failure(opened: bool, pair: BackToBack) -> None:
    session = pair.opened() if opened else None
    pair.client.receive_end()
    assert ("lost" if opened else "before the connection was open") in str(
        failure_of(pair.client, errors.ConnectionEndedError)
    )
    if session is not None:
        with pytest.raises(errors.ConnectionEndedError):
            session.sender("q")
        with pytest.raises(errors.ConnectionEndedError):
            pair.client.begin()


def test_close_by_the_broker_fails_sessions_and_links_with_its_reason(pair: BackToBack) -> None:
    session = pair.opened()
    sender = session.sender("q")
    pair.carry()
    pair.broker.engine.close(AmqpConnectionError(Condition.CONNECTION_FORCED, "maintenance"))
    pair.carry()
    for thing in (pair.client, session, sender):
        failure = failure_of(thing, errors.ConnectionEndedError)
        assert (failure.condition, failure.description) == ("amqp:connection:forced", "maintenance")
        assert "connect again later" in str(failure)
    with pytest.raises(errors.ConnectionEndedError):
        sender.send([data_message(b"")])
    assert pair.written.endswith(CLOSE)


def test_what_was_settled_is_written_before_the_close(pair: BackToBack, session: ClientSession) -> None:
    """A program that accepts and closes at once has settled its messages."""
    filled(pair, session, 3)
    receiver = session.receiver("q", credit_limit=10)
    pair.carry()
    receiver.settle(receiver.take(10))
    pair.client.close()
    pair.carry()
    assert pair.broker.queue("q") == (0, 0)
    assert pair.client.closed_in_order
    assert pair.client.take_output() == b""


def test_open_begin_and_close_in_one_breath_keep_their_order(pair: BackToBack) -> None:
    pair.client.start("guest", "guest")
    while not pair.client.opened:
        pair.broker.receive(pair.client.take_output())
        pair.client.receive(pair.broker.run())
    pair.client.begin()
    pair.client.close()
    assert kinds(pair.client.take_output()) == ["Begin", "Close"]


def test_an_attach_of_the_peer_is_refused_and_nothing_else_happens(pair: BackToBack) -> None:
    session = pair.opened()
    pair.client.receive(
        frame(Attach(name="theirs", handle=9, role=True, source=Source(address="x"), target=Target()))
    )
    assert kinds(pair.client.take_output()) == ["Attach", "Detach"]
    assert session.failure is None


# --- heartbeats -----------------------------------------------------------------------------------


def test_an_idle_client_sends_heartbeats() -> None:
    """The broker's open has 30 s; the client writes in every quarter of it."""
    pair = BackToBack(idle_timeout_ms=0)
    pair.opened()
    pair.client.tick(0.0)
    assert pair.client.tick_interval == 7.5
    pair.client.tick(7.4)
    assert pair.client.take_output() == b""
    pair.client.tick(7.6)
    assert pair.client.take_output() == HEARTBEAT


def test_a_silent_broker_is_given_up() -> None:
    pair = BackToBack(idle_timeout_ms=10_000)
    pair.opened()
    pair.client.tick(0.0)
    interval = pair.client.tick_interval
    assert interval == 2.5
    for now in (interval, 2 * interval, 3 * interval, 9.9):
        pair.client.tick(now)
    assert pair.client.failure is None
    pair.client.tick(10.0)
    assert "silent for 10 s" in str(failure_of(pair.client, errors.ConnectionEndedError))


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_ended_by_the_broker_leaves_the_others(pair: BackToBack) -> None:
    first = pair.opened()
    second = pair.client.begin()
    pair.carry()
    link = first.receiver("q")
    pair.carry()
    engine = pair.broker.sessions[0].session
    engine.end(AmqpSessionError(Condition.INTERNAL_ERROR, "for the test"))
    pair.carry()
    assert failure_of(first, errors.SessionEndedError).condition == "amqp:internal-error"
    assert link.failure is first.failure
    assert second.failure is None
    with pytest.raises(errors.SessionEndedError):
        first.receiver("q")
    filled(pair, second, 1)


def test_the_channel_of_an_ended_session_is_used_again(pair: BackToBack, session: ClientSession) -> None:
    session.end()
    pair.carry()
    assert session.ended
    assert session.failure is None
    with pytest.raises(errors.SessionEndedError, match="begin another"):
        session.sender("q")
    again = pair.client.begin()
    pair.carry()
    assert again.begun
    assert again.engine.channel == session.engine.channel
    filled(pair, again, 1)


# --- sending --------------------------------------------------------------------------------------


def test_a_message_over_the_links_limit_is_not_sent_and_the_link_goes_on() -> None:
    pair = BackToBack(config=Config(max_message_size_bytes=1000))
    session = pair.opened()
    sender = session.sender("q")
    pair.carry()
    with pytest.raises(errors.MessageTooLargeError, match="takes 1000"):
        sender.send([*numbered(1), data_message(bytes(1000))])
    assert sender.in_flight == 0
    keys = sender.send(numbered(1))
    pair.carry()
    assert sender.take_outcomes(keys) == [Accepted()]


def test_what_is_abandoned_and_not_begun_is_never_sent(pair: BackToBack, session: ClientSession) -> None:
    """Other messages stay; a message whose transfer had begun drops its late outcome."""
    sender = session.sender("q")
    pair.carry()
    pair.broker.silent = True
    first = sender.send(numbered(200))
    second = sender.send(numbered(10))
    pair.carry()
    assert sender.abandon(first) == [None] * 200
    assert sender.in_flight == 170 + 10
    pair.broker.silent = False
    pair.carry()
    assert sender.in_flight == 0
    assert sender.take_outcomes(first) == [None] * 200
    assert sender.take_outcomes(second) == [Accepted()] * 10
    assert pair.broker.queue("q") == (180, 0)


# --- receiving ------------------------------------------------------------------------------------


def test_no_more_messages_arrive_than_are_taken(pair: BackToBack, session: ClientSession) -> None:
    """Credit is topped up as messages are taken: a program that takes none has at most two grants."""
    filled(pair, session, 100)
    receiver = session.receiver("q", credit_limit=10)
    pair.carry()
    assert 10 <= len(receiver.ready) < 20
    seen = []
    while got := bodies(receiver, 3):
        seen += got
        pair.carry()
    assert len(seen) == 100
    assert seen == sorted(seen)


def test_after_a_drain_the_credit_limit_counts_again(pair: BackToBack, session: ClientSession) -> None:
    filled(pair, session, 1)
    receiver = session.receiver("q", credit_limit=5)
    pair.carry()
    receiver.begin_drain()
    pair.carry()
    assert receiver.drained
    receiver.end_drain()
    pair.carry()
    assert receiver.credit == 5
    filled(pair, session, 2)
    assert len(receiver.ready) == 3


@pytest.mark.parametrize(
    ("outcome", "left"),
    [
        (Accepted(), 0),
        (Rejected(), 0),
        (rejected("amqp:decode-error", "no JSON"), 0),
        (Released(), 3),
        (modified(), 3),
        (modified(delivery_failed=False, undeliverable_here=True), 0),
    ],
)
def test_outcomes_of_received_messages(outcome: Any, left: int, pair: BackToBack) -> None:
    session = pair.opened()
    filled(pair, session, 3)
    receiver = session.receiver("q")
    pair.carry()
    receiver.grant(3)
    pair.carry()
    receiver.settle(receiver.take(3), outcome)
    pair.carry()
    assert pair.broker.queue("q") == (left, 0)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (5, "give ACCEPTED, RELEASED"),
        (None, "give ACCEPTED, RELEASED"),
        ("accepted", "give ACCEPTED, RELEASED"),
        (Modified(message_annotations={Symbol("x-a"): object()}), "object has no AMQP 1.0 encoding"),
        (Rejected(error=5), "cannot be sent"),  # type: ignore[arg-type]  # that is the mistake
    ],
)
def test_what_is_no_outcome_is_refused_where_it_is_given(outcome: Any, told: str, pair: BackToBack) -> None:
    """Otherwise the write would fail, and with it the connection."""
    session = pair.opened()
    filled(pair, session, 1)
    receiver = session.receiver("q", credit_limit=1)
    pair.carry()
    deliveries = receiver.take(1)
    with pytest.raises(ValueError, match=told):
        receiver.settle(deliveries, outcome)
    receiver.settle(deliveries)
    pair.carry()
    assert pair.broker.queue("q") == (0, 0)


def test_a_range_of_messages_is_settled_by_one_frame(pair: BackToBack, session: ClientSession) -> None:
    filled(pair, session, 100)
    receiver = session.receiver("q", credit_limit=200)
    pair.carry()
    pair.written = b""
    for delivery in receiver.take(100):
        receiver.settle([delivery])
    pair.carry()
    assert kinds(pair.written).count("Disposition") == 1


# --- the end of links -----------------------------------------------------------------------------


def test_a_refused_link_tells_why_and_what_to_do(pair: BackToBack, session: ClientSession) -> None:
    receiver = session.receiver("/queues/nowhere", credit_limit=10)
    pair.carry()
    assert not receiver.attached
    failure = failure_of(receiver, errors.LinkRefusedError)
    assert failure.condition == "amqp:not-found"
    assert "declare it first" in str(failure)
    assert session.failure is None
    filled(pair, session, 1)


def detach_by_broker(pair: BackToBack, name: str) -> None:
    engine = pair.broker.sessions[0].session
    link = next(each for each in engine.links if name in each.name)
    engine.links.detach(link, AmqpLinkError(Condition.RESOURCE_DELETED, "the queue was deleted"))
    pair.carry()


def test_a_link_detached_by_the_broker_tells_why(pair: BackToBack, session: ClientSession) -> None:
    sender = session.sender("q")
    receiver = session.receiver("r", credit_limit=1)
    pair.carry()
    detach_by_broker(pair, "q")
    failure = failure_of(sender, errors.LinkDetachedError)
    assert (failure.condition, failure.description) == ("amqp:resource-deleted", "the queue was deleted")
    with pytest.raises(errors.LinkDetachedError):
        sender.send(numbered(1))
    assert receiver.failure is None


def test_what_was_not_taken_when_a_receiver_ends_is_the_queues(pair: BackToBack) -> None:
    session = pair.opened()
    filled(pair, session, 3)
    receiver = session.receiver("q", credit_limit=10)
    pair.carry()
    (taken,) = receiver.take(1)
    link = next(each for each in pair.broker.sessions[0].session.links if type(each) is SenderLink)
    pair.broker.sessions[0].session.links.detach(link)
    pair.carry()
    assert not receiver.ready
    with pytest.raises(errors.LinkDetachedError):
        receiver.settle([taken])


def test_a_transfer_without_credit_detaches_the_link_only(pair: BackToBack, session: ClientSession) -> None:
    """The broker is at fault: the link closes with the condition, and the error names the closing side."""
    receiver = session.receiver("q")
    pair.carry()
    link = receiver.link
    assert type(link) is ReceiverLink
    assert link.remote_handle is not None
    assert link.snd_settle_mode == SenderSettleMode.UNSETTLED
    transfer = Transfer(handle=link.remote_handle, delivery_id=0, delivery_tag=b"t", settled=False)
    pair.client.receive(frame(transfer, data_message(b"")))
    failure = failure_of(receiver, errors.LinkDetachedError)
    assert failure.condition == "amqp:link:transfer-limit-exceeded"
    assert "closed by this client" in str(failure)
    pair.carry()
    filled(pair, session, 1)


def test_bytes_that_are_no_frames_close_the_connection(pair: BackToBack, session: ClientSession) -> None:
    pair.client.receive(b"\x00\x00\x00\x01junk")
    assert failure_of(session, errors.ConnectionEndedError).condition == "amqp:connection:framing-error"
    assert kinds(pair.client.take_output()) == ["Close"]


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
    """The client's nursery does not wrap an exception that the block raises."""
    with pytest.raises(errors.LinkRefusedError):
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
    raised: list[errors.ConnectionEndedError] = []

    async def wait() -> None:
        with pytest.raises(errors.ConnectionEndedError) as caught:
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
        with pytest.raises(errors.ConnectionEndedError, match="lost"):
            await receive_for_ever(ours)
    assert trio.current_time() < 10


async def test_flush_tells_that_the_connection_is_lost(autojump_clock: MockClock) -> None:
    """Otherwise settled messages would count as written."""
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    client = TrioClient(ours, ClientCore(ClientOptions()))
    client.core.start(None, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run_reader)
        nursery.start_soon(client.run_writer)
        with pytest.raises(errors.ConnectionEndedError):
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


__all__ = ["connect"]

PLACES = [
    ("a..b", 5672, "cannot connect to a..b:5672: no host can be called so; give a name"),
    ("h" * 70, 5672, "no host can be called so"),
    ("127.0.0.1", 0, "there is no such port; give one from 1 to 65535"),
    ("127.0.0.1", -1, "there is no such port"),
    ("127.0.0.1", 65_536, "there is no such port"),
    ("::1", 1, r"cannot connect to \[::1\]:1: "),
]


@pytest.mark.parametrize(("host", "port", "message"), PLACES)
def test_what_is_no_host_or_port(connect: Connect, host: str, port: int, message: str) -> None:
    with pytest.raises(errors.ConnectError, match=message):
        connect(host, port, timeout_s=60.0)


def test_flush_tells_that_the_connection_is_lost_connecting() -> None:
    """Otherwise settled messages would count as written."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        # Reset instead of an end in order: the first write fails.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    client = blocking.Client(ours, ClientCore(ClientOptions()))
    client.core.start(None, None)
    with pytest.raises(errors.ConnectionEndedError, match="lost"):
        client.flush()
    client.abort()
