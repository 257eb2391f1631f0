"""AMQP over WebSocket in one program with its clients: as over TCP, whatever the messages are like."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair
from websockets.frames import Opcode

from amqp10broker.auth.login import Peer
from amqp10broker.protocols.amqp10.performatives import Attach, Close, Flow, Open, SaslOutcome, Transfer
from amqp10broker.protocols.connection import AMQP_091_HEADER, SASL_HEADER
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support import rawframes as raw
from tests.support.certificates import Certificates, certificates
from tests.support.http_user import HttpUser
from tests.support.trioclient import (
    Client,
    connect,
    eventually,
    pipe_pair,
    queue_counts,
    running_broker,
    settle_down,
)
from tests.support.websocket_client import WebSocketStream, binary, masked, over_websocket, upgrade

__all__ = ["certificates"]

ON_PORT = {"websocket_on_port": True}
TLS_HEADER = b"AMQP\x02\x01\x00\x00"


def octets(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


async def at_http_port(
    broker: Broker, request: bytes, *, peer: str = "127.0.0.1:40000", origin: Peer | None = None
) -> Client:
    """Connect to the HTTP port; the stream's head has the answer to the request."""
    ours, theirs = memory_stream_pair()
    known = origin or Peer(True, peer)
    trio.lowlevel.spawn_system_task(broker.http.serve_stream, broker, theirs, peer, known)
    stream = WebSocketStream(ours)
    await stream.shake_hands(request)
    return Client(broker, stream, peer)


async def sent_and_got(client: Client, body: bytes) -> list[bytes]:
    await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"), raw.credit(1, 10))
    await client.take(Attach, 2)
    await client.send(raw.transfer(0, 0, body, settled=True))
    got = [each async for each in _payloads(client)]
    return [raw.body_of(b"".join(got))]


async def _payloads(client: Client) -> Any:
    while True:
        got = await client.next()
        if type(got.body) is Transfer:
            yield got.payload
            if not got.body.more:
                return


# --- as over TCP ------------------------------------------------------------------------------------


async def test_a_session_over_websocket_is_seen_as_one(log: LogRecorder) -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker)).open()
        assert client.stream.head.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-protocol: amqp" in client.stream.head.lower()
        assert await sent_and_got(client, b"hello") == [b"hello"]
        other = await connect(broker).open()
        seen = {view.peer: view.origin.transport for view in await broker.connections.views()}
        assert seen == {client.peer: "websocket", other.peer: "tcp"}
        opened = [fields for event, fields in log.of("info") if event == "connection open"]
        assert [fields["transport"] for fields in opened] == ["websocket", "tcp"]


async def test_the_brokers_messages_are_whole_frames_that_the_client_takes() -> None:
    """They are joined up to the client's largest frame, as Qpid JMS limits its messages by that."""
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker)).open(max_frame_size=2000)
        assert await sent_and_got(client, bytes(50_000)) == [bytes(50_000)]
        await client.send(*[raw.transfer(0, number, b"x", settled=True) for number in range(1, 9)])
        await client.take(Transfer, 8)
        assert len(client.stream.messages) > 10
        for message in client.stream.messages:
            cutter = raw.FrameCutter()
            cutter.feed(message)
            assert cutter.rest == b""
            assert len(message) <= 2000


async def test_amqp_0_9_1_comes_over_it_too() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await over_websocket(broker)
        await client.stream.send_all(AMQP_091_HEADER)
        start = await client.stream.receive_some()
        assert start[:7] == b"\x01\x00\x00" + (len(start) - 8).to_bytes(4, "big")
        assert start[7:11] == b"\x00\x0a\x00\x0a"  # connection.start


async def test_amqps_tls_header_is_refused_as_over_tcp() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await over_websocket(broker)
        await client.send(TLS_HEADER)
        assert await client.stream.receive_some() == SASL_HEADER
        assert await client.stream.receive_some() == b""
        assert client.stream.closed.code == 1000


