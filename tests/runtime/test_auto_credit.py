"""Automatic link credit in a running broker, on a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from amqp10broker.config import FaultInjection, FlowSettings
from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe.meters import Meter
from tests.support.admin_requests import ask
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import Client, connect, eventually, quiet_config, settle_down

SLOW = {"test_mode": True, "fault_injection": FaultInjection(confirm_delay_ms=(("q", 100),))}
WINDOW = 10_000


def link_of(broker: Broker) -> dict[str, Any]:
    (connection,) = broker.status()["connections"]
    (session,) = connection["sessions"]
    (link,) = session["links"]
    return dict(link)


async def publish(client: Client) -> None:
    await client.send(attach_sender(0, "q"))
    sent = 0
    while True:
        flow = await client.until(Flow)
        if flow.handle is None:
            continue
        end = flow.delivery_count + flow.link_credit
        if end > sent:
            await client.send(*[transfer(0, number, b"x", settled=True) for number in range(sent, end)])
            sent = end


@asynccontextmanager
async def publishing(meter: Meter | None = None, **settings: Any) -> AsyncIterator[Broker]:
    """Run a broker whose queue confirms late, and a client that only credit holds up."""
    async with (
        Broker(quiet_config(**SLOW, **settings), meter=meter) as broker,
        trio.open_nursery() as nursery,
    ):
        client = await connect(broker).open()
        nursery.start_soon(publish, client)
        await settle_down()
        yield broker
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    await eventually(condition, timeout_s=60, every_s=0.05)


async def counted(broker: Broker, seconds: float) -> int:
    before = link_of(broker)["counters"]["published"]
    await trio.sleep(seconds)
    return int(link_of(broker)["counters"]["published"] - before)


async def test_slow_confirms_are_bridged_and_the_status_says_so() -> None:
    """A confirm takes 100 ms: four times the credit, which is the bound here, gives four times the rate."""
    fixed = FlowSettings(max_incoming_window=WINDOW)
    async with publishing(flow=fixed) as broker:
        await trio.sleep(0.5)
        default = await counted(broker, 1)
        link = link_of(broker)
        assert (link["credit_limit"], link["credit_limit_why"], link["credit_limit_for_s"]) == (
            170,
            None,
            None,
        )
    flow = FlowSettings(max_link_credit="auto", max_incoming_window=WINDOW)
    async with publishing(flow=flow, auto_credit_max=680) as broker:
        assert (link_of(broker)["credit_limit"], link_of(broker)["credit_limit_why"]) == (170, "default")
        await until(lambda: link_of(broker)["credit_limit_why"] == "messages-bound")
        assert link_of(broker)["credit_limit"] == 680
        assert await counted(broker, 1) >= 3 * default
        assert link_of(broker)["credit_limit_for_s"] >= 1
        assert broker.status()["broker"]["flow"]["max_link_credit"] == "auto"


async def test_it_is_turned_on_and_off_while_links_run() -> None:
    """Links keep granted credit; the new setting holds from the next grant on."""
    async with publishing(flow=FlowSettings(max_incoming_window=WINDOW)) as broker:
        await trio.sleep(1)
        broker.set_flow("max_link_credit", "auto", source="test")
        await until(lambda: link_of(broker)["credit_limit"] >= 340)
        broker.set_flow("max_queue_credit", 300, source="test")
        assert link_of(broker)["credit_limit"] >= 340, "another setting changes nothing"
        broker.set_flow("max_link_credit", 20, source="test")
        await trio.sleep(0.1)
        assert (link_of(broker)["credit_limit"], link_of(broker)["credit_limit_why"]) == (20, None)
        assert await counted(broker, 1) > 0


async def test_a_timeline_shows_how_the_limit_grows() -> None:
    """Each limit and reason is in the step in which it changed; the last are the status's."""
    flow = FlowSettings(max_link_credit="auto", max_incoming_window=WINDOW)
    async with publishing(flow=flow, auto_credit_max=680) as broker:
        watched = await ask(broker, "watch-link", connection=1, link=link_of(broker)["name"])
        await until(lambda: link_of(broker)["credit_limit_why"] == "messages-bound")
        found = await ask(broker, "timeline", watch=watched["watch"], limit=100_000, frames=False)
        values = [found["start"], *(step["values"] for step in found["steps"])]
        limits = [each["credit_limit"] for each in values if "credit_limit" in each]
        whys = [each["credit_limit_why"] for each in values if "credit_limit_why" in each]
        assert limits == [170, 340, 680]
        assert (whys[0], whys[-1]) == ("default", "messages-bound")
        assert "growing" in whys
