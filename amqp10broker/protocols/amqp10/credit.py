"""Link credit (part 2, section 2.6.7) and session windows (section 2.5.6).

The receiver *sets* the credit, counted from a delivery-count, so that grants and deliveries that cross on the
wire are not counted twice: ``link-credit(snd) := delivery-count(rcv) + link-credit(rcv) -
delivery-count(snd)``.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum, auto
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.errors import AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.protocols.serial import MASK, diff, limit_left

# "not a count but a sequence number initialized at an arbitrary point by the sender" (2.6.7). This engine
# starts at 0: proton 0.40 sends a flow counted from 0 before it has read the broker's attach, and with any
# other start that flow would be a grant of another size.
INITIAL_DELIVERY_COUNT: Final = 0

_INT32_MAX: Final = 0x7FFF_FFFF
_MODULUS: Final = 0x1_0000_0000
# A client's buffer is smaller than this, and so is the amount by which its use can exceed its own limit.
_BELOW_ZERO_MAX: Final = 0x100_0000


class Spent(Enum):
    """The cause that ended a receiver's credit, or will end it when it is used."""

    NEVER_GRANTED = auto()
    USED_UP = auto()
    SET_TO_ZERO = auto()
    REVOKED = auto()
    """A flow lowered the credit below the number of deliveries already sent."""
    DRAINED = auto()
    STALE_FLOW = auto()
    """A flow granted credit again, but none of its grant is left."""


class Grant(NamedTuple):
    """A flow of the receiver that sets a credit. `before`, `left`: the credit before and after it."""

    delivery_count: int
    link_credit: int
    drain: bool
    before: int
    left: int


@dataclass(eq=False, slots=True)
class SenderCredit:
    """The sending end: the number of deliveries that may be started. `spent`: the cause that ended the
    credit, if it is 0. `granted`: the last flow after which there was credit.
    """

    delivery_count: int = INITIAL_DELIVERY_COUNT
    link_credit: int = 0
    drain: bool = False
    spent: Spent = Spent.NEVER_GRANTED
    last: Grant | None = None
    granted: Grant | None = None
    useless: int = 0
    forfeited: int = 0
    _limit: int | None = None
    _large: bool = False

    def set(self, delivery_count: int | None, link_credit: int, *, drain: bool) -> None:
        """Apply the credit of a flow. `delivery_count`: None: the receiver has not read this end's attach yet
        (2.7.4).
        """
        base = INITIAL_DELIVERY_COUNT if delivery_count is None else delivery_count
        limit = (base + link_credit) & MASK
        before = self.link_credit
        if link_credit <= _INT32_MAX or self._is_large_grant(base, link_credit, limit):
            self.link_credit = limit_left(base, link_credit, self.delivery_count)
        elif limit != self._limit:
            self.link_credit = 0
        self._limit = limit
        self.drain = drain
        self._note(Grant(base, link_credit, drain, before, self.link_credit))

    def _note(self, flow: Grant) -> None:
        self.last = flow
        if flow.left:
            self.granted = flow
            self.useless = 0
            self.spent = Spent.USED_UP
            return
        self.useless += 1
        if flow.before:
            self.spent = Spent.REVOKED if flow.link_credit else Spent.SET_TO_ZERO
        elif 0 < flow.link_credit <= _INT32_MAX:
            self.spent = Spent.STALE_FLOW

    def _is_large_grant(self, base: int, link_credit: int, limit: int) -> bool:
        # Return whether a credit of 2**31 and more is a credit, and not a negative number. Proton counts
        # credit in a signed integer that falls below 0 when its user takes back more than is left (stop while
        # deliveries are on their way), and writes -n as 2**32 - n. Then n is at most the number that it has
        # received, and a limit that was in its last flow is not a new grant. Programs write 2**32 - 1, which
        # is taken literally. So are all grants of a client that has once certainly made a large one.
        if not self._large:
            below_zero = _MODULUS - link_credit
            received = diff(base, INITIAL_DELIVERY_COUNT)
            self._large = limit != self._limit and not 1 < below_zero <= min(received, _BELOW_ZERO_MAX)
        return self._large

    def spend(self, deliveries: int) -> None:
        assert deliveries <= self.link_credit, "a delivery without credit must never be started"
        self.delivery_count = (self.delivery_count + deliveries) & MASK
        self.link_credit -= deliveries

    def forfeit(self) -> None:
        """End a drain: advance the delivery-count by the rest of the credit."""
        if self.link_credit or self.spent is not Spent.DRAINED:
            self.forfeited = self.link_credit
        if self.granted is not None:
            self.spent = Spent.DRAINED
        self.delivery_count = (self.delivery_count + self.link_credit) & MASK
        self.link_credit = 0