# --- at which port ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ws", "/amqp", "/api/overview", "/any/thing?a=b"])
async def test_the_http_port_has_it_at_any_path_behind_any_request(path: str) -> None:
    async with running_broker(http_port=0, http_path_prefix="/broker") as broker:
        ours, theirs = memory_stream_pair()
        known = Peer(True, "127.0.0.1:1")
        trio.lowlevel.spawn_system_task(broker.http.serve_stream, broker, theirs, "127.0.0.1:1", known)
        user = HttpUser(ours, "guest:guest", "/broker/api")
        assert (await user.get("/whoami"))["name"] == "guest"
        stream = WebSocketStream(ours)
        await stream.shake_hands(upgrade("binary, AMQPWSB10, amqp", path=path) + binary(raw.login()))
        client = Client(broker, stream, "127.0.0.1:1")
        assert (await client.until(SaslOutcome)).code == 0
        await client.call(Open, raw.open_frame(), raw.begin())
        assert await sent_and_got(client, b"hello") == [b"hello"]
        assert broker.http._open == 0


async def test_without_the_setting_the_http_port_has_none() -> None:
    async with running_broker(http_port=0, websocket=False) as broker:
        client = await at_http_port(broker, upgrade(path="/nowhere"))
        assert client.stream.head.startswith(b"HTTP/1.1 404 ")


async def test_the_port_of_metrics_has_none() -> None:
    async with running_broker(http_port=0, prometheus_port=0) as broker:
        ours, theirs = memory_stream_pair()
        known = Peer(True, "127.0.0.1:1")
        trio.lowlevel.spawn_system_task(broker.prometheus.serve_stream, broker, theirs, "p", known)
        stream = WebSocketStream(ours)
        await stream.shake_hands(upgrade())
        assert stream.head.startswith(b"HTTP/1.1 404 ")


async def test_the_port_of_amqp_has_it_by_a_setting_alone(broker: Broker) -> None:
    client = connect(broker)
    await client.stream.send_all(upgrade())
    assert await client.stream.receive_some(100) == SASL_HEADER


@pytest.mark.parametrize(
    ("request_", "status"),
    [(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", 426), (b"GET nonsense\r\n\r\n", 400), (upgrade("mqtt"), 400)],
    ids=["request", "nonsense", "mqtt"],
)
async def test_the_port_of_amqp_has_nothing_else_of_http(request_: bytes, status: int) -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await over_websocket(broker, request=request_)
        assert client.stream.head.startswith(b"HTTP/1.1 %d " % status)
        await (await connect(broker).open()).vanish()


async def test_an_upgrade_may_come_octet_by_octet() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = connect(broker)
        request = upgrade()
        for octet in octets(request[:-1]):
            await client.stream.send_all(octet)
        client.stream = WebSocketStream(client.stream)
        await client.stream.shake_hands(request[-1:])
        await client.open()


# --- ends -------------------------------------------------------------------------------------------


async def test_after_close_and_close_the_websocket_is_closed_in_order(log: LogRecorder) -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker)).open()
        await client.send(raw.frame(0, Close()))
        assert type((await client.next()).body) is Close
        await client.stream.close()
        assert await client.next_or_end() is None
        assert client.stream.closed.code == 1000
        await settle_down()
        assert _reasons(log) == ["by the client"]


async def test_a_stop_closes_amqp_and_then_the_websocket() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker)).open()
        broker.connections.stop("the broker is shutting down")
        assert (await client.until(Close)).error is not None
        await client.send(raw.frame(0, Close()))
        assert await client.next_or_end() is None
        assert client.stream.closed.code == 1000


async def test_a_websocket_that_is_closed_without_amqp_is_a_lost_connection(log: LogRecorder) -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker)).open()
        await sent_and_got(client, b"hello")
        assert queue_counts(broker, "q") == (0, 1)
        await client.stream.send_raw(masked(Opcode.CLOSE, b"\x03\xe9"))
        assert await client.next_or_end() is None
        assert client.stream.closed.code == 1001
        await settle_down()
        assert queue_counts(broker, "q") == (1, 0)
        assert _reasons(log) == ["lost: the client's socket ended without a close"]


async def test_a_client_that_does_not_answer_the_close_is_not_waited_for() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker, pair=partial(pipe_pair, 100_000))).open()
        await client.send(raw.frame(0, Close()))
        await eventually(lambda: not broker.connections, timeout_s=10)


def _reasons(log: LogRecorder) -> list[str]:
    return [fields["reason"] for event, fields in log.of("info") if event == "connection closed"]


# --- time and room ----------------------------------------------------------------------------------


