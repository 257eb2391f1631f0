"""The time of a log, from its leader's clock, corrected if an earlier leader's clock was wrong.

A leader with a clock that is hours ahead stamps entries with its time, and time never runs back. If the next
leader waited until its own clock is there, no message would expire or become due for hours. So its time goes
on from the last entry's, a tenth slower than the clock, until the clock has caught up with it.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.queues.quorum.clocks import Clocks

NEVER: Final = 2**62


class LogTime:
    """The time of one leader, in milliseconds."""

    __slots__ = ("_clock_ms", "_node", "_time_ms")

    def __init__(self, node: Clocks, time_ms: int = 0, clock_ms: int = NEVER) -> None:
        """Begin to lead. `clock_ms`: the leader's clock; left out by a member that does not lead."""
        self._node = node
        self._time_ms = time_ms
        self._clock_ms = clock_ms

    def at(self, clock_ms: int) -> int:
        own = clock_ms + self._node.correction_ms
        slow = self._slow(clock_ms)
        if own < slow:
            return slow
        self._time_ms, self._clock_ms = own, clock_ms
        return own

    def when(self, time_ms: int) -> int:
        """Return what the leader's clock shows at this time."""
        slow = self._clock_ms - (self._time_ms - time_ms) * 10 // 9
        return min(time_ms - self._node.correction_ms, slow)

    def ahead_ms(self, clock_ms: int) -> int:
        """Return by how much the time is ahead of the clock."""
        return max(0, self._slow(clock_ms) - clock_ms - self._node.correction_ms)

    def _slow(self, clock_ms: int) -> int:
        return self._time_ms + max(0, clock_ms - self._clock_ms) * 9 // 10
