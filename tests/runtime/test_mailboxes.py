"""Mailboxes under load: how full they became, against the bounds that are documented.

A mailbox's channel has no bound of its own, so the bound of each sender is checked here: the reader's
share (`READS_MAX`), one `WRITER_READY`, one letter a queue and wake, and for queues one letter a
session and wake, all of them within what credit and windows allow to be outstanding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import trio

from amqp10broker.config import FlowSettings
from amqp10broker.protocols.amqp10.performatives import Accepted, Attach, Disposition, Flow, Transfer
from amqp10broker.queues.commands import JOINED_MAX, TICK, Command, Publish, PublisherRef
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.session_task import READS_MAX, Bound, OutputBuffer
from amqp10broker.runtime.mailbox import BatchHandle, Mailbox, send_commands
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, flow, transfer
from tests.support.reply_addresses import new_reply_to
from tests.support.trioclient import Client, alongside, connect, pipe_pair, queue_counts, settle_down

FLOW = FlowSettings()


async def publish(client: Client, handle: int, count: int, *, settled: bool) -> None:
    """Publish as fast as the link's credit allows."""
    sent, limit, confirmed = 0, 0, 0
    while sent < count or (not settled and confirmed < count):
        got = await client.next()
        if type(got.body) is Disposition:
            confirmed += (got.body.first if got.body.last is None else got.body.last) - got.body.first + 1
        elif type(got.body) is Flow and got.body.handle == handle:
            limit = got.body.delivery_count + got.body.link_credit
            block = range(sent, min(limit, count))
            await client.send(*[transfer(handle, number, b"x" * 100, settled=settled) for number in block])
            sent = max(sent, block.stop)


async def consume(client: Client, left: list[int], done: Callable[[], None]) -> None:
    """Settle messages singly and renew the credit; the very last message of the test ends the run."""
    await client.send(attach_receiver(0, "q"), credit(0, 100))
    received = 0
    while True:
        got = await client.next()
        if type(got.body) is not Transfer:
            continue
        received += 1
        left[0] -= 1
        frames = [disposition(got.body.delivery_id, state=Accepted())]
        if received % 50 == 0:
            frames.append(credit(0, 100, delivery_count=received, next_incoming_id=received))
        await client.send(*frames)
        if left[0] == 0:
            await settle_down()
            done()


async def nurse(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Open a nursery for tasks that are cancelled together."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


@pytest.mark.parametrize("settled", [False, True])
async def test_load_keeps_every_mailbox_within_its_bound(broker: Broker, settled: bool) -> None:
    """Eight publishers and four consumers use one queue; each mailbox stays within its senders' bound."""
    publishers = [await connect(broker, pair=partial(pipe_pair, 65_536)).open() for _ in range(8)]
    consumers = [await connect(broker, pair=partial(pipe_pair, 65_536)).open() for _ in range(4)]
    sessions = [session for each in broker.connections.values() for session in each.parts.values()]
    async with trio.open_nursery() as nursery:
        for client in publishers:
            await client.send(attach_sender(0, "q"))
            nursery.start_soon(partial(publish, client, 0, 500, settled=settled))
        consuming = await nursery.start(nurse)
        left = [8 * 500]
        for client in consumers:
            consuming.start_soon(consume, client, left, consuming.cancel_scope.cancel)
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)
    assert len(sessions) == 12
    for session in sessions:
        # Reads, a wake-up of the writer, and answers of the one queue: each takes a wake of it, and
        # a session that has READS_MAX reads waiting asks for no more.
        assert session.inbox.most <= READS_MAX + 1 + READS_MAX
    mailbox = broker.catalog.lookup_vhost("/").find("q").handle._mailbox
    # A letter of each session for each of its wakes; a wake takes all that waits.
    assert mailbox.most <= len(sessions) * (READS_MAX + 1)
    for connection in broker.connections.values():
        assert connection.writer._mailbox.most <= 2 * (READS_MAX + 1)


async def test_publisher_with_a_queue_that_does_not_confirm_is_bounded_by_its_credit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After at most 339 unconfirmed deliveries the link waits, which bounds the mailbox of the queue."""
    client = await connect(broker).open()
    await client.call(Attach, attach_sender(0, "q"))
    await client.idle()
    handle = broker.catalog.lookup_vhost("/").find("q").handle
    # The queue stands still: its letters wait.
    held = handle._mailbox
    taken: list[object] = []
    original = held.put

    def keep(letter: object) -> bool:
        taken.append(letter)
        return True

    saved = Mailbox.put
    monkeypatch.setattr(
        Mailbox, "put", lambda self, letter: keep(letter) if self is held else saved(self, letter)
    )
    try:
        limit = FLOW.max_link_credit
        sent = 0
        while sent < limit:
            await client.send(*[transfer(0, number, b"x") for number in range(sent, min(limit, sent + 10))])
            sent = min(limit, sent + 10)
            for got in await client.idle(0.1):
                if type(got.body) is Flow and got.body.handle == 0:
                    limit = max(limit, got.body.delivery_count + got.body.link_credit)
        assert sent <= 2 * FLOW.max_link_credit - 1
        assert len(taken) <= sent
    finally:
        monkeypatch.setattr(Mailbox, "put", saved)
        for letter in taken:
            original(letter)  # type: ignore[arg-type]
    await settle_down()
    assert queue_counts(broker, "q") == (sent, 0)


async def test_flood_of_link_flows_leaves_one_request_under_way(broker: Broker) -> None:
    """However many flows a consumer sends, its session has one request to the queue at a time."""
    client = await connect(broker).open()
    await client.call(Attach, attach_receiver(0, "q"))
    handle = broker.catalog.lookup_vhost("/").find("q").handle
    for _ in range(20):
        await client.submit(*[credit(0, number % 7) for number in range(500)])
    assert handle._mailbox.most <= 2
    (session,) = client.task.parts.values()
    assert session.inbox.most <= READS_MAX + 2
    assert (await client.call(Flow, credit(0, 3, echo=True))).link_credit == 3


async def test_reader_waits_while_its_session_does_not_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's share of a mailbox is READS_MAX letters; then it stops reading the socket."""
    client = await connect(broker, pair=partial(pipe_pair, 1_000_000)).open()
    (session,) = client.task.parts.values()
    release = trio.Event()

    async def stand_still() -> None:
        await release.wait()

    with monkeypatch.context() as patch:
        patch.setattr(OutputBuffer, "overfull", property(lambda self: not release.is_set()))
        patch.setattr(OutputBuffer, "wait_drained", lambda self: stand_still())
        await client.submit(flow(0))
        for _ in range(READS_MAX + 10):
            await client.submit(flow(0) * 1000)
        assert session.reads.outstanding == READS_MAX
        assert session.inbox.waiting == READS_MAX
        assert len(client.stream.outgoing.data) > 0, "the reader goes on reading"
        release.set()
        await settle_down()
    await settle_down()
    assert len(client.stream.outgoing.data) == 0
    assert session.reads.outstanding == 0


