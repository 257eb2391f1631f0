"""How a queue is reached in this room: `BatchHandle`, and the one queue that has no task, `InlineQueue`.

A queue of another node is a `remote_queue.RemoteQueue`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

from amqp10broker.metadata.catalog import Decided
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.queues.commands import Command, Effect, PeerId, ReplyTo, joined
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import (
    UP_TO_DATE,
    QueueCounters,
    QueueProgress,
    QueueStats,
    QueueStatus,
    QueueWeight,
)
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.runtime.mailbox import InlineSteps, Mailbox
from amqp10broker.sessions.amqp10.resumable_links import ResumableLink

SENT_A_STEP_MAX: Final = 256
"""Queues to which one step of a session or channel sends. Those of them that wait are woken together, and
others have the process between two steps: a message may go to thousands."""


class BatchHandle(ABC):
    @abstractmethod
    def post_all(self, commands: list[Command]) -> None: ...

    def post(self, command: Command) -> None:
        self.post_all([command])


class OwnQueue(BatchHandle):
    down: str | None = None
    """A queue of this node is there as long as the node is."""

    @property
    @abstractmethod
    def queue(self) -> QueueMachine:
        """The state machine. Reading it between two awaits of a single-threaded program is exact."""

    @property
    def ready(self) -> int:
        return self.queue.ready

    @property
    def unsettled(self) -> int:
        return self.queue.unsettled

    @property
    def counters(self) -> QueueCounters:
        return self.queue.counters

    def figures(self) -> QueueStats:
        return self.queue.figures()

    def weight(self) -> QueueWeight | None:
        return self.queue.weight()


class InlineQueue(OwnQueue):
    """A queue without a task: commands are handled as they are put, and answered at once. For queues that
    hold nothing (direct reply-to), so that they need no turn of their own.
    """

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


UnsentCommands = list[tuple["BatchHandle", list[Command]]]
"""Commands by queue, which later steps send."""


def send_commands(given: list[QueueCommand]) -> None:
    """Send commands to queues, those for the same queue as one, and publishes of one link in it as one. A
    client that sends on several links in turns makes each message a publish of its own.
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
    for queue, commands in unsent[:SENT_A_STEP_MAX]:
        queue.post_all(commands if len(commands) == 1 else joined(commands))
    return unsent[SENT_A_STEP_MAX:]


EffectBox = Mailbox[Any] | ResumableLink
"""What takes the answers of queues, by `put`."""


class ReplyRegistry:
    """The sessions, channels and others that may ask queues, from `open` to `close`. `inline`:
    by which messages to them and to queues are handled inline.
    """

    def __init__(self, *, node: int = 0, incarnation: int = 1) -> None:
        """Start without senders. `incarnation`: which of its starts this is, from 1."""
        self.node = node
        self.incarnation = incarnation
        self._sessions = count(1)
        self._boxes: dict[PeerId, EffectBox] = {}
        self.inline = InlineSteps()

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, label: str, box: EffectBox | None = None) -> ReplyTo:
        """Register a sender. `box`: where the answers go; None: answers are dropped."""
        reply_to = ReplyTo(PeerId(self.node, self.incarnation, next(self._sessions)), label)
        if box is not None:
            self._boxes[reply_to.id] = box
        return reply_to

    def close(self, reply_to: ReplyTo) -> None:
        self._boxes.pop(reply_to.id, None)

    def tell(self, decided: Decided) -> None:
        """Put an answer into the sender's mailbox; drop it if the sender was removed."""
        box: Any = self._boxes.get(decided.ref.reply_to)
        if box is not None:
            box.put(decided)  # one that has requests decided takes it

    def is_open(self, peer: PeerId) -> bool:
        return peer in self._boxes

    def post(self, effects: Mapping[PeerId, list[Effect]]) -> None:
        """Put effects into the mailboxes of their receivers. A removed receiver takes nothing: its
        `Unsubscribe`, with the count of seen deliveries, takes back the rest.
        """
        boxes = self._boxes
        for reply_to, batch in effects.items():
            box = boxes.get(reply_to)
            if box is not None:
                box.put(batch)
