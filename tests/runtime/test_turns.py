"""Storms: what one client's bytes may do between two turns of everybody else.

A neighbour counts the turns: it runs once each time the others had one, so what happened between two of its
wakes is what it had to wait for.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio

from amqp10broker.metadata.catalog import CHANNELS
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.connection import FrameReader as FrameReader091
from amqp10broker.protocols.amqp10.connection import Connection
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Close, Detach, End
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.connection091 import ConnectionTask091
from amqp10broker.runtime.connections.connection10 import Connection10, SessionTask
from amqp10broker.runtime.connections.session_task import HEAVY, PORTION, READS_MAX, OutputBuffer, ReadBudget
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.rawframes import attach_receiver, attach_sender, begin, frame
from tests.support.trioclient import alongside, connect, running_broker, settle_down
from tests.support.trioclient091 import connect091

HEAVY_A_TURN = PORTION // HEAVY


class Neighbour:
    """Wakes once a turn, and remembers the most that was done between two wakes."""

    def __init__(self) -> None:
        self.most = 0
        self.all = 0
        self._now = 0

    def note(self) -> None:
        self._now += 1
        self.all += 1
        self.most = max(self.most, self._now)

    async def run(self, look: Callable[[], None] = lambda: None) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self._now = 0
            look()


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, neighbour: Neighbour) -> None:
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        neighbour.note()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


async def until_all(neighbour: Neighbour, count: int) -> None:
    """Wait for this count of work, over as many turns as it takes, without a clock."""
    while neighbour.all < count:
        await trio.lowlevel.checkpoint()


async def test_begins_and_ends_in_one_write_are_shared_out_over_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand pairs on one channel take a few a turn; a session counts until its task is gone, so the
    limit always holds.
    """
    neighbour = Neighbour()
    counted(monkeypatch, Connection10, "_start_session", neighbour)
    pairs = 1000
    async with running_broker(session_max_per_connection=8) as broker:
        client = await connect(broker).open(channels=0)
        at_once: list[int] = []

        def look() -> None:
            at_once.append(broker.catalog.usage.counts[CHANNELS]["guest"])

        async with alongside(partial(neighbour.run, look)):
            await client.send(*[begin(1), frame(1, End())] * pairs)
            await until_all(neighbour, pairs)
        kinds = [type(each.body) for each in await client.idle()]
        assert kinds.count(Begin) == kinds.count(End) == pairs
        assert neighbour.most <= HEAVY_A_TURN
        assert 1 < max(at_once) <= 8
        await settle_down()
        assert broker.catalog.usage.counts[CHANNELS]["guest"] == 0


async def test_a_begin_that_waits_for_an_ended_session_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader waits until a session task is gone, and so does the rest of the connection."""
    gone = trio.Event()
    run = SessionTask.run

    async def run_slowly(session: SessionTask) -> None:
        await run(session)
        await gone.wait()

    monkeypatch.setattr(SessionTask, "run", run_slowly)
    async with running_broker(session_max_per_connection=2) as broker:
        client = await connect(broker).open(channels=1)
        (connection,) = broker.connections.values()
        assert isinstance(connection, Connection10)
        await client.submit(begin(1), frame(1, End()), attach_sender(0, "q"), begin(1))
        (link,) = document(connection.view())["sessions"][0]["links"]
        assert link["waits"] == "reader-held"
        assert "because session 1 of it does not listen" in link["waits_why"]
        gone.set()
        await settle_down()
        (link,) = document(connection.view())["sessions"][0]["links"]
        assert link["waits"] is None


async def test_sessions_that_have_ended_do_not_pile_up(broker: Broker) -> None:
    """The connection's writer, which had their bytes, does not keep them either."""
    client = await connect(broker).open(channels=0)
    for _ in range(20):
        await client.call(End, begin(1), attach_sender(0, "q", channel=1), frame(1, End()))
    await settle_down()
    gc.collect()
    (connection,) = broker.connections.values()
    writer = connection.writer
    lanes = [each for each in gc.get_objects() if type(each) is OutputBuffer and each._writer is writer]
    # The connection's own, and those of the last letters written.
    assert len(lanes) <= 4


async def test_attaches_in_one_write_are_shared_out_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = Neighbour()
    counted(monkeypatch, BrokerSession, "_on_attaching", neighbour)
    pairs = 500
    async with running_broker() as broker:
        client = await connect(broker).open()
        async with alongside(neighbour.run):
            await client.send(*[attach_sender(0, "q"), frame(0, Detach(handle=0, closed=True))] * pairs)
            await until_all(neighbour, pairs)
        kinds = [type(each.body) for each in await client.idle()]
        assert kinds.count(Attach) == kinds.count(Detach) == pairs
        # What waited while the session was at work is taken together.
        assert neighbour.most <= READS_MAX * HEAVY_A_TURN


