"""Where a measuring window of the load generator ends in a test: by what has happened, not by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.stream import Counts

LONG_S: Final = 60.0
"""Longest length of such a window: waited for in full only by a test that fails."""


def until_delivered(count: int) -> Callable[[tuple[Counts, ...]], bool]:
    """For `benchmarks.measure.window` without warm-up: the window ends when so many more were delivered.

    `window` asks once before it begins, and refuses loads whose messages are used up by then; however late it
    asks, the answer is no. What was delivered then does not count.
    """
    seen: list[int] = []

    def enough(counts: tuple[Counts, ...]) -> bool:
        seen.append(counts[0].delivered)
        # Not the first one, but the first in the window: what was sampled before it has been forgotten.
        return len(seen) > 2 and seen[-1] - seen[1] >= count

    return enough
