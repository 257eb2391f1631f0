"""Samples of sessions, channels and their links and consumers, and events from two of them.

They have the state that `status` shows, by the same rules, without the sentences: samples are taken twenty
times a second, and the sentences take many times as long. Observers compare them, time some deliveries, and
watch a connection's bytes, a queue's depth, the process.

`now_ns` is the present by a monotonic clock, `ts_ns` by the wall clock, and `whole` emits the elapsed time
even without changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from amqp10broker.observe.flow_events import CHANNEL_HANDLE, NO_REASON, EventKind, LimitReason
from amqp10broker.protocols.amqp10.credit import INITIAL_DELIVERY_COUNT
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.credit import Why
from amqp10broker.sessions.diagnosis.wait_reasons import Wait, WaitContext
from amqp10broker.sessions.diagnosis.why_channel import channel_wait
from amqp10broker.sessions.diagnosis.why_channel import consumer_wait as channel_consumer_wait
from amqp10broker.sessions.diagnosis.why_link import consumer_wait, publisher_wait

UINT_MAX: Final = 0xFFFF_FFFF
QUIET_NS: Final = 1_000_000_000
"""The interval of events of an unchanged link, which are not emitted at each observation."""

State = tuple[int, int, int, int, int]
"""Number of the reason of a wait (`REASONS`); link_credit, incoming_window, queue_credit, queue_depth."""

NOTHING: Final[State] = (0, 0, 0, 0, 0)


Emit = Callable[..., None]
"""Takes one event in the order of `flow_events.FIELDS`, without waiting: `flow_events.Ring.add`."""

OnLink = Callable[[int, int, int, int, str, str], None]
"""Called when a link is observed first: time, kind, channel, handle, name, address."""


class LinkObservation:
    """The last observation of one link (AMQP 0-9-1: channel or consumer). `limit`: of its credit and the
    number of its reason; None: it is not automatic. `turn`: number of the last observation that found it.
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
        """Record a new limit of its credit. None: it is fixed, as in the run's metadata."""
        self.limit = limit
        if limit is not None:
            emit(ts_ns, EventKind.LIMIT, limit[1], *self.where, limit[0], *[0] * 6)

    def see(
        self, emit: Emit, now_ns: int, ts_ns: int, count: int, state: State, *, whole: bool = False
    ) -> None:
        """Emit an event with the state until now if it has changed, or `whole`."""
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

LIMIT_NUMBERS: Final[dict[Why, int]] = {why: int(LimitReason[why.name]) for why in Why}

LATER: Final[dict[int, int]] = {EventKind.LINK_IN: EventKind.CONFIRM, EventKind.LINK_OUT: EventKind.SETTLE}
"""The kind of latency events by the kind of link."""


class Sample(NamedTuple):
    """A sample of a link, or of publishing on a channel, or a consumer of AMQP 0-9-1."""

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
        yield Sample(consumer, EventKind.LINK_OUT, *where, consumer.credit.written, state, limit)


def _limit(end: LinkPublisher | LinkConsumer) -> tuple[int, int] | None:
    auto = end.auto_limit
    return None if auto is None else (auto.limit, LIMIT_NUMBERS[auto.why])


def _handle(handle: int | None) -> int:
    # Handles of 2**31 and above would be mistaken for AMQP 0-9-1; a session never has so many links.
    return (handle or 0) % CHANNEL_HANDLE


def channel_samples(channel: BrokerChannel, around: WaitContext) -> Iterator[Sample]:
    """Yield samples of publishing on a channel, if it is used for that, and of its consumers."""
    publishing = channel.publishing
    published = publishing.published
    if published or publishing.confirming or around.holds_reader or around.blocked_ms is not None:
        # These have no confirmation of the client's or, if the client wants none, of the queues.
        unconfirmed = publishing.tracker.waiting if publishing.confirming else publishing.unconfirmed
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
    """Return the numbers of deliveries that were received (or sent), and that are done, modulo 2**32."""
    return _PROGRESS[type(part)](part)


def first_count(part: object) -> int:
    """Return the count of a part without deliveries."""
    if not isinstance(part, LinkPublisher):
        return 0
    attach = part.link.remote_attach
    given = attach.initial_delivery_count if attach is not None else None
    return INITIAL_DELIVERY_COUNT if given is None else given


def _publisher(part: LinkPublisher) -> tuple[int, int]:
    credit = part.link.credit
    return credit.delivery_count, (credit.delivery_count - credit.outstanding) & UINT_MAX


def _publishing(part: Publishing) -> tuple[int, int]:
    return part.published, part.published - part.tracker.waiting


def _channel_consumer(part: ChannelConsumer) -> tuple[int, int]:
    return part.credit.written, part.credit.written - part.unacked


