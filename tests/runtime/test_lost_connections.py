"""What becomes of deliveries when link, session, connection or socket end with some in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.errors import AmqpConnectionError
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    SenderSettleMode,
    Source,
    Transfer,
)
from amqp10broker.queues.commands import Deliver
from amqp10broker.runtime.broker import Broker
from tests.support.rawframes import (
    attach_receiver,
    attach_sender,
    body_of,
    credit,
    disposition,
    flow,
    frame,
    pieces,
    transfer,
)
from tests.support.trioclient import Client, connect, pipe_pair, queue_counts, running_broker, settle_down

MESSAGES = 60


async def filled(broker: Any, *, size: int = 4) -> Client:
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.idle()
    await client.send(
        *[
            transfer(0, number, (b"%04d" % number).ljust(size, b"."), settled=True)
            for number in range(MESSAGES)
        ]
    )
    await settle_down()
    assert queue_counts(broker, "q") == (MESSAGES, 0)
    return client


async def numbers_left(client: Client, count: int) -> list[int]:
    """Everything that the queue still has, by a link of its own."""
    await client.send(attach_receiver(7, "q"), credit(7, 1000))
    got = [each for each in await client.idle() if type(each.body) is Transfer]
    numbers = [int(body_of(each.payload)[:4]) for each in got]
    assert len(numbers) == count
    return numbers


def whole(frames: list[Any]) -> list[int]:
    """Numbers of the deliveries that arrived to their last frame."""
    numbers = []
    parts = b""
    for each in frames:
        if type(each.body) is Transfer:
            parts += each.payload
            if not each.body.more:
                numbers.append(int(body_of(parts)[:4]))
                parts = b""
    return numbers


ENDS: dict[str, Callable[[Client], Any]] = {
    "detach": lambda client: client.send(frame(0, Detach(handle=0, closed=True))),
    "detach, not closed": lambda client: client.send(frame(0, Detach(handle=0))),
    "end": lambda client: client.send(frame(0, End())),
    "close": lambda client: client.send(frame(0, Close())),
    "half-close": lambda client: client.stream.send_eof(),
    "lost": lambda client: client.vanish(),
    "lost in the middle of a frame": lambda client: vanish_mid_frame(client),
    "garbage": lambda client: client.send(b"\x00\x00\x00\x03\x02\x00\x00\x00"),
    "window violation": lambda client: client.send(flow(0, next_incoming_id=1_000_000)),
}


async def vanish_mid_frame(client: Client) -> None:
    await client.send(disposition(0, 5)[:-3])
    await client.vanish()


@pytest.mark.parametrize("end", list(ENDS))
async def test_unsettled_deliveries_return_to_their_places(broker: Broker, end: str) -> None:
    """Whichever way it ends, everything unsettled is ready again, once, in the order it was published."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.send(attach_receiver(0, "q"), credit(0, 20))
    await client.take(Transfer, 20)
    await ENDS[end](client)
    await settle_down()
    assert queue_counts(broker, "q") == (MESSAGES, 0)
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


@pytest.mark.parametrize("end", list(ENDS))
async def test_deliveries_kept_by_a_closed_window_return_unmarked(broker: Broker, end: str) -> None:
    """What never left the session goes back as it was: first-acquirer still true."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.call(Attach, flow(0, incoming_window=0), attach_receiver(0, "q"))
    await client.send(credit(0, 20, incoming_window=0))
    await settle_down()
    assert queue_counts(broker, "q") == (MESSAGES - 20, 20)
    await ENDS[end](client)
    await settle_down()
    await publisher.send(attach_receiver(7, "q"), credit(7, 1000))
    got = [each for each in await publisher.idle() if type(each.body) is Transfer]
    assert whole(got) == list(range(MESSAGES))
    assert len({each.payload[: each.payload.rindex(b"\x00\x53\x75")] for each in got}) == 1


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("window", [0, 7])
async def test_settled_consumer_loses_nothing_that_was_not_sent(
    broker: Broker, end: str, window: int
) -> None:
    """The session holds the only copies of a pre-settled link's deliveries: they go back when it ends."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.send(
        flow(0, incoming_window=window), attach_receiver(0, "q", snd_settle_mode=SenderSettleMode.SETTLED)
    )
    await client.until(Attach)
    await client.send(credit(0, 20, incoming_window=window))
    await settle_down()
    assert sum(queue_counts(broker, "q")) == MESSAGES - 20
    got = whole(await client.idle())
    assert got == list(range(window))
    await ENDS[end](client)
    await settle_down()
    assert await numbers_left(publisher, MESSAGES - window) == list(range(window, MESSAGES))


@pytest.mark.parametrize("end", list(ENDS))
async def test_settled_delivery_sent_in_part_is_not_lost(broker: Broker, end: str) -> None:
    """A delivery of several frames whose last was never written goes back to its place."""
    publisher = await filled(broker, size=2_000)
    client = await connect(broker).open(max_frame_size=512)
    await client.send(
        flow(0, incoming_window=3), attach_receiver(0, "q", snd_settle_mode=SenderSettleMode.SETTLED)
    )
    await client.until(Attach)
    await client.send(credit(0, 2, incoming_window=3))
    assert whole(await client.idle()) == []
    await ENDS[end](client)
    await settle_down()
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


