"""Links that somebody looks at: whose frames are recorded, since when, and until when.

A watch that nobody asks for its timeline ends by itself, so that a page that was closed costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.errors import NotAllowed, NotFound, NotSupported
from amqp10broker.management.snapshot import WatchView
from amqp10broker.service.sessions.consumer import Consumer
from amqp10broker.service.sessions.publisher import Publisher
from amqp10broker.service.timeline.document import timeline
from amqp10broker.service.timeline.records import Mark
from amqp10broker.service.timeline.ring import Ring
from amqp10broker.service.timeline.taps import Taps
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.connections import Connection, Connections
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.trace import describe

WATCHES_MAX: Final = 32
"""Each may keep ten megabytes."""
LEASE_NS: Final = 60_000_000_000
"""For so long nobody needs to ask; then the watch is over. It is looked at when somebody asks for any watch,
when a connection ends, and whenever a ring has recorded a segment more."""


@dataclass(eq=False, slots=True)
class Watch:
    """One link that is looked at.

    Attributes:
        number: of the watch.
        view: what doors show of it.
        ring: of its frames.
        session: of the link.
        watchers: who have begun it and not ended it.
        asked_ns: when somebody asked for it last.
    """

    number: int
    view: WatchView
    ring: Ring
    session: RunningSession
    watchers: int
    asked_ns: int


class Watches:
    """All watches of a broker."""

    def __init__(self, connections: Connections, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Look at nothing yet.

        Args:
            connections: of the broker.
            now_ns: a clock that never goes back.
        """
        self._connections = connections
        self._now_ns = now_ns
        self._watches: dict[int, Watch] = {}
        self._last = 0

    def begin(self, number: int, name: str, channel: int | None, role: str | None) -> WatchView:
        """Record the frames of one link's session from now on; of a link that is watched already, go on.

        Args:
            number: of the connection.
            name: of the link.
            channel: of its session, None: any.
            role: of its client, ``sender`` or ``receiver``, None: any.

        Raises:
            NotFound: there is no such link, or no such connection.
            NotAllowed: it is not clear which link is meant, or too many are watched.
            NotSupported: the connection has no links.
        """
        self._forget_old()
        session, end, connection = self._find(number, name, channel, role)
        for watch in self._watches.values():
            if watch.ring.link is end.link and watch.ring.ended is None:
                watch.watchers += 1
                watch.asked_ns = self._now_ns()
                return watch.view
        if len(self._watches) >= WATCHES_MAX:
            raise NotAllowed(
                "watch",
                f"{WATCHES_MAX} links are watched already: end one with unwatch-link, or wait a minute",
            )
        return self._begin(session, end, connection)

    def _begin(self, session: RunningSession, end: Consumer | Publisher, connection: Connection) -> WatchView:
        self._last += 1
        engine = session.service.session
        link: SenderLink | ReceiverLink = end.link
        now_ns = self._now_ns()
        view = WatchView(
            watch=self._last,
            connection=connection.number,
            channel=engine.channel,
            link=link.name,
            role="receiver" if isinstance(link, SenderLink) else "sender",
            handle=link.remote_handle,
            address=end.address,
            queue=None if end.queue is None else end.queue.name,
            began_ns=now_ns,
            began_at_ns=time.time_ns(),
        )
        number = self._last
        look = _look(session, end, connection)
        ring = Ring(engine, link, look, self._now_ns, describe, lambda: self._look_after(number))
        self._watches[number] = Watch(number, view, ring, session, 1, now_ns)
        self._listen(session)
        return view

    def end(self, number: int) -> WatchView:
        """One of those who look at it looks no more; with the last the watch ends.

        Raises:
            NotFound: there is no such watch, or it is over.
        """
        watch = self._get(number)
        watch.watchers -= 1
        if watch.watchers <= 0:
            self._drop(watch)
        return watch.view

    def timeline(self, number: int, since: int | None, limit: int, *, frames: bool) -> dict[str, Any]:
        """What the link did; see `service.timeline.document`.

        Raises:
            NotFound: there is no such watch, or it is over.
        """
        watch = self._get(number)
        watch.asked_ns = self._now_ns()
        if watch.session.inbox.closed:
            watch.ring.end("its session is over")
        return {"now_ns": watch.asked_ns, **timeline(watch.ring, since, limit, describe, frames=frames)}

    def leave(self, connection: Connection) -> None:
        """A connection is over: nothing more comes of its links; what was can still be asked for a while."""
        self._forget_old()
        for watch in self._watches.values():
            if watch.view.connection == connection.number:
                watch.ring.end(f"its connection is over: {connection.end}")

    def _get(self, number: int) -> Watch:
        self._forget_old()
        watch = self._watches.get(number)
        if watch is None:
            raise NotFound(
                f"watch {number}",
                f"no watch {number}: it was never begun, or nobody asked for it for {LEASE_NS // 10**9} s; "
                "begin one with watch-link",
            )
        return watch

    # --- who listens ------------------------------------------------------------------------------

    def _listen(self, session: RunningSession) -> None:
        """Have a session tell those rings of its links that still record, and no others."""
        if session.inbox.closed:
            return
        rings = [
            each.ring
            for each in self._watches.values()
            if each.session is session and each.ring.ended is None
        ]
        tap = None if not rings else rings[0] if len(rings) == 1 else Taps(rings)
        session.service.session.tap = tap
        session.on_turn = None if tap is None else tap.turn_over

    def _look_after(self, number: int) -> None:
        """A ring records much, or has ended by itself."""
        watch = self._watches.get(number)
        if watch is not None and watch.ring.ended is not None:
            self._listen(watch.session)
        else:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_ns = self._now_ns() - LEASE_NS
        for watch in [each for each in self._watches.values() if each.asked_ns < oldest_ns]:
            self._drop(watch)

    def _drop(self, watch: Watch) -> None:
        del self._watches[watch.number]
        self._listen(watch.session)

    # --- which link -------------------------------------------------------------------------------

    def _find(
        self, number: int, name: str, channel: int | None, role: str | None
    ) -> tuple[RunningSession, Consumer | Publisher, Connection]:
        connection = self._connections.get(number)
        if connection is None:
            raise NotFound(f"connection {number}", f"no connection {number}")
        if not isinstance(connection, Connection10):
            raise NotSupported("watch", f"connection {number} speaks AMQP 0-9-1, which has no links")
        found: list[tuple[RunningSession, Consumer | Publisher, Connection]] = []
        for session in connection.parts.values():
            if channel in (None, session.service.session.channel):
                ends: list[tuple[str, Consumer | Publisher]] = [
                    *(("receiver", each) for each in session.service.consumers),
                    *(("sender", each) for each in session.service.publishers),
                ]
                found += [
                    (session, end, connection)
                    for of, end in ends
                    if end.link.name == name and role in (None, of) and end.link.attached
                ]
        if not found:
            raise NotFound(
                f"link '{name}'",
                f"connection {number} has no attached link '{name}' of that kind: see 'amqp10broker "
                "list-links'",
            )
        if len(found) > 1:
            raise NotAllowed("watch", f"connection {number} has {len(found)} links '{name}': give the role")
        return found[0]


def _look(session: RunningSession, end: Consumer | Publisher, connection: Connection) -> Callable[[], Mark]:
    """What looks at the queue's credit of a link, and at the writer."""
    writer, lane = connection.line.writer, session.lane
    if isinstance(end, Consumer):
        credit = end.credit
        return lambda: (credit.granted, credit.waiting, writer.waiting_bytes, lane.blocked)
    return lambda: (0, 0, writer.waiting_bytes, lane.blocked)
