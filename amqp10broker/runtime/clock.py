"""The time of day, for times that a restart must not change: when a message expires, when it died."""

from __future__ import annotations

import time
from typing import Final

import trio

_READINGS: Final = 5
"""How often both clocks are read. An interruption between the two makes the difference too small."""


def utc_text() -> str:
    """The time of day for people and programs: ``2026-11-22T08:38:47Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class WallClock:
    """Milliseconds since 1970 that advance as Trio's clock does: never back, and in tests as fast.
    `offset_s`: the difference, for steps of sessions and queues, which compute `now_ms` without a call.
    """

    __slots__ = ("offset_s",)

    def __init__(self) -> None:
        self.offset_s = max(time.time() - trio.current_time() for _ in range(_READINGS))

    def now_ms(self) -> int:
        return int((trio.current_time() + self.offset_s) * 1000)

    def ms_at(self, trio_time: float) -> int:
        """Return the past or future value of `now_ms` at a time of Trio's clock."""
        return int((trio_time + self.offset_s) * 1000)

    def trio_time(self, when_ms: int) -> float:
        """Return Trio's time when `now_ms` has reached this value."""
        return (when_ms + 1) / 1000 - self.offset_s