@dataclass(eq=False, slots=True)
class ReceiverCredit:
    """The receiving end: the credit granted, and when to grant more.

    The top-up rule grants again up to `limit` when at most half of it is left and fewer than `limit`
    deliveries are outstanding, that is received and not finished. So a target that does not finish deliveries
    withholds credit from the links that feed it, and from no others.

    Attributes:
        limit: 0 leaves granting to the application.
        granted: ``(delivery_count, link_credit)`` of a grant not yet sent to the peer, or None.
        jumped: credits that the sender has given up since the last grant, by a higher delivery-count.
    """

    delivery_count: int
    limit: int
    link_credit: int = 0
    outstanding: int = 0
    _tolerated: int = 0
    granted: tuple[int, int] | None = None
    last_granted: tuple[int, int] | None = None
    jumped: int = 0

    @property
    def withheld(self) -> bool:
        """Whether credit is due by its level, but too much is outstanding."""
        return self.link_credit <= self.limit // 2 and self.outstanding >= self.limit > 0

    @property
    def covers_one(self) -> bool:
        return self.link_credit > 0 or self._tolerated > 0

    def grant(self, link_credit: int) -> None:
        """Set the credit from the present delivery-count. Deliveries that a smaller credit no longer covers
        may be on the wire already, and are tolerated.
        """
        self._tolerated = max(0, self._tolerated + self.link_credit - link_credit)
        self.link_credit = link_credit
        self._note(self.delivery_count)

    def _note(self, delivery_count: int) -> None:
        self.granted = self.last_granted = (delivery_count, self.link_credit)
        self.jumped = 0

    def follow(self, delivery_count: int) -> None:
        left = limit_left(self.delivery_count, self.link_credit, delivery_count)
        self.jumped += self.link_credit - left
        self.link_credit = left
        self.delivery_count = delivery_count
        self.top_up()

    def receive(self, deliveries: int) -> int:
        """Count received deliveries, with top-ups as if they came one by one: a batch that crosses the
        half-way mark is granted at the mark, and the rest counts against the new grant. Returns how many of
        them the credit covered.
        """
        left = deliveries
        limit = self.limit
        half = limit // 2
        while left:
            credit = self.link_credit
            if credit <= 0:
                late = min(left, self._tolerated)
                self._tolerated -= late
                self.delivery_count = (self.delivery_count + late) & MASK
                self.outstanding += late
                return deliveries - left + late
            # The first delivery after which at most half of the limit is left:
            to_mark = credit - half if credit > half else 1
            if to_mark > left or self.outstanding + to_mark >= limit:
                step = left if left < credit else credit
                self.link_credit = credit - step
            else:
                step = to_mark
                self._tolerated = 0
                self.link_credit = limit
                self._note((self.delivery_count + step) & MASK)
            self.delivery_count = (self.delivery_count + step) & MASK
            self.outstanding += step
            left -= step
        return deliveries

    def finish(self, deliveries: int) -> None:
        self.outstanding -= deliveries
        assert self.outstanding >= 0, "more deliveries finished than received"
        self.top_up()

    def top_up(self) -> None:
        """Grant if the rule allows it; also after a change of the limit."""
        if self.link_credit <= self.limit // 2 and self.outstanding < self.limit:
            self.grant(self.limit)


