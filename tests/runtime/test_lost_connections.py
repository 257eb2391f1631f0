"""What becomes of deliveries when link, session, connection or socket end with some in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError
from amqp10broker.queues.commands import Deliver
from amqp10broker.runtime.broker import Broker
from tests.support import rawframes as raw
from tests.support.trioclient import Client, connect, pipe_pair, queue_counts, running_broker, settle_down

MESSAGES = 60


async def filled(broker: Any, *, size: int = 4) -> Client:
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"))
    await client.idle()
    await client.submit(
        *[
            raw.transfer(0, number, (b"%04d" % number).ljust(size, b"."), settled=True)
            for number in range(MESSAGES)
        ]
    )
    assert queue_counts(broker, "q") == (MESSAGES, 0)
    return client


async def numbers_left(client: Client, count: int) -> list[int]:
    await client.send(raw.attach_receiver(7, "q"), raw.credit(7, 1000))
    got = [each for each in await client.idle() if type(each.body) is amqp10.Transfer]
    numbers = [int(raw.body_of(each.payload)[:4]) for each in got]
    assert len(numbers) == count
    return numbers


def whole(frames: list[Any]) -> list[int]:
    numbers = []
    parts = b""
    for each in frames:
        if type(each.body) is amqp10.Transfer:
            parts += each.payload
            if not each.body.more:
                numbers.append(int(raw.body_of(parts)[:4]))
                parts = b""
    return numbers


ENDS: dict[str, Callable[[Client], Any]] = {
    "detach": lambda client: client.send(raw.frame(0, amqp10.Detach(handle=0, closed=True))),
    "detach, not closed": lambda client: client.send(raw.frame(0, amqp10.Detach(handle=0))),
    "end": lambda client: client.send(raw.frame(0, amqp10.End())),
    "close": lambda client: client.send(raw.frame(0, amqp10.Close())),
    "half-close": lambda client: client.stream.send_eof(),
    "lost": lambda client: client.vanish(),
    "lost in the middle of a frame": lambda client: vanish_mid_frame(client),
    "garbage": lambda client: client.send(b"\x00\x00\x00\x03\x02\x00\x00\x00"),
    "window violation": lambda client: client.send(raw.flow(0, next_incoming_id=1_000_000)),
}


async def vanish_mid_frame(client: Client) -> None:
    await client.send(raw.disposition(0, 5)[:-3])
    await client.vanish()


@pytest.mark.parametrize("end", list(ENDS))
async def test_unsettled_deliveries_return_to_their_places(broker: Broker, end: str) -> None:
    """However the connection ends, all unsettled deliveries are ready again, once, in publishing order."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.send(raw.attach_receiver(0, "q"), raw.credit(0, 20))
    await client.take(amqp10.Transfer, 20)
    await ENDS[end](client)
    await settle_down()
    assert queue_counts(broker, "q") == (MESSAGES, 0)
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


@pytest.mark.parametrize("end", list(ENDS))
async def test_deliveries_kept_by_a_closed_window_return_unmarked(broker: Broker, end: str) -> None:
    """A delivery that never left the session is requeued unchanged: first-acquirer is still true."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.call(amqp10.Attach, raw.flow(0, incoming_window=0), raw.attach_receiver(0, "q"))
    await client.submit(raw.credit(0, 20, incoming_window=0))
    assert queue_counts(broker, "q") == (MESSAGES - 20, 20)
    await ENDS[end](client)
    await settle_down()
    await publisher.send(raw.attach_receiver(7, "q"), raw.credit(7, 1000))
    got = [each for each in await publisher.idle() if type(each.body) is amqp10.Transfer]
    assert whole(got) == list(range(MESSAGES))
    assert len({each.payload[: each.payload.rindex(b"\x00\x53\x75")] for each in got}) == 1


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("window", [0, 7])
async def test_settled_consumer_loses_nothing_that_was_not_sent(
    broker: Broker, end: str, window: int
) -> None:
    """The session holds the only copies of a pre-settled link's deliveries: its end requeues them."""
    publisher = await filled(broker)
    client = await connect(broker).open()
    await client.send(
        raw.flow(0, incoming_window=window),
        raw.attach_receiver(0, "q", snd_settle_mode=amqp10.SenderSettleMode.SETTLED),
    )
    await client.until(amqp10.Attach)
    await client.submit(raw.credit(0, 20, incoming_window=window))
    assert sum(queue_counts(broker, "q")) == MESSAGES - 20
    got = whole(await client.idle())
    assert got == list(range(window))
    await ENDS[end](client)
    await settle_down()
    assert await numbers_left(publisher, MESSAGES - window) == list(range(window, MESSAGES))


