"""The socket of a connection that is over is the client's to close; what it sends until then is dropped."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.connection import FrameReader
from amqp10broker.protocols.amqp091.content import MethodFrame, method_frame
from amqp10broker.protocols.amqp10.performatives import Attach, Close, Open, SaslOutcome
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.sockets import CLOSE_WAIT_S, LINGER_BYTES_MAX, LINGER_S
from amqp10broker.sessions.amqp10.open import SOLE_CONNECTION
from tests.runtime.test_shutdown import Start, start
from tests.runtime.test_tls import tls_settings
from tests.support import rawframes as raw
from tests.support.certificates import Certificates, certificates
from tests.support.declaring import change_vhost
from tests.support.trioclient import (
    Client,
    connect,
    eventually,
    pipe_pair,
    queue_counts,
    running_broker,
    settle_down,
)
from tests.support.trioclient091 import HEADER, Client091, connect091, message, start_ok
from tests.support.websocket_client import over_websocket

__all__ = ["certificates", "start"]

PIPE = partial(pipe_pair, 1_000_000, direct=True)


async def closed_10(broker: Broker, **fields: Any) -> Client:
    client = await connect(broker, pair=PIPE).open(**fields)
    await client.call(Close, raw.frame(0, Close()))
    await settle_down()
    return client


async def closed_091(broker: Broker) -> Client091:
    client = await connect091(broker, pair=PIPE).open()
    await client.send(0, methods.ConnectionClose(200, "bye"))
    await client.until(methods.ConnectionCloseOk)
    await settle_down()
    return client


async def failed_10(broker: Broker) -> Client:
    """The broker closed it for a fault, and the client has not answered for longer than the close-wait."""
    client = await connect(broker, pair=PIPE).open()
    await client.call(Close, raw.flow(7))
    await trio.sleep(CLOSE_WAIT_S)
    await settle_down()
    return client


async def failed_091(broker: Broker) -> Client091:
    client = await connect091(broker, pair=PIPE).open()
    await client.send(1, methods.ChannelOpen())
    await client.until(methods.ConnectionClose)
    await trio.sleep(CLOSE_WAIT_S)
    await settle_down()
    return client


OVER = pytest.mark.parametrize("over", [closed_10, closed_091, failed_10, failed_091])


@OVER
async def test_what_comes_behind_the_close_is_dropped_until_the_client_closes(
    broker: Broker, over: Callable[[Broker], Any]
) -> None:
    """The socket stays open, so the client meets no error, whatever it still sends."""
    client = await over(broker)
    assert client.task is None
    for _ in range(20):
        await client.stream.send_all(b"\xff" * 500_000)
        await settle_down()
    assert await client.idle(1) == []
    assert not client.ended
    (lingering,) = broker.connections.lingering
    await client.lose()
    assert not broker.connections.lingering
    assert not lingering.cancelled_caught


@OVER
async def test_a_client_that_does_not_close_its_socket_has_it_closed_in_time(
    broker: Broker, over: Callable[[Broker], Any]
) -> None:
    client = await over(broker)
    began = trio.current_time()
    assert await client.rest() == []
    assert trio.current_time() - began == pytest.approx(LINGER_S, abs=0.1)


async def test_a_client_that_sends_for_ever_has_its_socket_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of dropped bytes is bounded too."""
    monkeypatch.setattr("amqp10broker.runtime.connections.connections.LINGER_BYTES_MAX", 10_000_000)
    assert LINGER_BYTES_MAX >= 2 * 512 * 1024 * 1024, "two of the largest messages"
    async with running_broker() as broker:
        client = await closed_091(broker)
        for _ in range(100):
            await client.stream.send_all(b"\xff" * 100_000)
        await settle_down()
        assert not broker.connections.lingering
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send_all(b"\xff")


@pytest.mark.parametrize("over", [closed_10, closed_091])
async def test_a_connection_is_over_before_its_socket_lingers(
    broker: Broker, over: Callable[[Broker], Any]
) -> None:
    """It counts in no limit and no listing; with a limit of one, another client may connect."""
    change_vhost(broker.catalog, "/", limits=VhostLimits(max_connections=1))
    for _ in range(3):
        client = await over(broker)
        assert await broker.connections.views() == []
        assert client.task is None
    assert len(broker.connections.lingering) == 3
    assert broker.connections.count == 0
    assert broker.connections.past.connections == 3


async def test_the_only_connection_of_a_container_makes_room_at_its_close(broker: Broker) -> None:
    sole = {"desired_capabilities": (SOLE_CONNECTION,), "container_id": "one"}
    for _ in range(2):
        await closed_10(broker, **sole)
    opened = await connect(broker).open(**sole)
    assert SOLE_CONNECTION in opened.task.engine.remote_open.desired_capabilities


async def test_what_a_connection_held_is_free_before_its_socket_lingers(broker: Broker) -> None:
    client = await connect091(broker, pair=PIPE).open()
    await client.call(1, methods.QueueDeclare("x", exclusive=True), methods.QueueDeclareOk)
    await client.send(0, methods.ConnectionClose(200, "bye"))
    await client.until(methods.ConnectionCloseOk)
    assert broker.catalog.lookup_vhost("/").find("x") is None
    consumer = await connect(broker, pair=PIPE).open()
    await consumer.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"), raw.credit(1, 10))
    await consumer.take(Attach, 2)
    await connect_and_publish(broker, "q")
    await consumer.idle()
    assert queue_counts(broker, "q") == (0, 1)
    await consumer.call(Close, raw.frame(0, Close()))
    assert queue_counts(broker, "q") == (1, 0)
    await settle_down()
    assert len(broker.connections.lingering) == 2


