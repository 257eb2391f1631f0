"""Timelines as JSON: the frames of a link's session, or of a channel of AMQP 0-9-1, in a ring while it is
observed.

A run of frames is one record, a plain tuple that begins with the time in nanoseconds by a monotonic clock and
its kind, and is formatted only on a query.

The state of a link after each frame is replayed on a query (`ReplayedState`). So that the oldest records can
be dropped, the ring is cut into segments; each begins with the state of the link, taken from the engine
between two steps of the session.

A frame of a channel has the state of the channel before it. State that changes without frames (the queue's
credit, the reader's, the writer) is read after the channel's step, and belongs to the step's last frame. A
content is one frame here, with its header and body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import field, replace
from enum import IntEnum, auto
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import ObservedLink, ObservedSession
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import AckRun, ContentOpened, MethodFrame, PublishRun
from amqp10broker.protocols.amqp091.methods import decode_method
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink, TransferFrame, TransferRun
from amqp10broker.protocols.amqp10.performatives import (
    Disposition,
    Flow,
    Rejected,
    Role,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import DispositionRun
from amqp10broker.protocols.serial import MASK, ranges
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer

HEAD_BYTES: Final = 64
"""Bytes stored of the first frame of a run, and of a payload."""
Span = tuple[int, int]
_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


class RecordKind(IntEnum):
    """The kind of a record, which determines its fields after time and kind."""

    MARK = auto()
    """A `Mark`."""
    TRANSFERS_IN = auto()
    """handle, spans of delivery-ids, how many, settled, first tag, first payload's beginning."""
    TRANSFER_IN = auto()
    """handle, the `Transfer`, payload's beginning, payload's bytes."""
    DISPOSITIONS_IN = auto()
    """role, settled, state as text, spans, how many frames."""
    FLOW_IN = auto()
    """The `Flow`, its text if that is already made, else None."""
    OTHER_IN = auto()
    SENT = auto()
    TRANSFERS_OUT = auto()
    """handle, first delivery-id, how many, settled, beginning of the first frame."""
    TRANSFER_OUT = auto()
    """handle, delivery-id, settled, beginning of the frame, whether it is the first, the last."""


Record = tuple[Any, ...]


Mark = tuple[int, int, int, bool, int, str | None]
"""The state of a link that changes without frames, after a step of its session: deliveries that its queue may
still make and those that are not written (`QueueCredit.granted`, `waiting`); bytes that the socket does not
take, and whether transfers of the session wait for that; the limit of its credit, and why it has this value
if it is automatic (`sessions.credit`).
"""


