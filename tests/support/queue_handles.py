"""Queue handles of tests: what stands in a catalog where a broker has queues with tasks."""

from __future__ import annotations

from typing import Generic, TypeVar

from amqp10broker.queues import queue_status
from amqp10broker.queues.commands import Command
from amqp10broker.queues.machine import QueueMachine

M = TypeVar("M", bound=QueueMachine)


class FakeHandle:
    """A queue that takes letters and does nothing; its counts are those that a test sets."""

    def __init__(self) -> None:
        self.letters: list[Command] = []
        self.ready = 0
        self.unsettled = 0
        self.counters = queue_status.QueueCounters()
        self.down: str | None = None

    def post(self, command: Command) -> None:
        self.letters.append(command)

    def queue_status(self) -> queue_status.QueueStatus:
        return queue_status.QueueStatus(0, 0, {})

    def progress(self) -> queue_status.QueueProgress:
        return queue_status.UP_TO_DATE

    def figures(self) -> queue_status.QueueStats:
        return queue_status.QueueStats()

    def weight(self) -> queue_status.QueueWeight | None:
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
    def counters(self) -> queue_status.QueueCounters:
        return self.queue.counters

    def queue_status(self) -> queue_status.QueueStatus:
        return self.queue.queue_status()

    def progress(self) -> queue_status.QueueProgress:
        return queue_status.UP_TO_DATE

    def figures(self) -> queue_status.QueueStats:
        return self.queue.figures()

    def weight(self) -> queue_status.QueueWeight | None:
        return self.queue.weight()