async def connect_and_publish(broker: Broker, queue: str) -> None:
    client = await connect091(broker).open()
    await client.submit(1, message(1, queue, b"x"))
    await client.vanish()


@OVER
async def test_a_broker_that_stops_waits_for_no_socket_that_lingers(
    start: Start, over: Callable[[Broker], Any]
) -> None:
    broker, stop = await start()
    client = await over(broker)
    assert await stop() < 0.1
    assert await client.rest() == []


@pytest.mark.parametrize("over", [closed_10, closed_091])
async def test_a_socket_that_lingers_gives_way_where_there_is_no_room(over: Callable[[Broker], Any]) -> None:
    """connection_max bounds sockets; a client that closes connections but no sockets blocks no others."""
    async with running_broker(connection_max=3) as broker:
        first, second = await over(broker), await over(broker)
        await over(broker)
        assert broker.connections.has_room(3)
        assert await first.idle(0.1) == []
        assert first.ended
        assert await second.idle(0.1) == []
        assert not second.ended


async def test_a_client_whose_login_failed_has_less_time() -> None:
    """It is not authenticated; but the outcome reaches it even when it has sent more meanwhile."""
    async with running_broker(auth_failure_delay_ms=1_000) as broker:
        client = connect(broker, pair=PIPE)
        await client.send(raw.login("PLAIN", b"\0guest\0no"))
        await trio.sleep(0.5)
        assert (await client.call(SaslOutcome, raw.flow(0) * 10_000)).code == 1
        began = trio.current_time()
        assert await client.rest() == []
        assert trio.current_time() - began == pytest.approx(CLOSE_WAIT_S, abs=0.1)


async def test_a_close_frame_reaches_a_client_over_websocket_that_goes_on_sending() -> None:
    """The WebSocket stays open too, and the client's WebSocket close is answered."""
    async with running_broker(websocket_on_port=True) as broker:
        client = await (await over_websocket(broker)).open()
        await client.call(Close, raw.frame(0, Close()), raw.flow(0) * 100)
        await client.send(raw.flow(0) * 100)
        assert await client.idle(1) == []
        assert client.stream.closed is None
        assert len(broker.connections.lingering) == 1


# --- real sockets: what the kernel does with bytes that are not read ---------------------------------------


class BlockingClient:
    """A client of one thread: while it sends it does not read."""

    def __init__(self, stream: socket.socket, protocol: str) -> None:
        self.stream = stream
        self.is_10 = protocol == "1.0"
        self._cutter = raw.FrameCutter()
        self._reader = FrameReader(0)
        self._got: list[Any] = []

    def until(self, kind: type) -> None:
        while not any(isinstance(each, kind) for each in self._got):
            data = self.stream.recv(65_536)
            assert data, f"the broker closed the socket before {kind.__name__}"
            if self.is_10:
                self._got = [each.body for each in self._cutter.feed(data)]
            else:
                self._got = [each.method for each in self._reader.feed(data) if isinstance(each, MethodFrame)]

    def say(self, *said: methods.Method) -> None:
        self.stream.sendall(b"".join(method_frame(0, method) for method in said))

    def break_a_rule(self) -> None:
        if self.is_10:
            self.stream.sendall(raw.login())
            self.until(SaslOutcome)
            self.stream.sendall(raw.open_frame())
            self.until(Open)
            self.stream.sendall(raw.flow(7))
            return
        self.stream.sendall(HEADER)
        self.until(methods.ConnectionStart)
        self.say(start_ok())
        self.until(methods.ConnectionTune)
        self.say(methods.ConnectionTuneOk(5, 131_072, 0), methods.ConnectionOpen("/"))
        self.until(methods.ConnectionOpenOk)
        self.stream.sendall(method_frame(1, methods.BasicQos()))

    def flood(self) -> None:
        frames = (raw.flow(0) if self.is_10 else message(1, "q", b"x" * 1000)) * 100
        for _ in range(16_000_000 // len(frames)):
            self.stream.sendall(frames)

    def answer_the_close(self) -> None:
        self.until(Close if self.is_10 else methods.ConnectionClose)
        self.stream.sendall(
            raw.frame(0, Close()) if self.is_10 else method_frame(0, methods.ConnectionCloseOk())
        )


@pytest.mark.real_clock
@pytest.mark.parametrize("encrypted", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("protocol", ["1.0", "0-9-1"])
async def test_a_close_for_a_fault_reaches_a_client_that_is_still_sending(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, protocol: str, encrypted: bool
) -> None:
    """With unread bytes the kernel would reset the connection and discard the close."""
    monkeypatch.setattr("amqp10broker.runtime.connections.client_connection.CLOSE_WAIT_S", 0.01)
    async with running_broker(**tls_settings(certificates)) as broker:
        run = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        stream = socket.create_connection(broker.tls_addresses[0] if encrypted else broker.addresses[0])
        if encrypted:
            wrap = certificates.client_context().wrap_socket
            stream = await run(partial(wrap, stream, server_hostname="localhost"))
        with trio.fail_after(60), stream:
            client = BlockingClient(stream, protocol)
            await run(client.break_a_rule)
            await eventually(lambda: broker.connections.past.connections)
            assert len(broker.connections.lingering) == 1
            await run(client.flood)
            await run(client.answer_the_close)
            stream.close()
            await eventually(lambda: not broker.connections.lingering)
