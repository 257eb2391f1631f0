"""Links, channels and consumers that somebody looks at: whose frames are recorded, and until when.

A watch that nobody asks for its timeline ends by itself, so that a page that was closed costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from amqp10broker.errors import NotAllowed, NotFound
from amqp10broker.management.snapshot import WatchView
from amqp10broker.service.timeline.channel_ring import ChannelRing
from amqp10broker.service.timeline.document import timeline
from amqp10broker.service.timeline.ring import Ring
from amqp10broker.service.timeline.taps import Taps
from amqp10broker.tasks import trace091
from amqp10broker.tasks.channel import RunningChannel
from amqp10broker.tasks.connection091 import Connection091
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.connections import Connection, Connections
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.trace import describe
from amqp10broker.tasks.watched import find_channel, find_link, look_at_channel, look_at_link

WATCHES_MAX: Final = 32
"""Each may keep ten megabytes."""
LEASE_NS: Final = 60_000_000_000
"""For so long nobody needs to ask; then the watch is over. It is looked at when somebody asks for any watch,
when a connection ends, and whenever a ring has recorded some hundred frames more."""


@dataclass(eq=False, slots=True)
class Watch:
    """What is looked at.

    Attributes:
        number: of the watch.
        view: what doors show of it.
        ring: of its frames.
        part: its session or channel.
        watchers: who have begun it and not ended it.
        asked_ns: when somebody asked for it last.
    """

    number: int
    view: WatchView
    ring: Ring | ChannelRing
    part: RunningSession | RunningChannel
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

    def begin(self, number: int, name: str | None, channel: int | None, role: str | None) -> WatchView:
        """Record the frames of one link's session, or of a channel, from now on; or go on if they are.

        Args:
            number: of the connection.
            name: of the link, or a consumer's tag; None: all of a channel of AMQP 0-9-1.
            channel: of the session, None: any; or the number of the channel.
            role: of the link's client, ``sender`` or ``receiver``, None: any.

        Raises:
            BadRequest: a link has no name, or a channel no number.
            NotFound: there is no such thing, or no such connection.
            NotAllowed: it is not clear which link is meant, or too many are watched.
        """
        self._forget_old()
        connection = self._connections.get(number)
        if connection is None:
            raise NotFound(f"connection {number}", f"no connection {number}")
        view, part, ring = (
            self._link(connection, name, channel, role)
            if isinstance(connection, Connection10)
            else self._channel(connection, name, channel)
        )
        for watch in self._watches.values():
            if watch.ring.link is ring.link and watch.ring.ended is None:
                watch.watchers += 1
                watch.asked_ns = self._now_ns()
                return watch.view
        if len(self._watches) >= WATCHES_MAX:
            raise NotAllowed(
                "watch",
                f"{WATCHES_MAX} links are watched already: end one with unwatch-link, or wait a minute",
            )
        self._last += 1
        self._watches[self._last] = Watch(self._last, view, ring, part, 1, view.began_ns)
        self._listen(part)
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
        """What happened; see `service.timeline.document`.

        Raises:
            NotFound: there is no such watch, or it is over.
        """
        watch = self._get(number)
        watch.asked_ns = self._now_ns()
        if watch.part.inbox.closed:
            watch.ring.end("its session or channel is over")
        return {"now_ns": watch.asked_ns, **timeline(watch.ring, since, limit, frames=frames)}

    def leave(self, connection: Connection) -> None:
        """A connection is over: nothing more comes of it; what was can still be asked for a while."""
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

    def _listen(self, part: RunningSession | RunningChannel) -> None:
        """Have a session or channel tell those rings of it that still record, and no others."""
        if part.inbox.closed:
            return
        rings = [each.ring for each in self._watches.values() if each.part is part and not each.ring.ended]
        if isinstance(part, RunningSession):
            of_links = [ring for ring in rings if isinstance(ring, Ring)]
            tap = None if not of_links else of_links[0] if len(of_links) == 1 else Taps(of_links)
            part.service.session.tap = tap
        else:
            part.service.listen(tuple(ring for ring in rings if isinstance(ring, ChannelRing)))
        part.on_turn = None if not rings else rings[0].turn_over if len(rings) == 1 else _all_turns(rings)

    def _look_after(self, number: int) -> None:
        """A ring records much, or has ended by itself."""
        watch = self._watches.get(number)
        if watch is not None and watch.ring.ended is not None:
            self._listen(watch.part)
        else:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_ns = self._now_ns() - LEASE_NS
        for watch in [each for each in self._watches.values() if each.asked_ns < oldest_ns]:
            self._drop(watch)

    def _drop(self, watch: Watch) -> None:
        del self._watches[watch.number]
        self._listen(watch.part)

    # --- which link, which channel ----------------------------------------------------------------

    def _link(
        self, connection: Connection10, name: str | None, channel: int | None, role: str | None
    ) -> tuple[WatchView, RunningSession, Ring]:
        its_role, session, end = find_link(connection, name, channel, role)
        engine, watch = session.service.session, self._last + 1
        look = look_at_link(session, end, connection)
        ring = Ring(engine, end.link, look, self._now_ns, describe, lambda: self._look_after(watch))
        queue = None if end.queue is None else end.queue.name
        of_link = (its_role, end.link.remote_handle, end.address, queue)
        return self._view(connection, engine.channel, end.link.name, *of_link), session, ring

    def _channel(
        self, connection: Connection091, tag: str | None, channel: int | None
    ) -> tuple[WatchView, RunningChannel, ChannelRing]:
        part, consumer = find_channel(connection, tag, channel)
        number, watch = part.service.number, self._last + 1
        around = look_at_channel(part, connection)
        ring = ChannelRing(
            part.service,
            consumer,
            around,
            self._now_ns,
            trace091.describe,
            lambda: self._look_after(watch),
        )
        role, queue = ("channel", None) if consumer is None else ("consumer", consumer.queue.name)
        return self._view(connection, number, tag, role, None, None, queue), part, ring

    def _view(
        self,
        connection: Connection,
        channel: int,
        link: str | None,
        role: str,
        handle: int | None,
        address: str | None,
        queue: str | None,
    ) -> WatchView:
        times = self._now_ns(), time.time_ns()
        whose = self._last + 1, connection.number, channel
        return WatchView(*whose, link, role, handle, address, queue, *times)


def _all_turns(rings: list[Ring | ChannelRing]) -> Callable[[], None]:
    def turn_over() -> None:
        for ring in rings:
            ring.turn_over()

    return turn_over
