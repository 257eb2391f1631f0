"""The greeting on sockets: what is answered, when it is closed, and who counts as connected meanwhile."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from amqp10broker.protocols.amqp10.performatives import SaslMechanisms
from amqp10broker.protocols.connection import AMQP_091_HEADER, SASL_HEADER
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.trioclient import (
    BoundedPipe,
    PlainPipeStream,
    connect,
    eventually,
    running_broker,
    settle_down,
)

START_091 = b"\x01\x00\x00"
"""A method frame on channel 0 begins so."""


async def everything(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    with trio.fail_after(60):
        while received := await stream.receive_some(65_536):
            data += received
    return data


@asynccontextmanager
async def dialled(broker: Broker) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream(*broker.addresses[0]) as stream:
        yield stream


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        (b"AMQP\x00\x00\x09\x00", AMQP_091_HEADER),
        (b"AMQP\x00\x00\x0a\x01", AMQP_091_HEADER),
        (b"AMQP\x01\x01\x08\x00", SASL_HEADER),
        (b"AMQP\x01\x01\x00\x0a", SASL_HEADER),
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", SASL_HEADER),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), SASL_HEADER),
        (b"A", None),
    ],
    ids=["0-9", "0-10.1", "0-8", "0-10", "HTTP", "TLS hello", "one byte"],
)
async def test_what_is_not_spoken_is_answered_and_closed(
    log: LogRecorder, said: bytes, reply: bytes | None
) -> None:
    """The client gets one header, then the end of the stream; one that ends before it gets nothing."""
    async with running_broker() as broker:
        client = connect(broker)
        await client.send(said)
        if reply is None:
            await client.stream.send_eof()
        assert await everything(client.stream) == (reply or b"")
        await settle_down()
        assert not broker.connections
        assert not broker.connections.greetings
    assert not log.of("error")


@pytest.mark.real_clock
async def test_what_is_not_spoken_is_answered_on_a_socket(broker: Broker) -> None:
    """The reply arrives, although the broker closes at once."""
    for said, reply in ((b"AMQP\x00\x00\x09\x02", AMQP_091_HEADER), (b"GET / HTTP/1.1\r\n\r\n", SASL_HEADER)):
        async with dialled(broker) as stream:
            await stream.send_all(said)
            assert await everything(stream) == reply


@pytest.mark.parametrize("size", [1, 3, 8])
async def test_one_port_serves_both_protocols_however_the_header_comes(broker: Broker, size: int) -> None:
    """The first bytes choose the protocol that reads the rest."""
    newer = connect(broker)
    for start in range(0, 8, size):
        await newer.submit(SASL_HEADER[start : start + size])
    assert isinstance((await newer.next()).body, SaslMechanisms)
    older = connect(broker)
    for start in range(0, 8, size):
        await older.submit(AMQP_091_HEADER[start : start + size])
    with trio.fail_after(60):
        start_frame = await older.stream.receive_some(65_536)
    assert start_frame.startswith(START_091)
    assert [each.protocol for each in broker.connections.values()] == ["AMQP 1.0", "AMQP 0-9-1"]


@pytest.mark.parametrize("said", [b"", b"AMQP", SASL_HEADER[:7]])
async def test_a_client_that_goes_before_it_has_spoken_leaves_nothing(log: LogRecorder, said: bytes) -> None:
    """Port scanners and health checks cause no log event."""
    async with running_broker() as broker:
        client = connect(broker)
        if said:
            await client.send(said)
        await settle_down()
        assert len(broker.connections.greetings) == 1
        await client.lose()
        assert not broker.connections.greetings
        assert not broker.connections
    assert log.entries == []


async def test_a_reset_before_the_header_is_no_fault(log: LogRecorder) -> None:
    """The log has it at level debug, and no other entry."""
    async with running_broker() as broker:
        pipe = BoundedPipe(1000)
        broker.serve(PlainPipeStream(pipe, BoundedPipe(1000)), peer="client")
        await settle_down()
        pipe.end(reset=True)
        await settle_down()
        assert not broker.connections.greetings
    assert [level for level, _, _ in log.entries] == ["debug"]


async def test_stopping_does_not_wait_for_those_who_have_not_spoken() -> None:
    async with running_broker(handshake_timeout_ms=60_000, shutdown_timeout_ms=60_000) as broker:
        client = connect(broker)
        await client.submit(b"AMQP\x00")
        began = trio.current_time()
    assert trio.current_time() == began
    assert await everything(client.stream) == b""


async def test_a_stream_that_comes_while_the_broker_stops_is_closed(broker: Broker) -> None:
    """It is accepted a moment before the end: no protocol begins."""
    broker.stopping = True
    client = connect(broker)
    assert await everything(client.stream) == b""
    assert not broker.connections


@pytest.mark.real_clock
@pytest.mark.rabbitmq(
    "amqp10_connection_max_SUITE",
    "amqp10_connection_is_tracked",
    "node_connection_limit_amqp10",
    "node_connection_limit_shared_with_amqp091",
    "node_limit_room_after_close",
)
@pytest.mark.rabbitmq("per_node_limit_SUITE", "node_connection_limit")
async def test_connection_max_counts_clients_of_both_protocols_and_those_that_greet(log: LogRecorder) -> None:
    """One more is closed without an answer; when one leaves, there is room again."""
    async with (
        running_broker(connection_max=3) as broker,
        dialled(broker) as newer,
        dialled(broker) as older,
        dialled(broker) as silent,
    ):
        await newer.send_all(SASL_HEADER)
        assert await newer.receive_some(8) == SASL_HEADER
        await older.send_all(AMQP_091_HEADER)
        assert (await older.receive_some(65_536)).startswith(START_091)
        # The socket of the third is open as soon as the system has it, and counts when it is accepted.
        await eventually(lambda: (len(broker.connections), len(broker.connections.greetings)) == (2, 1))
        async with dialled(broker) as refused:
            await refused.send_all(SASL_HEADER)
            assert await everything(ignoring_reset(refused)) == b""
        assert [event for event, _ in log.of("warning")] == ["connection refused: connection_max is reached"]
        await silent.aclose()
        await eventually(lambda: not broker.connections.greetings)
        async with dialled(broker) as again:
            await again.send_all(SASL_HEADER)
            assert await again.receive_some(8) == SASL_HEADER


def ignoring_reset(stream: trio.SocketStream) -> trio.abc.ReceiveStream:
    """A socket closed with unread bytes is reset, which counts as its end too."""

    class Reading:
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            try:
                return bytes(await stream.receive_some(max_bytes))
            except trio.BrokenResourceError:
                return b""

    return Reading()  # type: ignore[return-value]


@pytest.mark.real_clock
async def test_a_socket_that_broke_before_it_is_served_is_no_fault(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of a reset socket cannot be set; the next client is served."""

    async with running_broker() as broker:
        ours, theirs = socket.socketpair()
        with ours:
            # A Unix socket has no TCP options, as a socket that the client has reset.
            await broker.listener.serve_socket(theirs, ("10.0.0.1", 1), None)
            assert ours.recv(1) == b""
        async with dialled(broker) as stream:
            await stream.send_all(SASL_HEADER)
            assert await stream.receive_some(8) == SASL_HEADER
    assert [event for event, _ in log.of("debug")] == ["connection lost before it began"]
