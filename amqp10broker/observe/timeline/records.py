"""The records of a ring. They are plain tuples, because there is one for every run of frames while it is on.

Each begins with the time in nanoseconds by a monotonic clock, and its `RecordKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from enum import IntEnum, auto
from operator import itemgetter
from typing import Any, Final, Self

from amqp10broker.observe.frames.link_state import ObservedLink, ObservedSession
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Flow, Role, Transfer, decode_composite
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.serial import MASK, ranges

HEAD_BYTES: Final = 64
"""The number of bytes stored of the first frame of a run, and of a payload."""
Span = tuple[int, int]
_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


class RecordKind(IntEnum):
    """The kind of a record, which determines its fields after time and kind."""

    MARK = auto()
    """A `Mark`: a state that changes without a frame."""
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
still make and those that are not written (`QueueCredit.granted`, `waiting`); bytes that the socket of the
connection does not take, and whether transfers of the session wait for that; the limit of its credit, and why
it has this value if it is automatic (`sessions.auto_limit`).
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
NAMES: Final = (
    *("credit", "delivery_count", "drain", "queue_credit", "pending", "unsettled"),
    *("incoming_window", "next_incoming_id", "remote_incoming_window", "next_outgoing_id"),
    *("writer_waiting_bytes", "writer_blocked", "credit_limit", "credit_limit_why"),
)
"""The names of the values: those of `LinkView`, `SessionView` and `ConnectionView`."""


class Standing:
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
    """Return ``direction``, ``frames``, ``frame``, ``bytes`` and ``marks`` of a step; see `document`."""
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
