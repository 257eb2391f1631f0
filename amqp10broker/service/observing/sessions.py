"""Observes one session of AMQP 1.0: its links, and how long deliveries wait on each."""

from __future__ import annotations

from typing import Final

from amqp10broker.amqp10.credit import INITIAL_DELIVERY_COUNT
from amqp10broker.flowevents.schema import CHANNEL_HANDLE, Kind
from amqp10broker.service.observing.latency import Latency
from amqp10broker.service.observing.reasons import NUMBERS
from amqp10broker.service.observing.trail import UINT_MAX, Emit, OnLink, Trail
from amqp10broker.service.sessions.circumstances import Circumstances
from amqp10broker.service.sessions.consumer import Consumer
from amqp10broker.service.sessions.publisher import Publisher
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.service.sessions.why_consumer import consumer_wait
from amqp10broker.service.sessions.why_publisher import publisher_wait

PROBE_WAKES_MAX: Final = 4
"""Wakes with deliveries whose times one probe takes."""
PROBE_LINKS_MAX: Final = 4
"""Links of one session that are probed at a time; all of them in turn."""


class SessionObserver:
    """Sees one session. Links that were there when it was made count from then on, later ones whole."""

    __slots__ = (
        "_connection",
        "_emit",
        "_links",
        "_on_link",
        "_probe_left",
        "_probed",
        "_session",
        "_turn",
    )

    def __init__(
        self,
        session: BrokerSession,
        connection: int,
        emit: Emit,
        now_ns: int,
        *,
        new: bool,
        on_link: OnLink,
    ) -> None:
        """See it for the first time.

        Args:
            session: only read.
            connection: number of its connection.
            emit: takes events.
            now_ns: the present, by a clock that never goes back.
            new: it began since anybody looked last: what it has done already counts.
            on_link: told of each link when it is seen first.
        """
        self._on_link = on_link
        self._session = session
        self._connection = connection
        self._emit = emit
        self._links: dict[Publisher | Consumer, _Link] = {}
        self._turn = 0
        self._probe_left = 0
        self._probed: list[tuple[Publisher | Consumer, Latency]] = []
        if not new:
            apps: list[Publisher | Consumer] = [*session.publishers, *session.consumers]
            for app in apps:
                self._links[app] = self._new_link(app, now_ns, from_now=True)

    def observe(
        self, now_ns: int, ts_ns: int, around: Circumstances, *, latencies: bool, whole: bool = False
    ) -> None:
        """Emit what has happened since the last time.

        Args:
            now_ns: the present, by a clock that never goes back.
            ts_ns: the same by the wall clock.
            around: what the connection does for the session.
            latencies: time deliveries, too; for that it must be called after each wake.
            whole: tell the elapsed time up to now although nothing has moved.
        """
        emit, session, links = self._emit, self._session, self._links
        self._turn = turn = self._turn + 1
        seen = 0
        window = session.session.incoming.advertised
        for publisher in session.publishers:
            link = links.get(publisher)
            if link is None:
                link = links[publisher] = self._new_link(publisher, now_ns)
            link.trail.turn = turn
            seen += 1
            credit = publisher.link.credit
            count = credit.delivery_count
            wait = publisher_wait(session, publisher, around)
            reason = NUMBERS[wait]
            depth = 0 if publisher.queue is None else publisher.queue.handle.ready
            outstanding = credit.outstanding
            left = credit.link_credit
            link.trail.see(emit, now_ns, ts_ns, count, reason, left, window, outstanding, depth, whole=whole)
            if latencies:
                link.latency.see(emit, now_ns, ts_ns, count, count - outstanding)
        window = session.session.outgoing.remote_incoming_window
        for consumer in session.consumers:
            link = links.get(consumer)
            if link is None:
                link = links[consumer] = self._new_link(consumer, now_ns)
            link.trail.turn = turn
            seen += 1
            depth = consumer.ready
            wait = consumer_wait(session, consumer, around)
            reason = NUMBERS[wait]
            sent = consumer.sent
            left = consumer.link.credit.link_credit
            link.trail.see(
                emit, now_ns, ts_ns, sent, reason, left, window, consumer.credit.left, depth, whole=whole
            )
            if latencies and _is_settled_later(consumer):
                link.latency.see(emit, now_ns, ts_ns, sent, consumer.settled)
        if seen < len(links):
            self._forget_gone(now_ns, ts_ns, latencies=latencies)

    def finish(self, now_ns: int, ts_ns: int) -> None:
        """The session is over: emit what its links have done since the last time."""
        self._turn += 1
        self._forget_gone(now_ns, ts_ns, latencies=False)

    # --- probes -----------------------------------------------------------------------------------

    def begin_probe(self) -> None:
        """Time the deliveries of the next wakes, by `probe`, until their times are known."""
        self._probe_left = PROBE_WAKES_MAX
        links = [each for each in self._links.items() if _is_settled_later(each[0])]
        if len(links) > PROBE_LINKS_MAX:
            first = self._turn * PROBE_LINKS_MAX % len(links)
            links = [*links[first:], *links[:first]][:PROBE_LINKS_MAX]
        self._probed = [(app, link.latency) for app, link in links]
        for app, latency in self._probed:
            latency.begin(*_counts(app))

    def probe(self, now_ns: int, ts_ns: int) -> bool:
        """After a wake: time deliveries and nothing else.

        Returns:
            Whether to go on; when not, `begin_probe` begins the next one.
        """
        came = waits = False
        for app, latency in self._probed:
            came = latency.see(self._emit, now_ns, ts_ns, *_counts(app)) or came
            waits = waits or latency.waits
        if came and self._probe_left:
            self._probe_left -= 1
            if not self._probe_left:
                for _, latency in self._probed:
                    latency.taking = False
        return waits

    # --- links ------------------------------------------------------------------------------------

    def _new_link(self, app: Publisher | Consumer, now_ns: int, *, from_now: bool = False) -> _Link:
        kind, later = (
            (Kind.LINK_IN, Kind.CONFIRM) if isinstance(app, Publisher) else (Kind.LINK_OUT, Kind.SETTLE)
        )
        came, done = _counts(app)
        first = came if from_now else _first_count(app)
        # Nobody allows a session 2**31 links; if somebody does, their handles must not look like AMQP 0-9-1.
        handle = (app.link.remote_handle or 0) % CHANNEL_HANDLE
        where = (self._connection, self._session.session.channel, handle)
        self._on_link(now_ns, kind, *where[1:], app.link.name, app.address or "")
        latency = Latency(later, *where)
        if from_now:
            latency.begin(came, done)
        else:
            latency.begin(first, first)
        return _Link(Trail(kind, *where, now_ns=now_ns, count=first), latency)

    def _forget_gone(self, now_ns: int, ts_ns: int, *, latencies: bool) -> None:
        turn = self._turn
        for app in [app for app, link in self._links.items() if link.trail.turn != turn]:
            link = self._links.pop(app)
            came, done = _counts(app)
            link.trail.see(self._emit, now_ns, ts_ns, came, 0, 0, 0, 0, 0, whole=True)
            if latencies and _is_settled_later(app):
                link.latency.see(self._emit, now_ns, ts_ns, came, done)


class _Link:
    """A link's two records."""

    __slots__ = ("latency", "trail")

    def __init__(self, trail: Trail, latency: Latency) -> None:
        self.trail = trail
        self.latency = latency


def _counts(app: Publisher | Consumer) -> tuple[int, int]:
    """Deliveries that have come (or went), and those that are done: both modulo 2**32."""
    if isinstance(app, Publisher):
        credit = app.link.credit
        return credit.delivery_count, (credit.delivery_count - credit.outstanding) & UINT_MAX
    return app.sent, app.settled


def _is_settled_later(app: Publisher | Consumer) -> bool:
    """Whether there is something to time: what a consumer gets settled is done when it is sent."""
    return isinstance(app, Publisher) or not app.link.settled


def _first_count(app: Publisher | Consumer) -> int:
    """The count of a link without deliveries."""
    if isinstance(app, Consumer):
        return 0
    attach = app.link.remote_attach
    given = attach.initial_delivery_count if attach is not None else None
    return INITIAL_DELIVERY_COUNT if given is None else given
