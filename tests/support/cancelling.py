"""Cancellation before any step of a task: the task, or its whole connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.client_connection import ClientConnection


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


def count_tasks(broker: Broker) -> int:
    return len(broker._queues.child_tasks) + len(broker.listener._serving.child_tasks)
