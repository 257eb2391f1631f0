"""The frames of one channel of AMQP 0-9-1 in a ring, and timelines of links and channels as JSON.

Each frame has the state of the channel before it. A run of frames is one record, formatted only on a query.
State that changes without frames (the queue's credit, the reader's, the writer) is read after the channel's
step, and belongs to the step's last frame. A content is one frame here, with its header and body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, auto
from typing import Any, Final

from amqp10broker.observe.timeline.ring import HEAD_BYTES, RECORDS_MAX, TEXT_CHARACTERS_MAX, FrameRing, Tell
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import AckRun, ContentOpened, MethodFrame, PublishRun
from amqp10broker.protocols.amqp091.methods import decode_method
from amqp10broker.protocols.amqp10.link import SenderLink
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer

NAMES: Final = (
    *("prefetch", "unacknowledged", "queue_credit", "unsent"),
    *("global_prefetch", "channel_unacknowledged", "unconfirmed", "reader_credit"),
    *("writer_waiting_bytes", "writer_blocked"),
)
"""The names of the values: those of `ConsumerView`, `ChannelView` and `ConnectionView`."""

ChannelMark = tuple[int, int, bool, int, int, bool]
"""The state of a channel that changes without frames, after a step: reader_credit, the bytes that wait for
the socket, and whether deliveries wait for it; of a consumer the deliveries that its queue may still make,
those that are not written (`QueueCredit.granted`, `waiting`), and whether it gets no more.
"""
_CLOSED: Final = 5
Values = tuple[Any, ...]

# Methods without fields of any length; others are stored as text.
_LIGHT: Final = frozenset(
    {methods.BasicAck, methods.BasicNack, methods.BasicReject, methods.BasicQos, methods.BasicQosOk}
)
_CONFIRMS: Final = frozenset({methods.BasicAck, methods.BasicNack})
# The offset in a method's frame, after type, channel and size.
_METHOD_AT: Final = 7
LOOK_AFTER: Final = 512
"""After so many records the ring checks whether it is still observed."""


class ChannelRecordKind(IntEnum):
    """The kind of a record, which determines its three fields."""

    MARK = auto()
    """State changed in a step without frames."""
    PUBLISHED = auto()
    """Exchange, routing key, the first body's beginning."""
    ACKED = auto()
    """The first and the last (delivery tag, multiple)."""
    RECEIVED = auto()
    """A method of bounded size, or text."""
    DELIVERED = auto()
    """The consumer's `Terms`, the first delivery tag."""
    SENT = auto()
    """As `RECEIVED`."""


ChannelRecord = tuple[Any, ...]
"""Time, `ChannelRecordKind`, how many frames, three fields; then the state before it: deliveries that the
client holds, and those of the consumer; number of the next message, whether it is to be confirmed, and how
many confirms are sent; the channel's own prefetch; the `ChannelMark`. A plain tuple, because there is one for
every run of frames.
"""
_BEFORE: Final = 6


class _Nobody:
    # Stands for the consumer where a whole channel is observed.
    unacked = 0
    terms = None


