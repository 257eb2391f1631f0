"""Watched links, channels and consumers: their frames are recorded.

A watch without requests for its timeline ends by itself, so that a closed page costs nothing. Watches of a
followed virtual host stay until the following ends (`Followed`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, NotAllowed, NotFound
from amqp10broker.observe.frames.records import describe_method, describe_performative
from amqp10broker.observe.timeline import ChannelMark, ChannelRing, FrameRing, Mark, Taps, timeline
from amqp10broker.operations.snapshot import FollowedView, WatchView
from amqp10broker.runtime.connections.connection091 import ChannelTask
from amqp10broker.runtime.connections.connection10 import Connection10, SessionTask
from amqp10broker.runtime.connections.connections import Connection, Connections
from amqp10broker.sessions.amqp091.channel import ChannelState
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer as Consumer091
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher

WATCHES_MAX: Final = 32
LEASE_NS: Final = 60_000_000_000
"""The time without a request after which a watch ends. It is checked when any watch is requested, when a
connection ends, and whenever a ring has recorded some hundred frames.
"""


@dataclass(eq=False, slots=True)
class Watch:
    """A watched link, channel or consumer. `followed`: the virtual host for which it is followed; None: it
    ends without requests.
    """

    number: int
    view: WatchView
    ring: FrameRing | ChannelRing
    part: SessionTask | ChannelTask
    watchers: int
    asked_ns: int
    followed: Followed | None = None


class Watches:
    def __init__(self, connections: Connections, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Create without watches. `now_ns`: a clock that never runs back."""
        self._connections = connections
        self._now_ns = now_ns
        self._watches: dict[int, Watch] = {}
        self._last = 0
        self._followed: dict[str, Followed] = {}

    def begin(self, number: int, name: str | None, channel: int | None, role: str | None) -> WatchView:
        """Record the frames of one link's session, or of a channel, from now on, or continue to.

        `name`: of the link, or a consumer's tag; None: all of a channel of AMQP 0-9-1. `channel`: of the
        session, None: any; or the number of the channel. `role`: of the link's client, ``sender`` or
        ``receiver``, None: any. Raises `BadRequest` if a link has no name, or a channel no number;
        `NotFound`; and `NotAllowed` if the link is ambiguous, or too many are watched.
        """
        self._forget_old()
        connection = self._connections.get(number)
        if connection is None:
            raise NotFound(f"connection {number}", f"no connection {number}")
        view, ring, part = (
            self._link(connection, *find_link(connection, name, channel, role))
            if isinstance(connection, Connection10)
            else self._channel(connection, *find_channel(connection, name, channel))
        )
        for watch in self._watches.values():
            if watch.ring.link is ring.link and watch.ring.ended is None:
                watch.watchers += 1
                watch.asked_ns = self._now_ns()
                return watch.view
        if sum(watch.followed is None for watch in self._watches.values()) >= WATCHES_MAX:
            raise NotAllowed(
                "watch",
                f"{WATCHES_MAX} links are watched already: end one with unwatch-link, or wait a minute",
            )
        self._add(view, ring, part)
        self._listen(part)
        return view

    def _add(
        self,
        view: WatchView,
        ring: FrameRing | ChannelRing,
        part: SessionTask | ChannelTask,
        followed: Followed | None = None,
    ) -> None:
        self._last += 1
        self._watches[self._last] = Watch(self._last, view, ring, part, 1, view.began_ns, followed)

    def end(self, number: int, user: str | None = None) -> WatchView:
        """End one use of a watch; the watch ends with the last one. `user`: of its connection; None: any.
        Raises `NotFound`.
        """
        watch = self._get(number, user)
        watch.watchers -= 1
        if watch.watchers <= 0:
            self._drop(watch)
        return watch.view

    def timeline(
        self, number: int, since: int | None, limit: int, *, frames: bool, user: str | None = None
    ) -> tuple[WatchView, dict[str, Any]]:
        """Return the link, and its events (`timeline.channel_ring`). Raises `NotFound`."""
        watch = self._get(number, user)
        watch.asked_ns = self._now_ns()
        if watch.part.inbox.closed:
            watch.ring.end("its session or channel is over")
        told = timeline(watch.ring, since, limit, frames=frames)
        return watch.view, {"now_ns": watch.asked_ns, **told}

    def views(self) -> list[WatchView]:
        self._forget_old()
        return [watch.view for watch in self._watches.values()]

    def leave(self, connection: Connection) -> None:
        """Note the end of a connection: its watches get no more frames, and can be read for some time."""
        self._forget_old()
        for watch in self._watches.values():
            if watch.view.connection == connection.number:
                watch.ring.end(f"its connection is over: {connection.end}")

    def _get(self, number: int, user: str | None) -> Watch:
        self._forget_old()
        watch = self._watches.get(number)
        if watch is None or user not in (None, watch.view.user):
            raise NotFound(
                f"watch {number}",
                f"no watch {number}: it was never begun, or nobody asked for it for {LEASE_NS // 10**9} s; "
                "begin one with watch-link, or over HTTP with POST /api/timelines",
            )
        return watch

    # --- virtual hosts that are followed ----------------------------------------------------------

    def follow(self, vhost: str) -> FollowedView:
        """Watch every session and channel that begins in a virtual host from now on, with its links."""
        followed = self._followed.setdefault(vhost, Followed(vhost))
        return followed.view(watch.view for watch in self._watches.values() if watch.followed is followed)

    def unfollow(self, vhost: str) -> FollowedView:
        """Stop watching a virtual host; returns what was watched. Raises `NotFound`."""
        followed = self._followed.get(vhost)
        if followed is None:
            raise NotFound("watch", f"virtual host '{vhost}' is not followed: begin with follow-links")
        view = self.follow(vhost)
        del self._followed[vhost]
        for watch in [each for each in self._watches.values() if each.followed is followed]:
            self._drop(watch)
        return view

    def join(self, connection: Connection, number: int) -> None:
        """Note that a connection has a session, or a channel, of this number from now on."""
        followed = self._followed.get(connection.vhost)
        if followed is None:
            return
        part = connection.parts[number]
        followed.parts[part] = partial(self._look_for_new, followed, connection, part)
        self._listen(part)

    def _look_for_new(
        self, followed: Followed, connection: Connection, part: SessionTask | ChannelTask
    ) -> None:
        before = self._last
        if isinstance(connection, Connection10):
            assert isinstance(part, SessionTask)
            for role, end in followed.new_links(part):
                self._add(*self._link(connection, role, part, end), followed)
        else:
            assert isinstance(part, ChannelTask)
            if followed.is_new(part):
                self._add(*self._channel(connection, part, None), followed)
        if self._last != before or part not in followed.parts:
            self._listen(part)

    # --- who listens ------------------------------------------------------------------------------

    def _listen(self, part: SessionTask | ChannelTask) -> None:
        if part.inbox.closed:
            return
        rings = [each.ring for each in self._watches.values() if each.part is part and not each.ring.ended]
        if isinstance(part, SessionTask):
            of_links = [ring for ring in rings if isinstance(ring, FrameRing)]
            tap = None if not of_links else of_links[0] if len(of_links) == 1 else Taps(of_links)
            part.service.session.output.tap = tap
        else:
            part.service.listen(tuple(ring for ring in rings if isinstance(ring, ChannelRing)))
        turns = [ring.turn_over for ring in rings]
        turns += [each.parts[part] for each in self._followed.values() if part in each.parts]
        part.on_turn = None if not turns else turns[0] if len(turns) == 1 else _all(turns)

    def _look_after(self, number: int) -> None:
        watch = self._watches.get(number)
        if watch is not None and watch.ring.ended is not None:
            self._listen(watch.part)
        else:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_ns = self._now_ns() - LEASE_NS
        for watch in [each for each in self._watches.values() if each.asked_ns < oldest_ns]:
            if watch.followed is None:
                self._drop(watch)

    def _drop(self, watch: Watch) -> None:
        del self._watches[watch.number]
        self._listen(watch.part)

    def _link(
        self, connection: Connection10, role: str, session: SessionTask, end: LinkConsumer | LinkPublisher
    ) -> tuple[WatchView, FrameRing, SessionTask]:
        number = self._last + 1
        engine, link = session.service.session, end.link
        look = look_at_link(session, end, connection)
        ring = FrameRing(
            engine, link, look, self._now_ns, describe_performative, lambda: self._look_after(number)
        )
        queue = None if end.queue is None else end.queue.name
        whose = number, connection.number, connection.user, engine.channel
        times = self._now_ns(), time.time_ns(), connection.client_name
        view = WatchView(*whose, link.name, role, link.remote_handle, end.address, queue, *times)
        return view, ring, session

    def _channel(
        self, connection: Connection, part: ChannelTask, consumer: Consumer091 | None
    ) -> tuple[WatchView, ChannelRing, ChannelTask]:
        number = self._last + 1
        look = look_at_channel(part, connection, consumer)
        ring = ChannelRing(
            part.service, consumer, look, self._now_ns, describe_method, lambda: self._look_after(number)
        )
        tag, role, queue = (
            (None, "channel", None)
            if consumer is None
            else (consumer.terms.tag, "consumer", consumer.queue.name)
        )
        whose = number, connection.number, connection.user, part.service.number
        times = self._now_ns(), time.time_ns(), connection.client_name
        return WatchView(*whose, tag, role, None, None, queue, *times), ring, part


