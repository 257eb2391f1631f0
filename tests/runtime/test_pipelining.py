"""Everything in one write, and the order of frames in the answer."""

from __future__ import annotations

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.rawframes import (
    attach_receiver,
    attach_sender,
    begin,
    body_of,
    credit,
    frame,
    login,
    open_frame,
    transfer,
)
from tests.support.trioclient import connect, queue_counts, running_broker, settle_down


async def test_open_begin_attach_and_transfer_in_one_write_are_all_answered(broker: Broker) -> None:
    """A client may send everything before it reads: nothing is lost, and order is kept."""
    client = connect(broker)
    await client.send(
        login(), open_frame(), begin(), attach_sender(0, "q"), transfer(0, 0, b"one"), transfer(0, 1, b"two")
    )
    got = await client.idle()
    kinds = [type(each.body) for each in got]
    assert kinds[2:6] == [performatives.Open, performatives.Begin, performatives.Attach, performatives.Flow]
    dispositions = [each.body for each in got if type(each.body) is performatives.Disposition]
    assert [(each.first, each.last or each.first) for each in dispositions] == [(0, 1)]
    assert queue_counts(broker, "q") == (2, 0)
    await client.send(frame(0, performatives.Close()))
    assert type((await client.rest())[-1].body) is performatives.Close


async def test_flow_and_lost_connection_in_one_write_do_not_double_messages(broker: Broker) -> None:
    """A credit and the end of its session reach the queue together: each message stays in one place."""
    first = await connect(broker).open()
    await first.send(attach_sender(0, "q"), *[transfer(0, each, b"%d" % each) for each in range(5)])
    await first.idle()
    second = connect(broker)
    await second.send(
        login(), open_frame(), begin(), attach_receiver(0, "q"), credit(0, 3), frame(0, performatives.Close())
    )
    await second.rest()
    await settle_down()
    assert queue_counts(broker, "q") == (5, 0)
    await first.send(attach_receiver(1, "q"), credit(1, 100))
    got = [each for each in await first.idle() if each.payload]
    assert [body_of(each.payload) for each in got] == [b"%d" % each for each in range(5)]


async def test_nothing_is_written_behind_the_end_of_a_session(log: LogRecorder) -> None:
    """A run with an immediate outcome for each message violates a window: no frame follows end."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q", target=performatives.Target(address=None)))
        await client.idle()
        broker.set_flow("max_link_credit", 2_000, source="test")
        broker.resource_monitor.set_alarm("memory", on=True)
        await client.idle()
        await client.send(*[transfer(0, number, b"no address") for number in range(500)])
        got = await client.idle()
        kinds = [type(each.body) for each in got]
        assert kinds.count(performatives.End) == 1
        assert kinds[-1] is performatives.End
    assert log.of("error") == []
