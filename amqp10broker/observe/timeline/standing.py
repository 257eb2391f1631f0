"""The state of a link, and the change by each frame: the reducer of a timeline.

Its only input is frames. Its values after the last frame of a session's step are those of the engine: the
formulas are the engine's own where the specification has them (`protocols.amqp10.credit`,
`protocols.amqp10.windows`), and tests compare both over every frame script.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final, Self

from amqp10broker.observe.timeline.records import Mark, Record, RecordKind, Span
from amqp10broker.protocols.amqp10.errors import AmqpSessionError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Disposition, Flow, Role, Transfer, decode_composite
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.serial import MASK, diff, limit_left

FRAME_HEAD_BYTES: Final = 8
NAMES: Final = (
    *("credit", "delivery_count", "drain", "queue_credit", "pending", "unsettled"),
    *("incoming_window", "next_incoming_id", "remote_incoming_window", "next_outgoing_id"),
    *("writer_waiting_bytes", "writer_blocked", "credit_limit", "credit_limit_why"),
)
"""The names of the values: those of `LinkView`, `SessionView` and `ConnectionView`."""


class LinkState:
    """The state of one link and its session after the frames up to now."""

    def __init__(self, session: Session, link: SenderLink | ReceiverLink, mark: Mark) -> None:
        self.sends = isinstance(link, SenderLink)
        self.handle = link.handle
        self.remote_handle = link.remote_handle
        self.mark = mark
        self._credit = copy(link.credit) if isinstance(link, SenderLink) else None
        self._link_credit = max(0, link.credit.link_credit)
        self._delivery_count = link.credit.delivery_count
        self._drain = False
        self._outgoing = copy(session.outgoing)
        self._incoming = session.incoming.advertised
        self._next_incoming_id = session.incoming.next_incoming_id or 0
        self._partial: int | None = None
        if isinstance(link, SenderLink):
            self.unsettled = {
                number for number, (owner, _) in session.outbound.unsettled.items() if owner is link
            }
        else:
            self._partial = None if link.partial is None else link.partial.delivery_id
            self.unsettled = {number for number, owner in session.inbound.unsettled.items() if owner is link}

    def copy(self) -> Self:
        other = copy(self)
        other._credit = copy(self._credit)
        other._outgoing = copy(self._outgoing)
        other.unsettled = set(self.unsettled)
        return other

    def values(self) -> tuple[Any, ...]:
        credit, outgoing = self._credit, self._outgoing
        granted, pending, waiting_bytes, blocked, limit, why = self.mark
        of_link: tuple[Any, ...]
        if credit is None:
            of_link = (self._link_credit, self._delivery_count, self._drain, None, None)
        else:
            left = max(0, granted + pending)
            of_link = (credit.link_credit, credit.delivery_count, credit.drain, left, pending)
        return (
            *of_link,
            len(self.unsettled),
            self._incoming,
            self._next_incoming_id,
            outgoing.remote_incoming_window,
            outgoing.next_outgoing_id,
            waiting_bytes,
            blocked,
            limit,
            why,
        )

    # --- frames -----------------------------------------------------------------------------------

    def apply(self, record: Record) -> bool:
        """Apply one record; return whether it is about the link itself."""
        match record[1]:
            case RecordKind.MARK:
                self.mark = record[2]
                return True
            case RecordKind.TRANSFERS_IN:
                _, _, handle, spans, count, settled, *_ = record
                return self._transfers_in(handle, spans, count, settled=settled)
            case RecordKind.TRANSFER_IN:
                return self._transfer_in(record[3])
            case RecordKind.DISPOSITIONS_IN:
                _, _, role, settled, _, spans, _ = record
                return self._settle(role, spans, came=True, settled=settled)
            case RecordKind.FLOW_IN:
                return self._flow_in(record[2])
            case RecordKind.SENT:
                return self._sent(record[2])
            case RecordKind.TRANSFERS_OUT:
                _, _, handle, first_id, count, settled, _ = record
                self._outgoing.spend(count)
                if handle == self.handle:
                    self._start(first_id, count, settled=settled)
                return bool(handle == self.handle)
            case RecordKind.TRANSFER_OUT:
                _, _, handle, delivery_id, settled, _, first, _ = record
                self._outgoing.spend(1)
                if handle == self.handle and first:
                    self._start(delivery_id, 1, settled=settled)
                return bool(handle == self.handle)
            case _:
                return False

    # --- deliveries from the client ---------------------------------------------------------------

    def _count_in(self, frames: int) -> None:
        self._incoming = max(0, self._incoming - frames)
        self._next_incoming_id = (self._next_incoming_id + frames) & MASK

    def _transfers_in(self, handle: int, spans: tuple[Span, ...], count: int, *, settled: bool) -> bool:
        self._count_in(count)
        if handle != self.remote_handle or self.sends:
            return False
        self._partial = None
        if not settled:
            for first, last in spans:
                self.unsettled.update(_ids(first, diff(last, first) + 1))
        self._receive(count)
        return True

    def _transfer_in(self, transfer: Transfer) -> bool:
        self._count_in(1)
        if transfer.handle != self.remote_handle or self.sends:
            return False
        if self._partial is None:
            self._partial = transfer.delivery_id or 0
            if not transfer.settled and not transfer.resume:
                self.unsettled.add(self._partial)
        if transfer.aborted or not transfer.more:
            self._receive(1)
            if transfer.aborted or transfer.resume:
                self.unsettled.discard(self._partial)
            self._partial = None
        return True

    def _receive(self, deliveries: int) -> None:
        self._delivery_count = (self._delivery_count + deliveries) & MASK
        self._link_credit = max(0, self._link_credit - deliveries)

    # --- deliveries to the client -----------------------------------------------------------------

    def _start(self, first_id: int, deliveries: int, *, settled: bool) -> None:
        assert self._credit is not None
        self._credit.spend(deliveries)
        if not settled:
            self.unsettled.update(_ids(first_id, deliveries))

    # --- flows, dispositions ----------------------------------------------------------------------

    def _flow_in(self, flow: Flow) -> bool:
        try:
            self._outgoing.update(flow)
        except AmqpSessionError:
            return False  # the session ends with it, and its state does not matter any more
        self._next_incoming_id = flow.next_outgoing_id
        if flow.handle is None or flow.handle != self.remote_handle:
            return False
        if self._credit is not None:
            if flow.link_credit is not None:
                self._credit.set(flow.delivery_count, flow.link_credit, drain=flow.drain)
        elif flow.delivery_count is not None and diff(flow.delivery_count, self._delivery_count) > 0:
            # A sender that drained: its credit is used up to this delivery-count.
            self._link_credit = limit_left(self._delivery_count, self._link_credit, flow.delivery_count)
            self._delivery_count = flow.delivery_count
        return True

    def _sent(self, frame: bytes) -> bool:
        performative, _ = decode_composite(frame[FRAME_HEAD_BYTES:])
        if isinstance(performative, Flow):
            return self._flow_out(performative)
        if isinstance(performative, Disposition):
            first = performative.first
            last = first if performative.last is None else performative.last
            return self._settle(
                performative.role, ((first, last),), came=False, settled=bool(performative.settled)
            )
        return getattr(performative, "handle", None) == self.handle

    def _flow_out(self, flow: Flow) -> bool:
        self._incoming = flow.incoming_window
        if flow.handle != self.handle:
            return False
        if self._credit is not None:
            if flow.delivery_count != self._credit.delivery_count:
                self._credit.forfeit()  # the answer to a drain
        else:
            assert flow.delivery_count is not None
            self._link_credit = limit_left(flow.delivery_count, flow.link_credit or 0, self._delivery_count)
            self._drain = flow.drain
        return True

    def _settle(self, role: bool, spans: tuple[Span, ...], *, came: bool, settled: bool) -> bool:
        # Returns whether the disposition names a delivery of the link.
        if (role == Role.RECEIVER) is not (came is self.sends):
            return False
        mine = False
        unsettled = self.unsettled
        for first, last in spans:
            span = diff(last, first)
            if 0 <= span < len(unsettled):
                named = unsettled.intersection(_ids(first, span + 1))
            else:
                named = {number for number in unsettled if 0 <= diff(number, first) <= span}
            mine = mine or bool(named)
            if settled:
                unsettled -= named
        return mine


def _ids(first: int, count: int) -> range | list[int]:
    if first + count <= MASK + 1:
        return range(first, first + count)
    return [(first + offset) & MASK for offset in range(count)]