def _all(turns: list[Callable[[], None]]) -> Callable[[], None]:
    def turn_over() -> None:
        for each in turns:
            each()

    return turn_over


def find_link(
    connection: Connection10, name: str | None, channel: int | None, role: str | None
) -> tuple[str, SessionTask, LinkConsumer | LinkPublisher]:
    """Return an attached link: its client's role, its session, and its owner. Raises `BadRequest` without a
    name, `NotFound` if there is none, and `NotAllowed` if there are two.
    """
    number = connection.number
    if name is None:
        raise BadRequest("watch", f"connection {number} speaks AMQP 1.0: name one of its links")
    found: list[tuple[str, SessionTask, LinkConsumer | LinkPublisher]] = []
    for session in connection.parts.values():
        if channel in (None, session.service.session.channel):
            found += [("receiver", session, each) for each in session.service.consumers]
            found += [("sender", session, each) for each in session.service.publishers]
    found = [
        each
        for each in found
        if each[2].link.name == name and role in (None, each[0]) and each[2].link.attached
    ]
    if not found:
        raise NotFound(
            f"link '{name}'",
            f"connection {number} has no attached link '{name}' of that kind: see 'amqp10broker link list'",
        )
    if len(found) > 1:
        raise NotAllowed("watch", f"connection {number} has {len(found)} links '{name}': give the role")
    return found[0]