_PROGRESS: Final[dict[type, Callable[[Any], tuple[int, int]]]] = {
    LinkPublisher: _publisher,
    LinkConsumer: lambda part: (part.credit.written, part.credit.counters.decided),
    Publishing: _publishing,
    ChannelConsumer: _channel_consumer,
}
_IS_ANSWERED: Final[dict[type, Callable[[Any], bool]]] = {
    LinkPublisher: lambda part: True,
    LinkConsumer: lambda part: not part.link.settled,
    Publishing: lambda part: part.confirming,
    ChannelConsumer: lambda part: not part.terms.no_ack,
}
"""Whether there is a latency: deliveries that are sent settled are done at once."""


# Used in place of a time: these came before the first observation.
_UNKNOWN: Final = -1


class Latency:
    """The deliveries under way of one link."""

    __slots__ = ("_came", "_done", "_entries", "_kind", "_where")

    def __init__(self, kind: int, where: tuple[int, int, int], came: int, done: int) -> None:
        self._kind = kind
        self._where = where
        self._came, self._done = came, done
        under_way = (came - done) & UINT_MAX
        self._entries: deque[list[int]] = deque([[under_way, _UNKNOWN]] if under_way else ())

    @property
    def waits(self) -> bool:
        """Whether deliveries are under way that came before the end of the probe."""
        return bool(self._entries)

    def see(self, emit: Emit, now_ns: int, ts_ns: int, came: int, done: int, *, taking: bool) -> bool:
        """Count deliveries (timed if `taking`), and emit those done; return whether any came."""
        new = (came - self._came) & UINT_MAX
        gone = (done - self._done) & UINT_MAX
        self._came, self._done = came, done
        entries = self._entries
        if new and taking:
            entries.append([new, now_ns])
        while gone and entries:
            entry = entries[0]
            count, since_ns = min(entry[0], gone), entry[1]
            gone -= count
            entry[0] -= count
            if not entry[0]:
                entries.popleft()
            if since_ns != _UNKNOWN:
                emit(ts_ns, self._kind, 0, *self._where, 0, 0, 0, count, 0, now_ns - since_ns, 0)
        return bool(new)


PROBE_WAKES_MAX: Final = 4
"""The most steps with deliveries in one probe."""
PROBE_PARTS_MAX: Final = 4
"""The most parts of one session or channel that are probed at a time, in rotation."""


class Observer:
    __slots__ = (
        "_channel",
        "_connection",
        "_emit",
        "_handles",
        "_on_link",
        "_parts",
        "_probe_left",
        "_probed",
        "_samples",
        "_turn",
    )

    def __init__(
        self,
        samples: Callable[[Any], Iterable[Sample]],
        connection: int,
        channel: int,
        emit: Emit,
        on_link: OnLink,
    ) -> None:
        self._samples = samples
        self._connection = connection
        self._channel = channel
        self._emit = emit
        self._on_link = on_link
        self._parts: dict[Any, LinkObservation] = {}
        self._handles = CHANNEL_HANDLE
        self._turn = 0
        self._probe_left = 0
        self._probed: list[tuple[Any, Latency]] = []

    def begin(self, now_ns: int, around: Any) -> None:
        """Count from the present state on; parts that come later count whole."""
        for sample in self._samples(around):
            self._see_first(sample, now_ns, progress(sample.part)[0])

    def observe(self, now_ns: int, ts_ns: int, around: Any, *, whole: bool = False) -> None:
        """Emit the changes since the last observation."""
        emit, parts = self._emit, self._parts
        self._turn = turn = self._turn + 1
        seen = 0
        for sample in self._samples(around):
            trail = parts.get(sample.part)
            if trail is None:
                trail = self._see_first(sample, now_ns, first_count(sample.part))
            trail.turn = turn
            seen += 1
            trail.see(emit, now_ns, ts_ns, sample.deliveries, sample.state, whole=whole)
            if sample.limit != trail.limit:
                trail.see_limit(emit, ts_ns, sample.limit)
        if seen < len(parts):
            self._forget_gone(now_ns, ts_ns)

    def finish(self, now_ns: int, ts_ns: int) -> None:
        self._turn += 1
        self._forget_gone(now_ns, ts_ns)

    def _see_first(self, sample: Sample, now_ns: int, count: int) -> LinkObservation:
        handle = sample.handle
        if handle is None:
            self._handles += 1
            handle = self._handles
        self._on_link(now_ns, sample.kind, self._channel, handle, sample.name, sample.address)
        where = self._connection, self._channel, handle
        trail = self._parts[sample.part] = LinkObservation(sample.kind, where, now_ns, count)
        return trail

    def _forget_gone(self, now_ns: int, ts_ns: int) -> None:
        turn = self._turn
        for part in [part for part, trail in self._parts.items() if trail.turn != turn]:
            trail = self._parts.pop(part)
            trail.see(self._emit, now_ns, ts_ns, progress(part)[0], NOTHING, whole=True)
        self._probed = [each for each in self._probed if each[0] in self._parts]

    # --- probes -----------------------------------------------------------------------------------

    def begin_probe(self) -> None:
        """Time the deliveries of the next steps, by `probe`, until their latencies are complete."""
        parts = [each for each in self._parts.items() if _IS_ANSWERED[type(each[0])](each[0])]
        if len(parts) > PROBE_PARTS_MAX:
            first = self._turn * PROBE_PARTS_MAX % len(parts)
            parts = [*parts[first:], *parts[:first]][:PROBE_PARTS_MAX]
        self._probe_left = PROBE_WAKES_MAX
        self._probed = [
            (part, Latency(LATER[trail.kind], trail.where, *progress(part))) for part, trail in parts
        ]

    def probe(self, now_ns: int, ts_ns: int) -> bool:
        """Time deliveries after a step; return whether to continue."""
        taking = self._probe_left > 0
        came = waits = False
        for part, latency in self._probed:
            came = latency.see(self._emit, now_ns, ts_ns, *progress(part), taking=taking) or came
            waits = waits or taking or latency.waits
        self._probe_left -= came and taking
        return waits


