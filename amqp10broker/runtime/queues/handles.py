"""How a queue is reached in this room: `BatchHandle`, and the one queue that has no task, `InlineQueue`.

A queue of another node is a `remote_queue.RemoteQueue`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.queues.commands import Command, joined
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import UP_TO_DATE, QueueProgress, QueueStats, QueueStatus, QueueWeight
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry

SENT_A_STEP_MAX: Final = 256
"""Queues to which one step of a session or channel sends. Those of them that wait are woken together, and
others have the process between two steps: a message may go to thousands."""


class BatchHandle(ABC):
    """A `QueueHandle` that takes several commands at once."""

    __slots__ = ()

    @abstractmethod
    def post_all(self, commands: list[Command]) -> None: ...

    def post(self, command: Command) -> None:
        self.post_all([command])


class OwnQueue(BatchHandle):
    """A queue whose state is at this node."""

    __slots__ = ()

    @property
    @abstractmethod
    def queue(self) -> QueueMachine:
        """The state machine. Reading it between two awaits of a single-threaded program is exact."""

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer."""
        return self.queue.ready

    @property
    def unsettled(self) -> int:
        return self.queue.unsettled

    def weight(self) -> QueueWeight | None:
        return self.queue.weight()

    @property
    def down(self) -> str | None:
        """A queue of this node is there as long as the node is."""
        return None


class InlineQueue(OwnQueue):
    """A queue without a task: commands are handled as they are put, and answered at once.

    For queues that hold nothing (direct reply-to), so that they need no turn of their own.
    """

    __slots__ = ("_gone", "_queue", "_reply_registry")

    def __init__(
        self, queue: VolatileQueue, reply_registry: ReplyRegistry, gone: Callable[[], None] = lambda: None
    ) -> None:
        self._reply_registry = reply_registry
        self._queue = queue
        self._gone = gone

    @property
    def queue(self) -> VolatileQueue:
        return self._queue

    def post_all(self, commands: list[Command]) -> None:
        there = not self._queue.deleted
        for command in commands:
            self._queue.apply(command, 0)
        self._reply_registry.post(self._queue.take_effects())
        if there and self._queue.deleted:
            self._gone()

    def queue_status(self) -> QueueStatus:
        return self._queue.queue_status()

    def progress(self) -> QueueProgress:
        return UP_TO_DATE

    @property
    def counters(self) -> QueueCounters:
        return self._queue.counters

    def figures(self) -> QueueStats:
        return self._queue.figures()


UnsentCommands = list[tuple["BatchHandle", list[Command]]]
"""Commands by queue, which later steps send."""


def send_commands(given: list[QueueCommand]) -> None:
    """Send commands to queues, those for the same queue as one, and publishes of one link in it as one.

    A client that sends on several links in turns makes each message a publish of its own.
    """
    rest = begin_to_send(given)
    while rest:
        rest = send_more(rest)


def begin_to_send(given: list[QueueCommand]) -> UnsentCommands:
    """As `send_commands`, to `SENT_A_STEP_MAX` queues; what is left is for `send_more`, in later steps."""
    if len(given) == 1:
        handle, command = given[0]
        handle.post(command)
        return []
    by_queue: dict[BatchHandle, list[Command]] = {}
    for handle, command in given:
        assert isinstance(handle, BatchHandle)
        commands = by_queue.get(handle)
        if commands is None:
            by_queue[handle] = [command]
        else:
            commands.append(command)
    return send_more(list(by_queue.items()))


def send_more(unsent: UnsentCommands) -> UnsentCommands:
    """Send to `SENT_A_STEP_MAX` more queues; return the rest."""
    for queue, commands in unsent[:SENT_A_STEP_MAX]:
        queue.post_all(commands if len(commands) == 1 else joined(commands))
    return unsent[SENT_A_STEP_MAX:]
