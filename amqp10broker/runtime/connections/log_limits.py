"""Limits on log entries about one client, so that it cannot fill the log, or hide in it.

Each key (a connection; before login its address) may write `BURST` entries in `PERIOD_S`. Further ones are
counted by event and summed up in one entry after the period.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import trio

from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.log")

BURST: Final = 10
"""Entries of one key in one period."""
PERIOD_S: Final = 10.0
KEYS_MAX: Final = 1024
"""Keys that are told apart at one time: further ones share a period, so that memory is bounded."""
_OTHERS: Final = ("others",)


class _Period:
    """The entries of one key since its first warning."""

    __slots__ = ("about", "ends", "left_out", "written")

    def __init__(self, ends: float, about: Mapping[str, Any]) -> None:
        self.ends = ends
        self.about = about
        self.written = 0
        self.left_out: dict[str, int] = {}


class LogLimits:
    def __init__(self) -> None:
        self._periods: dict[Hashable, _Period] = {}  # in the order in which they end
        self._begun = trio.Event()

    def write(
        self,
        write: Callable[..., None],
        key: Hashable,
        event: str,
        *,
        about: Mapping[str, Any],
        **details: Any,
    ) -> None:
        """Write an entry, or count it. `event`: a short sentence, one of a closed set: nothing that a client
        chose.
        """
        now = trio.current_time()
        self._tell_ended(now)
        if key not in self._periods and len(self._periods) >= KEYS_MAX:
            key, about = _OTHERS, {"peer": "others"}
        period = self._periods.get(key)
        if period is None:
            period = self._periods[key] = _Period(now + PERIOD_S, about)
            self._begun.set()
        if period.written < BURST:
            period.written += 1
            write(event, **details)
        else:
            period.left_out[event] = period.left_out.get(event, 0) + 1

    async def run(self) -> None:
        """Log a summary of omitted entries after each period; until cancelled."""
        while True:
            await self._begun.wait()
            while self._periods:
                await trio.sleep_until(next(iter(self._periods.values())).ends)
                self._tell_ended(trio.current_time())
            self._begun = trio.Event()

    def finish(self) -> None:
        """Log the remaining summaries when the broker stops."""
        self._tell_ended(float("inf"))

    def _tell_ended(self, now: float) -> None:
        while self._periods:
            key, period = next(iter(self._periods.items()))
            if period.ends > now:
                return
            del self._periods[key]
            if period.left_out:
                _log.warning(
                    "entries left out",
                    **period.about,
                    count=sum(period.left_out.values()),
                    events=", ".join(f"{event} ({count})" for event, count in period.left_out.items()),
                    period_s=PERIOD_S,
                )
