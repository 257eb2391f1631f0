"""Which messages are handled inline, in the turn of their reader, and which are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from amqp10broker.protocols.amqp10.performatives import Disposition, Transfer
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.mailbox import INLINE_STEPS_MAX, LITTLE_BYTES, InlineSteps, Mailbox
from tests.support.rawframes import attach_receiver, attach_sender, credit, transfer
from tests.support.trioclient import connect, pipe_pair, settle_down


class Steps(trio.abc.Instrument):
    """How often tasks took a step, by name."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken[task.name.rpartition(".")[2]] += 1


@contextmanager
def steps() -> Iterator[Counter[str]]:
    found = Steps()
    trio.lowlevel.add_instrument(found)
    try:
        yield found.taken
    finally:
        trio.lowlevel.remove_instrument(found)


async def test_a_message_alone_takes_its_whole_way_in_its_readers_turn(broker: Broker) -> None:
    """It is published, confirmed and delivered to another connection: neither session nor queue wakes."""
    pair = partial(pipe_pair, 4_000, direct=True)
    publisher = await connect(broker, pair=pair).open()
    consumer = await connect(broker, pair=pair).open()
    await publisher.send(attach_sender(0, "q"))
    await consumer.submit(attach_receiver(0, "q"), credit(0, 10))
    with steps() as taken:
        await publisher.call(Disposition, transfer(0, 0, b"alone"))
        await consumer.until(Transfer)
    assert (taken["_run_part"], taken["queue q"]) == (0, 0)


async def test_what_comes_in_bulk_goes_by_tasks(broker: Broker) -> None:
    """One session task and one queue task process it, in turns of their own."""
    publisher = await connect(broker).open()
    await publisher.submit(attach_sender(0, "q"))
    with steps() as taken:
        frame = transfer(0, 0, b"x" * 100)
        count = LITTLE_BYTES // len(frame) + 1
        await publisher.call(Disposition, *[transfer(0, number, b"x" * 100) for number in range(count)])
    assert taken["_run_part"] > 0
    assert taken["queue q"] > 0


async def test_with_several_publishers_messages_go_by_tasks(broker: Broker) -> None:
    """So the messages that they send at once are one batch of the queue."""
    publishers = [await connect(broker).open() for _ in range(3)]
    for each in publishers:
        await each.submit(attach_sender(0, "q"))
    with steps() as taken:
        for each in publishers:
            await each.send(transfer(0, 0, b"one of three"))
        for each in publishers:
            await each.until(Disposition)
    assert taken["_run_part"] >= 3
    assert taken["queue q"] >= 1


class Owner:
    """A task that notes what it is given, and in which way."""

    def __init__(self, inline: InlineSteps) -> None:
        self.mailbox: Mailbox[int] = Mailbox(inline)
        self.inline: list[list[int]] = []
        self.woken: list[list[int]] = []
        self.done = True
        self.raises: Exception | None = None
        self.raised: list[Exception] = []
        self.passes_on: list[Owner] = []

    def _step(self, messages: list[int]) -> bool:
        self.inline.append(messages)
        if self.raises is not None:
            raise self.raises
        for other in self.passes_on:
            other.mailbox.put(messages[0])
        return self.done

    async def run(self) -> None:
        while True:
            try:
                self.woken.append(await self.mailbox.take_all(self._step))
            except ValueError as error:
                self.raised.append(error)
                self.raises = None


@pytest.fixture
def inline() -> InlineSteps:
    return InlineSteps()


async def waiting(nursery: trio.Nursery, *owners: Owner) -> None:
    for owner in owners:
        nursery.start_soon(owner.run)
    await settle_down()


async def test_letters_of_one_turn_are_one_batch(nursery: trio.Nursery, inline: InlineSteps) -> None:
    owner = Owner(inline)
    await waiting(nursery, owner)
    inline.open = True
    for number in range(3):
        owner.mailbox.put(number)
    inline.run()
    assert owner.inline == [[0, 1, 2]]
    owner.mailbox.put(3)  # inline steps are closed again
    await settle_down()
    assert owner.woken == [[3]]


async def test_one_that_has_not_waited_takes_its_letters_itself(
    nursery: trio.Nursery, inline: InlineSteps
) -> None:
    """The owner may be in the middle of a step, and letters keep their order."""
    owner = Owner(inline)
    await waiting(nursery, owner)
    owner.mailbox.put(1)
    inline.open = True
    owner.mailbox.put(2)
    inline.run()
    assert owner.inline == []
    await settle_down()
    assert owner.woken == [[1, 2]]


async def test_one_that_has_more_to_do_wakes(nursery: trio.Nursery, inline: InlineSteps) -> None:
    owner = Owner(inline)
    owner.done = False
    await waiting(nursery, owner)
    inline.open = True
    owner.mailbox.put(1)
    inline.run()
    await settle_down()
    assert (owner.inline, owner.woken) == ([[1]], [[]])


async def test_a_fault_is_the_owners_and_met_once(nursery: trio.Nursery, inline: InlineSteps) -> None:
    """It ends neither the reader in whose turn it happened nor the next owners."""
    owner, next_one = Owner(inline), Owner(inline)
    fault = owner.raises = ValueError("a fault")
    await waiting(nursery, owner, next_one)
    inline.open = True
    owner.mailbox.put(1)
    next_one.mailbox.put(1)
    inline.run()
    assert next_one.inline == [[1]]
    owner.mailbox.put(2)
    await settle_down()
    assert owner.raised == [fault]
    assert owner.woken == [[2]]


async def test_one_that_is_cancelled_meanwhile_is_left_alone(inline: InlineSteps) -> None:
    async with trio.open_nursery() as nursery:
        owner = Owner(inline)
        await waiting(nursery, owner)
        inline.open = True
        owner.mailbox.put(1)
        nursery.cancel_scope.cancel()
        inline.run()
        assert owner.inline == []
        assert owner.mailbox.close() == [1]


async def test_a_chain_without_end_goes_on_by_tasks(nursery: trio.Nursery, inline: InlineSteps) -> None:
    """Two owners that send each other letters do not hold up the reader or other tasks."""
    one, other = Owner(inline), Owner(inline)
    one.passes_on, other.passes_on = [other], [one]
    await waiting(nursery, one, other)
    inline.open = True
    one.mailbox.put(1)
    inline.run()
    assert len(one.inline) + len(other.inline) == INLINE_STEPS_MAX
    await settle_down()
    assert len(one.woken) + len(other.woken) == 1
