"""Mailboxes of tasks, emptied in batches; the handles of queues and the registry of reply addresses, which
put messages into them; and the steps that tasks run inline.

The mailbox itself has no bound, because a task has one mailbox and many senders, each with a bound of its own
(table in README.md).

The scheduler resumes a waiting task one iteration later, and the message of a client that waits for each
confirm passes four such iterations: reader, session, queue, session. Each costs as much as the task's work.
So a reader that has read little calls `Mailbox.deliver`: the owners that get a message by it run inline, one
after the other and never one within another. Bulk input, and input on many connections, is handled by tasks,
so that messages of many senders become one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, Generic, TypeVar

import trio

from amqp10broker.metadata.plan import Decided
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
from amqp10broker.sessions.amqp10.resumable_links import ResumableLink

T = TypeVar("T")

INLINE_STEPS_MAX: Final = 8
"""The number of inline steps for one delivery of a reader; later ones run in their own tasks."""

LITTLE_BYTES: Final = 2048
"""A read of at most so many bytes is delivered inline."""

OTHERS_MAX: Final = 1
"""The reads of other connections between two of one. With more, tasks make batches of all their input."""


class InlineSteps:
    """The mailboxes of a broker with owners that run inline next. `open`: whether a message for a waiting
    owner runs it inline. `due`: the mailboxes of those owners, each once. `reads`: the number of reads that
    the connections of the broker have handled.
    """

    __slots__ = ("due", "open", "reads")

    def __init__(self) -> None:
        self.open = False
        self.reads = 0
        self.due: list[Mailbox[Any]] = []

    def run(self) -> None:
        """Run the owners that are due, and those that become due by that; then close."""
        try:
            for steps, mailbox in enumerate(self.due):  # it grows meanwhile
                mailbox._due = False
                step = mailbox._step
                if mailbox._owner is None or step is None:
                    continue  # the task was cancelled meanwhile, and takes its messages itself
                done = False
                if steps < INLINE_STEPS_MAX:
                    messages, mailbox._messages = mailbox._messages, []
                    try:
                        done = step(messages)
                    except Exception as error:  # an error of the owner, which its task raises
                        mailbox._error = error
                if not done and mailbox._owner is not None:  # it needs its task
                    trio.lowlevel.reschedule(mailbox._owner)
                    mailbox._owner = None
        finally:
            self.open = False
            self.due.clear()


class Mailbox(Generic[T]):
    """Messages for one task: a list, and the task that waits for it. A memory channel of Trio does more, and
    takes longer. `most`: the largest number of messages that ever waited; tests compare it with the table.
    """

    __slots__ = ("_due", "_error", "_inline", "_messages", "_owner", "_step", "closed", "most")

    def __init__(self, inline: InlineSteps | None = None) -> None:
        """Create an empty mailbox. `inline`: the broker's, if the owner may run inline."""
        self._step: Callable[[list[T]], bool] | None = None
        self._inline = inline
        self._due = False
        self._error: Exception | None = None
        self._messages: list[T] = []
        self._owner: trio.lowlevel.Task | None = None
        """The owner's task, while it waits."""
        self.most = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        return len(self._messages)

    def put(self, message: T) -> bool:
        """Add a message without waiting; return False if the mailbox is closed."""
        if self.closed:
            return False
        messages = self._messages
        messages.append(message)
        if len(messages) > self.most:
            self.most = len(messages)
        if self._owner is not None:
            inline = self._inline
            if inline is not None and inline.open and self._step is not None:
                if not self._due:
                    self._due = True
                    inline.due.append(self)
            else:
                trio.lowlevel.reschedule(self._owner)
                self._owner = None
        return True

    def deliver(self, message: T) -> bool:
        """Add a message as `put`, and run its owner inline, and those that get messages by that."""
        inline = self._inline
        assert inline is not None
        inline.open = True
        taken = self.put(message)
        inline.run()
        return taken

    async def take_all(self, step: Callable[[list[T]], bool] | None = None) -> list[T]:
        """Wait for a message, then take all; none when cancelled.

        `step`: handles messages inline while the owner waits. It returns False when the owner has work that
        needs its task: then this returns, perhaps without messages. None: the owner never runs inline. Raises
        `trio.ClosedResourceError` if the mailbox is closed.
        """
        if self.closed:
            raise trio.ClosedResourceError
        if self._messages:
            await trio.lowlevel.checkpoint()
        else:
            self._step = step
            self._owner = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            error, self._error = self._error, None
            if error is not None:
                raise error
        return self.take_now()

    def take_now(self) -> list[T]:
        """Take all messages without waiting."""
        messages, self._messages = self._messages, []
        return messages

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._owner = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> list[T]:
        """Refuse further messages, and return those that were not taken."""
        self.closed = True
        self._step = None
        return self.take_now()


SENT_A_STEP_MAX: Final = 256
"""The number of queues to which one step of a session or channel sends; other tasks run between two steps. A
message may be routed to thousands of queues.
"""


class BatchHandle(ABC):
    @abstractmethod
    def post_all(self, commands: list[Command]) -> None: ...

    def post(self, command: Command) -> None:
        self.post_all([command])


class OwnQueue(BatchHandle):
    down: str | None = None
    """A queue of this node is available as long as the node is."""

    @property
    @abstractmethod
    def queue(self) -> QueueMachine:
        """The state machine. It may be read between two awaits of a single-threaded program."""

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
    """A queue without a task: commands are handled as they are put, and answered at once. It is for queues
    that store nothing (direct reply-to).
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
    """Send commands to queues. Those for the same queue are joined, and so are publishes of one link: a
    client that sends on several links in rotation makes each message a publish of its own.
    """
    rest = begin_to_send(given)
    while rest:
        rest = send_more(rest)


def begin_to_send(given: list[QueueCommand]) -> UnsentCommands:
    """Send as `send_commands`, to `SENT_A_STEP_MAX` queues. The rest is for `send_more`, in later steps."""
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
"""The receiver of queues' answers, by `put`."""


class ReplyRegistry:
    """The sessions, channels and others that may send requests to queues. `inline`: runs the receivers of
    messages inline.
    """

    def __init__(self, *, node: int = 0, incarnation: int = 1) -> None:
        """Create a registry. `incarnation`: the number of the node's start, from 1."""
        self.node = node
        self.incarnation = incarnation
        self._sessions = count(1)
        self._boxes: dict[PeerId, EffectBox] = {}
        self.inline = InlineSteps()

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, label: str, box: EffectBox | None = None) -> ReplyTo:
        """Register a sender. `box`: the receiver of the answers; None: they are dropped."""
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
            box.put(decided)  # a sender of requests takes it

    def is_open(self, peer: PeerId) -> bool:
        return peer in self._boxes

    def post(self, effects: Mapping[PeerId, list[Effect]]) -> None:
        """Put effects into the mailboxes of their receivers. Those of a removed receiver are dropped: its
        `Unsubscribe`, with the count of seen deliveries, takes back the rest.
        """
        boxes = self._boxes
        for reply_to, batch in effects.items():
            box = boxes.get(reply_to)
            if box is not None:
                box.put(batch)
