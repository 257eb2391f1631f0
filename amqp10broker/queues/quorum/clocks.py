"""The clocks of nodes, and the time of a log: its leader's, corrected if an earlier leader's was wrong.

A node's time advances evenly from its start (`runtime.clock`), so a difference is constant. As in NTP (RFC
5905) a measurement is a round trip, and the difference is known within half of it: a heartbeat that is worked
off late makes the bound wide, and not the clock wrong.

A leader with a clock that is hours ahead stamps entries with its time, and time never runs back. If the next
leader waited until its own clock is there, no message would expire or become due for hours. So its time goes
on from the last entry's, a tenth slower than the clock, until the clock has caught up with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

AHEAD_MS_MAX: Final = 1_000
"""A leader's time is not further from that of most nodes."""


class Clocks:
    """The clock differences as one node measures them. `correction_ms`: the correction of this node's clock
    where it leads: 0 if the clocks of most nodes are near it. Of two that differ the one behind is taken for
    right: what expires too early is lost.
    """

    def __init__(self) -> None:
        self.correction_ms = 0
        self._measured: dict[int, tuple[int, int]] = {}

    def heard(self, node: int, ahead_ms: int, within_ms: int = 0) -> None:
        """Another node's clock is so much ahead of this one's, give or take `within_ms`; below 0: behind. A
        measurement that is less exact than the last one counts only if it contradicts that.
        """
        last_ms, last_within_ms = self._measured.get(node, (0, math.inf))
        if within_ms <= last_within_ms or abs(ahead_ms - last_ms) > within_ms:
            self._measured[node] = ahead_ms, within_ms
            self._judge()

    def forget(self, node: int) -> None:
        self._measured.pop(node, None)
        self._judge()

    def _ahead_ms(self, node: int) -> int:
        return _beyond(*self._measured.get(node, (0, 0)))

    def _judge(self) -> None:
        known = sorted([0, *map(self._ahead_ms, self._measured)])
        self.correction_ms = _beyond(known[(len(known) - 1) // 2], AHEAD_MS_MAX)

    def notes(self, named: Mapping[int, str]) -> dict[str, str]:
        """Return a sentence for each problem, by its subject."""
        found = {
            f"clock of {name}": f"the clock of node {name} is {difference(ahead_ms)} this node's"
            for node, name in sorted(named.items())
            if abs(ahead_ms := self._ahead_ms(node)) >= AHEAD_MS_MAX
        }
        if correction_ms := self.correction_ms:
            found["clock of this node"] = (
                f"the clock of this node is {difference(-correction_ms)} that of most nodes: quorum queues "
                "that it leads go by theirs"
            )
        return found


def _beyond(ahead_ms: int, within_ms: int) -> int:
    # The part of a difference that is left when so much of it is allowed for.
    return max(ahead_ms - within_ms, min(0, ahead_ms + within_ms))


def difference(ahead_ms: int) -> str:
    return f"{abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"


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
        return max(0, self._slow(clock_ms) - clock_ms - self._node.correction_ms)

    def _slow(self, clock_ms: int) -> int:
        return self._time_ms + max(0, clock_ms - self._clock_ms) * 9 // 10
