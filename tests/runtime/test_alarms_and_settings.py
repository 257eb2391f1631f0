"""Alarms and the three settings, changed while sessions run (F11, F13)."""

from __future__ import annotations

import pytest

from amqp10broker.errors import ConfigError
from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.runtime.broker import Broker
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import connect


async def test_alarm_closes_the_window_of_every_running_session_and_clearing_opens_it(broker: Broker) -> None:
    """Each gets one session flow with incoming-window 0, and a full window after the last alarm."""
    clients = [await connect(broker).open(channels=3) for _ in range(3)]
    broker.resource_monitor.set_alarm("memory", on=True)
    for client in clients:
        got = await client.idle()
        assert sorted((each.channel, each.body.incoming_window, each.body.handle) for each in got) == [
            (channel, 0, None) for channel in range(3)
        ]
    broker.resource_monitor.set_alarm("disk", on=True)
    broker.resource_monitor.set_alarm("memory", on=False)
    for client in clients:
        assert await client.idle() == []
    broker.resource_monitor.set_alarm("disk", on=False)
    for client in clients:
        got = await client.idle()
        assert sorted((each.channel, each.body.incoming_window) for each in got) == [
            (channel, 400) for channel in range(3)
        ]


async def test_link_credit_changed_while_running_is_granted_from_then_on(broker: Broker) -> None:
    """A running link is topped up to the new limit; a new one starts with it."""
    client = await connect(broker).open()
    assert (await client.call(Flow, attach_sender(0, "q"))).link_credit == 170
    broker.set_flow("max_link_credit", 1_000, source="test")
    assert (await client.until(Flow)).link_credit == 1_000
    broker.set_flow("max_link_credit", 10, source="test")
    assert await client.idle() == []  # a decrease waits for the credit given to be used
    assert (await client.call(Flow, attach_sender(1, "q"))).link_credit == 10
    await client.send(*[transfer(0, number, b"x", settled=True) for number in range(995)])
    grants = [each.body.link_credit for each in await client.idle() if each.body.handle == 0]
    assert set(grants) == {10}


@pytest.mark.parametrize(
    ("name", "value"), [("max_link_credit", 0), ("max_link_credit", 2**32), ("port", 1), ("", 1)]
)
async def test_refused_setting_changes_nothing(broker: Broker, name: str, value: int) -> None:
    """A value out of range or an unknown name gives an error with the allowed values, and no flow."""
    client = await connect(broker).open()
    before = broker.config
    with pytest.raises(ConfigError):
        broker.set_flow(name, value, source="test")
    assert broker.config is before
    assert await client.idle() == []
