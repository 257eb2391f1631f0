"""The state of a link after each record of a ring: that of the engine at first, then changed by frames alone.

The values after the last frame of a session's step are those of the engine; tests compare both over every
frame script.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final, Self

from amqp10broker.observe.frames.link_state import ObservedLink, ObservedSession
from amqp10broker.observe.timeline.records import Mark, Record, RecordKind
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Transfer, decode_composite
from amqp10broker.protocols.amqp10.session import Session

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