class ConnectionObserver:
    """Observes the bytes of one connection."""

    __slots__ = ("_connection", "_emit", "_in", "_out", "_reason", "_since_ns", "_waiting")

    def __init__(self, connection: int, emit: Emit, now_ns: int, *, bytes_in: int, bytes_out: int) -> None:
        self._connection = connection
        self._emit = emit
        self._since_ns = now_ns
        self._in = bytes_in
        self._out = bytes_out
        self._reason = 0
        self._waiting = 0

    def observe(
        self,
        now_ns: int,
        ts_ns: int,
        *,
        bytes_in: int,
        bytes_out: int,
        waiting: int,
        reason: int,
        whole: bool = False,
    ) -> None:
        """Emit the changes; `waiting` bytes are to be written, `reason` is why the connection is not read."""
        elapsed = now_ns - self._since_ns
        came, went = bytes_in - self._in, bytes_out - self._out
        quiet = not (came or went) and reason == self._reason and waiting == self._waiting
        if not elapsed or (quiet and not whole and elapsed < QUIET_NS):
            return
        number = self._connection
        self._emit(ts_ns, EventKind.CONNECTION_IN, self._reason, number, 0, 0, 0, 0, 0, 0, came, elapsed, 0)
        self._emit(ts_ns, EventKind.CONNECTION_OUT, 0, number, 0, 0, 0, 0, 0, 0, went, elapsed, self._waiting)
        self._since_ns, self._in, self._out = now_ns, bytes_in, bytes_out
        self._reason, self._waiting = reason, waiting


class QueueObserver:
    """Observes the depth of one queue."""

    __slots__ = ("_depth", "_emit", "_number", "_since_ns", "_unsettled", "turn")

    def __init__(self, number: int, emit: Emit, now_ns: int) -> None:
        self._number = number
        self._emit = emit
        self._since_ns = now_ns
        self._depth = 0
        self._unsettled = 0
        self.turn = 0

    def observe(self, now_ns: int, ts_ns: int, *, depth: int, unsettled: int, whole: bool = False) -> None:
        elapsed = now_ns - self._since_ns
        quiet = depth == self._depth and unsettled == self._unsettled
        if quiet and (not elapsed or not (whole or elapsed >= QUIET_NS)):
            return
        if elapsed:
            number = self._number & UINT_MAX
            self._emit(
                ts_ns, EventKind.QUEUE, 0, 0, 0, number, 0, 0, 0, self._unsettled, 0, elapsed, self._depth
            )
        self._since_ns, self._depth, self._unsettled = now_ns, depth, unsettled


class ProcessObserver:
    """Observes memory and processor time."""

    __slots__ = ("_emit", "_processor_ns", "_since_ns")

    def __init__(self, emit: Emit, now_ns: int, *, processor_ns: int) -> None:
        self._emit = emit
        self._since_ns = now_ns
        self._processor_ns = processor_ns

    def observe(self, now_ns: int, ts_ns: int, *, rss_bytes: int, processor_ns: int) -> None:
        elapsed = now_ns - self._since_ns
        if not elapsed:
            return
        used = processor_ns - self._processor_ns
        self._emit(ts_ns, EventKind.PROCESS, 0, 0, 0, 0, 0, 0, 0, used, rss_bytes, elapsed, 0)
        self._since_ns, self._processor_ns = now_ns, processor_ns
