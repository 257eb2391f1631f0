"""Files of streams in the node's commits: they are synced together with the journal.

A stream requests the sync of its one file, and the committer takes some waiting ones into each commit. So
declarations, which are in every commit, are durable before a message of a stream is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

FILES_MAX: Final = 8
"""Files of streams in one commit. The others have their turn in the next, so that no commit takes long."""

_Wait = tuple[Sequence[int], Callable[[], None]]


class StreamSyncs:
    """The files of all streams that wait for a sync."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[_Wait] = []
        self._under_way: list[_Wait] = []

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        """Have a function called when what was written to files is durable; never, if storage fails."""
        assert len(fds) <= FILES_MAX
        self._waiting.append((fds, callback))
        self.wake()

    def withdraw(self, callback: Callable[[], None]) -> None:
        self._waiting = [each for each in self._waiting if each[1] != callback]

    def fds_to_sync(self) -> Sequence[int]:
        fds: list[int] = []
        taken = 0
        for each, _ in self._waiting:
            if len(fds) + len(each) > FILES_MAX:
                break
            fds += each
            taken += 1
        self._under_way = self._waiting[:taken]
        del self._waiting[:taken]
        return fds

    def synced(self) -> None:
        under_way, self._under_way = self._under_way, []
        for _, callback in under_way:
            callback()
        if self._waiting:
            self.wake()
