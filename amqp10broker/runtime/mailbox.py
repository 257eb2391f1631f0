"""A task's mailbox, taken from in batches.

The mailbox itself has no bound, because a task has one mailbox and many senders, each with a bound of its
own. Where the protocol gives no bound (credit, windows), a counter at the sender's end does: `Bound` for the
reader, the lane of `writer.py` for sessions (table in README.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from amqp10broker.runtime.queues.relay import Relay

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Letters for one task.

    A list, and the task that waits for it. A memory channel of Trio does more, for many tasks and letter by
    letter, and costs more.

    Attributes:
        at_once: carries out letters for the owner while it waits, see `relay`; False: it is to wake, and has
            something to do that needs its task. None: it always does its work itself.
        most: the largest number of letters that ever waited; tests hold it against the table.
    """

    __slots__ = ("_due", "_error", "_letters", "_owner", "_relay", "at_once", "closed", "most")

    def __init__(self, relay: Relay | None = None) -> None:
        """Make one that is empty. `relay`: of the broker, if the owner's work may be done at once."""
        self.at_once: Callable[[list[T]], bool] | None = None
        self._relay = relay
        self._due = False
        self._error: Exception | None = None
        self._letters: list[T] = []
        self._owner: trio.lowlevel.Task | None = None
        """The task, while it waits."""
        self.most = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        return len(self._letters)

    def put(self, letter: T) -> bool:
        if self.closed:
            return False
        letters = self._letters
        letters.append(letter)
        if len(letters) > self.most:
            self.most = len(letters)
        if self._owner is not None:
            relay = self._relay
            if relay is not None and relay.open and self.at_once is not None:
                if not self._due:
                    self._due = True
                    relay.add(self)
            else:
                trio.lowlevel.reschedule(self._owner)
                self._owner = None
        return True

    def wake(self) -> None:
        self._due = False
        if self._owner is not None:
            trio.lowlevel.reschedule(self._owner)
            self._owner = None

    def work(self) -> None:
        self._due = False
        if self._owner is None or self.at_once is None:
            return  # it was cancelled meanwhile: what is here is its affair
        letters, self._letters = self._letters, []
        try:
            done = self.at_once(letters)
        except Exception as error:  # the owner's, in whose task it is raised
            self._error = error
            done = False
        if not done:
            self.wake()

    async def take_all(self) -> list[T]:
        """Wait for a letter, then take all that are there. Cancelled, it takes none.

        Raises:
            trio.ClosedResourceError: it is closed.
        """
        if self.closed:
            raise trio.ClosedResourceError
        if self._letters:
            await trio.lowlevel.checkpoint()
        else:
            self._owner = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            error, self._error = self._error, None
            if error is not None:
                raise error
        letters, self._letters = self._letters, []
        return letters

    def take_now(self) -> list[T]:
        """Take all messages without waiting, for a caller that works for the owner between its awaits."""
        letters, self._letters = self._letters, []
        return letters

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._owner = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> list[T]:
        """Refuse further messages, and return those that were not taken."""
        self.closed = True
        self.at_once = None
        left, self._letters = self._letters, []
        return left


class Bound:
    """One sender's share of a mailbox: waits when too many of its letters are not worked off."""

    __slots__ = ("_freed", "_limit", "outstanding")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._freed: trio.Event | None = None
        self.outstanding = 0

    @property
    def full(self) -> bool:
        """Whether the next letter has to wait."""
        return self.outstanding >= self._limit

    async def wait(self) -> None:
        """Wait until another letter may be put."""
        while self.outstanding >= self._limit:
            self._freed = trio.Event()
            await self._freed.wait()

    def add(self) -> None:
        self.outstanding += 1

    def done(self) -> None:
        """A letter was worked off."""
        self.outstanding -= 1
        if self._freed is not None:
            self._freed.set()
            self._freed = None
