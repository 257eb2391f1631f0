"""A running broker whose catalog decides later: sessions whose links wait end, and leave nothing."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from tests.support.deferred_decisions import DeferredDecisions
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, frame, transfer
from tests.support.trioclient import connect, queue_counts, settle_down

TEMPORARY = performatives.Source(dynamic=True, capabilities=(Symbol("temporary-queue"),))


async def decide(broker: Broker, slow: DeferredDecisions) -> None:
    """Decide the oldest proposal; the answer goes to the session that asked, if it still exists."""
    decided = slow.decide()
    broker.reply_registry.post({decided.ref.reply_to: decided})  # type: ignore[dict-item]
    await settle_down()


async def test_a_link_is_answered_when_its_queue_is_decided(broker: Broker) -> None:
    """Transfers after its attach count, and another link of the session is answered earlier."""
    slow = broker.propose = DeferredDecisions(broker.catalog)
    client = await connect(broker).open()
    await client.send(attach_sender(0, "new"), transfer(0, 0, b"x"))
    assert (await client.call(performatives.Attach, attach_receiver(1, "/exchanges/none"))).handle == 1
    await decide(broker, slow)
    assert (await client.until(performatives.Attach)).handle == 0
    assert (await client.until(performatives.Disposition)).first == 0
    await client.call(performatives.Transfer, attach_receiver(2, "new"), credit(2, 10))


@pytest.mark.parametrize("way", ["end", "close", "lost"])
async def test_a_session_ends_while_its_links_wait(broker: Broker, way: str) -> None:
    """It ends at once with decisions open; a later decision has no effect, and no task waits for it."""
    slow = broker.propose = DeferredDecisions(broker.catalog)
    at_rest = len(broker.reply_registry)
    client = await connect(broker).open()
    await client.send(attach_sender(0, "new"), transfer(0, 0, b"x"))
    await client.submit(attach_receiver(1, "", source=TEMPORARY), credit(1, 10))
    assert len(slow.proposed) == 2
    match way:
        case "end":
            await client.call(performatives.End, frame(0, performatives.End()))
            await client.call(performatives.Begin, begin())
            await client.submit(frame(0, performatives.Close()))
        case "close":
            await client.submit(frame(0, performatives.Close()))
        case _:
            await client.vanish()
    await settle_down()
    assert not broker.connections
    assert len(broker.reply_registry) == at_rest
    while slow.proposed:
        await decide(broker, slow)
    vhost = broker.catalog.lookup_vhost("/")
    assert [name for name in vhost.queues if name != "q"] == ["new"]
    assert queue_counts(broker, "new") == (0, 0)
