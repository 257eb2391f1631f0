"""Log entries about nodes that cannot connect: each once a minute, and few about one address.

Otherwise any host with access to the cluster port could fill the log.
"""

from __future__ import annotations

from typing import Final

import trio

from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

AGAIN_S: Final = 60.0
REASONS_MAX: Final = 10
KEPT_MAX: Final = 1_000
"""So many are remembered; there are no entries about others until some of these are older."""


class Complaints:
    """The entries so far, with their times."""

    def __init__(self) -> None:
        # By whom, since when, and which reasons were written from then on.
        self._said: dict[str, tuple[float, set[str]]] = {}

    def warn(self, event: str, peer_name: str, reason: str, **details: object) -> None:
        """Write an entry, unless the same, or too much, was written within a minute."""
        now = trio.current_time()
        if peer_name not in self._said and len(self._said) >= KEPT_MAX:
            self._said = {each: it for each, it in self._said.items() if now < it[0] + AGAIN_S}
            if len(self._said) >= KEPT_MAX:
                return
        since, reasons = self._said.get(peer_name, (now, set()))
        if now >= since + AGAIN_S:
            since, reasons = now, set()
        self._said[peer_name] = since, reasons
        if reason in reasons or len(reasons) >= REASONS_MAX:
            return
        reasons.add(reason)
        _log.warning(event, peer=peer_name, reason=reason, **details)

    def forget(self, peer_name: str) -> None:
        """It goes well with this one: what comes next is news."""
        self._said.pop(peer_name, None)
