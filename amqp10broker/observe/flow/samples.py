"""Samples of a session or a channel, one of each link and of each consumer, and events from two of them.

The same state that `status` shows, read by the same rules (`why_link`, `why_channel`),
without the sentences: samples are taken twenty times a second, and the sentences cost many times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from amqp10broker.observe.flow_events.schema import CHANNEL_HANDLE, NO_REASON, EventKind, LimitReason
from amqp10broker.protocols.amqp10.credit import INITIAL_DELIVERY_COUNT
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer as ChannelConsumer
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.auto_limit import Why
from amqp10broker.sessions.diagnosis.waits import Wait, WaitContext
from amqp10broker.sessions.diagnosis.why_channel import channel_wait
from amqp10broker.sessions.diagnosis.why_channel import consumer_wait as channel_consumer_wait
from amqp10broker.sessions.diagnosis.why_link import consumer_wait, publisher_wait

UINT_MAX: Final = 0xFFFF_FFFF
QUIET_NS: Final = 1_000_000_000
"""An unchanged link has an event of its own so often, not at each observation."""

State = tuple[int, int, int, int, int]
"""Number of the reason (`REASONS`) for a wait; link_credit, incoming_window, queue_credit, queue_depth."""

NOTHING: Final[State] = (0, 0, 0, 0, 0)


Emit = Callable[..., None]
"""Takes the values of one event in the order of `observe.flow_events.schema.FIELDS`, without waiting:
`observe.flow_events.ring.Ring.add`.
"""

OnLink = Callable[[int, int, int, int, str, str], None]
"""Called once per link when it is observed first: time, kind, channel, handle, name, address."""


class Trail:
    """The last observation of one link (AMQP 0-9-1: channel or consumer). `limit`: of its credit if that is
    automatic, and the number of its reason; else None. `turn`: number of the observation that found it last,
    so that the observer can find links that are gone.
    """

    __slots__ = ("_count", "_since_ns", "_state", "kind", "limit", "turn", "where")

    def __init__(self, kind: int, where: tuple[int, int, int], now_ns: int, count: int) -> None:
        self.kind = kind
        self.where = where
        self.turn = 0
        self.limit: tuple[int, int] | None = None
        self._since_ns = now_ns
        self._count = count
        self._state = NOTHING

    def see_limit(self, emit: Emit, ts_ns: int, limit: tuple[int, int] | None) -> None:
        """Record a new limit of its credit; None: it is fixed, as the run's metadata state."""
        self.limit = limit
        if limit is not None:
            emit(ts_ns, EventKind.LIMIT, limit[1], *self.where, limit[0], *[0] * 6)

    def see(
        self, emit: Emit, now_ns: int, ts_ns: int, count: int, state: State, *, whole: bool = False
    ) -> None:
        """Emit an event with the state that held until now if something moved, or `whole`."""
        n = (count - self._count) & UINT_MAX
        elapsed = now_ns - self._since_ns
        if n == 0 and state == self._state and elapsed < QUIET_NS and not (whole and elapsed):
            return
        if n or elapsed:
            reason, link_credit, window, queue_credit, depth = self._state
            emit(
                *(ts_ns, self.kind, reason, *self.where, link_credit, window, queue_credit),
                *(n, 0, elapsed, depth),
            )
        self._since_ns, self._count, self._state = now_ns, count, state


NUMBERS: Final[dict[Wait | None, int]] = {
    None: NO_REASON,
    **{wait: wait.number for wait in Wait},
}
"""The numbers of waits in flow events."""

LIMIT_NUMBERS: Final[dict[Why, int]] = {why: int(LimitReason[why.name]) for why in Why}
"""The numbers of the reasons of automatic limits in flow events."""

LATER: Final[dict[int, int]] = {EventKind.LINK_IN: EventKind.CONFIRM, EventKind.LINK_OUT: EventKind.SETTLE}
"""The kind of the latency events of each kind of link."""


class Sample(NamedTuple):
    """A sample of a link, or of its counterpart in AMQP 0-9-1: publishing on a channel, or a consumer."""

    part: Any
    kind: EventKind
    handle: int | None
    """None: its observer assigns the next one."""
    name: str
    address: str
    deliveries: int
    """The number so far, modulo 2**32."""
    state: State
    limit: tuple[int, int] | None = None
    """The limit of its credit, and the number of the `LimitReason`; None: it is fixed."""


