"""Queue handles of tests: what stands in a catalog where a broker has queues with tasks."""

from __future__ import annotations

from typing import Generic, TypeVar

from amqp10broker.queues.commands import Command
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import (
    UP_TO_DATE,
    QueueCounters,
    QueueProgress,
    QueueStats,
    QueueStatus,
    QueueWeight,
)

M = TypeVar("M", bound=QueueMachine)


class IdleHandle:
    """A queue that takes letters and does nothing; its counts are those that a test sets."""

    def __init__(self) -> None:
        self.letters: list[Command] = []
        self.ready = 0
        self.unsettled = 0
        self.counters = QueueCounters()
        self.down: str | None = None

    def post(self, command: Command) -> None:
        self.letters.append(command)

    def queue_status(self) -> QueueStatus:
        return QueueStatus(0, 0, {})

    def progress(self) -> QueueProgress:
        return UP_TO_DATE

    def figures(self) -> QueueStats:
        return QueueStats()

    def weight(self) -> QueueWeight | None:
        return None


class MachineHandle(Generic[M]):
    """All of a queue's handle but where its letters go."""

    def __init__(self, queue: M) -> None:
        self.queue = queue
        self.down: str | None = None

    @property
    def ready(self) -> int:
        return self.queue.ready

    @property
    def unsettled(self) -> int:
        return self.queue.unsettled

    @property
    def counters(self) -> QueueCounters:
        return self.queue.counters

    def queue_status(self) -> QueueStatus:
        return self.queue.queue_status()

    def progress(self) -> QueueProgress:
        return UP_TO_DATE

    def figures(self) -> QueueStats:
        return self.queue.figures()

    def weight(self) -> QueueWeight | None:
        return self.queue.weight()