async def test_mailbox_hands_over_everything_once_and_in_order() -> None:
    """take_all returns the present letters; close returns the rest; afterwards take returns nothing."""
    mailbox: Mailbox[int] = Mailbox()
    assert all(mailbox.put(number) for number in range(5))
    assert mailbox.waiting == mailbox.most == 5
    assert await mailbox.take_all() == [0, 1, 2, 3, 4]
    assert mailbox.put(5)
    assert mailbox.close() == [5]
    assert not mailbox.put(6)
    with pytest.raises(trio.ClosedResourceError):
        await mailbox.take_all()


async def test_cancelled_take_loses_no_letter() -> None:
    """A letter put in the tick of a cancellation is taken or left, never lost."""
    for steps in range(6):
        mailbox: Mailbox[int] = Mailbox()
        taken: list[int] = []

        async def take(mailbox: Mailbox[int] = mailbox, taken: list[int] = taken) -> None:
            taken += await mailbox.take_all()

        async with alongside(take):
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            mailbox.put(1)
        assert taken + mailbox.close() == [1]


async def test_bound_wakes_its_waiter_when_there_is_room() -> None:
    """With a bound of two, the third waits until the first is done."""
    bound = Bound(2)
    bound.add()
    bound.add()
    assert bound.full
    with trio.move_on_after(1) as limit:
        await bound.wait()
    assert limit.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bound.wait)
        await settle_down()
        bound.done()
    assert not bound.full


class Box(BatchHandle):
    """Of a queue: the letters it was put."""

    def __init__(self) -> None:
        self.letters: list[list[Command]] = []

    def post_all(self, commands: list[Command]) -> None:
        self.letters.append(commands)


def _publish(publisher: PublisherRef, number: int, *, settled: bool = False) -> Publish:
    return Publish(publisher, [number], [(b"head", str(number).encode())], settled)


def _told(box: Box) -> list[tuple[PublisherRef, list[int], list[bytes], bool] | str]:
    assert len(box.letters) <= 1, "one letter for all of a turn"
    return [
        (each.publisher, list(each.ids), [body for _, body in each.messages], each.settled)
        if isinstance(each, Publish)
        else type(each).__name__
        for letter in box.letters
        for each in letter
    ]


def test_publishes_to_several_queues_in_turns_are_one_for_each_queue() -> None:
    """Clients with several links send them so; they keep their order, and none passes another command."""
    first, second, third = Box(), Box(), Box()
    asker = new_reply_to()
    one, other = asker.publisher(), asker.publisher()
    given = [_publish(one, number) for number in range(6)]
    mail: list[tuple[Any, Command]] = [
        (first, given[0]), (second, given[1]), (first, given[2]), (second, given[3]), (first, given[4]),
        (second, TICK), (second, given[5]), (second, _publish(other, 6)), (second, _publish(one, 7)),
        (third, _publish(one, 8)), (third, _publish(one, 9, settled=True)),
        (third, _publish(one, 10, settled=True)),
    ]  # fmt: skip
    send_commands(mail)
    assert _told(first) == [(one, [0, 2, 4], [b"0", b"2", b"4"], False)]
    assert _told(second) == [
        (one, [1, 3], [b"1", b"3"], False), "Tick", (one, [5], [b"5"], False), (other, [6], [b"6"], False),
        (one, [7], [b"7"], False),
    ]  # fmt: skip
    assert _told(third) == [(one, [8], [b"8"], False), (one, [9, 10], [b"9", b"10"], True)]
    assert [each.ids for each in given] == [[number] for number in range(6)], "what was given is not changed"
    assert all(len(each.messages) == 1 for each in given)


def test_a_joined_publish_has_a_largest_size() -> None:
    box, publisher = Box(), new_reply_to().publisher()
    many = range(JOINED_MAX - 1)
    message = (b"head", b"body")
    send_commands([(cast("Any", box), Publish(publisher, many, [message] * len(many), False))] * 3)
    assert [len(each.ids) for letter in box.letters for each in letter if isinstance(each, Publish)] == [
        2 * JOINED_MAX - 2,
        JOINED_MAX - 1,
    ]
