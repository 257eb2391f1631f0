"""AMQP 1.0: what a client does not finish, or sends though its windows are closed, is bounded in bytes."""

from __future__ import annotations

import pytest

from amqp10broker.amqp10.errors import Condition
from amqp10broker.amqp10.performatives import Begin, Detach, Disposition, End, Flow
from amqp10broker.management.snapshot import document
from amqp10broker.tasks.connection_lifecycle import READ_BYTES_MAX
from amqp10broker.tasks.sessions10 import EXCESS_BYTES_MAX
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, flow, frame, transfer
from tests.support.trioclient import Client, connect, queue_counts, running_broker, settle_down

KIB = 1024


async def begun(client: Client, count: int, size: int, *, channel: int = 0) -> None:
    """Attach so many links, and begin a delivery on each."""
    for handle in range(count):
        await client.send(
            attach_sender(handle, "q", channel=channel),
            transfer(handle, handle, b"x" * size, channel=channel, more=True),
        )
    await settle_down()


async def test_deliveries_that_are_not_whole_are_bounded_over_all_sessions(autojump_clock: object) -> None:
    """The session that would hold too much is ended with the reason; its part is free again."""
    async with running_broker(unfinished_bytes_max=100_000, max_message_size_bytes=20_000) as broker:
        client = await connect(broker).open(channels=2)
        await begun(client, 5, 10_000, channel=0)
        unfinished = client.task._sessions.unfinished
        held = unfinished.held_bytes
        assert 50_000 < held < 51_000
        await begun(client, 4, 10_000, channel=1)
        await client.send(transfer(3, 3, b"y" * 9_000, channel=1, more=True))
        await settle_down()
        assert 99_000 < unfinished.held_bytes <= 100_000
        await client.idle()
        last = transfer(9, 9, b"x" * 10_000, channel=1, more=True)
        await client.send(attach_sender(9, "q", channel=1), last)
        end = await client.until(End)
        assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert "finish or abort some before you begin others" in end.error.description
        assert unfinished.held_bytes == held
        # The other session goes on, and what it finishes is whole.
        await client.send(transfer(0, 0, b"", raw=True))
        assert (await client.until(Disposition)).first == 0
        assert queue_counts(broker, "q") == (1, 0)


@pytest.mark.parametrize("ending", ["finished", "aborted", "detached", "ended"])
async def test_what_is_not_unfinished_any_more_counts_no_more(autojump_clock: object, ending: str) -> None:
    """However a delivery comes to its end."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await begun(client, 1, 10_000)
        unfinished = client.task._sessions.unfinished
        assert unfinished.held_bytes > 10_000
        await client.send(
            {
                "finished": transfer(0, 0, b"", raw=True),
                "aborted": transfer(0, 0, b"", raw=True, aborted=True),
                "detached": frame(0, Detach(handle=0, closed=True)),
                "ended": frame(0, End()),
            }[ending]
        )
        await settle_down()
        assert unfinished.held_bytes == 0


async def test_frames_without_payload_do_not_pile_up(autojump_clock: object) -> None:
    """Each costs something to keep: a delivery of nothing but such frames is ended like a large one."""
    async with running_broker(unfinished_bytes_max=50_000, max_message_size_bytes=20_000) as broker:
        client = await connect(broker).open()
        await begun(client, 1, 10)
        empty = transfer(0, 0, b"", raw=True, more=True)
        await client.send(*[empty] * 2_000)
        end = await client.until(End)
        assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert client.task._sessions.unfinished.held_bytes == 0


async def test_one_message_of_the_largest_size_always_fits(autojump_clock: object) -> None:
    """Whatever the bound for all of them is."""
    async with running_broker(unfinished_bytes_max=1, max_message_size_bytes=50_000) as broker:
        client = await connect(broker).open()
        await begun(client, 1, 20_000)
        rest = transfer(0, 0, b"", raw=True)
        await client.send(rest)
        assert (await client.until(Disposition)).first == 0


async def test_what_comes_during_an_alarm_is_bounded_in_bytes(autojump_clock: object) -> None:
    """Of a window full of large frames four megabytes are taken, and one read; the rest waits."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        await client.idle()
        broker.set_alarm("memory", on=True)
        assert (await client.until(Flow)).incoming_window == 0
        before = client.task.line.bytes_received
        body = b"x" * 100 * KIB
        await client.send(*[transfer(0, number, body) for number in range(100)], flow(echo=True))
        await settle_down()
        taken = client.task.line.bytes_received - before
        assert EXCESS_BYTES_MAX < taken < EXCESS_BYTES_MAX + READ_BYTES_MAX
        assert document(client.task.view())["state"] == "blocked"
        assert queue_counts(broker, "q")[0] == taken // len(transfer(0, 0, body))
        # Others are not concerned.
        consumer = await connect(broker).open()
        await consumer.send(attach_receiver(0, "q"), credit(0, 1))
        await settle_down()
        assert queue_counts(broker, "q")[1] == 1
        broker.set_alarm("memory", on=False)
        await settle_down()
        assert document(client.task.view())["state"] == "opened"
        assert sum(queue_counts(broker, "q")) == 100


async def test_who_sends_less_is_read_during_an_alarm(autojump_clock: object) -> None:
    """Everything but transfers goes on, as in RabbitMQ; each alarm is counted for itself."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        body = b"x" * 100 * KIB
        number = 0
        for _ in range(3):
            await client.idle()
            broker.set_alarm("disk", on=True)
            await client.send(*[transfer(0, number + each, body) for each in range(30)])
            number += 30
            await client.send(begin(1))
            await client.until(Begin)
            await client.send(frame(1, End()))
            await client.until(End)
            broker.set_alarm("disk", on=False)
        assert queue_counts(broker, "q") == (90, 0)
