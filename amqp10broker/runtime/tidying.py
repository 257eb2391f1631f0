"""Giving memory back after a burst, once the broker has nothing else to do.

Two things hold memory that nobody uses. Connections that have ended leave cycles of tasks, scopes and
frames, and the collector, whose thresholds are high so that it does not walk over messages in flight
(`cli.serve.GC_THRESHOLDS`), never comes to the oldest generation. And the C library keeps what was freed.
Both are seen to in a quiet moment, since both hold up everybody while they last: 10 ms for a thousand
connections that have ended, 40 to 80 ms for a gigabyte.
"""

from __future__ import annotations

import gc
import time
from typing import Final

from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.meters import Meter

_log = Log("amqp10broker.memory")

LOOK_S: Final = 3.0
"""Seconds over which it is measured whether the broker is quiet."""
QUIET_SHARE: Final = 0.1
"""Of one processor; a broker that uses less is quiet."""
WORTH_BYTES: Final = 16 * 1024 * 1024
"""What must have been added since it was tidy; less is not worth holding anybody up."""
PAUSE_SHARE: Final = 100
"""After tidying, so many times as long passes as it has taken."""
CONNECTIONS_MAX: Final = 1_000
"""With more connections the collector has so much to walk over that it is left alone."""


class Tidying:
    """Releases memory; cheap when there is nothing to do."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._tidy_bytes: int | None = None
        self._looked_at = 0.0
        self._busy_s = 0.0
        self._not_before = 0.0

    def look(self, now: float, used_bytes: int | None, connections: int) -> bool:
        """Tidy up if there is garbage and the broker is quiet. `now`: seconds, of a clock that only grows.
        `used_bytes`: memory in use, as measured; None: not known, and nothing is done. Returns whether
        garbage is left, so that another call is needed.
        """
        if used_bytes is None:
            return False
        if self._tidy_bytes is None or used_bytes < self._tidy_bytes:
            self._tidy_bytes = used_bytes
        if used_bytes < self._tidy_bytes + WORTH_BYTES:
            self._looked_at = 0.0
            return False
        if not self._looked_at:
            self._begin_to_look(now)
            return True
        elapsed = now - self._looked_at
        if elapsed < LOOK_S:
            return True
        quiet = self._meter.busy_s() - self._busy_s < QUIET_SHARE * elapsed
        self._begin_to_look(now)
        if quiet and now >= self._not_before:
            self._tidy(now, used_bytes, connections)
            return False
        return True

    def _begin_to_look(self, now: float) -> None:
        self._looked_at = now
        self._busy_s = self._meter.busy_s()

    def _tidy(self, now: float, used_bytes: int, connections: int) -> None:
        began = time.perf_counter()
        if connections <= CONNECTIONS_MAX:
            gc.collect()
        self._meter.give_back()
        took = time.perf_counter() - began
        self._not_before = now + PAUSE_SHARE * took
        # What is still there is in use.
        self._tidy_bytes = self._meter.memory_used()
        self._looked_at = 0.0
        _log.debug(
            "memory given back", before_bytes=used_bytes, after_bytes=self._tidy_bytes, seconds=round(took, 3)
        )