def find_channel(
    connection: Connection, tag: str | None, channel: int | None
) -> tuple[ChannelTask, Consumer091 | None]:
    """Return an open channel, and a tag's consumer. Raises `BadRequest` without a number, and `NotFound`."""
    number = connection.number
    if channel is None:
        raise BadRequest("watch", f"connection {number} speaks AMQP 0-9-1: give the number of a channel")
    part = connection.parts.get(channel)
    if part is None or part.service.state is not ChannelState.OPEN:
        raise NotFound(f"channel {channel}", f"connection {number} has no open channel {channel}")
    if tag is None:
        return part, None
    consumer = part.service.consuming.consumers.get(tag)
    if consumer is None:
        raise NotFound(
            f"consumer '{tag}'",
            f"channel {channel} of connection {number} has no consumer '{tag}': see 'amqp10broker "
            "consumer list'",
        )
    return part, consumer


def look_at_link(
    session: SessionTask, end: LinkConsumer | LinkPublisher, connection: Connection10
) -> Callable[[], Mark]:
    """Return the function that reads a link's queue credit and its writer."""
    writer, output = connection.writer, session.output
    if isinstance(end, LinkConsumer):
        credit = end.credit
        return lambda: (
            *(credit.granted, credit.waiting, writer.waiting_bytes, output.blocked),
            *(end.queue_credit, _why(end)),
        )
    limited = end.link.credit
    return lambda: (0, 0, writer.waiting_bytes, output.blocked, limited.limit, _why(end))


def _why(end: LinkConsumer | LinkPublisher) -> str | None:
    return None if end.auto_limit is None else end.auto_limit.why


def look_at_channel(
    channel: ChannelTask, connection: Connection, consumer: Consumer091 | None
) -> Callable[[], ChannelMark]:
    """Return the function that reads a channel's reader credit, writer, and consumer's queue credit."""
    writer, output, reader = connection.writer, channel.output, channel.credit
    if consumer is None:
        return lambda: (reader.credit, writer.waiting_bytes, output.blocked, 0, 0, False)
    credit = consumer.credit
    return lambda: (
        *(reader.credit, writer.waiting_bytes, output.blocked),
        *(credit.granted, credit.waiting, credit.closed),
    )


FOLLOWED_MAX: Final = 256
"""The links and channels of one virtual host that are watched; each may take ten megabytes."""


@dataclass(eq=False, slots=True)
class Followed:
    """A followed virtual host. `parts`: sessions that have begun since, and channels that are not open yet,
    with the function that looks for new links after each step.
    """

    vhost: str
    parts: dict[SessionTask | ChannelTask, Callable[[], None]] = field(default_factory=dict)
    begun: int = 0
    left_out: int = 0
    _known: set[int] = field(default_factory=set)

    def has_room(self) -> bool:
        """Return whether there is room for one more watch, and count it."""
        if self.begun >= FOLLOWED_MAX:
            self.left_out += 1
            return False
        self.begun += 1
        return True

    def new_links(self, session: SessionTask) -> Iterator[tuple[str, LinkConsumer | LinkPublisher]]:
        """Iterate over attached links that are not watched yet, each with the role of its client."""
        service = session.service
        if service.over:
            del self.parts[session]
        ends: list[tuple[str, LinkConsumer | LinkPublisher]] = [
            ("receiver", each) for each in service.consumers
        ]
        ends += [("sender", each) for each in service.publishers]
        for role, end in ends:
            # A watch holds a reference to the link, so that no other object gets its id.
            if end.link.attached and id(end.link) not in self._known:
                self._known.add(id(end.link))
                if self.has_room():
                    yield role, end

    def is_new(self, channel: ChannelTask) -> bool:
        """Return whether a channel is open and not watched yet; true once for each."""
        if channel.service.state is not ChannelState.OPEN:
            return False
        del self.parts[channel]
        return self.has_room()

    def view(self, watches: Iterable[WatchView]) -> FollowedView:
        return FollowedView(self.vhost, tuple(watches), self.left_out)
