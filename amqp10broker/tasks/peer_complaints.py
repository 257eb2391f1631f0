"""Log entries about nodes that cannot connect: each once a minute, however often it is tried."""

from __future__ import annotations

from typing import Final

import trio

from amqp10broker.tasks.log import Log

_log = Log("amqp10broker.peers")

AGAIN_S: Final = 60.0
KEPT_MAX: Final = 1_000


class Complaints:
    """What was said, and when."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}

    def warn(self, event: str, who: str, reason: str) -> None:
        """Write an entry, unless the same was written within a minute.

        Args:
            event: what happens.
            who: node or address.
            reason: one line.
        """
        now = trio.current_time()
        if now < self._said.get((who, reason), -AGAIN_S) + AGAIN_S:
            return
        if len(self._said) >= KEPT_MAX:
            self._said.clear()
        self._said[who, reason] = now
        _log.warning(event, peer=who, reason=reason)

    def forget(self, who: str) -> None:
        """It goes well with this one: what comes next is news."""
        for key in [key for key in self._said if key[0] == who]:
            del self._said[key]
