"""A task's mailbox, taken from in batches.

The mailbox itself has no bound, because a task has one mailbox and many senders, each with a bound
of its own that must not be used up by another's. Where a sender's bound is not given by the protocol
(credit, windows), it is kept by a counter at the sender's end: `Bound` for the reader, the lane of
`writer.py` for sessions. The table in README.md says which is which.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Letters for one task.

    A list, and the task that waits for it. A memory channel of Trio does more, for many tasks and letter by
    letter, and costs more.

    Attributes:
        most: the largest number of letters that ever waited; tests hold it against the table.
    """

    __slots__ = ("_letters", "_owner", "closed", "most")

    def __init__(self) -> None:
        self._letters: list[T] = []
        self._owner: trio.lowlevel.Task | None = None
        """The task, while it waits."""
        self.most = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        """Letters not taken."""
        return len(self._letters)

    def put(self, letter: T) -> bool:
        """Put a letter, never waiting; False when the owner is gone and the letter was not taken."""
        if self.closed:
            return False
        letters = self._letters
        letters.append(letter)
        if len(letters) > self.most:
            self.most = len(letters)
        if self._owner is not None:
            trio.lowlevel.reschedule(self._owner)
            self._owner = None
        return True

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
        letters, self._letters = self._letters, []
        return letters

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._owner = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> list[T]:
        """Take no more letters, and hand over those that nobody will take."""
        self.closed = True
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
        """A letter was put."""
        self.outstanding += 1

    def done(self) -> None:
        """A letter was worked off."""
        self.outstanding -= 1
        if self._freed is not None:
            self._freed.set()
            self._freed = None
