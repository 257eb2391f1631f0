"""Everything in one write, and the order of frames in the answer."""

from __future__ import annotations

import pytest
import trio

from amqp10broker.config.records import FaultInjection
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Target,
)
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
    """A client may send everything before it has read anything: nothing is lost, order is kept."""
    client = connect(broker)
    await client.send(
        login(),
        open_frame(),
        begin(),
        attach_sender(0, "q"),
        transfer(0, 0, b"one"),
        transfer(0, 1, b"two"),
    )
    got = await client.idle()
    kinds = [type(each.body) for each in got]
    assert kinds[2:6] == [Open, Begin, Attach, Flow]
    dispositions = [each.body for each in got if type(each.body) is Disposition]
    assert [(each.first, each.last or each.first) for each in dispositions] == [(0, 1)]
    assert queue_counts(broker, "q") == (2, 0)
    await client.send(frame(0, Close()))
    assert type((await client.rest())[-1].body) is Close


async def test_flow_and_lost_connection_in_one_write_do_not_double_messages(broker: Broker) -> None:
    """A credit and the end of its session reach the queue together: each message stays in one place."""
    first = await connect(broker).open()
    await first.send(attach_sender(0, "q"), *[transfer(0, each, b"%d" % each) for each in range(5)])
    await first.idle()
    second = connect(broker)
    await second.send(
        login(), open_frame(), begin(), attach_receiver(0, "q"), credit(0, 3), frame(0, Close())
    )
    await second.rest()
    await settle_down()
    assert queue_counts(broker, "q") == (5, 0)
    await first.send(attach_receiver(1, "q"), credit(1, 100))
    got = [each for each in await first.idle() if each.payload]
    assert [body_of(each.payload) for each in got] == [b"%d" % each for each in range(5)]


GOOD = [transfer(0, number, b"%d" % number) for number in range(3)]
BAD = transfer(0, 3, b"\xde\xad\xbe\xef", raw=True)
OTHER_LAYOUT = transfer(0, 5, b"x", delivery_tag=b"another length")


@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "one write"])
@pytest.mark.parametrize(
    "behind",
    [
        [],
        [transfer(0, 4, b"behind")],
        [transfer(0, 4, b"behind"), OTHER_LAYOUT],
        [transfer(0, 4, b"x", more=True), transfer(0, 9, b"y", more=True)],
        [transfer(0, number, b"beyond the credit") for number in range(4, 60)],
        [transfer(0, 4, b"x", delivery_tag=None)],
        [transfer(0, 3, b"an id in use")],
        [frame(0, Detach(handle=0, closed=True))],
        [frame(0, End())],
    ],
    ids=["nothing", "one", "another layout", "two faults", "no credit", "no tag", "same id", "detach", "end"],
)
async def test_what_stands_before_a_fault_is_kept_and_the_rest_is_not(
    log: LogRecorder, behind: list[bytes], one_by_one: bool
) -> None:
    """The three good messages are queued, the link is detached once, whatever follows in the same read."""
    async with running_broker() as broker:
        broker.set_flow("max_link_credit", 10, source="test")
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        await client.idle()
        if one_by_one:
            for each in (*GOOD, BAD, *behind):
                await client.send(each)
                await settle_down()
        else:
            await client.send(*GOOD, BAD, *behind)
        got = await client.idle()
        detaches = [each.body for each in got if type(each.body) is Detach]
        assert len(detaches) == 1
        assert detaches[0].error.condition == "amqp:decode-error"
        assert queue_counts(broker, "q") == (3, 0)
        assert len(broker.connections) == 1
        ends = [each.body for each in got if type(each.body) is End]
        assert all(each.error is None for each in ends)
    assert log.of("error") == []


@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "one write"])
async def test_messages_before_an_id_in_use_are_kept_and_the_session_ends(one_by_one: bool) -> None:
    """A delivery-id that is still in flight ends the session; those before it have been taken."""
    async with running_broker(
        test_mode=True, fault_injection=FaultInjection(confirm_delay_ms=(("q", 10_000),))
    ) as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        await client.idle()
        frames = [*GOOD, transfer(0, 1, b"again")]
        if one_by_one:
            for each in frames:
                await client.send(each)
                await settle_down()
        else:
            await client.send(*frames)
        end = await client.until(End)
        assert end.error is not None
        await trio.sleep(30)
        assert queue_counts(broker, "q") == (3, 0)


async def test_nothing_is_written_behind_the_end_of_a_session(log: LogRecorder) -> None:
    """A window violated by a run of which each message has an outcome at once: no frame follows end."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q", target=Target(address=None)))
        await client.idle()
        broker.set_flow("max_link_credit", 2_000, source="test")
        broker.resource_monitor.set_alarm("memory", on=True)
        await client.idle()
        await client.send(*[transfer(0, number, b"no address") for number in range(500)])
        got = await client.idle()
        kinds = [type(each.body) for each in got]
        assert kinds.count(End) == 1
        assert kinds[-1] is End
    assert log.of("error") == []
