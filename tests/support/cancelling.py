"""Cancellation before any step of a task: the task, or its whole connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.client_connection import ClientConnection
from tests.support.trioclient import MemoryClient


class Killer(trio.abc.Instrument):
    """Cancels at the n-th step of the tasks chosen."""

    def __init__(self, at: int, chosen: Callable[[Any], bool], cancel: Callable[[], None]) -> None:
        self.at = at
        self.steps = 0
        self.chosen = chosen
        self.cancel = cancel
        self.done = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.done or not self.chosen(task):
            return
        self.steps += 1
        if self.steps == self.at:
            self.done = True
            self.cancel()


def belongs_to(task: trio.lowlevel.Task, connection: ClientConnection) -> bool:
    nurseries = [each for each in (connection._outer, connection._inner) if each is not None]
    return any(task in each.child_tasks or each.parent_task is task for each in nurseries)


def at_work(broker: Broker) -> tuple[int, int]:
    tasks = len(broker._queues.child_tasks) + len(broker.listener._serving.child_tasks)
    return tasks, len(broker.reply_registry)


async def until_killed(
    killer: Killer, act: Callable[[], Awaitable[None]], victim: MemoryClient, before: tuple[int, int]
) -> None:
    """A client acts until it is killed or done; then the tasks are those of before."""
    trio.lowlevel.add_instrument(killer)
    try:
        with trio.move_on_after(20):
            await act()
    finally:
        trio.lowlevel.remove_instrument(killer)
    await victim.lose()
    await trio.sleep(5)
    assert victim.task is None, "the connection's task is left"
    assert at_work(victim.broker) == before, "a task is left, or one who asked queues"