async def test_a_ping_is_answered_and_is_no_heartbeat() -> None:
    """Only AMQP frames reset AMQP's idle-time-out."""
    async with running_broker(**ON_PORT, idle_timeout_ms=10_000) as broker:
        client = await (await over_websocket(broker)).open()
        first = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def ping() -> None:
                for number in range(100):
                    await client.stream.send_raw(masked(Opcode.PING, b"%d" % number))
                    await trio.sleep(1)

            nursery.start_soon(ping)
            closed = await client.until(Close)
            nursery.cancel_scope.cancel()
        assert "idle" in closed.error.description
        assert 9 < trio.current_time() - first < 21
        assert client.stream.pongs[:8] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(
    "sent",
    [b"GET", upgrade()[:-2], upgrade(), upgrade() + masked(Opcode.PING) * 3],
    ids=["method", "head", "no header", "pings"],
)
async def test_an_open_that_does_not_come_in_time_is_not_waited_for(log: LogRecorder, sent: bytes) -> None:
    """The client may have stopped in the WebSocket handshake or after it."""
    async with running_broker(**ON_PORT, handshake_timeout_ms=5_000) as broker:
        client = connect(broker)
        await client.stream.send_all(sent)
        with trio.fail_after(12):
            while await client.stream.receive_some(65_536):
                pass
        await settle_down()
        assert [event for event, _ in log.of("warning")] == ["handshake timed out"]
        assert not broker.connections.greetings


async def test_headers_beyond_16_kib_are_refused() -> None:
    async with running_broker(**ON_PORT) as broker:
        client = await over_websocket(broker, request=upgrade(cookie="x" * 20_000))
        assert client.stream.head.startswith(b"HTTP/1.1 431 ")


async def test_beyond_connection_max_the_http_port_says_so() -> None:
    async with running_broker(http_port=0, connection_max=1) as broker:
        first = await (await at_http_port(broker, upgrade())).open()
        client = await at_http_port(broker, upgrade(), peer="127.0.0.1:40001")
        assert client.stream.head.startswith(b"HTTP/1.1 503 ")
        await first.send(raw.frame(0, Close()))
        await first.rest()
        await settle_down()
        await (await at_http_port(broker, upgrade())).open()


async def test_a_node_in_maintenance_takes_none() -> None:
    async with running_broker(http_port=0) as broker:
        broker.listener.shut()
        client = await at_http_port(broker, upgrade())
        assert client.stream.head.startswith(b"HTTP/1.1 503 ")


async def test_pings_of_a_client_that_does_not_read_pile_up_nowhere() -> None:
    """The last one is answered when the client reads again."""
    async with running_broker(**ON_PORT) as broker:
        client = await (await over_websocket(broker, pair=partial(pipe_pair, 20_000))).open()
        await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"), raw.credit(1, 1000))
        await client.take(Attach, 2)
        await client.submit(*[raw.transfer(0, number, bytes(1000), settled=True) for number in range(100)])
        writer = client.task.writer
        waiting = writer.waiting_bytes
        assert waiting > 10_000
        for number in range(3000):
            await client.stream.send_raw(masked(Opcode.PING, b"%d" % number))
        await settle_down()
        assert writer.waiting_bytes == waiting
        assert writer._mailbox.most < 50
        await client.take(Transfer, 100)
        await client.call(
            Flow, raw.frame(0, Flow(incoming_window=1000, next_outgoing_id=0, outgoing_window=9, echo=True))
        )
        assert client.stream.pongs[-1] == b"2999"
        assert len(client.stream.pongs) < 10


async def test_nothing_is_read_beyond_what_the_reader_asks_for() -> None:
    """During an alarm the client's messages wait in its own socket."""
    async with running_broker(**ON_PORT) as broker:
        up_bytes = 30_000
        client = await (await over_websocket(broker, pair=partial(pipe_pair, up_bytes))).open()
        await client.call(Flow, raw.attach_sender(0, "q"))
        broker.resource_monitor.set_alarm("memory", on=True)
        await settle_down()
        sent = 0
        with trio.move_on_after(5):
            for number in range(20_000):
                await client.send(raw.transfer(0, number, bytes(1000), settled=True))
                sent += 1
        # What a connection may hold back, and a socket's and a read's more.
        assert sent < 8_000
        broker.resource_monitor.set_alarm("memory", on=False)