class ChannelRing:
    """A tap of one channel; `ended` is why it records nothing more."""

    names = NAMES

    def __init__(
        self,
        channel: BrokerChannel,
        consumer: ChannelConsumer | None,
        mark: Callable[[], ChannelMark],
        now_ns: Callable[[], int],
        tell: Tell,
        on_segment: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._consumer: ChannelConsumer | _Nobody = _Nobody() if consumer is None else consumer
        self._look = mark
        self._now_ns = now_ns
        self._tell = tell
        self._on_segment = on_segment
        self.link: ChannelConsumer | BrokerChannel = channel if consumer is None else consumer
        self.ended: str | None = None
        self._consuming = channel.consuming
        self._publishing = channel.publishing
        self._held = channel.consuming.held
        self._records: list[ChannelRecord] = []
        self._add = self._records.append
        self._gone = 0
        # The number of records after the last step, the number from which the oldest are dropped, and the
        # number at which the ring checks next.
        self._length = 0
        self._full = self._due = LOOK_AFTER
        self._told = channel.publishing.told
        self._global_prefetch = channel.consuming.global_prefetch
        self._mark = mark()
        self._opened: methods.Method | None = None
        self._last: Values = ()

    def _now(self) -> Values:
        # The second part of a `ChannelRecord`.
        held, publishing = self._held.outstanding, self._publishing
        of_publishing = publishing.next_seq, publishing.confirming, self._told
        return (held, self._consumer.unacked, *of_publishing, self._global_prefetch, self._mark)

    def _drawn(self, before: Values) -> Values:
        # The values in the order of `NAMES`.
        held, unacked, next_seq, confirming, told, global_prefetch, mark = before
        untold = next_seq - 1 - told if confirming else None
        reader_credit, waiting_bytes, blocked, granted, waiting, _ = mark
        of_channel = (global_prefetch, held, untold, reader_credit, waiting_bytes, blocked)
        terms = self._consumer.terms
        if terms is None:
            return (None, None, None, None, *of_channel)
        return (terms.prefetch, unacked, max(0, granted + waiting), waiting, *of_channel)

    # --- the tap: all of it is paid for by the channel that is watched ----------------------------
    # `_record` makes such tuples too, and takes twice as long, so frequent frames do not use it.

    def received(self, item: object) -> None:
        if type(item) is PublishRun:
            bodies = item.bodies
            self._add(
                (
                    self._now_ns(),
                    ChannelRecordKind.PUBLISHED,
                    len(bodies),
                    item.exchange,
                    item.routing_key,
                    bodies[0][:HEAD_BYTES],
                    self._held.outstanding,
                    self._consumer.unacked,
                    self._publishing.next_seq,
                    self._publishing.confirming,
                    self._told,
                    self._global_prefetch,
                    self._mark,
                )
            )
        elif type(item) is AckRun:
            tags = item.tags
            self._add(
                (
                    self._now_ns(),
                    ChannelRecordKind.ACKED,
                    len(tags),
                    tags[0],
                    tags[-1],
                    None,
                    self._held.outstanding,
                    self._consumer.unacked,
                    self._publishing.next_seq,
                    self._publishing.confirming,
                    self._told,
                    self._global_prefetch,
                    self._mark,
                )
            )
        elif type(item) is ContentOpened:
            # It comes again when it is complete, unless it is refused.
            self._opened = item.method
        else:
            method = item.method if type(item) is MethodFrame else getattr(item, "method", None)
            self._record(
                ChannelRecordKind.RECEIVED, type(item).__name__ if method is None else self._kept(method)
            )

    def delivered(self, consumer: ChannelConsumer, first_tag: int, deliveries: int) -> None:
        self._add(
            (
                self._now_ns(),
                ChannelRecordKind.DELIVERED,
                deliveries,
                consumer.terms,
                first_tag,
                None,
                self._held.outstanding,
                self._consumer.unacked,
                self._publishing.next_seq,
                self._publishing.confirming,
                self._told,
                self._global_prefetch,
                self._mark,
            )
        )

    def sent(self, method: methods.Method) -> None:
        if type(method) in _CONFIRMS:
            self._add(
                (
                    self._now_ns(),
                    ChannelRecordKind.SENT,
                    1,
                    method,
                    None,
                    None,
                    self._held.outstanding,
                    self._consumer.unacked,
                    self._publishing.next_seq,
                    self._publishing.confirming,
                    self._told,
                    self._global_prefetch,
                    self._mark,
                )
            )
            # Confirms of one write are sent together: the first of them counts all.
            self._told = self._publishing.told
        else:
            self._global_prefetch = self._consuming.global_prefetch
            opened = self._opened
            if type(method) is methods.ChannelClose and opened is self._channel.in_hand:
                self._record(ChannelRecordKind.RECEIVED, self._kept(opened))
            self._record(ChannelRecordKind.SENT, self._kept(method))

    def sent_content(self, frames: bytes) -> None:
        method = decode_method(frames[_METHOD_AT : _METHOD_AT + int.from_bytes(frames[3:_METHOD_AT], "big")])
        # The delivery of a basic.get was counted before this call, although it belongs to this frame.
        got = isinstance(method, methods.BasicGetOk) and method.delivery_tag in self._held
        self._record(ChannelRecordKind.SENT, self._kept(method), already_held=int(got))

    def _kept(self, method: methods.Method) -> Any:
        if type(method) in _LIGHT:
            return method
        self._due = 0
        return self._tell(method)[:TEXT_CHARACTERS_MAX]

    def _record(self, kind: ChannelRecordKind, what: Any, frames: int = 1, *, already_held: int = 0) -> None:
        held, *before = self._now()
        self._add((self._now_ns(), kind, frames, what, None, None, held - already_held, *before))

    def turn_over(self) -> None:
        """Record state that has changed without a frame, after a step of the channel or before a query."""
        length = len(self._records)
        mark = self._look()
        if mark != self._mark:
            if length == self._length:
                self._record(ChannelRecordKind.MARK, "", 0)
                length += 1
            self._mark = mark
            if mark[_CLOSED]:
                self._due = 0
        self._length = length
        if length >= self._due:
            self._seldom()

    def _seldom(self) -> None:
        # Checks that are not needed in every step.
        self._global_prefetch = self._consuming.global_prefetch
        if self._channel.state is not ChannelState.OPEN or self._consuming.held is not self._held:
            self.end("the channel is closed")
        elif self._mark[_CLOSED]:
            self.end("the consumer is cancelled")
        elif self._length >= self._full:
            self._on_segment()
            gone = max(0, self._length - RECORDS_MAX)
            del self._records[:gone]
            self._gone += gone
            self._length -= gone
            self._full = self._length + LOOK_AFTER
        self._due = self._full

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self._last = self._now()
            self._on_segment()

    # --- queries ----------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        return self._gone

    @property
    def next(self) -> int:
        return self._gone + len(self._records)

    def before(self, number: int) -> Values:
        """Return the state before an existing record, or before the next one."""
        records = self._from(number, 1)
        return self._drawn(records[0][_BEFORE:] if records else self._behind_all())

    def steps(self, number: int, limit: int) -> Iterator[tuple[int, bool, Values, ChannelRecord]]:
        """Yield records: time, whether it is about the consumer, values after it, the record."""
        records = self._from(number, limit + 1)
        behind = [following[_BEFORE:] for following in records[1:]]
        if len(records) <= limit:
            behind.append(self._behind_all())
        mine = self._consumer.terms
        for record, values in zip(records, behind, strict=False):
            others = mine is not None and record[1] is ChannelRecordKind.DELIVERED and record[3] is not mine
            yield record[0], not others, self._drawn(values), record

    def _from(self, number: int, limit: int) -> list[ChannelRecord]:
        place = max(0, number - self._gone)
        return self._records[place : place + limit]

    def _behind_all(self) -> Values:
        return self._now() if self.ended is None else self._last

    def shown(self, record: ChannelRecord) -> dict[str, Any]:
        _, kind, frames, what, *more = record[:_BEFORE]
        direction: str | None = "in"
        head = b""
        match kind:
            case ChannelRecordKind.MARK:
                direction, text = None, ""
            case ChannelRecordKind.PUBLISHED:
                routing_key, head = more
                text = f"basic.publish exchange={what} routing-key={routing_key}"
            case ChannelRecordKind.ACKED:
                text = f"basic.ack {_tag(*what)}" + (f" .. {_tag(*more[0])}" if frames > 1 else "")
            case ChannelRecordKind.DELIVERED:
                direction, first = "out", more[0]
                tags = f"{first}..{first + frames - 1}" if frames > 1 else f"{first}"
                text = f"basic.deliver consumer-tag={what.tag} delivery-tag={tags}"
            case _:
                direction = "in" if kind is ChannelRecordKind.RECEIVED else "out"
                text = what if isinstance(what, str) else self._tell(what)
        return {
            "direction": direction,
            "frames": frames,
            "frame": text[:TEXT_CHARACTERS_MAX],
            "bytes": head.hex(),
            "marks": ["qos"] if isinstance(what, methods.BasicQos) else [],
        }


def _tag(tag: int, multiple: bool) -> str:
    return f"delivery-tag={tag}" + (" multiple=true" if multiple else "")


def timeline(
    ring: FrameRing | ChannelRing, since: int | None, limit: int, *, frames: bool = True
) -> dict[str, Any]:
    """Return steps of a ring from a number on; None, or one that is gone: from the oldest.

    A later call takes ``next`` as `since`. Returns ``{"since", "next": int, "lost": int, "more": bool,
    "ended": str | None, "start": {values}, "steps": [{"number": int, "at_ns": int, "direction": "in" | "out"
    | None, "frames": int, "link": bool, "frame": str, "bytes": hex, "marks": [...], "values": {those that
    changed}}]}``. Times are of the ring's clock.
    """
    if ring.ended is None:
        ring.turn_over()
    first = ring.first if since is None else min(max(since, ring.first), ring.next)
    before = start = ring.before(first)
    names = ring.names
    steps: list[dict[str, Any]] = []
    for number, (at_ns, link, values, record) in enumerate(ring.steps(first, limit), first):
        step: dict[str, Any] = {"number": number, "at_ns": at_ns, "link": link}
        if frames:
            step |= ring.shown(record)
        step["values"] = {} if values == before else _changed(names, before, values)
        before = values
        steps.append(step)
    following = first + len(steps)
    return {
        "since": first,
        "next": following,
        "lost": 0 if since is None else max(0, first - since),
        "more": following < ring.next,
        "ended": ring.ended,
        "start": dict(zip(names, start, strict=True)),
        "steps": steps,
    }


def _changed(names: tuple[str, ...], before: Values, values: Values) -> dict[str, Any]:
    both = zip(names, before, values, strict=True)
    return {name: value for name, old, value in both if value != old}


class Taps:
    """Passes the events of one session to several rings (a `FrameTap`)."""

    def __init__(self, rings: Sequence[FrameRing]) -> None:
        self._rings = rings

    def received(self, item: object) -> None:
        for ring in self._rings:
            ring.received(item)

    def sent(self, frame: bytes) -> None:
        for ring in self._rings:
            ring.sent(frame)

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        for ring in self._rings:
            ring.sent_run(link, first_id, deliveries, head)

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        for ring in self._rings:
            ring.sent_piece(link, delivery_id, head, first=first, last=last)

    def turn_over(self) -> None:
        for ring in self._rings:
            ring.turn_over()
