"""Many connections are looked at in turns."""

from __future__ import annotations

import pytest
from trio.testing import assert_checkpoints, assert_no_checkpoints

from amqp10broker.protocols.amqp091.methods import BasicConsume, BasicConsumeOk
from amqp10broker.runtime.connections import connections
from amqp10broker.runtime.connections.connections import LoopYield
from tests.support.declaring import declare
from tests.support.trioclient import running_broker
from tests.support.trioclient091 import connect091


async def test_others_run_while_connections_with_much_in_them_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connections are not a measure of work: each may have any number of consumers."""
    monkeypatch.setattr(connections, "PARTS_AT_ONCE", 8)
    async with running_broker() as broker:
        declare(broker.catalog, "/", "q")
        client = await connect091(broker).open()
        for _ in range(2):
            await client.call(1, BasicConsume(queue="q"), BasicConsumeOk)
        (view,) = await broker.connections.views()
        turns = LoopYield()
        for _ in range(2):
            with assert_no_checkpoints():
                await turns.after(view)  # a connection, a channel, two consumers
            with assert_checkpoints():
                await turns.after(view)
