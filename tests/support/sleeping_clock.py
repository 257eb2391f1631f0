"""In place of the module `time` for code that waits by `time.sleep`."""

from __future__ import annotations


class SleepingClock:
    """Time that passes in `sleep`, and when a test says so.

    Attributes:
        now: seconds.
        pauses: what was asked of `sleep`.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
