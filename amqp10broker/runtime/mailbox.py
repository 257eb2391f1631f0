"""A task's mailbox, taken from in batches, and the steps that tasks run inline.

The mailbox itself has no bound, because a task has one mailbox and many senders, each with a bound of its own
(table in README.md).

A task that waits is woken by the scheduler a turn later, and the message of a client that waits for each
confirm goes through four such turns: reader, session, queue, session. Each costs as much as its work. So a
reader that read little calls `Mailbox.deliver`: the owners that get a message by it run inline, one after the
other and never one within another. Bulk input, and input on many connections, goes by tasks, so that messages
of many senders become one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import trio

T = TypeVar("T")

INLINE_STEPS_MAX: Final = 8
"""In one turn of a reader; later ones run in their own turn."""

LITTLE_BYTES: Final = 2048
"""A read of at most so much is delivered inline."""

OTHERS_MAX: Final = 1
"""Reads of other connections between two of one: with more, tasks make batches of what all of them sent."""


class InlineSteps:
    """The mailboxes of a broker whose owners run inline next. `open`: whether a message for an owner that
    waits has it run inline. `due`: the mailboxes of those owners, each once. `reads`: how many reads the
    connections of the broker have handled.
    """

    __slots__ = ("due", "open", "reads")

    def __init__(self) -> None:
        self.open = False
        self.reads = 0
        self.due: list[Mailbox[Any]] = []

    def run(self) -> None:
        """Run the owners that are due, and those that become due by it; then close."""
        try:
            for steps, mailbox in enumerate(self.due):  # it grows meanwhile
                mailbox._due = False
                step = mailbox._step
                if mailbox._owner is None or step is None:
                    continue  # it was cancelled meanwhile, and takes its messages itself
                done = False
                if steps < INLINE_STEPS_MAX:
                    messages, mailbox._messages = mailbox._messages, []
                    try:
                        done = step(messages)
                    except Exception as error:  # the owner's, in whose task it is raised
                        mailbox._error = error
                if not done and mailbox._owner is not None:  # it needs its task
                    trio.lowlevel.reschedule(mailbox._owner)
                    mailbox._owner = None
        finally:
            self.open = False
            self.due.clear()


class Mailbox(Generic[T]):
    """Messages for one task: a list, and the task that waits for it. A memory channel of Trio does more, and
    costs more. `most`: the largest number of messages that ever waited; tests compare it with the table.
    """

    __slots__ = ("_due", "_error", "_inline", "_messages", "_owner", "_step", "closed", "most")

    def __init__(self, inline: InlineSteps | None = None) -> None:
        """Create an empty mailbox. `inline`: of the broker, if the owner may run inline."""
        self._step: Callable[[list[T]], bool] | None = None
        self._inline = inline
        self._due = False
        self._error: Exception | None = None
        self._messages: list[T] = []
        self._owner: trio.lowlevel.Task | None = None
        """The task, while it waits."""
        self.most = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        return len(self._messages)

    def put(self, message: T) -> bool:
        """Add a message, never waiting; False when the mailbox is closed."""
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
        """Add a message as `put`, and run inline its owner and those that get messages by that."""
        inline = self._inline
        assert inline is not None
        inline.open = True
        taken = self.put(message)
        inline.run()
        return taken

    async def take_all(self, step: Callable[[list[T]], bool] | None = None) -> list[T]:
        """Wait for a message, then take all that are there; none when cancelled. `step`: handles messages
        inline while the owner waits; it returns False when the owner has to do something that needs its task:
        then this returns, perhaps without messages. None: the owner never runs inline. Raises
        `trio.ClosedResourceError` if it is closed.
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
