"""Clock differences between nodes, measured by heartbeats, and the correction of a wrong clock.

A node's time advances evenly from its start (`runtime.clock`), so a difference is constant. As in NTP (RFC
5905) a measurement is a round trip, and the difference is known within half of it: a heartbeat that is worked
off late makes the bound wide, and not the clock wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

AHEAD_MS_MAX: Final = 1_000
"""A leader's time is not further from that of most nodes."""


class Clocks:
    """The clock differences as one node measures them.

    Attributes:
        correction_ms: the correction of this node's clock where it leads: 0 if the clocks of most nodes are
            near it. Of two that differ the one behind is taken for right: what expires too early is lost.
    """

    def __init__(self) -> None:
        self.correction_ms = 0
        self._measured: dict[int, tuple[int, int]] = {}

    def heard(self, node: int, ahead_ms: int, within_ms: int = 0) -> None:
        """Another node's clock is so much ahead of this one's, give or take `within_ms`; below 0: behind.

        A measurement that is less exact than the last one counts only if it contradicts that.
        """
        last_ms, last_within_ms = self._measured.get(node, (0, math.inf))
        if within_ms <= last_within_ms or abs(ahead_ms - last_ms) > within_ms:
            self._measured[node] = ahead_ms, within_ms
            self._judge()

    def forget(self, node: int) -> None:
        """A node is a member no more."""
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
