"""A consumer's credit with its queue: requested, used, returned. It serves both protocols.

A request names the queue's delivery-count up to the last *written* delivery, and the credit from there, so
deliveries that wait here for the socket count against it. It is bounded in deliveries and in bytes. At most
one request is under way, and each is answered. When deliveries go back to the queue, all credit goes with
them; deliveries and answers that the queue made before it received the return bear an older epoch, and the
queue has taken those deliveries back by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import StrEnum

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message, redelivered
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand
from amqp10broker.metadata.queue_kind import QueueKind
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import (
    NO_BOUND,
    ROOM_BYTES,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    DeliveryOutcome,
    GiveBack,
    Unsubscribe,
)
from amqp10broker.queues.counters import Consumption
from amqp10broker.queues.effects import CreditReply, Deliver
from amqp10broker.sessions.counters import ClientCounters


class Mode(StrEnum):
    """How a consumer gets messages; names the counter of written deliveries."""

    DELIVERED = "delivered"
    DELIVERED_SETTLED = "delivered_settled"
    GOT = "got"
    GOT_SETTLED = "got_settled"


@dataclass(eq=False, slots=True)
class QueueCredit:
    """The credit of one consumer with its queue.

    Attributes:
        in_flight: a request has no answer yet, or the answer has not been acted on.
        returned: those that went back to the queue, or went with it, before they were written.
        granted: deliveries that the queue may still make. Negative when it has made more before it received a
            reduction.
        forfeited: credit that the queue gave up with its last answer, which was to a drain.
    """

    queue: DeclaredQueue
    ref: ConsumerRef
    _to_queue: Callable[[QueueCommand], None]
    mode: Mode = Mode.DELIVERED
    kind: QueueKind = field(init=False)
    counters: Consumption = field(default_factory=Consumption)
    in_flight: bool = False
    closed: bool = False
    seen: int = 0
    waiting: int = 0
    returned: int = 0
    epoch: int = 0
    available: int = 0
    forfeited: int = 0
    granted: int = 0
    requests: int = 0
    # Of those that wait: how many are written before each that the queue had delivered before.
    _again: deque[int] = field(default_factory=deque)
    # By how much the queue's count is ahead of `seen`: the credit that drains have made it give up.
    _ahead: int = 0
    # Credit of the last request; 0 when its deliveries were not all for the client.
    _asked: int = 0

    def __post_init__(self) -> None:
        self.kind = self.queue.kind
        self.queue.consumption.join(self.counted)

    def renewed(self, to_queue: Callable[[QueueCommand], None]) -> QueueCredit:
        """Return the credit for another end of a kept link: it continues the queue's counts."""
        new = QueueCredit(self.queue, self.ref, to_queue, self.mode)
        new.seen = new.returned = self.seen
        new.epoch, new._ahead = self.epoch, self._ahead
        return new

    @property
    def left(self) -> int:
        """The number of deliveries of the last request that are not written, here or with the queue."""
        return max(0, self.granted + self.waiting)

    @property
    def delivery_count(self) -> int:
        """The queue's delivery-count up to the last written delivery."""
        return (self.seen + self._ahead - self.waiting) & MASK

    @property
    def written(self) -> int:
        return self.seen - self.waiting - self.returned

    # --- to the queue -----------------------------------------------------------------------------

    def post(self, command: Command) -> None:
        self._to_queue((self.queue.handle, command))

    def request(self, wanted: int, most: int, *, drain: bool = False) -> None:
        """Request deliveries, in place of the last request. `most`: the limit of the request, unless the
        queue's kind has its own or permits more (`_more`).
        """
        waiting, seen = self.waiting, self.seen
        unsent_max = self.kind.unsent_max
        room = ROOM_BYTES
        if unsent_max is not None:
            most, room = unsent_max, NO_BOUND
        elif self.kind.asked_times > 1:
            most = self._more(most)
        credit = min(wanted, most)
        self._asked = credit
        self.granted = credit - waiting
        self.in_flight = True
        self.requests += 1
        count = (seen + self._ahead - waiting) & MASK
        self._to_queue((self.queue.handle, Credit(self.ref, count, credit, drain, seen, room)))

    def top_up(self, wanted: int, most: int, *, renew_at: int = 0, drain: bool = False) -> bool:
        """Request more if that exceeds what is left, and what is left is at most `renew_at`."""
        if self.in_flight or self.closed:
            return False
        limit = most
        unsent_max = self.kind.unsent_max
        if unsent_max is not None:
            # Such a queue stores nothing: its credit must not run out as long as the client's has not.
            limit, renew_at = unsent_max, unsent_max // 2
        elif self.waiting:
            return False  # each request is bounded in bytes: one at a time, so waiting deliveries are, too
        elif self.kind.asked_times > 1:
            limit, renew_at = self._more(most), max(renew_at, self._asked // 2)
        left = max(0, self.granted + self.waiting)
        if left > renew_at or min(wanted, limit) <= left:
            return False
        self.request(wanted, most, drain=drain)
        return True

    def _more(self, most: int) -> int:
        # For kinds of queues that answer after a write to their log, which would otherwise bound the rate to
        # one request per sync. Twice the last request when half of that is written and nothing waits here, so
        # that it stays `most` for a client that does not read; never more than the kind's multiple of it.
        asked = self._asked
        if not self.waiting and self.granted <= asked // 2:
            asked *= 2
        return min(max(asked, most), most * self.kind.asked_times)

    def give_back(self, keys: Sequence[int], messages: Sequence[Message]) -> None:
        """Return waiting deliveries, and those on their way, to their places in the queue."""
        self.drop(len(keys))
        self.epoch += 1
        self.granted = 0
        count = (self.seen + self._ahead) & MASK
        self.post(GiveBack(self.ref, keys, messages, count, self.seen, self.epoch))

    def cancel(self) -> None:
        """Stop deliveries; those that the client holds may still be settled."""
        self.closed = True
        self.post(Cancel(self.ref))

    def leave(
        self, keys: Sequence[int], messages: Sequence[Message], delivery_outcome: DeliveryOutcome
    ) -> None:
        """Leave the queue; return unsent deliveries, and settle all others with the verdict."""
        self.closed = True
        self.post(Unsubscribe(self.ref, keys, messages, self.seen, delivery_outcome))

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> bool:
        """Count deliveries; return whether they are to be accepted. If not, the queue has them again."""
        if effect.epoch != self.epoch or self.closed:
            return False
        deliveries = len(effect.keys)
        if effect.again:
            first = self.written + self.waiting
            self._again.extend(first + at for at, each in enumerate(effect.messages) if redelivered(each))
        self.seen += deliveries
        self.waiting += deliveries
        self.granted = 0 if effect.spent else self.granted - deliveries
        return True

    def on_reply(self, reply: CreditReply) -> None:
        """Count the answer to a request, which comes behind its deliveries; see `answered`."""
        if reply.epoch == self.epoch and not reply.drain:
            self.granted = reply.credit

    def answered(self, reply: CreditReply) -> bool:
        """Act on an answer after its deliveries are written; return False if a `give_back` overtook it."""
        self.in_flight = False
        self.available = reply.available
        if reply.epoch != self.epoch:
            return False
        if reply.drain:
            # Nothing was delivered since, so the difference to the queue's count is the credit that it gave
            # up.
            self.forfeited = (reply.delivery_count - self.seen - self._ahead) & MASK
            self._ahead = (self._ahead + self.forfeited) & MASK
            if self.forfeited:
                self._asked = 0
            self.granted = reply.credit
        return True

    # --- settlement -------------------------------------------------------------------------------

    def sent(self, deliveries: int) -> None:
        self.waiting -= deliveries
        again = self._again
        while again and again[0] < self.written:
            again.popleft()
            self.counters.redelivered += 1

    def drop(self, deliveries: int, *, oldest: bool = False) -> None:
        """Drop the last or the oldest deliveries, which the queue has again, or which are gone with it."""
        self.waiting -= deliveries
        self.returned += deliveries
        self._asked = 0
        again, written = self._again, self.written
        if oldest:
            again = self._again = deque(each - deliveries for each in again if each >= written + deliveries)
        while again and again[-1] >= written + self.waiting:
            again.pop()

    # --- counters ---------------------------------------------------------------------------------

    def counted(self) -> Consumption:
        setattr(self.counters, self.mode, self.written)
        self.counters.credit_requests = self.requests
        return self.counters

    def retire(self, into: ClientCounters) -> None:
        """Stop counting here: `into` takes over all counts, also those still to come. May be called twice."""
        if self.queue.consumption.leave(self.counted):
            into.consumed([self])
            self.counters = _Late(into, into.of_type(self.queue.type))


class _Late(Consumption):
    # The decisions of a client on deliveries of a consumer after its counts were taken over.
    __slots__ = ("_into",)

    def __init__(self, *into: Consumption) -> None:
        super().__init__()
        self._into = into

    def settled(self, delivery_outcome: DeliveryOutcome, deliveries: int) -> None:
        super().settled(delivery_outcome, deliveries)
        for each in self._into:
            each.settled(delivery_outcome, deliveries)
