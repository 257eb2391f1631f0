"""A node that is drained and revived, while it is in no cluster (V1 to V4 of what users see of a cluster)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.protocols.amqp091.methods import ConnectionClose
from amqp10broker.protocols.amqp10.performatives import Close
from amqp10broker.runtime.broker import Broker
from tests.support.admin_requests import ask
from tests.support.trioclient import connect, running_broker
from tests.support.trioclient091 import connect091

REASON = "Node was put into maintenance mode"


@pytest.mark.rabbitmq("amqp_client_SUITE", "maintenance")
async def test_a_drained_node_closes_its_clients_with_the_reason(broker: Broker) -> None:
    """V1, V4: a single node does so too."""
    newer = await connect(broker).open()
    older = await connect091(broker).open()
    await ask(broker, "drain")
    error = (await newer.until(Close)).error
    assert (error.condition, error.description) == ("amqp:connection:forced", f"Connection forced: {REASON}")
    closed = await older.expect(ConnectionClose)
    assert closed.reply_code == 320
    assert REASON in closed.reply_text


@pytest.mark.real_clock
async def test_a_drained_node_refuses_clients_until_it_is_revived(broker: Broker) -> None:
    """V1, V3: it reopens the same port, though the kernel chose it."""
    host, port = broker.addresses[0]
    for _ in range(2):
        async with await trio.open_tcp_stream(host, port) as stream:
            await stream.send_all(b"AMQP\x00\x00\x09\x01")
            assert await stream.receive_some(1)
        await ask(broker, "drain")
        await ask(broker, "drain")
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(host, port)
        await ask(broker, "revive")
        await ask(broker, "revive")
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(b"AMQP\x00\x00\x09\x01")
        assert await stream.receive_some(1)


@pytest.mark.real_clock
async def test_a_drained_node_stops_in_order(broker: Broker) -> None:
    await ask(broker, "drain")


async def test_an_alone_node_says_what_it_can(broker: Broker) -> None:
    """Quorum checks succeed, and its queues have one member."""
    await ask(broker, "declare-queue", name="q", arguments={"x-queue-type": "quorum"})
    assert [
        (row["Node Name"], row["Raft State"]) for row in await ask(broker, "quorum-status", name="q")
    ] == [("broker", "leader")]
    assert (await ask(broker, "check-if-node-is-quorum-critical"))["result"] == "ok"
    assert (await ask(broker, "await-online-quorum-plus-one"))["result"] == "ok"
    assert (await ask(broker, "check-for-quorum-queues-without-an-elected-leader", pattern=".*"))[
        "result"
    ] == "ok"
    assert await ask(broker, "list-alarms") == []
    await ask(broker, "alarm", name="memory", on=True)
    assert await ask(broker, "list-alarms") == [{"node": "broker", "alarm": "memory"}]
    assert await ask(broker, "connections", where="everywhere") == []


@pytest.mark.real_clock
async def test_alone_the_status_is_that_of_the_group_of_one(tmp_path: Path) -> None:
    async with running_broker(data_dir=str(tmp_path)) as broker:
        await ask(broker, "declare-queue", name="q", arguments={"x-queue-type": "quorum"})
        row: dict[str, Any] = {}
        with trio.fail_after(10):
            while row.get("Raft State") != "leader" or row["Last Applied"] < row["Last Log Index"]:
                (row,) = await ask(broker, "quorum-status", name="q")
                await trio.lowlevel.checkpoint()
        assert row["Membership"] == "voter"
        assert row["Last Log Index"] == row["Last Written"] == row["Commit Index"] > 0
        assert row["Term"] > 0