@pytest.mark.parametrize("end", list(ENDS))
async def test_settled_delivery_sent_in_part_is_not_lost(broker: Broker, end: str) -> None:
    publisher = await filled(broker, size=2_000)
    client = await connect(broker).open(max_frame_size=512)
    await client.send(
        raw.flow(0, incoming_window=3),
        raw.attach_receiver(0, "q", snd_settle_mode=amqp10.SenderSettleMode.SETTLED),
    )
    await client.until(amqp10.Attach)
    await client.send(raw.credit(0, 2, incoming_window=3))
    assert whole(await client.idle()) == []
    await ENDS[end](client)
    await settle_down()
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


async def test_settled_consumer_loses_nothing_when_its_link_ends_and_deliveries_are_on_their_way(
    broker: Broker,
) -> None:
    """Credit and detach come in one write: the queue's deliveries arrive after the link has gone."""
    publisher = await filled(broker)
    for handle in range(20):
        client = await connect(broker).open()
        await client.send(
            raw.flow(0, incoming_window=0),
            raw.attach_receiver(handle, "q", snd_settle_mode=amqp10.SenderSettleMode.SETTLED),
            raw.credit(handle, 20, incoming_window=0),
            *([raw.frame(0, amqp10.Detach(handle=handle, closed=True))] if handle % 3 == 0 else []),
            *([raw.frame(0, amqp10.End())] if handle % 3 == 1 else []),
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
    mode = amqp10.SenderSettleMode.SETTLED if settled else amqp10.SenderSettleMode.UNSETTLED
    await client.call(
        amqp10.Attach, raw.flow(0, incoming_window=0), raw.attach_receiver(0, "q", snd_settle_mode=mode)
    )
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
    """Input before the end of the stream has its effect, and the answer may still be read."""
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"), raw.transfer(0, 0, b"x"), raw.transfer(0, 1, b"y"))
    await client.stream.send_eof()
    await client.rest()
    await settle_down()
    assert not broker.connections
    assert queue_counts(broker, "q") == (2, 0)


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 9, 20, -1])
async def test_socket_lost_in_the_middle_of_a_transfer_publishes_nothing_of_it(
    broker: Broker, cut: int
) -> None:
    """A frame counts when it is whole; the frames before it count."""
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"))
    await client.idle()
    await client.submit(raw.transfer(0, 0, b"whole"), raw.transfer(0, 1, b"cut off")[:cut])
    await client.lose()
    assert not broker.connections
    assert queue_counts(broker, "q") == (1, 0)


async def test_socket_lost_between_frames_of_a_message_publishes_nothing_of_it(broker: Broker) -> None:
    """A delivery counts when its last frame has arrived."""
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"))
    await client.idle()
    await client.submit(*raw.pieces(0, 0, b"x" * 1000, 300)[:-1])
    await client.lose()
    assert queue_counts(broker, "q") == (0, 0)


async def test_broken_pipe_while_sending_gives_everything_back(broker: Broker) -> None:
    """A reset comes in the middle of a long send: the writer fails, the sessions requeue deliveries."""
    publisher = await filled(broker, size=1_000)
    for direct in (False, True):
        client = await connect(broker, pair=partial(pipe_pair, 5_000, direct=direct)).open()
        await client.submit(raw.attach_receiver(0, "q"), raw.credit(0, 50))
        client.stream.incoming.end(reset=True)
        client.stream.outgoing.end(reset=True)
        await settle_down()
        assert client.task is None
        assert queue_counts(broker, "q") == (MESSAGES, 0)
    assert await numbers_left(publisher, MESSAGES) == list(range(MESSAGES))


async def test_outcomes_sent_just_before_the_end_have_their_effect() -> None:
    """Dispositions and close come in one write: settled messages are gone, the others are requeued."""
    from amqp10broker.protocols.amqp10.performatives import Accepted

    async with running_broker() as broker:
        publisher = await filled(broker)
        client = await connect(broker).open()
        await client.send(raw.attach_receiver(0, "q"), raw.credit(0, 20))
        await client.take(amqp10.Transfer, 20)
        await client.send(raw.disposition(0, 9, state=Accepted()), raw.frame(0, amqp10.Close()))
        await client.rest()
        await settle_down()
        assert queue_counts(broker, "q") == (MESSAGES - 10, 0)
        assert await numbers_left(publisher, MESSAGES - 10) == list(range(10, MESSAGES))


async def test_temporary_queue_and_its_task_go_with_their_link(broker: Broker) -> None:
    """A dynamic source lives as long as its link: afterwards no name, task or message is left."""
    before = len(broker._queues.child_tasks)
    for number in range(10):
        client = await connect(broker).open()
        source = amqp10.Source(dynamic=True)
        await client.call(amqp10.Attach, raw.attach_receiver(0, "", source=source))
        assert len(list(broker.catalog)) == 1
        if number % 2:
            await client.submit(raw.frame(0, amqp10.Detach(handle=0, closed=True)))
        else:
            await client.vanish()
        await settle_down()
    assert len(list(broker.catalog)) == 0
    assert len(broker._queues.child_tasks) == before
