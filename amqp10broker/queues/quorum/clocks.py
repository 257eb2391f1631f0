"""Clock differences between nodes, measured by heartbeats, and the correction of a wrong clock.

A node's time advances evenly from its start (`runtime.clock`), so a difference is constant. The latency of a
heartbeat makes the other clock appear late by as much.
"""

from __future__ import annotations

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
        self._ahead_ms: dict[int, int] = {}

    def heard(self, node: int, ahead_ms: int) -> None:
        """Another node's clock is so much ahead of this one's; below 0: behind."""
        self._ahead_ms[node] = ahead_ms
        self._judge()

    def forget(self, node: int) -> None:
        """A node is a member no more."""
        self._ahead_ms.pop(node, None)
        self._judge()

    def _judge(self) -> None:
        known = sorted([0, *self._ahead_ms.values()])
        most = known[(len(known) - 1) // 2]
        self.correction_ms = max(most - AHEAD_MS_MAX, min(0, most + AHEAD_MS_MAX))

    def notes(self, named: Mapping[int, str]) -> dict[str, str]:
        """Return a sentence for each problem, by its subject."""
        found = {
            f"clock of {name}": f"the clock of node {name} is {difference(ahead_ms)} this node's"
            for node, name in sorted(named.items())
            if abs(ahead_ms := self._ahead_ms.get(node, 0)) >= AHEAD_MS_MAX
        }
        if correction_ms := self.correction_ms:
            found["clock of this node"] = (
                f"the clock of this node is {difference(-correction_ms)} that of most nodes: quorum queues "
                "that it leads go by theirs"
            )
        return found


def difference(ahead_ms: int) -> str:
    return f"{abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"
