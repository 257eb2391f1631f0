"""Faults on request: who may ask for them, what is left of them, and what a broker pays that has none."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.observe import faults
from amqp10broker.protocols.amqp10.performatives import Disposition
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe.faults import FaultyStream
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.admin_requests import ask, asked
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import Client, connect, eventually, running_broker, settle_down


async def publisher(broker: Broker) -> Client:
    await ask(broker, "declare-queue", name="q")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q", name="in"))
    await client.idle()
    return client


async def test_only_a_broker_in_test_mode_commits_faults(broker: Broker) -> None:
    """In any other one sessions and channels have no code for them."""
    assert broker.session_type is BrokerSession
    assert broker.channel_type is BrokerChannel
    client = await publisher(broker)
    (connection,) = broker.connections.values()
    assert not isinstance(connection.stream, FaultyStream)
    await client.vanish()
    for operation, given in (
        ("inject-fault", {"kind": "hold-confirms"}),
        ("lift-fault", {"fault": 1}),
        ("list-faults", {}),
    ):
        refused = await asked(broker, operation, **given)
        assert "--test-mode" in refused["error"]


async def test_a_fault_that_cannot_be_says_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FAULTS_MAX", 1)
    async with running_broker(test_mode=True) as broker:
        expected: list[tuple[dict[str, Any], str]] = [
            ({"kind": "be-evil"}, "hold-confirms"),
            ({"kind": "end", "code": 999}, "406"),
            ({"kind": "end", "vhost": "nowhere"}, "nowhere"),
        ]
        for given, said in expected:
            assert said in (await asked(broker, "inject-fault", **given))["error"]
        on = await ask(broker, "inject-fault", kind="hold-confirms", queue="q*", count=3)
        assert (on["fault"], on["vhost"], on["queue"], on["count"], on["hits"]) == (1, "/", "q*", 3, 0)
        assert "1 faults are on" in (await asked(broker, "inject-fault", kind="end"))["error"]
        assert await ask(broker, "list-faults") == [on]
        assert "1 (hold-confirms) is" in (await asked(broker, "lift-fault", fault=2))["error"]
        await ask(broker, "lift-fault", fault=1)
        assert await ask(broker, "list-faults") == []


async def test_a_client_that_goes_leaves_nothing_with_a_fault() -> None:
    """Held confirms and credit are dropped; a publish that was held reaches its queue."""
    async with running_broker(test_mode=True) as broker:
        confirms = await ask(broker, "inject-fault", kind="hold-confirms", count=1)
        publishes = await ask(broker, "inject-fault", kind="pause-queue", client="nobody")
        credit = await ask(broker, "inject-fault", kind="limit-credit", count=5)
        client = await publisher(broker)
        await client.send(transfer(0, 0, b"body"))
        await client.idle()
        held = {each["fault"]: each["held"] for each in await ask(broker, "list-faults")}
        assert held == {confirms["fault"]: 1, publishes["fault"]: 0, credit["fault"]: 1}
        await client.stream.aclose()
        await settle_down()
        assert not broker.connections
        for fault in held:
            await ask(broker, "lift-fault", fault=fault)
        await settle_down()
        assert not broker.faults._due
        assert not broker.faults._parts
        (queue,) = (await ask(broker, "status"))["queues"]
        assert (queue["messages_ready"], queue["messages_unsettled"]) == (1, 0)


async def test_a_fault_at_once_is_for_those_who_are_there() -> None:
    """A client that connects while it is on is unaffected."""
    async with running_broker(test_mode=True) as broker:
        await publisher(broker)
        fault = (await ask(broker, "inject-fault", kind="end"))["fault"]
        await settle_down()
        (shown,) = await ask(broker, "list-faults")
        assert (shown["hits"], shown["held"]) == (1, 0)
        late = await publisher(broker)
        await late.send(transfer(0, 0, b"body"))
        await late.idle()
        assert (await ask(broker, "lift-fault", fault=fault))["hits"] == 1


async def test_a_fault_of_whole_clients_is_for_no_queue_or_link() -> None:
    async with running_broker(test_mode=True) as broker:
        for given, said in (
            ({"kind": "hold-bytes", "queue": "q"}, "whatever its queues and links"),
            ({"kind": "reset-after", "link": "in"}, "whatever its queues and links"),
        ):
            assert said in (await asked(broker, "inject-fault", **given))["error"]


async def test_a_stream_is_reset_after_some_frames() -> None:
    """The count of frames ends with the connection, and a later client is not reset."""
    async with running_broker(test_mode=True) as broker:
        client = await publisher(broker)
        fault = (await ask(broker, "inject-fault", kind="reset-after", count=1))["fault"]
        await client.call(Disposition, transfer(0, 0, b"body"))
        assert await client.next_or_end() is None
        await eventually(lambda: not broker.connections)
        assert broker.faults._on[fault].frames == {}
        assert (await ask(broker, "lift-fault", fault=fault))["hits"] == 1
        await publisher(broker)


async def test_a_client_and_a_broker_may_go_while_bytes_are_held() -> None:
    async with running_broker(test_mode=True) as broker:
        clients = [await publisher(broker), await publisher(broker)]
        fault = (await ask(broker, "inject-fault", kind="hold-bytes"))["fault"]
        for client in clients:
            await client.send(transfer(0, 0, b"body"))
        await settle_down()
        (shown,) = await ask(broker, "list-faults")
        assert (shown["hits"], shown["held"]) == (2, 2 * len(transfer(0, 0, b"body")))
        await clients[0].stream.aclose()
        await ask(broker, "lift-fault", fault=fault)
        await eventually(lambda: len(broker.connections) == 1)
        await clients[1].until(Disposition)
        await ask(broker, "inject-fault", kind="hold-bytes")
        await clients[1].submit(transfer(0, 1, b"body"))
    assert not broker.connections


async def test_confirms_that_were_held_come_in_one_range() -> None:
    async with running_broker(test_mode=True) as broker:
        client = await publisher(broker)
        fault = (await ask(broker, "inject-fault", kind="hold-confirms"))["fault"]
        for number in range(3):
            await client.send(transfer(0, number, b"body"))
            assert not await client.idle()
        await ask(broker, "lift-fault", fault=fault)
        told = [each.body for each in await client.idle() if isinstance(each.body, Disposition)]
        assert [(each.first, each.last) for each in told] == [(0, 2)]
