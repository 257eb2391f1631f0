"""Time-outs: handshake, idle both ways, heartbeats, and the price of a wrong password (2.4.5)."""

from __future__ import annotations

import pytest
import trio

from amqp10broker.config import User
from amqp10broker.protocols.amqp10.performatives import Close, Open, SaslOutcome
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.rawframes import (
    AMQP_HEADER,
    HEARTBEAT,
    SASL_HEADER,
    attach_sender,
    frame,
    login,
    open_frame,
)
from tests.support.trioclient import Client, connect, running_broker


@pytest.mark.rabbitmq("amqp_client_SUITE", "handshake_timeout")
@pytest.mark.parametrize(
    "said",
    [b"", SASL_HEADER[:5], SASL_HEADER, login(), login() + AMQP_HEADER, login() + open_frame()[:20]],
    ids=["nothing", "half a header", "header", "login", "both headers", "half an open"],
)
async def test_handshake_not_finished_in_time_closes_the_socket(log: LogRecorder, said: bytes) -> None:
    """However far the handshake has come, the socket is closed when its time is over, and not before."""
    async with running_broker(handshake_timeout_ms=10_000) as broker:
        client = connect(broker)
        began = trio.current_time()
        if said:
            await client.send(said)
        await client.rest()
        assert 10 <= trio.current_time() - began < 11
        await trio.testing.wait_all_tasks_blocked()
        assert not broker.connections
    assert [event for event, _ in log.of("warning")] == ["handshake timed out"]


async def test_slow_handshake_within_its_time_succeeds_and_the_limit_is_gone_after_it() -> None:
    """The client sends byte by byte; an open connection is not bound by the handshake's limit."""
    async with running_broker(handshake_timeout_ms=10_000) as broker:
        client = connect(broker)
        for byte in login():
            await client.send(bytes((byte,)))
            await trio.sleep(0.05)
        assert (await client.until(SaslOutcome)).code == 0
        for byte in open_frame():
            await client.send(bytes((byte,)))
            await trio.sleep(0.05)
        await client.expect(Open)
        await trio.sleep(60)
        await client.send(frame(0, Close()))
        await client.expect(Close)


@pytest.mark.rabbitmq("amqp_client_SUITE", "idle_time_out_on_server")
async def test_silent_client_is_closed_after_the_idle_time_out() -> None:
    """A client that is silent for the whole idle time-out gets resource-limit-exceeded and a close."""
    async with running_broker(idle_timeout_ms=8_000) as broker:
        client = await connect(broker).open()
        began = trio.current_time()
        close = await client.until(Close)
        assert close.error.condition == "amqp:resource-limit-exceeded"
        assert 8 <= trio.current_time() - began <= 8 * 1.25 + 0.1
        await client.rest()
        await trio.testing.wait_all_tasks_blocked()
        assert not broker.connections


async def test_a_client_with_all_its_sessions_is_no_exception() -> None:
    """It can begin no more sessions, but the broker still reads its frames."""
    async with running_broker(idle_timeout_ms=8_000, session_max_per_connection=1) as broker:
        client = await connect(broker).open(channels=1)
        with trio.fail_after(60):
            close = await client.until(Close)
        assert close.error.condition == "amqp:resource-limit-exceeded"


async def test_a_broker_that_was_held_up_does_not_blame_its_clients(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Their pending input is read before they time out; a client that stays silent is closed."""
    async with running_broker(idle_timeout_ms=8_000) as broker:
        clients = [await connect(broker).open() for _ in range(8)]
        await trio.sleep(3)  # now it has looked once, and has heard of all
        autojump_clock.jump(100)
        await trio.testing.wait_all_tasks_blocked()
        assert len(broker.connections) == 8
        for _ in range(8):
            for client in clients[1:]:
                await client.send(HEARTBEAT)
            autojump_clock.jump(2)
            await trio.testing.wait_all_tasks_blocked()
        assert len(broker.connections) == 7


async def test_broker_announces_half_of_its_idle_time_out() -> None:
    """ "each peer SHOULD ... advertise ... half its actual threshold" (2.4.5)."""
    async with running_broker(idle_timeout_ms=8_000) as broker:
        client = connect(broker)
        await client.call(SaslOutcome, login())
        await client.send(open_frame())
        assert (await client.expect(Open)).idle_time_out == 4_000


@pytest.mark.rabbitmq("amqp_client_SUITE", "idle_time_out_on_client")
async def test_broker_sends_heartbeats_well_within_the_clients_time_out(broker: Broker) -> None:
    """A client that asked for it never waits longer than its idle-time-out for a frame."""
    client = await connect(broker).open(idle_time_out=4_000)
    last = trio.current_time()
    for _ in range(20):
        got = await client.next(heartbeats=True)
        assert got.body is None
        assert trio.current_time() - last <= 2.0 + 1e-6
        last = trio.current_time()


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_plain_failure")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "auth_failure")
@pytest.mark.rabbitmq("amqp_auth_SUITE", "authn_failure_event")
async def test_wrong_password_is_answered_after_the_delay_and_closed(log: LogRecorder) -> None:
    """A refused login costs the guesser auth_failure_delay; it does not delay other clients."""
    async with running_broker(auth_failure_delay_ms=1_000) as broker:
        wrong = connect(broker)
        began = trio.current_time()
        await wrong.send(login("PLAIN", b"\0guest\0wrong"))

        async def other() -> None:
            await connect(broker).open()
            assert trio.current_time() - began < 0.1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
        assert (await wrong.until(SaslOutcome)).code == 1
        assert trio.current_time() - began == pytest.approx(1.0)
        assert await wrong.rest() == []
    assert [event for event, _ in log.of("warning")] == ["login failed"]
    assert "wrong" not in repr(log.entries)


async def test_bytes_pipelined_behind_a_refused_login_are_not_looked_at() -> None:
    async with running_broker(users=(User("guest", "guest"),)) as broker:
        client = connect(broker)
        await client.send(login("PLAIN", b"\0guest\0no"), open_frame(), attach_sender(0, "never"))
        await client.rest()
        assert broker.catalog.lookup_vhost("/").find("never") is None


async def test_lost_client_during_the_failure_delay_ends_its_task_in_time() -> None:
    async with running_broker(auth_failure_delay_ms=5_000) as broker:
        client: Client = connect(broker)
        await client.send(login("PLAIN", b"\0guest\0no"))
        await trio.testing.wait_all_tasks_blocked()
        await client.vanish()
        await trio.sleep(5.5)
        assert not broker.connections
