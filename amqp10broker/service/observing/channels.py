"""Observes one channel of AMQP 0-9-1: what its client publishes, and its consumers.

A channel has no links: what is published on it has the handle `CHANNEL_HANDLE`, its consumers are numbered
from there in the order in which they were seen, so that a handle tells the protocol. What basic.get fetches
is not told.
"""

from __future__ import annotations

from amqp10broker.flowevents.schema import CHANNEL_HANDLE, Kind
from amqp10broker.service.channels.channel import BrokerChannel
from amqp10broker.service.channels.circumstances import Circumstances
from amqp10broker.service.channels.consumer import Consumer
from amqp10broker.service.channels.publishing import Publishing
from amqp10broker.service.channels.why import channel_wait, consumer_wait
from amqp10broker.service.observing.latency import Latency
from amqp10broker.service.observing.reasons import NUMBERS
from amqp10broker.service.observing.sessions import PROBE_LINKS_MAX, PROBE_WAKES_MAX
from amqp10broker.service.observing.trail import Emit, OnLink, Trail


class ChannelObserver:
    """Sees one channel. What was there when it was made counts from then on, what comes later whole."""

    __slots__ = (
        "_channel",
        "_confirming",
        "_connection",
        "_consumers",
        "_emit",
        "_handles",
        "_on_link",
        "_probe_left",
        "_probed",
        "_publisher",
        "_publishing",
        "_turn",
        "_unnamed_ns",
    )

    def __init__(
        self,
        channel: BrokerChannel,
        connection: int,
        emit: Emit,
        now_ns: int,
        *,
        new: bool,
        on_link: OnLink,
    ) -> None:
        """See it for the first time.

        Args:
            channel: only read.
            connection: number of its connection.
            emit: takes events.
            now_ns: the present, by a clock that never goes back.
            new: it began since anybody looked last: what it has done already counts.
            on_link: told of what is published here and of each consumer, when it is seen first.
        """
        self._on_link = on_link
        self._channel = channel
        self._connection = connection
        self._emit = emit
        self._consumers: dict[Consumer, _Part] = {}
        self._handles = CHANNEL_HANDLE
        self._turn = 0
        self._probe_left = 0
        self._probed: list[tuple[Consumer, Latency]] = []
        self._publishing = channel.publishing
        self._confirming = False
        self._publisher = self._new_publisher(now_ns, from_now=not new)
        if not new:
            for consumer in channel.consuming.consumers.values():
                self._consumers[consumer] = self._new_consumer(consumer, now_ns, from_now=True)

    def observe(
        self,
        now_ns: int,
        ts_ns: int,
        *,
        around: Circumstances,
        latencies: bool,
        whole: bool = False,
    ) -> None:
        """Emit what has happened since the last time.

        Args:
            now_ns: the present, by a clock that never goes back.
            ts_ns: the same by the wall clock.
            around: what the connection does for the channel.
            latencies: time deliveries, too; for that it must be called after each wake.
            whole: tell the elapsed time up to now although nothing has moved.
        """
        emit, channel, parts = self._emit, self._channel, self._consumers
        publishing = channel.publishing
        if publishing is not self._publishing:
            # The channel was closed and opened again.
            self._finish_publisher(now_ns, ts_ns)
            self._publishing = publishing
            self._publisher = self._new_publisher(now_ns, from_now=False)
        published, credit = publishing.published, max(0, around.reader_credit)
        publisher = self._publisher
        reason = NUMBERS[channel_wait(channel, around)]
        if published or around.holds_reader or around.blocked_ms is not None:
            self._name_publisher()
            unconfirmed = _unconfirmed(publishing)
            publisher.trail.see(
                emit, now_ns, ts_ns, published, reason, credit, 0, unconfirmed, 0, whole=whole
            )
            if latencies and publishing.confirming:
                if not self._confirming:
                    self._confirming = True
                    before = publishing.published_before_confirms
                    publisher.latency.begin(before, before)
                publisher.latency.see(emit, now_ns, ts_ns, published, published - unconfirmed)
        self._turn = turn = self._turn + 1
        consumers = channel.consuming.consumers
        for consumer in consumers.values():
            part = parts.get(consumer)
            if part is None:
                part = parts[consumer] = self._new_consumer(consumer, now_ns, from_now=False)
            part.trail.turn = turn
            depth = consumer.queue.handle.ready
            reason = NUMBERS[consumer_wait(channel, consumer, around)]
            left = max(0, consumer.terms.prefetch - consumer.holds) if consumer.terms.prefetch else 0
            written, granted = consumer.credit.written, max(0, consumer.credit.granted)
            part.trail.see(emit, now_ns, ts_ns, written, reason, left, 0, granted, depth, whole=whole)
            if latencies and not consumer.terms.no_ack:
                part.latency.see(emit, now_ns, ts_ns, written, written - consumer.unacked)
        if len(consumers) < len(parts):
            self._forget_gone(now_ns, ts_ns, latencies=latencies)

    def finish(self, now_ns: int, ts_ns: int) -> None:
        """The channel is over: emit what it has done since the last time."""
        self._turn += 1
        self._finish_publisher(now_ns, ts_ns)
        self._forget_gone(now_ns, ts_ns, latencies=False)

    # --- probes -----------------------------------------------------------------------------------

    def begin_probe(self) -> None:
        """Time the deliveries of the next wakes, by `probe`, until their times are known."""
        self._probe_left = PROBE_WAKES_MAX
        self._confirming = self._publishing.confirming
        self._publisher.latency.begin(*_published(self._publishing))
        self._publisher.latency.taking = self._confirming
        consumers = [each for each in self._consumers.items() if not each[0].terms.no_ack]
        if len(consumers) > PROBE_LINKS_MAX:
            first = self._turn * PROBE_LINKS_MAX % len(consumers)
            consumers = [*consumers[first:], *consumers[:first]][:PROBE_LINKS_MAX]
        self._probed = [(consumer, part.latency) for consumer, part in consumers]
        for consumer, latency in self._probed:
            latency.begin(*_delivered(consumer))

    def probe(self, now_ns: int, ts_ns: int) -> bool:
        """After a wake: time deliveries and nothing else.

        Returns:
            Whether to go on; when not, `begin_probe` begins the next one.
        """
        if self._channel.publishing is not self._publishing:
            return False
        latency = self._publisher.latency
        came = False
        if self._confirming:
            came = latency.see(self._emit, now_ns, ts_ns, *_published(self._publishing))
        waits = latency.waits
        for consumer, each in self._probed:
            came = each.see(self._emit, now_ns, ts_ns, *_delivered(consumer)) or came
            waits = waits or each.waits
        if came and self._probe_left:
            self._probe_left -= 1
            if not self._probe_left:
                latency.taking = False
                for _, each in self._probed:
                    each.taking = False
        return waits

    # --- parts ------------------------------------------------------------------------------------

    def _new_publisher(self, now_ns: int, *, from_now: bool) -> _Part:
        counts = _published(self._publishing) if from_now else (0, 0)
        self._confirming = from_now and self._publishing.confirming
        self._unnamed_ns = now_ns
        return self._new_part((Kind.LINK_IN, Kind.CONFIRM), CHANNEL_HANDLE, counts, now_ns)

    def _new_consumer(self, consumer: Consumer, now_ns: int, *, from_now: bool) -> _Part:
        self._handles += 1
        counts = _delivered(consumer) if from_now else (0, 0)
        tag, queue = consumer.terms.tag, consumer.queue.name
        self._on_link(now_ns, Kind.LINK_OUT, self._channel.number, self._handles, tag, queue)
        return self._new_part((Kind.LINK_OUT, Kind.SETTLE), self._handles, counts, now_ns)

    def _new_part(self, kinds: tuple[int, int], handle: int, counts: tuple[int, int], now_ns: int) -> _Part:
        where = (self._connection, self._channel.number, handle)
        latency = Latency(kinds[1], *where)
        latency.begin(*counts)
        return _Part(Trail(kinds[0], *where, now_ns=now_ns, count=counts[0]), latency)

    def _name_publisher(self) -> None:
        """Say whose the events are that follow; on a channel that only consumes there are none."""
        if self._unnamed_ns:
            self._on_link(self._unnamed_ns, Kind.LINK_IN, self._channel.number, CHANNEL_HANDLE, "", "")
            self._unnamed_ns = 0

    def _finish_publisher(self, now_ns: int, ts_ns: int) -> None:
        published = self._publishing.published
        if published:
            self._name_publisher()
            self._publisher.trail.see(self._emit, now_ns, ts_ns, published, 0, 0, 0, 0, 0, whole=True)

    def _forget_gone(self, now_ns: int, ts_ns: int, *, latencies: bool) -> None:
        turn = self._turn
        for consumer in [each for each, part in self._consumers.items() if part.trail.turn != turn]:
            part = self._consumers.pop(consumer)
            written, settled = _delivered(consumer)
            part.trail.see(self._emit, now_ns, ts_ns, written, 0, 0, 0, 0, 0, whole=True)
            if latencies and not consumer.terms.no_ack:
                part.latency.see(self._emit, now_ns, ts_ns, written, settled)


class _Part:
    """The two records of what is published, or of a consumer."""

    __slots__ = ("latency", "trail")

    def __init__(self, trail: Trail, latency: Latency) -> None:
        self.trail = trail
        self.latency = latency


def _unconfirmed(publishing: Publishing) -> int:
    """Messages without confirmation: of the client, or if it wants none, of the queues."""
    return publishing.waiting if publishing.confirming else publishing.unconfirmed


def _published(publishing: Publishing) -> tuple[int, int]:
    """Messages that have come, and those that the client was told of."""
    published = publishing.published
    return published, published - publishing.waiting


def _delivered(consumer: Consumer) -> tuple[int, int]:
    """Deliveries that were written, and those that are settled."""
    written = consumer.credit.written
    return written, written - consumer.unacked
