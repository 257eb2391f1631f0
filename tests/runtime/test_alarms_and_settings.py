"""Alarms and the three settings, changed while sessions run (F11, F13)."""

from __future__ import annotations

import pytest

from amqp10broker.errors import ConfigError
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Disposition, End, Flow, Transfer
from amqp10broker.runtime.broker import Broker
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, disposition, transfer
from tests.support.trioclient import connect, queue_counts, running_broker, settle_down


async def test_alarm_closes_the_window_of_every_running_session_and_clearing_opens_it(broker: Broker) -> None:
    """One session flow with incoming-window 0 each, one with the full window when the last alarm has gone."""
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


async def test_alarm_that_is_set_twice_is_told_once() -> None:
    """The same alarm again changes nothing."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        broker.resource_monitor.set_alarm("memory", on=True)
        broker.resource_monitor.set_alarm("memory", on=True)
        assert [type(each.body) for each in await client.idle()] == [Flow]
        broker.resource_monitor.set_alarm("memory", on=False)
        broker.resource_monitor.set_alarm("memory", on=False)
        assert [type(each.body) for each in await client.idle()] == [Flow]
    with pytest.raises(ValueError, match="no alarm"):
        broker.resource_monitor.set_alarm("cpu", on=True)


async def test_session_begun_under_an_alarm_starts_closed_and_is_opened_afterwards(broker: Broker) -> None:
    """New connections and sessions work; their window is 0 until the alarm has gone."""
    broker.resource_monitor.set_alarm("disk", on=True)
    client = await connect(broker).open()
    await client.send(begin(7))
    assert (await client.expect(Begin, channel=7)).incoming_window == 0
    broker.resource_monitor.set_alarm("disk", on=False)
    got = await client.idle()
    assert sorted((each.channel, each.body.incoming_window) for each in got) == [(0, 400), (7, 400)]


async def test_400_transfers_in_flight_are_tolerated_and_the_401st_ends_the_session(broker: Broker) -> None:
    """The margin is the window's size, whatever cut the frames arrive in."""
    broker.set_flow("max_link_credit", 1000, source="test")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.take(Attach, 1)
    await client.idle()
    broker.resource_monitor.set_alarm("memory", on=True)
    await client.idle()
    frames = [transfer(0, number, b"x") for number in range(401)]
    await client.send(*frames[:150])
    await client.send(*frames[150:400])
    got = await client.idle()
    assert (
        sum(
            (each.body.last or each.body.first) - each.body.first + 1
            for each in got
            if type(each.body) is Disposition
        )
        == 400
    )
    assert queue_counts(broker, "q") == (400, 0)
    await client.send(frames[400])
    end = await client.until(End)
    assert end.error.condition == "amqp:session:window-violation"
    assert queue_counts(broker, "q") == (400, 0)


async def test_consumers_and_settlements_go_on_under_an_alarm(broker: Broker) -> None:
    """Only publishers are held back: consuming is what ends a memory alarm."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"), attach_receiver(1, "q"))
    await client.take(Attach, 2)
    await client.send(*[transfer(0, number, b"x") for number in range(10)])
    await client.idle()
    broker.resource_monitor.set_alarm("memory", on=True)
    await client.idle()
    from amqp10broker.protocols.amqp10.performatives import Accepted

    await client.send(credit(1, 10))
    await client.take(Transfer, 10)
    await client.send(disposition(0, 9, state=Accepted()))
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)


async def test_link_credit_changed_while_running_is_granted_from_then_on(broker: Broker) -> None:
    """A running link is topped up to the new limit; a new one starts with it."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    assert (await client.until(Flow)).link_credit == 170
    broker.set_flow("max_link_credit", 1_000, source="test")
    assert (await client.until(Flow)).link_credit == 1_000
    broker.set_flow("max_link_credit", 10, source="test")
    assert await client.idle() == []  # a decrease waits for the credit given to be used
    await client.send(attach_sender(1, "q"))
    assert (await client.until(Flow)).link_credit == 10
    await client.send(*[transfer(0, number, b"x", settled=True) for number in range(995)])
    grants = [each.body.link_credit for each in await client.idle() if each.body.handle == 0]
    assert set(grants) == {10}


async def test_window_changed_while_running_is_what_the_next_opening_gives(broker: Broker) -> None:
    """incoming-window of running sessions follows the setting."""
    client = await connect(broker).open()
    broker.set_flow("max_incoming_window", 1_000, source="test")
    got = await client.idle()
    assert [each.body.incoming_window for each in got] == [1_000]
    await client.send(attach_sender(0, "q"))
    await client.idle()
    broker.set_flow("max_incoming_window", 10, source="test")
    broker.set_flow("max_link_credit", 5_000, source="test")
    await client.send(*[transfer(0, number, b"x", settled=True) for number in range(1_000)])
    windows = [each.body.incoming_window for each in await client.idle()]
    assert windows
    assert windows[-1] <= 10


async def test_queue_credit_changed_while_running_bounds_what_leaves_the_queue(broker: Broker) -> None:
    """The next request to the queue asks for the new maximum."""
    broker.set_flow("max_link_credit", 5_000, source="test")
    broker.set_flow("max_incoming_window", 5_000, source="test")
    publisher = await connect(broker).open()
    await publisher.send(attach_sender(0, "q"))
    await publisher.idle()
    await publisher.send(*[transfer(0, number, b"x", settled=True) for number in range(1_000)])
    await settle_down()
    broker.set_flow("max_queue_credit", 7, source="test")
    client = connect(broker)
    await client.open()
    await client.send(begin(1, incoming_window=0), attach_receiver(0, "q", channel=1))
    await client.until(Attach)
    await client.send(credit(0, 500, channel=1, incoming_window=0))
    await settle_down()
    assert queue_counts(broker, "q") == (993, 7)


@pytest.mark.parametrize(
    ("name", "value"), [("max_link_credit", 0), ("max_link_credit", 2**32), ("port", 1), ("", 1)]
)
async def test_refused_setting_changes_nothing(broker: Broker, name: str, value: int) -> None:
    """Out of range or unknown: an error that says what is allowed, and no flow on the wire."""
    client = await connect(broker).open()
    before = broker.config
    with pytest.raises(ConfigError):
        broker.set_flow(name, value, source="test")
    assert broker.config is before
    assert await client.idle() == []


async def test_alarm_after_a_smaller_window_tolerates_what_was_granted_before(broker: Broker) -> None:
    """400 frames were allowed; a setting of 10 and an alarm at once cannot call them back."""
    broker.set_flow("max_link_credit", 1_000, source="test")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.idle()
    broker.set_flow("max_incoming_window", 10, source="test")
    broker.resource_monitor.set_alarm("memory", on=True)
    await client.send(*[transfer(0, number, b"x", settled=True) for number in range(390)])
    assert End not in [type(each.body) for each in await client.idle()]
    assert queue_counts(broker, "q") == (390, 0)