async def test_channels_opened_and_closed_in_one_write_are_shared_out_over_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AMQP 0-9-1: they are on one channel, or on many at once."""
    neighbour = Neighbour()
    counted(monkeypatch, BrokerChannel, "_guarded", neighbour)
    async with running_broker() as broker:
        client = await connect091(broker).open(channels=0)
        close = methods.ChannelClose(200, "", 0, 0)
        async with alongside(neighbour.run):
            await client.send(1, *[methods.ChannelOpen(), close] * 500)
            await until_all(neighbour, 500)
            for number in range(2, 502):
                await client.send(number, methods.ChannelOpen(), close)
            await until_all(neighbour, 1000)
        kinds = [type(got) for _, got in await client.idle()]
        assert (kinds.count(methods.ChannelOpenOk), kinds.count(methods.ChannelCloseOk)) == (1000, 1000)
        assert neighbour.most <= READS_MAX * HEAVY_A_TURN
        await settle_down()
        assert broker.catalog.usage.counts[CHANNELS]["guest"] == 0


async def test_frames_of_one_write_are_also_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding two thousand frames takes as long as processing some hundred of them."""
    neighbour = Neighbour()
    counted(monkeypatch, Connection, "_dispatch", neighbour)
    async with running_broker() as broker:
        client = await connect(broker).open(channels=0)
        async with alongside(neighbour.run):
            await client.send(*[begin(1), frame(1, End())] * 1000)
            await until_all(neighbour, 2000)
        kinds = [type(each.body) for each in await client.idle()]
        assert kinds.count(Begin) == kinds.count(End) == 1000
    assert neighbour.most <= PORTION


async def test_methods_of_one_write_are_also_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = Neighbour()
    counted(monkeypatch, FrameReader091, "_on_method", neighbour)
    async with running_broker() as broker:
        client = await connect091(broker).open(channels=0)
        async with alongside(neighbour.run):
            await client.send(1, *[methods.ChannelOpen(), methods.ChannelClose(200, "", 0, 0)] * 1000)
            await until_all(neighbour, 2000)
    assert neighbour.most <= PORTION


@pytest.fixture
def no_collector() -> Iterator[None]:
    if sys.implementation.name != "cpython":
        pytest.skip("PyPy frees nothing before its collector comes")
    gc.disable()
    yield
    gc.enable()


async def test_sessions_that_are_over_are_freed_without_the_garbage_collector(
    broker: Broker, no_collector: None
) -> None:
    """It would find hundreds together and block the broker: 70 ms of processor time for 450."""
    client = await connect(broker).open(channels=0)
    (connection,) = broker.connections.values()
    await client.submit(begin(1), attach_sender(0, "q", channel=1), attach_receiver(1, "q", channel=1))
    running = connection.parts[1]
    assert isinstance(running, SessionTask)
    service = running.service
    refs = [weakref.ref(each) for each in (service, service.session, service.links)]
    del running, service
    await client.submit(frame(1, End()))
    assert [ref() for ref in refs] == [None, None, None]


async def test_channels_that_are_over_are_freed_without_the_garbage_collector(
    broker: Broker, no_collector: None
) -> None:
    client = await connect091(broker).open(channels=0)
    (connection,) = broker.connections.values()
    await client.submit(
        1, methods.ChannelOpen(), methods.QueueDeclare(queue="q"), methods.BasicConsume(queue="q")
    )
    service = connection.parts[1].service
    assert isinstance(service, BrokerChannel)
    refs = [weakref.ref(each) for each in (service, service.consuming, service.publishing)]
    del service
    await client.submit(1, methods.ChannelClose(200, "", 0, 0))
    assert [ref() for ref in refs] == [None, None, None]


async def test_connections_that_are_over_are_freed_without_the_garbage_collector(
    broker: Broker, no_collector: None
) -> None:
    first = await connect(broker).open()
    second = await connect091(broker).open()
    refs = [weakref.ref(each) for each in broker.connections.values()]
    assert {type(ref()) for ref in refs} == {Connection10, ConnectionTask091}
    await first.send(frame(0, Close()))
    await second.submit(0, methods.ConnectionClose(200, "", 0, 0))
    assert [ref() for ref in refs] == [None, None]


def test_what_is_light_is_given_whole_and_not_copied() -> None:
    """A publisher's or consumer's items are few, because neighbours are joined: nothing is cut."""
    turn = ReadBudget()
    items = [object()] * 10
    assert [part is items for part in turn.portions(items)] == [True]
    assert turn.left > 0


def test_items_are_cut_into_portions_in_order() -> None:
    """Each portion ends the turn, and together the portions are the input."""
    turn = ReadBudget()
    light: list[object] = list(range(3 * PORTION + 1))
    parts = []
    for part in turn.portions(light):
        parts.append(list(part))
        if turn.left <= 0:
            turn.left = PORTION
    assert [number for part in parts for number in part] == light
    assert [len(part) for part in parts] == [PORTION, PORTION, PORTION, 1]


def test_what_makes_or_ends_something_weighs_more() -> None:
    turn = ReadBudget()
    items: list[object] = [Detach(handle=0)] * 40
    parts = []
    for part in turn.portions(items):
        parts.append(len(part))
        if turn.left <= 0:
            turn.left = PORTION
    assert parts == [HEAVY_A_TURN, HEAVY_A_TURN, 40 - 2 * HEAVY_A_TURN]


def test_an_item_heavier_than_what_is_left_of_a_turn_is_given_all_the_same() -> None:
    turn = ReadBudget()
    turn.left -= PORTION - 1
    assert [len(part) for part in turn.portions([End(), End()])] == [1, 1]