def spans_of(delivery_ids: Sequence[int]) -> tuple[Span, ...]:
    """Return delivery-ids as inclusive ranges."""
    first, last = delivery_ids[0], delivery_ids[-1]
    if len(delivery_ids) == 1:
        return ((first, first),)
    if last - first == len(delivery_ids) - 1 and list(range(first, last + 1)) == delivery_ids:
        return ((first, last),)
    return tuple(ranges(delivery_ids))


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Merge spans of one delivery each that follow each other; return others unchanged."""
    first, last = spans[0][0], spans[-1][1]
    if len(spans) > 1 and last - first == len(spans) - 1:
        ids = list(range(first, last + 1))
        if list(map(_FIRST, spans)) == ids == list(map(_LAST, spans)):
            return ((first, last),)
    return tuple(spans)


FRAME_HEAD_BYTES: Final = 8
LINK_NAMES: Final = (
    *("credit", "delivery_count", "drain", "queue_credit", "pending", "unsettled"),
    *("incoming_window", "next_incoming_id", "remote_incoming_window", "next_outgoing_id"),
    *("writer_waiting_bytes", "writer_blocked", "credit_limit", "credit_limit_why"),
)
"""The names of the values: those of `LinkView`, `SessionView` and `ConnectionView`."""


class ReplayedState:
    """The state of one link and its session after the frames up to now."""

    def __init__(self, session: Session, link: SenderLink | ReceiverLink, mark: Mark) -> None:
        self.mark = mark
        self._link = _observed(session, link)
        self._session = ObservedSession(session.channel)
        self._session.add(self._link)
        self._came, self._went = came, went = self._session.windows["in"], self._session.windows["out"]
        came.next_id, came.left = session.incoming.next_incoming_id or 0, session.incoming.advertised
        went.next_id, went.left = session.outgoing.next_outgoing_id, session.outgoing.remote_incoming_window
        went.initial_id = session.outgoing.initial_outgoing_id

    def copy(self) -> Self:
        other = copy(self)
        other._link = self._link.copy()
        other._session = self._session.copy_with(other._link)
        other._came, other._went = other._session.windows["in"], other._session.windows["out"]
        return other

    def values(self) -> tuple[Any, ...]:
        link, came, went = self._link, self._came, self._went
        credit = link.credit
        granted, pending, *rest = self.mark
        of_queue = (None, None) if link.direction == "in" else (max(0, granted + pending), pending)
        of_link = (credit.link_credit, credit.delivery_count, credit.drain, *of_queue, len(link.unsettled))
        return (*of_link, came.left, came.next_id, went.left, went.next_id, *rest)

    def apply(self, record: Record) -> bool:
        """Apply one record; return whether it is about the link itself."""
        session = self._session
        match record[1]:
            case RecordKind.MARK:
                self.mark = record[2]
                return True
            case RecordKind.TRANSFERS_IN:
                _, _, handle, spans, count, settled, *_ = record
                return session.transfers("in", handle, spans, count, settled=settled) is not None
            case RecordKind.TRANSFER_IN:
                return bool(session.apply("in", record[3]))
            case RecordKind.DISPOSITIONS_IN:
                _, _, role, settled, _, spans, _ = record
                return bool(session.settle("in", role, spans, settled=settled))
            case RecordKind.FLOW_IN:
                return bool(session.apply("in", record[2]))
            case RecordKind.SENT:
                return bool(session.apply("out", decode_composite(record[2][FRAME_HEAD_BYTES:])[0]))
            case RecordKind.TRANSFERS_OUT:
                _, _, handle, first, count, settled, _ = record
                spans = ((first, first + count - 1),)
                return session.transfers("out", handle, spans, count, settled=settled) is not None
            case RecordKind.TRANSFER_OUT:
                _, _, handle, number, settled, _, begins, ends = record
                if handle in session.links["out"]:
                    # A ring may begin, or a link be aborted, between two frames of a delivery.
                    self._link.partial = None if begins else number
                transfer = Transfer(handle=handle, delivery_id=number, settled=settled, more=not ends)
                return bool(session.apply("out", transfer))
            case _:
                return False


def _observed(session: Session, link: SenderLink | ReceiverLink) -> ObservedLink:
    sends = isinstance(link, SenderLink)
    observed = ObservedLink(link.name, "out" if sends else "in", attached=True)
    observed.handles["out"] = link.handle
    if link.remote_handle is not None:
        observed.handles["in"] = link.remote_handle
    if isinstance(link, SenderLink):
        observed.credit = copy(link.credit)
        observed.unsettled = {
            number for number, (owner, _) in session.outbound.unsettled.items() if owner is link
        }
    else:
        observed.credit.delivery_count = link.credit.delivery_count
        observed.credit.link_credit = max(0, link.credit.link_credit)
        observed.partial = None if link.partial is None else link.partial.delivery_id
        observed.unsettled = {number for number, owner in session.inbound.unsettled.items() if owner is link}
    return observed


Tell = Callable[[Any], str]


def shown(record: Record, tell: Tell) -> dict[str, Any]:
    """Return ``direction``, ``frames``, ``frame``, ``bytes`` and ``marks`` of a step."""
    direction: str | None = "in"
    frames, marks, head = 1, [], b""
    match record[1]:
        case RecordKind.MARK:
            direction, frames = None, 0
            text = ""
        case RecordKind.TRANSFERS_IN:
            _, _, handle, spans, frames, settled, tag, head = record
            text = (
                f"TRANSFER handle={handle} delivery-id={_spans(spans)} delivery-tag={tag.hex()} "
                f"settled={str(settled).lower()}"
            )
        case RecordKind.TRANSFER_IN:
            _, _, _, transfer, head, size = record
            text = f"{tell(transfer)} payload({size} bytes)"
        case RecordKind.DISPOSITIONS_IN:
            _, _, role, settled, state, spans, frames = record
            text = (
                f"DISPOSITION role={'receiver' if role == Role.RECEIVER else 'sender'} "
                f"delivery-id={_spans(spans)} settled={str(settled).lower()} state={state or 'none'}"
            )
        case RecordKind.FLOW_IN:
            _, _, flow, told = record
            text = told or tell(flow)
            marks = list(_marks(flow))
        case RecordKind.OTHER_IN:
            text = record[2]
        case RecordKind.SENT:
            direction, head = "out", record[2]
            performative, _ = decode_composite(head[FRAME_HEAD_BYTES:])
            text = tell(performative)
            marks = list(_marks(performative))
        case RecordKind.TRANSFERS_OUT:
            _, _, handle, first, frames, settled, head = record
            numbers = _spans([(first, (first + frames - 1) & MASK)])
            text = f"TRANSFER handle={handle} delivery-id={numbers} settled={str(settled).lower()}"
            direction = "out"
        case _:
            _, _, handle, number, settled, head, begins, ends = record
            part = "more=false" if ends else "more=true"
            text = f"TRANSFER handle={handle} delivery-id={number} settled={str(settled).lower()} {part}"
            direction = "out"
            marks = ["begins"] if begins else []
    return {"direction": direction, "frames": frames, "frame": text, "bytes": head.hex(), "marks": marks}


def _marks(performative: Any) -> Iterator[str]:
    if isinstance(performative, Flow):
        yield "flow"
        if performative.drain:
            yield "drain"
        if performative.echo:
            yield "echo"


def _spans(spans: Any) -> str:
    # For example ``5..9, 12``.
    return ", ".join(f"{first}..{last}" if last != first else f"{first}" for first, last in spans)


RECORDS_MAX: Final = 32_768
"""The records, of 300 bytes each, beyond which the oldest segment is dropped."""
SEGMENT_RECORDS: Final = 512
TEXT_CHARACTERS_MAX: Final = 400
"""The most characters of a frame with fields of any length, which is stored as text."""
SPANS_A_RECORD: Final = 4
"""The weight of dispositions out of order: so many of their ranges count as one record."""

_DESCRIPTOR_AT: Final = 10
_OFTEN: Final = (Flow.DESCRIPTOR, Disposition.DESCRIPTOR)


@dataclass(slots=True)
class Segment:
    """Consecutive records, and the state of the link before the first of them."""

    first: int
    standing: ReplayedState
    records: list[Record] = field(default_factory=list)
    weight: int = 0


class FrameRing:
    """A tap of one session, for one link. `ended`: why it records nothing more."""

    names = LINK_NAMES

    def __init__(
        self,
        session: Session,
        link: SenderLink | ReceiverLink,
        mark: Callable[[], Mark],
        now_ns: Callable[[], int],
        tell: Tell,
        on_segment: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin between two steps of the session. `on_segment`: called from time to time while it records,
        and when it ends by itself.
        """
        self._session = session
        self.link = link
        self._look = mark
        self._now_ns = now_ns
        self._tell = tell
        self._on_segment = on_segment
        self._changes = False
        self._mark = mark()
        self._old_weight = 0
        self._segments = deque([Segment(0, ReplayedState(session, link, self._mark))])
        self._records = self._segments[-1].records
        self._add = self._records.append
        self.ended: str | None = None

    # --- the tap: all of it is paid for by the link that is watched ---------------------------------

    def received(self, item: object) -> None:
        kind = type(item)
        if kind is TransferRun:
            assert isinstance(item, TransferRun)
            ids = item.delivery_ids
            if ids:
                spans = spans_of(ids) if len(ids) > 1 else ((ids[0], ids[0]),)
                head = item.payloads[0][:HEAD_BYTES]
                fields = (item.handle, spans, len(ids), item.settled, item.tags[0], head)
                self._add((self._now_ns(), RecordKind.TRANSFERS_IN, *fields))
        elif kind is DispositionRun:
            assert isinstance(item, DispositionRun)
            named = item.spans if len(item.spans) == 1 else self._joined(item.spans)
            state = _state_text(item.state)
            self._add(
                (
                    self._now_ns(),
                    RecordKind.DISPOSITIONS_IN,
                    item.role,
                    item.settled,
                    state,
                    named,
                    len(item.spans),
                )
            )
        elif kind is Flow:
            assert isinstance(item, Flow)
            if item.properties is None:
                self._add((self._now_ns(), RecordKind.FLOW_IN, item, None))
            else:
                bare = replace(item, properties=None)
                self._add((self._now_ns(), RecordKind.FLOW_IN, bare, self._text(item)))
        else:
            self._received_seldom(item)

    def _received_seldom(self, item: object) -> None:
        now = self._now_ns()
        match item:
            case Disposition():
                span = (item.first, item.first if item.last is None else item.last)
                state = _state_text(item.state)
                self._add((now, RecordKind.DISPOSITIONS_IN, item.role, item.settled, state, (span,), 1))
            case TransferFrame():
                transfer, payload = item.performative, item.payload
                if transfer.state is not None:
                    transfer = replace(transfer, state=None)
                of_payload = (payload[:HEAD_BYTES], len(payload))
                self._add((now, RecordKind.TRANSFER_IN, transfer.handle, transfer, *of_payload))
            case _:
                self._changes = True
                self._add((now, RecordKind.OTHER_IN, self._text(item)))

    def _joined(self, spans: list[Span]) -> tuple[Span, ...]:
        found = joined(spans)
        if len(found) > SPANS_A_RECORD:
            self._segments[-1].weight += len(found) // SPANS_A_RECORD
            self._changes = True
        return found

    def sent(self, frame: bytes) -> None:
        self._add((self._now_ns(), RecordKind.SENT, frame))
        if frame[_DESCRIPTOR_AT] not in _OFTEN:
            self._changes = True
            self._segments[-1].weight += len(frame) // TEXT_CHARACTERS_MAX

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        fields = (link.handle, first_id, deliveries, link.settled, head[:HEAD_BYTES])
        self._add((self._now_ns(), RecordKind.TRANSFERS_OUT, *fields))

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        fields = (link.handle, delivery_id, link.settled, head[:HEAD_BYTES], first, last)
        self._add((self._now_ns(), RecordKind.TRANSFER_OUT, *fields))

    def _text(self, performative: object) -> str:
        return self._tell(performative)[:TEXT_CHARACTERS_MAX]

    # --- steps ------------------------------------------------------------------------------------

    def turn_over(self) -> None:
        """Record state that has changed without a frame, after a step of the session or before a query."""
        if self._changes:
            self._changes = False
            if not self.link.attached or self._session.ended:
                self.end("the link is detached")
                return
            self._end_of_segment()
        mark = self._look()
        if mark != self._mark:
            self._mark = mark
            self._add((self._now_ns(), RecordKind.MARK, mark))
        if len(self._records) >= SEGMENT_RECORDS:
            self._end_of_segment()

    def _end_of_segment(self) -> None:
        segment = self._segments[-1]
        if len(segment.records) + segment.weight >= SEGMENT_RECORDS:
            # Reading the state of the link visits all unsettled deliveries of the session.
            due = self._session.unsettled // 8
            if len(segment.records) + segment.weight >= due:
                self._next_segment(segment)
                self._on_segment()

    def _next_segment(self, segment: Segment) -> None:
        segment.weight += len(segment.records)
        self._old_weight += segment.weight
        following = Segment(
            segment.first + len(segment.records), ReplayedState(self._session, self.link, self._mark)
        )
        self._segments.append(following)
        self._records = following.records
        self._add = self._records.append
        while self._old_weight > RECORDS_MAX and len(self._segments) > 1:
            self._old_weight -= self._segments.popleft().weight

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self._on_segment()

    # --- queries ----------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        return self._segments[0].first

    @property
    def next(self) -> int:
        return self._segments[-1].first + len(self._segments[-1].records)

    def before(self, number: int) -> tuple[Any, ...]:
        """Return the state before an existing record, or before the next one."""
        return self._at(number).values()

    def steps(self, number: int, limit: int) -> Iterator[tuple[int, bool, tuple[Any, ...], Record]]:
        """Yield records: time, whether it is about the link, values after it, the record."""
        standing = self._at(number)
        for record in islice(self.records(number), limit):
            link = standing.apply(record)
            yield record[0], link, standing.values(), record

    def shown(self, record: Record) -> dict[str, Any]:
        return shown(record, self._tell)

    def _at(self, number: int) -> ReplayedState:
        segment = next(each for each in reversed(self._segments) if each.first <= number)
        standing = segment.standing.copy()
        for record in segment.records[: number - segment.first]:
            standing.apply(record)
        return standing

    def records(self, number: int) -> Iterator[Record]:
        """Yield records from an existing one on."""
        for segment in self._segments:
            yield from segment.records[max(0, number - segment.first) :]


