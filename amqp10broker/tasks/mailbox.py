"""A task's mailbox: one trio memory channel, taken from in batches.

The channel itself has no bound, because a task has one mailbox and many senders, each with a bound
of its own that must not be used up by another's. Where a sender's bound is not given by the protocol
(credit, windows), it is kept by a counter at the sender's end: `Bound` for the reader, the lane of
`writer.py` for sessions. The table in README.md says which is which.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Letters for one task.

    Attributes:
        most: the largest number of letters that ever waited; tests hold it against the table.
    """

    __slots__ = ("_receive", "_send", "_waiting", "closed", "most")

    def __init__(self) -> None:
        send, receive = trio.open_memory_channel[T](math.inf)
        self._send = send
        self._receive = receive
        self._waiting = 0
        self.most = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        """Letters not taken."""
        return self._waiting

    def put(self, letter: T) -> bool:
        """Put a letter, never waiting; False when the owner is gone and the letter was not taken."""
        if self.closed:
            return False
        self._waiting += 1
        if self._waiting > self.most:
            self.most = self._waiting
        self._send.send_nowait(letter)
        return True

    async def take_all(self) -> list[T]:
        """Wait for a letter, then take all that are there."""
        receive = self._receive
        letters = [await receive.receive()]
        more = self._waiting - 1
        if more:
            take = receive.receive_nowait
            letters.extend([take() for _ in range(more)])
        self._waiting = 0
        return letters

    def close(self) -> list[T]:
        """Take no more letters, and hand over those that nobody will take."""
        self.closed = True
        left = []
        while self._waiting:
            self._waiting -= 1
            left.append(self._receive.receive_nowait())
        self._send.close()
        self._receive.close()
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
