"""Rights that are taken away: whoever is connected loses them too, not only who comes later."""

from __future__ import annotations

import trio

from amqp10broker.errors import NotAllowed
from amqp10broker.runtime.connections.connections import Connections
from amqp10broker.sessions.mail import ACCESS_CHANGED


class Rights:
    """Looks, after users or permissions have changed, at what every connection may still do.

    Changes of one moment, such as those of a definitions file, are looked at together. A connection whose
    user may not be in its virtual host any more is closed. Where the permission is another one, sessions
    and channels are told, and ask for each of their consumers; publishing asks by itself
    (`sessions.routes`).
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
            if member is None or connection.line.reading.cancel_called:
                continue  # it asks when it opens; it is closing, for a reason of its own
            try:
                changed = member.permission_changed()
            except NotAllowed as refusal:
                connection.expel(refusal.description)
                continue
            if changed:
                connection.tell(ACCESS_CHANGED)
