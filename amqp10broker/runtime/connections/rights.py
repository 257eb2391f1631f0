"""Enforcement of revoked permissions on open connections."""

from __future__ import annotations

import trio

from amqp10broker.errors import NotAllowed
from amqp10broker.runtime.connections.connections import Connections
from amqp10broker.sessions.messages import ACCESS_CHANGED


class Rights:
    """Checks all connections after a change of users or permissions.

    Simultaneous changes, such as those of a definitions file, are checked together. A connection whose user
    has lost access to its virtual host is closed. After a change of permissions, sessions and channels check
    each of their consumers; publishes are always checked (`sessions.routes`).
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._changed = trio.Event()

    def note(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Look after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._look()

    def _look(self) -> None:
        for connection in list(self._connections.values()):
            member = connection.member
            if member is None or connection.reading.cancel_called:
                continue  # it asks when it opens; it is closing, for a reason of its own
            try:
                changed = member.permission_changed()
            except NotAllowed as refusal:
                connection.expel(refusal.description)
                continue
            if changed:
                connection.tell(ACCESS_CHANGED)