async def test_settled_consumer_loses_nothing_when_its_link_ends_and_deliveries_are_on_their_way(
    broker: Broker,
) -> None:
    """Credit and detach in one write: the queue's deliveries meet a link that has gone."""
    publisher = await filled(broker)
    for handle in range(20):
        client = await connect(broker).open()
        await client.send(
            flow(0, incoming_window=0),
            attach_receiver(handle, "q", snd_settle_mode=SenderSettleMode.SETTLED),
            credit(handle, 20, incoming_window=0),
            *([frame(0, Detach(handle=handle, closed=True))] if handle % 3 == 0 else []),
            *([frame(0, End())] if handle % 3 == 1 else []),
        )
        if handle % 3 == 2:
            await client.vanish()
        await settle_down()
        assert queue_counts(broker, "q") == (MESSAGES, 0)
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


@pytest.mark.parametrize("settled", [False, True])
async def test_deliveries_behind_a_letter_that_ends_the_session_are_not_lost(
    broker: Broker, settled: bool
) -> None:
    """A session takes its letters in batches; a fault in one does not lose the deliveries behind it."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    mode = SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED
    await client.call(Attach, flow(0, incoming_window=0), attach_receiver(0, "q", snd_settle_mode=mode))
    task = client.task
    (session,) = task.parts.values()
    (consumer,) = session.service.consumers
    queue = broker.catalog.lookup_vhost("/").find("q").handle.queue
    # The queue's deliveries and a frame that closes the connection, in one batch of letters.
    from amqp10broker.queues.commands import Credit
    from amqp10broker.sessions.messages import Frames

    queue.apply(Credit(consumer.ref, 0, 20, False, 0), 0)
    ((_, effects),) = queue.take_effects().items()
    assert any(type(effect) is Deliver for effect in effects)

    def fail(_items: Any) -> None:
        raise AmqpConnectionError("amqp:internal-error", "on purpose")

    session.service.receive = fail
    session.inbox.put(Frames([]))
    session.reads.add()
    session.inbox.put(effects)
    await settle_down()
    await client.rest()
    await settle_down()
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


async def test_half_closed_client_is_served_until_its_end_of_stream_and_then_left(broker: Broker) -> None:
    """What was sent before the end of the stream has its effect, and the answer may still be read."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"), transfer(0, 0, b"x"), transfer(0, 1, b"y"))
    await client.stream.send_eof()
    await client.rest()
    await settle_down()
    assert not broker.connections
    assert queue_counts(broker, "q") == (2, 0)


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 9, 20, -1])
async def test_socket_lost_in_the_middle_of_a_transfer_publishes_nothing_of_it(
    broker: Broker, cut: int
) -> None:
    """A frame counts when it is whole; those before it count."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.idle()
    await client.send(transfer(0, 0, b"whole"), transfer(0, 1, b"cut off")[:cut])
    await settle_down()
    await client.vanish()
    await settle_down()
    assert not broker.connections
    assert queue_counts(broker, "q") == (1, 0)


async def test_socket_lost_between_frames_of_a_message_publishes_nothing_of_it(broker: Broker) -> None:
    """A delivery counts when its last frame has arrived."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.idle()
    await client.send(*pieces(0, 0, b"x" * 1000, 300)[:-1])
    await settle_down()
    await client.vanish()
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)


async def test_broken_pipe_while_sending_gives_everything_back(broker: Broker) -> None:
    """A reset in the middle of a long send: the writer fails, the sessions give back."""
    publisher = await filled(broker, size=1_000)
    for direct in (False, True):
        client = await connect(broker, pair=partial(pipe_pair, 5_000, direct=direct)).open()
        await client.send(attach_receiver(0, "q"), credit(0, 50))
        await settle_down()
        client.stream.incoming.end(reset=True)
        client.stream.outgoing.end(reset=True)
        await settle_down()
        assert client.task is None
        assert queue_counts(broker, "q") == (MESSAGES, 0)
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


async def test_outcomes_sent_just_before_the_end_have_their_effect() -> None:
    """Dispositions and close in one write: settled messages are gone, the others are back."""
    from amqp10broker.protocols.amqp10.performatives import Accepted

    async with running_broker() as broker:
        publisher = await filled(broker)
        client = await connect(broker).open()
        await client.send(attach_receiver(0, "q"), credit(0, 20))
        await client.take(Transfer, 20)
        await client.send(disposition(0, 9, state=Accepted()), frame(0, Close()))
        await client.rest()
        await settle_down()
        assert queue_counts(broker, "q") == (MESSAGES - 10, 0)
        assert await numbers_left(publisher, MESSAGES - 10) == list(range(10, MESSAGES))


async def test_confirmations_of_a_closing_publisher_come_before_the_end(broker: Broker) -> None:
    """Transfers and end in one write: the messages are queued; what is confirmed is told before end."""
    client = await connect(broker).open()
    await client.send(attach_sender(0, "q"))
    await client.idle()
    await client.send(*[transfer(0, number, b"x") for number in range(10)], frame(0, End()))
    got = await client.idle()
    kinds = [type(each.body) for each in got]
    assert kinds[-1] is End
    assert Disposition not in kinds[kinds.index(End) :]
    assert queue_counts(broker, "q") == (10, 0)


async def test_temporary_queue_and_its_task_go_with_their_link(broker: Broker) -> None:
    """A dynamic source lives as long as its link: afterwards neither name nor task nor message is left."""
    before = len(broker._queues.child_tasks)
    for number in range(10):
        client = await connect(broker).open()
        source = Source(dynamic=True)
        await client.call(Attach, attach_receiver(0, "", source=source))
        assert len(list(broker.catalog)) == 1
        if number % 2:
            await client.send(frame(0, Detach(handle=0, closed=True)))
        else:
            await client.vanish()
        await settle_down()
    assert len(list(broker.catalog)) == 0
    assert len(broker._queues.child_tasks) == before
