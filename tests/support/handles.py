"""Queue handles of tests: what stands in a catalog where a broker has queues with tasks."""

from __future__ import annotations

from typing import Generic, TypeVar

from amqp10broker.queues.commands import Command
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.figures import QueueFigures, QueueWeight
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.outlook import UP_TO_DATE, Outlook, Progress

M = TypeVar("M", bound=QueueMachine)


class IdleHandle:
    """A queue that takes letters and does nothing.

    Attributes:
        letters: what it was told.
        ready: messages, as it says.
        unsettled: likewise.
    """

    def __init__(self) -> None:
        self.letters: list[Command] = []
        self.ready = 0
        self.unsettled = 0
        self.counters = QueueCounters()
        self.down: str | None = None

    def post(self, command: Command) -> None:
        """Keep the letter."""
        self.letters.append(command)

    def outlook(self) -> Outlook:
        """Nothing is in it."""
        return Outlook(0, 0, {})

    def progress(self) -> Progress:
        """It has nothing to do."""
        return UP_TO_DATE

    def figures(self) -> QueueFigures:
        """Nothing is in it."""
        return QueueFigures()

    def weight(self) -> QueueWeight | None:
        """Nothing is known of it."""
        return None


class MachineHandle(Generic[M]):
    """All of a queue's handle but where its letters go.

    Attributes:
        queue: the state machine.
    """

    def __init__(self, queue: M) -> None:
        self.queue = queue
        self.down: str | None = None

    @property
    def ready(self) -> int:
        """See `QueueHandle`."""
        return self.queue.ready

    @property
    def unsettled(self) -> int:
        """See `QueueHandle`."""
        return self.queue.unsettled

    @property
    def counters(self) -> QueueCounters:
        """See `QueueHandle`."""
        return self.queue.counters

    def outlook(self) -> Outlook:
        """See `QueueHandle`."""
        return self.queue.outlook()

    def progress(self) -> Progress:
        """Nothing keeps it."""
        return UP_TO_DATE

    def figures(self) -> QueueFigures:
        """See `QueueHandle`."""
        return self.queue.figures()

    def weight(self) -> QueueWeight | None:
        """See `QueueHandle`."""
        return self.queue.weight()
