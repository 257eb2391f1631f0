"""What goes on at once: a message that is alone, in the turn of its reader; and what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from amqp10broker.protocols.amqp10.performatives import Disposition, Transfer
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.relay import LITTLE_BYTES, TURNS_MAX, Relay
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
    """Count the steps of tasks."""
    found = Steps()
    trio.lowlevel.add_instrument(found)
    try:
        yield found.taken
    finally:
        trio.lowlevel.remove_instrument(found)


async def test_a_message_alone_takes_its_whole_way_in_its_readers_turn(broker: Broker) -> None:
    """Published, confirmed and delivered to another connection: neither session nor queue wakes."""
    pair = partial(pipe_pair, 4_000, direct=True)
    publisher = await connect(broker, pair=pair).open()
    consumer = await connect(broker, pair=pair).open()
    await publisher.send(attach_sender(0, "q"))
    await consumer.send(attach_receiver(0, "q"), credit(0, 10))
    await settle_down()
    with steps() as taken:
        await publisher.send(transfer(0, 0, b"alone"))
        await publisher.until(Disposition)
        await consumer.until(Transfer)
    assert (taken["_run_part"], taken["queue q"]) == (0, 0)


async def test_what_comes_in_bulk_goes_by_tasks(broker: Broker) -> None:
    """One session and one queue work on all of it, in turns of their own."""
    publisher = await connect(broker).open()
    await publisher.send(attach_sender(0, "q"))
    await settle_down()
    with steps() as taken:
        frame = transfer(0, 0, b"x" * 100)
        count = LITTLE_BYTES // len(frame) + 1
        await publisher.send(*[transfer(0, number, b"x" * 100) for number in range(count)])
        await publisher.until(Disposition)
    assert taken["_run_part"] > 0
    assert taken["queue q"] > 0


async def test_with_several_publishers_messages_go_by_tasks(broker: Broker) -> None:
    """So that what they send at once is one batch of the queue."""
    publishers = [await connect(broker).open() for _ in range(3)]
    for each in publishers:
        await each.send(attach_sender(0, "q"))
        await settle_down()
    with steps() as taken:
        for each in publishers:
            await each.send(transfer(0, 0, b"one of three"))
        for each in publishers:
            await each.until(Disposition)
    assert taken["_run_part"] >= 3
    assert taken["queue q"] >= 1


class Owner:
    """A task that notes what it is given, and in which way."""

    def __init__(self, relay: Relay) -> None:
        self.mailbox: Mailbox[int] = Mailbox(relay)
        self.at_once: list[list[int]] = []
        self.woken: list[list[int]] = []
        self.done = True
        self.raises: Exception | None = None
        self.raised: list[Exception] = []
        self.passes_on: list[Owner] = []
        self.mailbox.at_once = self._at_once

    def _at_once(self, letters: list[int]) -> bool:
        self.at_once.append(letters)
        if self.raises is not None:
            raise self.raises
        for other in self.passes_on:
            other.mailbox.put(letters[0])
        return self.done

    async def run(self) -> None:
        while True:
            try:
                self.woken.append(await self.mailbox.take_all())
            except ValueError as error:
                self.raised.append(error)
                self.raises = None


@pytest.fixture
def relay() -> Relay:
    return Relay()


async def test_letters_of_one_turn_are_one_batch(relay: Relay) -> None:
    async with trio.open_nursery() as nursery:
        owner = Owner(relay)
        nursery.start_soon(owner.run)
        await settle_down()
        relay.open = True
        for number in range(3):
            owner.mailbox.put(number)
        relay.carry()
        assert owner.at_once == [[0, 1, 2]]
        owner.mailbox.put(3)  # the relay is closed again
        await settle_down()
        assert owner.woken == [[3]]
        nursery.cancel_scope.cancel()


async def test_one_that_has_not_waited_takes_its_letters_itself(relay: Relay) -> None:
    """It may be in the middle of something; and letters stay in their order."""
    async with trio.open_nursery() as nursery:
        owner = Owner(relay)
        nursery.start_soon(owner.run)
        await settle_down()
        owner.mailbox.put(1)
        relay.open = True
        owner.mailbox.put(2)
        relay.carry()
        assert owner.at_once == []
        await settle_down()
        assert owner.woken == [[1, 2]]
        nursery.cancel_scope.cancel()


async def test_one_that_has_more_to_do_wakes(relay: Relay) -> None:
    async with trio.open_nursery() as nursery:
        owner = Owner(relay)
        owner.done = False
        nursery.start_soon(owner.run)
        await settle_down()
        relay.open = True
        owner.mailbox.put(1)
        relay.carry()
        await settle_down()
        assert (owner.at_once, owner.woken) == ([[1]], [[]])
        nursery.cancel_scope.cancel()


async def test_a_fault_is_the_owners_and_met_once(relay: Relay) -> None:
    """Not that of the reader in whose turn it happened, nor of those who are next."""
    async with trio.open_nursery() as nursery:
        owner, next_one = Owner(relay), Owner(relay)
        fault = owner.raises = ValueError("a fault")
        for each in (owner, next_one):
            nursery.start_soon(each.run)
        await settle_down()
        relay.open = True
        owner.mailbox.put(1)
        next_one.mailbox.put(1)
        relay.carry()
        assert next_one.at_once == [[1]]
        owner.mailbox.put(2)
        await settle_down()
        assert owner.raised == [fault]
        assert owner.woken == [[2]]
        nursery.cancel_scope.cancel()


async def test_one_that_is_cancelled_meanwhile_is_left_alone(relay: Relay) -> None:
    async with trio.open_nursery() as nursery:
        owner = Owner(relay)
        nursery.start_soon(owner.run)
        await settle_down()
        relay.open = True
        owner.mailbox.put(1)
        nursery.cancel_scope.cancel()
        relay.carry()
        assert owner.at_once == []
        assert owner.mailbox.close() == [1]


async def test_a_chain_without_end_goes_on_by_tasks(relay: Relay) -> None:
    """Two that give each other letters do not hold up the reader, nor everybody."""
    async with trio.open_nursery() as nursery:
        one, other = Owner(relay), Owner(relay)
        one.passes_on, other.passes_on = [other], [one]
        for each in (one, other):
            nursery.start_soon(each.run)
        await settle_down()
        relay.open = True
        one.mailbox.put(1)
        relay.carry()
        assert len(one.at_once) + len(other.at_once) == TURNS_MAX
        await settle_down()
        assert len(one.woken) + len(other.woken) == 1
        nursery.cancel_scope.cancel()
