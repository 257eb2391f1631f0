"""How far one consumer that selects or browses has looked through a classic queue.

By level of priority: the position up to which it has looked at everything, and behind that the places where
there may be something for it nevertheless: of messages that came back, and of those that it wants and had no
credit for. So each message is looked at once, however often the consumer is granted credit.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp10broker.message.filters.filters import MessageFilter


class Cursor:
    """See the module.

    Attributes:
        wanted: which messages it wants; None: all.
        takes: it takes messages; a browser does not.
        at: by level, the highest priority first: everything before this position was looked at.
        behind: by level: positions before that, as heaps; some may be empty by now.
        looked_at: how many messages it looked at, so often as it did.
        passed: how many of these it had.
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
        """A message stands at this place again."""
        if position < self.at[level]:
            heappush(self.behind[level], position)
