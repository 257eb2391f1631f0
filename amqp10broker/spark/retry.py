"""How long failures are retried: one rule for all work that is repeated after a lost connection.

The time that the option retryTimeout allows begins with the first failure of an unbroken row of failures, not
with the work: work may take longer than that, then lose its connection, and is still retried. Progress ends
the row, so that occasional losses of a broker are retried for ever.
"""

from __future__ import annotations

import time
from typing import Final

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0


class RetryBudget:
    """Counts failures in a row, and pauses between attempts. `timeout_s`: how long after the first failure of
    a row another attempt may begin.
    """

    def __init__(self, timeout_s: float) -> None:
        self.failures = 0
        self._timeout_s = timeout_s
        self._until = 0.0

    def progress(self) -> None:
        self.failures = 0

    def failed(self) -> bool:
        """Record a failure, and pause if there is time for another attempt; the pauses grow. Returns whether
        to try again: true after the first failure of a row, however late it came.
        """
        self.failures += 1
        now = time.monotonic()
        if self.failures == 1:
            self._until = now + self._timeout_s
        elif now >= self._until:
            return False
        # An unbounded exponent would exceed the range of floats.
        pause_s = min(PAUSE_FIRST_S * 2.0 ** min(self.failures - 1, 20), PAUSE_MAX_S)
        time.sleep(min(pause_s, self._until - now))
        return True