def session_samples(session: BrokerSession, around: WaitContext) -> Iterator[Sample]:
    window = session.session.incoming.advertised
    for publisher in session.publishers:
        link, credit = publisher.link, publisher.link.credit
        reason = NUMBERS[publisher_wait(session, publisher, around)]
        depth = 0 if publisher.queue is None else publisher.queue.handle.ready
        state = reason, credit.link_credit, window, credit.outstanding, depth
        address = publisher.address or ""
        yield Sample(
            publisher,
            EventKind.LINK_IN,
            _handle(link.remote_handle),
            link.name,
            address,
            credit.delivery_count,
            state,
            _limit(publisher),
        )
    window = session.session.outgoing.remote_incoming_window
    for consumer in session.consumers:
        link_out = consumer.link
        reason = NUMBERS[consumer_wait(session, consumer, around)]
        state = reason, link_out.credit.link_credit, window, consumer.credit.left, consumer.ready
        handle = _handle(link_out.remote_handle)
        limit = _limit(consumer)
        where = handle, link_out.name, consumer.address
        yield Sample(consumer, EventKind.LINK_OUT, *where, consumer.sent, state, limit)


def _limit(end: LinkPublisher | LinkConsumer) -> tuple[int, int] | None:
    if end.auto is None:
        return None
    auto = end.auto.auto
    return auto.limit, LIMIT_NUMBERS[auto.why]


def _handle(handle: int | None) -> int:
    # Handles of 2**31 and above would be mistaken for AMQP 0-9-1; no session has so many links.
    return (handle or 0) % CHANNEL_HANDLE


def channel_samples(channel: BrokerChannel, around: WaitContext) -> Iterator[Sample]:
    """Return samples of publishing on a channel, if it is used for that, and of its consumers."""
    publishing = channel.publishing
    published = publishing.published
    if published or publishing.confirming or around.holds_reader or around.blocked_ms is not None:
        # Without confirmation: of the client, or if it wants none, of the queues.
        unconfirmed = publishing.waiting if publishing.confirming else publishing.unconfirmed
        reason = NUMBERS[channel_wait(channel, around)]
        state = reason, max(0, around.reader_credit), 0, unconfirmed, 0
        yield Sample(publishing, EventKind.LINK_IN, CHANNEL_HANDLE, "", "", published, state)
    for consumer in channel.consuming.consumers.values():
        reason = NUMBERS[channel_consumer_wait(channel, consumer, around)]
        terms, credit, queue = consumer.terms, consumer.credit, consumer.queue
        left = max(0, terms.prefetch - consumer.holds) if terms.prefetch else 0
        state = reason, left, 0, max(0, credit.granted), queue.handle.ready
        yield Sample(consumer, EventKind.LINK_OUT, None, terms.tag, queue.name, credit.written, state)


# --- properties of parts, also of those that are gone ---------------------------------------------


def progress(part: object) -> tuple[int, int]:
    """Return the numbers of deliveries that have come (or went), and of those that are done, modulo 2**32."""
    return _PROGRESS[type(part)](part)


def first_count(part: object) -> int:
    """Return the count of a part without deliveries."""
    if not isinstance(part, LinkPublisher):
        return 0
    attach = part.link.remote_attach
    given = attach.initial_delivery_count if attach is not None else None
    return INITIAL_DELIVERY_COUNT if given is None else given


def is_answered(part: object) -> bool:
    """Return whether there is a latency: deliveries that are sent settled are done at once."""
    return _IS_ANSWERED[type(part)](part)


def _publisher(part: LinkPublisher) -> tuple[int, int]:
    credit = part.link.credit
    return credit.delivery_count, (credit.delivery_count - credit.outstanding) & UINT_MAX


_PROGRESS: Final[dict[type, Callable[[Any], tuple[int, int]]]] = {
    LinkPublisher: _publisher,
    LinkConsumer: lambda part: (part.sent, part.settled),
    Publishing: lambda part: (part.published, part.published - part.waiting),
    ChannelConsumer: lambda part: (part.credit.written, part.credit.written - part.unacked),
}
_IS_ANSWERED: Final[dict[type, Callable[[Any], bool]]] = {
    LinkPublisher: lambda part: True,
    LinkConsumer: lambda part: not part.link.settled,
    Publishing: lambda part: part.confirming,
    ChannelConsumer: lambda part: not part.terms.no_ack,
}
