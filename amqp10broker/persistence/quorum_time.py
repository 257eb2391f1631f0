"""The time of a log: that of its leader's clock, which goes on also when an earlier leader's was wrong.

A leader whose clock is hours ahead stamps entries with its time, and time never runs back. If the next leader
waited until its own clock is there, no message would expire and none come due for hours. So its time goes on
from the last entry's, a tenth slower than the clock, until the clock has caught up with it.
"""

from __future__ import annotations

from typing import Final, Protocol


class Corrected(Protocol):
    """What is known of a node's clock (`replication.clocks`): by how many milliseconds it is corrected."""

    correction_ms: int


class _Right:
    correction_ms = 0


RIGHT: Final = _Right()
"""The clock of a node that knows of no other."""


NEVER: Final = 2**62


class LogTime:
    """Of one leader, in milliseconds."""

    __slots__ = ("_clock_ms", "_node", "_time_ms")

    def __init__(self, node: Corrected, time_ms: int = 0, clock_ms: int = NEVER) -> None:
        """Begin to lead.

        Args:
            node: the leader's.
            time_ms: of the last entry.
            clock_ms: what the leader's clock says; left out by a member that does not lead.
        """
        self._node = node
        self._time_ms = time_ms
        self._clock_ms = clock_ms

    def at(self, clock_ms: int) -> int:
        """The time for an entry that is appended now."""
        own = clock_ms + self._node.correction_ms
        slow = self._slow(clock_ms)
        if own < slow:
            return slow
        self._time_ms, self._clock_ms = own, clock_ms
        return own

    def when(self, time_ms: int) -> int:
        """What the leader's clock says when it is this time."""
        slow = self._clock_ms - (self._time_ms - time_ms) * 10 // 9
        return min(time_ms - self._node.correction_ms, slow)

    def ahead_ms(self, clock_ms: int) -> int:
        """By how much the time is ahead of the clock."""
        return max(0, self._slow(clock_ms) - clock_ms - self._node.correction_ms)

    def _slow(self, clock_ms: int) -> int:
        return self._time_ms + max(0, clock_ms - self._clock_ms) * 9 // 10
