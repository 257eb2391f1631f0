"""The frames of one link's session in a ring, recorded while the link is observed.

A run of frames is one record, and nothing is computed when it is made: the state of the link after each frame
is replayed on a query (`standing`). So that the oldest records can be dropped, the ring is cut into segments;
each begins with the state of the link, taken from the engine between two steps of the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from itertools import islice
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.timeline.records import (
    HEAD_BYTES,
    NAMES,
    Mark,
    Record,
    RecordKind,
    Span,
    Standing,
    Tell,
    joined,
    shown,
    spans_of,
)
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Disposition, Flow, Rejected
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import DispositionRun
from amqp10broker.protocols.amqp10.transfer import TransferFrame, TransferRun

RECORDS_MAX: Final = 32_768
"""The most records of a ring, of 300 bytes each; beyond, the oldest segment is dropped."""
SEGMENT_RECORDS: Final = 512
TEXT_CHARACTERS_MAX: Final = 400
"""The most characters of a frame with fields of any length, which is stored as text."""
SPANS_A_RECORD: Final = 4
"""Dispositions out of order have a weight: so many of their ranges count as one record."""

_DESCRIPTOR_AT: Final = 10
_OFTEN: Final = (Flow.DESCRIPTOR, Disposition.DESCRIPTOR)


@dataclass(slots=True)
class Segment:
    """Consecutive records, and the state of the link before the first of them."""

    first: int
    standing: Standing
    records: list[Record] = field(default_factory=list)
    weight: int = 0


class FrameRing:
    """A tap of one session, for one link; `ended` is why it records nothing more."""

    names = NAMES

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
        self._segments = deque([Segment(0, Standing(session, link, self._mark))])
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
            # Taking the state of the link visits all that is unsettled in the session.
            due = self._session.unsettled // 8
            if len(segment.records) + segment.weight >= due:
                self._next_segment(segment)
                self._on_segment()

    def _next_segment(self, segment: Segment) -> None:
        segment.weight += len(segment.records)
        self._old_weight += segment.weight
        following = Segment(
            segment.first + len(segment.records), Standing(self._session, self.link, self._mark)
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
        """Return the state of the link before an existing record, or before the next one."""
        return self._at(number).values()

    def steps(self, number: int, limit: int) -> Iterator[tuple[int, bool, tuple[Any, ...], Record]]:
        """Iterate over records: time, whether it is about the link, values after it, the record."""
        standing = self._at(number)
        for record in islice(self.records(number), limit):
            link = standing.apply(record)
            yield record[0], link, standing.values(), record

    def shown(self, record: Record) -> dict[str, Any]:
        return shown(record, self._tell)

    def _at(self, number: int) -> Standing:
        segment = next(each for each in reversed(self._segments) if each.first <= number)
        standing = segment.standing.copy()
        for record in segment.records[: number - segment.first]:
            standing.apply(record)
        return standing

    def records(self, number: int) -> Iterator[Record]:
        """Iterate over records from an existing one on."""
        for segment in self._segments:
            yield from segment.records[max(0, number - segment.first) :]


def _state_text(state: Any) -> str | None:
    if state is None:
        return None
    name = type(state).__name__.lower()
    if isinstance(state, Rejected) and state.error is not None:
        return f"{name}({state.error.condition})"[:TEXT_CHARACTERS_MAX]
    return name