def _state_text(state: Any) -> str | None:
    if state is None:
        return None
    name = type(state).__name__.lower()
    if isinstance(state, Rejected) and state.error is not None:
        return f"{name}({state.error.condition})"[:TEXT_CHARACTERS_MAX]
    return name


# --- channels of AMQP 0-9-1 -------------------------------------------------------------------------

CHANNEL_NAMES: Final = (
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
"""The number of records after which the ring checks whether it is still observed."""


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
    """A sent method, as `RECEIVED`."""


ChannelRecord = tuple[Any, ...]
"""Time, `ChannelRecordKind`, how many frames, three fields; then the state before it: deliveries that the
client holds, and those of the consumer; number of the next message, whether it is to be confirmed, and how
many confirms are sent; the channel's own prefetch; the `ChannelMark`. A plain tuple, because there is one for
every run of frames.
"""
_BEFORE: Final = 6


class _WholeChannel:
    # Stands for the consumer where a whole channel is observed.
    unacked = 0
    terms = None


class ChannelRing:
    """A tap of one channel. `ended`: why it records nothing more."""

    names = CHANNEL_NAMES

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
        self._consumer: ChannelConsumer | _WholeChannel = _WholeChannel() if consumer is None else consumer
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
        # Numbers of records: after the last step, from which the oldest are dropped, at the next check.
        self._length = 0
        self._full = self._due = LOOK_AFTER
        self._told = channel.publishing.told
        self._global_prefetch = channel.consuming.global_prefetch
        self._mark = mark()
        self._opened: methods.Method | None = None
        self._last: Values = ()

    def _now(self) -> Values:
        # Return the second part of a `ChannelRecord`.
        held, publishing = self._held.outstanding, self._publishing
        of_publishing = publishing.next_seq, publishing.confirming, self._told
        return (held, self._consumer.unacked, *of_publishing, self._global_prefetch, self._mark)

    def _drawn(self, before: Values) -> Values:
        # Return the values in the order of `CHANNEL_NAMES`.
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
            # The content is received again when it is complete, unless it is refused.
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
        """Record state that has changed without a frame, as `FrameRing`."""
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
        # These checks are not needed in every step.
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
    """Return steps of a ring from a number on. None, or a number that was dropped, means the oldest.

    A later call takes ``next`` as `since`. Each of ``steps`` is a frame or a run of frames, with the
    ``values`` that changed since the step before, or ``start``. Times are those of the ring's clock.
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