# --- who ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origins", "origin", "code"),
    [
        ("*", None, 0),
        ("*", "http://localhost:8000", 0),
        ("*", "https://other.example", 1),
        ("*, https://other.example", "https://other.example", 0),
        ("https://other.example", "https://other.example", 0),
    ],
)
async def test_guest_comes_from_this_machine_and_no_foreign_page_does(
    origins: str, origin: str | None, code: int
) -> None:
    """Any page may run in a browser on this machine, and the password of guest is public."""
    async with running_broker(http_port=0, websocket_origins=origins) as broker:
        client = await at_http_port(broker, upgrade(origin=origin))
        assert (await client.call(SaslOutcome, raw.login("PLAIN", b"\0guest\0guest"))).code == code


@pytest.mark.real_clock
async def test_wss_is_the_tls_of_the_http_port(certificates: Certificates) -> None:
    """The socket passes from the HTTP listener to the connection, and is closed with it."""
    tls = {"tls_certificate": certificates.server, "tls_key": certificates.server_key}
    verified = {"tls_ca": certificates.ca, "tls_verify": "required", "loopback_users": ()}
    async with running_broker(http_port=0, http_tls=True, **tls, **verified) as broker:
        context = certificates.client_context(certificates.client("guest"))
        stream = trio.SSLStream(
            await trio.open_tcp_stream(*broker.http_addresses[0]),
            context,
            server_hostname="localhost",
            https_compatible=True,
        )
        with trio.fail_after(30):
            websocket = WebSocketStream(stream)
            await websocket.shake_hands(upgrade())
            client = Client(broker, websocket, "")
            assert (await client.call(SaslOutcome, raw.login("EXTERNAL"))).code == 0
            await client.call(Open, raw.open_frame(), raw.begin())
            assert await sent_and_got(client, bytes(100_000)) == [bytes(100_000)]
            (view,) = await broker.connections.views()
            assert (view.origin.tls, view.origin.transport, view.user) == (True, "websocket", "guest")
            host, port = broker.http_addresses[0]
            assert view.origin.local == f"{host}:{port}"
            await client.call(Close, raw.frame(0, Close()))
            await websocket.close()
            assert await client.next_or_end() is None
            assert websocket.closed is not None
        await client.vanish()
        await eventually(lambda: not broker.connections)


async def test_a_certificate_of_wss_logs_in() -> None:
    async with running_broker(http_port=0) as broker:
        known = Peer(False, "10.0.0.1", tls=True, certificate_user="guest")
        client = await at_http_port(broker, upgrade(), origin=known)
        assert (await client.call(SaslOutcome, raw.login("EXTERNAL"))).code != 0  # guest is of this machine
        broker.authenticator.loopback_users = frozenset()
        client = await at_http_port(broker, upgrade(), origin=known, peer="127.0.0.1:40001")
        assert (await client.call(SaslOutcome, raw.login("EXTERNAL"))).code == 0


# --- hostile ------------------------------------------------------------------------------------------

OPCODES = st.sampled_from([Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG, Opcode.TEXT, Opcode.CLOSE])
FRAMES = st.builds(
    lambda opcode, data, fin: masked(opcode, data, fin=fin or opcode >= Opcode.CLOSE),
    *(OPCODES, st.binary(max_size=40), st.booleans()),
)
SPOKEN = st.sampled_from(
    [binary(raw.login()), binary(raw.open_frame()), binary(raw.begin()), binary(SASL_HEADER[:3])]
)
SENT = st.lists(st.one_of(FRAMES, SPOKEN, st.binary(max_size=20)), max_size=12)


@settings(deadline=None, max_examples=25)
@given(sent=SENT, shaken=st.booleans())
def test_whatever_comes_others_are_served_and_nothing_is_left(sent: Iterable[bytes], shaken: bool) -> None:
    async def main() -> None:
        async with running_broker(**ON_PORT, handshake_timeout_ms=2_000) as broker:
            client = connect(broker)
            begun = upgrade() if shaken else b"GET "
            await client.stream.send_all(begun + b"".join(sent))
            other = await (await over_websocket(broker)).open()
            assert await sent_and_got(other, b"hello") == [b"hello"]
            await client.vanish()
            await other.vanish()
            await eventually(lambda: not broker.connections and not broker.connections.greetings)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("on_port", "loaded"), [(False, "False"), (True, "True")])
def test_the_engine_of_http_is_loaded_before_the_first_client_or_not_at_all(
    on_port: bool, loaded: str
) -> None:
    """A load at the first client could fail for want of a free file descriptor."""
    code = f"""
import sys, trio
from amqp10broker import Broker, Config

async def main():
    async with Broker(Config(port=0, http=False, websocket_on_port={on_port})):
        print("h11" in sys.modules)

trio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == loaded