# Session windows (section 2.5.6) count frames, not messages.

# "The outgoing-window ... MAY (depending on policy) be decremented" (2.5.6). Credit and the peer's window
# decide how many transfers this end sends.
OUTGOING_WINDOW: Final = 0xFFFF_FFFF

INITIAL_OUTGOING_ID: Final = 0


class IncomingWindow:
    """The number of transfer frames that the peer may send. The window is opened to its full size again when
    half of it is used. While it is held closed (an alarm), a margin of frames that were already on their way
    is tolerated. `flow_due`: it was re-opened or closed and the peer has not been notified.
    """

    __slots__ = ("_margin", "closed", "flow_due", "left", "next_incoming_id", "size")

    def __init__(self, size: int, *, closed: bool = False) -> None:
        self.next_incoming_id: int | None = None
        self.size = size
        self.closed = closed
        self.left = 0 if closed else size
        self._margin = size if closed else 0
        self.flow_due = False

    @property
    def advertised(self) -> int:
        return self.left if self.left > 0 else 0

    def allowance(self) -> int:
        """The number of frames that may still come; -1: no limit, which only a closed window has."""
        return max(0, self.left + self._margin) if self.closed else -1

    def count(self, frames: int) -> int | None:
        """Count received frames; return None if all fit, else how many do."""
        violation = None
        if self.closed and frames > self.allowance():
            frames = violation = self.allowance()
        if self.next_incoming_id is not None:
            self.next_incoming_id = (self.next_incoming_id + frames) & MASK
        if self.closed:
            self.left -= frames
            return violation
        half = self.size // 2
        left = self.left - frames
        if left <= half:
            # This counts as if one by one: full again at the half-way mark, then repeatedly.
            past_mark = frames - max(1, self.left - half)
            left = self.size - past_mark % (self.size - half)
            self.flow_due = True
        self.left = left
        return None

    def violation(self) -> AmqpSessionError:
        return AmqpSessionError(
            Condition.WINDOW_VIOLATION,
            f"incoming window violation (tolerated excess transfers: {self._margin})",
        )

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            # Frames granted under a larger size may be on their way as well.
            self._margin = max(self.size, self.left)
            self.left = 0
            self.flow_due = True

    def reopen(self) -> None:
        if self.closed:
            self.closed = False
            self._margin = 0
            self.left = self.size
            self.flow_due = True

    def resize(self, size: int) -> None:
        """Set the size of later re-openings; re-open at once if the new rule requires it."""
        self.size = size
        if not self.closed and self.left <= size // 2:
            self.left = size
            self.flow_due = True


@dataclass(eq=False, slots=True)
class OutgoingWindow:
    """The number of transfer frames that this end may send. `remote_outgoing_window`: only displayed."""

    next_outgoing_id: int = INITIAL_OUTGOING_ID
    initial_outgoing_id: int = field(init=False)
    remote_incoming_window: int = 0
    remote_outgoing_window: int = 0

    def __post_init__(self) -> None:
        self.initial_outgoing_id = self.next_outgoing_id

    def spend(self, frames: int) -> None:
        assert frames <= self.remote_incoming_window, "a transfer outside the peer's window"
        self.next_outgoing_id = (self.next_outgoing_id + frames) & MASK
        self.remote_incoming_window -= frames

    def update(self, flow: Flow) -> None:
        """Apply the session fields of a flow. Raises `AmqpSessionError` if they count unsent frames."""
        base = flow.next_incoming_id
        if base is None:  # the peer had not read this end's begin when it sent the flow (2.5.6)
            base = self.initial_outgoing_id
        elif diff(base, self.next_outgoing_id) > 0:
            raise AmqpSessionError(
                Condition.WINDOW_VIOLATION,
                f"next-incoming-id from FLOW ({base}) leads next-outgoing-id ({self.next_outgoing_id})",
            )
        self.remote_incoming_window = limit_left(base, flow.incoming_window, self.next_outgoing_id)
        self.remote_outgoing_window = flow.outgoing_window
