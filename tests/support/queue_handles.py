"""Queue handles of tests, for catalogs whose queues have no tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.queues import queue_status
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import Command, Effect, PeerId
from amqp10broker.queues.machine import QueueMachine

M = TypeVar("M", bound=QueueMachine)


class FakeHandle:
    """A queue that collects its commands and does nothing; the test sets its counts."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.ready = 0
        self.unsettled = 0
        self.counters = queue_status.QueueCounters()
        self.down: str | None = None

    def post(self, command: Command) -> None:
        self.commands.append(command)

    def queue_status(self) -> queue_status.QueueStatus:
        return queue_status.QueueStatus(0, 0, {})

    def progress(self) -> queue_status.QueueProgress:
        return queue_status.UP_TO_DATE

    def figures(self) -> queue_status.QueueStats:
        return queue_status.QueueStats()

    def weight(self) -> queue_status.QueueWeight | None:
        return None


class MachineHandle(Generic[M]):
    """The handle of a state machine, without `post`."""

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


class WaitingQueue(MachineHandle[ClassicQueue]):
    """A classic queue whose commands wait until the test calls `work`."""

    def __init__(
        self, spec: QueueSpec, on_deleted: Callable[[WaitingQueue], None] = lambda queue: None
    ) -> None:
        super().__init__(
            ClassicQueue(
                spec.name, durable=spec.durable, auto_delete=spec.auto_delete, settings=spec.settings
            )
        )
        self.spec = spec
        self.on_deleted = on_deleted
        self.commands: deque[Command] = deque()

    def post(self, command: Command) -> None:
        self.commands.append(command)

    def work(self, count: int = 1_000_000) -> dict[PeerId, list[Effect]]:
        deleted = self.queue.deleted
        for _ in range(min(count, len(self.commands))):
            self.queue.apply(self.commands.popleft(), 0)
        if self.queue.deleted and not deleted:
            self.on_deleted(self)
        return self.queue.take_effects()


class QueueHost:
    """Makes a `WaitingQueue` of each queue that a catalog declares."""

    def __init__(self) -> None:
        self.queues: dict[str, WaitingQueue] = {}
        self.on_deleted: Callable[[WaitingQueue], None] = lambda queue: None

    def start_queue(self, spec: QueueSpec) -> WaitingQueue:
        self.queues[spec.name] = queue = WaitingQueue(spec, lambda deleted: self.on_deleted(deleted))
        return queue
