"""A publisher with the default credit does not wait for us: it is granted more before it has used it up."""

from __future__ import annotations

import pytest
import trio

from amqp10broker.config import FaultInjection, FlowSettings
from amqp10broker.protocols.amqp10.performatives import Attach, Disposition, Flow
from amqp10broker.runtime.broker import Broker
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import Client, connect, running_broker

LIMIT = FlowSettings().max_link_credit
HALF = LIMIT // 2
MOMENT_S = 0.0001
"""Of virtual time: what comes within it needs no time at all, for nothing else takes less."""


class Publisher:
    """A client that counts its own credit (part 2, section 2.6.7).

    Attributes:
        sent: deliveries.
        credit: deliveries that it may still send.
        grants: the delivery-count from which each flow counted that brought credit.
        confirmed: deliveries.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent = self.credit = self.confirmed = 0
        self.grants: list[int] = []

    async def hear(self, seconds: float = MOMENT_S) -> list[type]:
        """Return the kinds of arriving frames in order, without those that open the session's window."""
        kinds: list[type] = []
        for got in await self.client.idle(seconds):
            body = got.body
            if isinstance(body, Flow) and body.handle is None:
                continue
            if isinstance(body, Flow):
                assert body.link_credit == LIMIT
                self.grants.append(body.delivery_count)
                self.credit = body.delivery_count + body.link_credit - self.sent
            elif isinstance(body, Disposition):
                last = body.first if body.last is None else body.last
                self.confirmed += last - body.first + 1
            kinds.append(type(body))
        return kinds

    async def send(self, count: int) -> None:
        assert count <= self.credit
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        self.credit -= count
        await self.client.send(*[transfer(0, number, b"m") for number in numbers])


async def attached(client: Client) -> Publisher:
    await client.call(Attach, attach_sender(0, "q"))
    publisher = Publisher(client)
    await publisher.hear()
    assert (publisher.grants, publisher.credit) == ([0], LIMIT)
    return publisher


@pytest.mark.parametrize("at_once", [1, 10, HALF - 1, HALF, LIMIT])
async def test_who_is_confirmed_at_once_always_has_half_of_its_credit(broker: Broker, at_once: int) -> None:
    """However much it sends in one write, a grant counts from the half of the last one."""
    publisher = await attached(await connect(broker).open())
    least = LIMIT
    while publisher.sent < 12 * LIMIT:
        await publisher.send(min(at_once, publisher.credit))
        await publisher.hear()
        least = min(least, publisher.credit)
    assert least >= HALF
    assert publisher.confirmed == publisher.sent


async def test_the_grant_does_not_wait_for_the_confirm() -> None:
    """With confirms 5 ms late it comes with the 85th transfer, which leaves 85; with all 170 unconfirmed
    there is no other grant, and the next one follows the confirms.
    """
    slow = FaultInjection(confirm_delay_ms=(("q", 5),))
    async with running_broker(test_mode=True, fault_injection=slow) as broker:
        publisher = await attached(await connect(broker).open())
        began = trio.current_time()
        await publisher.send(HALF - 1)
        assert await publisher.hear() == []
        await publisher.send(1)
        assert (await publisher.hear(), publisher.grants[-1]) == ([Flow], HALF)
        assert publisher.credit == LIMIT
        await publisher.send(HALF)
        await publisher.send(HALF)
        assert (await publisher.hear(), publisher.credit) == ([], 0)
        assert trio.current_time() - began < 0.005
        kinds = await publisher.hear(0.02)
        assert set(kinds) == {Disposition, Flow}
        assert kinds[0] is Disposition
        assert (publisher.confirmed, publisher.credit) == (LIMIT + HALF, LIMIT)
