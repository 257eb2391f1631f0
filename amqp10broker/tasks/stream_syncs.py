"""Streams' files in the node's commits: what streams have written is synced together with the journal.

A stream waits in `sync` for its one file, and the committer takes some of those that wait into each commit.
So what is declared, which is in every commit too, is durable before a message of a stream is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

FILES_MAX: Final = 8
"""Files of streams in one commit. The others have their turn in the next, so that no commit takes long."""


class _Waiting:
    """One stream's wait."""

    __slots__ = ("done", "fds")

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = fds
        self.done = trio.Event()


class StreamSyncs:
    """A `committer.AlsoSynced` for all streams.

    Attributes:
        wake: called when there is something to sync.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[_Waiting] = []
        self._under_way: list[_Waiting] = []

    async def sync(self, fds: Sequence[int]) -> None:
        """Wait until what was written to files is durable.

        If storage fails, this waits until it is cancelled: the broker stops.

        Args:
            fds: at most `FILES_MAX`. They stay open while this waits.
        """
        assert len(fds) <= FILES_MAX
        waiting = _Waiting(fds)
        self._waiting.append(waiting)
        self.wake()
        try:
            await waiting.done.wait()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def fds_to_sync(self) -> Sequence[int]:
        """See `committer.AlsoSynced`."""
        fds: list[int] = []
        taken = 0
        for waiting in self._waiting:
            if len(fds) + len(waiting.fds) > FILES_MAX:
                break
            fds += waiting.fds
            taken += 1
        self._under_way = self._waiting[:taken]
        del self._waiting[:taken]
        return fds

    def synced(self) -> None:
        """See `committer.AlsoSynced`."""
        for waiting in self._under_way:
            waiting.done.set()
        self._under_way = []
        if self._waiting:
            self.wake()
