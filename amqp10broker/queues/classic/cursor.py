"""The progress of one selecting or browsing consumer of a classic queue.

By priority level: the position before which everything was looked at, and behind it the places of messages
that came back, or that it wants and had no credit for. So each message is looked at once, however often the
consumer is granted credit.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp10broker.message.filters.filters import MessageFilter


class Cursor:
    """The progress of one consumer.

    Attributes:
        wanted: filter of its messages; None: all.
        at: by level, the highest priority first: everything before this position was looked at.
        behind: by level: heaps of earlier positions, of which some may be empty by now.
    """

    __slots__ = ("at", "behind", "looked_at", "passed", "takes", "wanted")

    def __init__(self, levels: int, wanted: MessageFilter | None, *, takes: bool) -> None:
        self.wanted = wanted
        self.takes = takes
        self.at = [0] * levels
        self.behind: list[list[int]] = [[] for _ in range(levels)]
        self.looked_at = 0
        self.passed = 0

    def on_return(self, level: int, position: int) -> None:
        if position < self.at[level]:
            heappush(self.behind[level], position)
