"""A consumer's credit with its queue: asked for, used up, given back. One for both protocols.

The queue hands out what it was asked for and no more, so that what a client does not take stays in the queue.
A request names the queue's delivery-count up to what was *written*, and the credit from there: what waits
here for the socket counts against it. It is bounded in deliveries and in bytes (docs/adr/0023), so that the
next one goes out when nothing of the last one waits here. One request is under way at most, and always
answered.

What goes back to the queue takes all credit with it. Deliveries and answers that were made before the queue
heard of it bear an older epoch (docs/adr/0006): the queue has taken those deliveries back by itself.

Counted per batch; a decision of a client does not come by here. What is written is counted for the consumer
and its queue by these numbers: nothing is counted twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from amqp10broker.amqp10.serial import MASK
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.message.message import Message, redelivered
from amqp10broker.queues.commands import (
    NO_BOUND,
    ROOM_BYTES,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    GiveBack,
    Unsubscribe,
    Verdict,
)
from amqp10broker.queues.counters import Consumption
from amqp10broker.queues.effects import CreditReply, Deliver
from amqp10broker.service.context import Post
from amqp10broker.service.counters import ClientCounters


class Mode(StrEnum):
    """How a consumer gets messages; the counter of those that were written."""

    DELIVERED = "delivered"
    DELIVERED_SETTLED = "delivered_settled"
    GOT = "got"
    GOT_SETTLED = "got_settled"


class QueueCredit:
    """See the module.

    Attributes:
        queue: where deliveries come from.
        kind: of queue.
        ref: under which the queue knows the consumer.
        mode: how it gets messages.
        counters: what its client decided; see `counted` for the rest.
        in_flight: a request has no answer yet, or nobody has acted on it.
        closed: nothing is asked for or taken any more.
        seen: deliveries that came, in all.
        waiting: those of them that are neither written nor gone.
        returned: those that went back to the queue, or went with it, before they were written.
        epoch: of what the queue hands out since the last `give_back`.
        available: messages that were ready when the queue answered last.
        granted: deliveries that the queue may still hand out. Negative when it has handed out more, before it
            heard of less.
        forfeited: credit that the queue gave up with its last answer, which was to a drain.
        requests: how often the queue was asked.
    """

    __slots__ = (
        "_again",
        "_ahead",
        "_asked",
        "_post",
        "available",
        "closed",
        "counters",
        "epoch",
        "forfeited",
        "granted",
        "in_flight",
        "kind",
        "mode",
        "queue",
        "ref",
        "requests",
        "returned",
        "seen",
        "waiting",
    )

    def __init__(
        self, queue: DeclaredQueue, ref: ConsumerRef, post: Post, mode: Mode = Mode.DELIVERED
    ) -> None:
        """Begin without credit.

        Args:
            queue: where deliveries come from.
            ref: under which the queue knows the consumer.
            post: puts a letter to a queue.
            mode: how it gets messages.
        """
        self._post = post
        self.mode = mode
        self.counters = Consumption()
        # Of those that wait: how many are written before each that the queue had handed out before.
        self._again: deque[int] = deque()
        self.queue = queue
        self.kind = queue.kind
        self.ref = ref
        self.in_flight = False
        self.closed = False
        self.seen = 0
        self.waiting = 0
        self.returned = 0
        self.epoch = 0
        self.available = 0
        self.forfeited = 0
        self.granted = 0
        self.requests = 0
        # How far the queue's count is ahead of `seen`: what drains have made it give up.
        self._ahead = 0
        # Credit of the last request; 0 when what it brought was not all for the client.
        self._asked = 0
        queue.consumption.join(self)

    def renewed(self, post: Post) -> QueueCredit:
        """Credit for another end of a link that is kept, behind a `give_back`: it goes on with the queue's
        counts, and counts anew what is written."""
        new = QueueCredit(self.queue, self.ref, post, self.mode)
        new.seen = new.returned = self.seen
        new.epoch, new._ahead = self.epoch, self._ahead
        return new

    @property
    def left(self) -> int:
        """Deliveries of the last request that are not written: they wait here, or with the queue."""
        return max(0, self.granted + self.waiting)

    @property
    def delivery_count(self) -> int:
        """As the queue counts, up to what was written."""
        return (self.seen + self._ahead - self.waiting) & MASK

    @property
    def written(self) -> int:
        """Deliveries written, in all."""
        return self.seen - self.waiting - self.returned

    # --- to the queue -----------------------------------------------------------------------------

    def post(self, command: Command) -> None:
        """Put a letter to the queue."""
        self._post(self.queue.handle, command)

    def request(self, wanted: int, most: int, *, drain: bool = False) -> None:
        """Ask for deliveries, in place of what was asked for before.

        Args:
            wanted: deliveries that the client can take beyond what was written.
            most: of them, if the queue's kind has no limit of its own, and is not asked for more (`_more`).
            drain: what cannot be delivered at once is forfeited.
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
        self._post(self.queue.handle, Credit(self.ref, count, credit, drain, seen, room))

    def top_up(self, wanted: int, most: int, *, renew_at: int = 0, drain: bool = False) -> bool:
        """Ask for more, if that is more than is left and little enough is.

        Args:
            wanted, most, drain: see `request`.
            renew_at: so little must be left.

        Returns:
            Whether the queue was asked.
        """
        if self.in_flight or self.closed:
            return False
        limit = most
        unsent_max = self.kind.unsent_max
        if unsent_max is not None:
            # Such a queue keeps nothing: its credit must not run out as long as the client's has not.
            limit, renew_at = unsent_max, unsent_max // 2
        elif self.waiting:
            return False  # each request is bounded in bytes: one behind the other, so is what waits here
        elif self.kind.asked_times > 1:
            limit, renew_at = self._more(most), max(renew_at, self._asked // 2)
        left = max(0, self.granted + self.waiting)
        if left > renew_at or min(wanted, limit) <= left:
            return False
        self.request(wanted, most, drain=drain)
        return True

    def _more(self, most: int) -> int:
        """The limit of a request to a queue whose answers wait for its log (docs/adr/0098).

        Twice the last request when half of that is written and nothing waits here, so that one whose client
        does not read stays with `most`; never more than the kind's multiple of it.
        """
        asked = self._asked
        if not self.waiting and self.granted <= asked // 2:
            asked *= 2
        return min(max(asked, most), most * self.kind.asked_times)

    def give_back(self, keys: Sequence[int], messages: Sequence[Message]) -> None:
        """Deliveries that wait here go back to their places, and so does what is on its way."""
        self.drop(len(keys))
        self.epoch += 1
        self.granted = 0
        count = (self.seen + self._ahead) & MASK
        self.post(GiveBack(self.ref, keys, messages, count, self.seen, self.epoch))

    def cancel(self) -> None:
        """No more deliveries; what the client holds may still be settled."""
        self.closed = True
        self.post(Cancel(self.ref))

    def leave(self, keys: Sequence[int], messages: Sequence[Message], verdict: Verdict) -> None:
        """The consumer is gone.

        Args:
            keys: of deliveries that were never sent.
            messages: as many.
            verdict: for all else that it held.
        """
        self.closed = True
        self.post(Unsubscribe(self.ref, keys, messages, self.seen, verdict))

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> bool:
        """The queue delivers.

        Returns:
            Whether they are to be taken; if not, the queue has them again.
        """
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
        """The answer to the request has come, behind what was delivered before; see `answered`."""
        if reply.epoch == self.epoch and not reply.drain:
            self.granted = reply.credit

    def answered(self, reply: CreditReply) -> bool:
        """What was delivered before the answer is written, and it is acted on: the next request may go.

        Returns:
            Whether it counts; if not, a `give_back` has overtaken it, and there is no credit.
        """
        self.in_flight = False
        self.available = reply.available
        if reply.epoch != self.epoch:
            return False
        if reply.drain:
            # Nothing was delivered since, so what the queue's count is ahead of ours is what it gave up.
            self.forfeited = (reply.delivery_count - self.seen - self._ahead) & MASK
            self._ahead = (self._ahead + self.forfeited) & MASK
            if self.forfeited:
                self._asked = 0
            self.granted = reply.credit
        return True

    # --- settlement -------------------------------------------------------------------------------

    def sent(self, deliveries: int) -> None:
        """So many were written."""
        self.waiting -= deliveries
        again = self._again
        while again and again[0] < self.written:
            again.popleft()
            self.counters.redelivered += 1

    def drop(self, deliveries: int, *, oldest: bool = False) -> None:
        """So many will not be written, which came last or first: the queue has them again, or is gone."""
        self.waiting -= deliveries
        self.returned += deliveries
        self._asked = 0
        again, written = self._again, self.written
        if oldest:
            again = self._again = deque(each - deliveries for each in again if each >= written + deliveries)
        while again and again[-1] >= written + self.waiting:
            again.pop()

    # --- what is counted --------------------------------------------------------------------------

    def counted(self) -> Consumption:
        """What was written, and what the client decided."""
        setattr(self.counters, self.mode, self.written)
        self.counters.credit_requests = self.requests
        return self.counters

    def retire(self, into: ClientCounters) -> None:
        """It gets no more: `into` takes over what it has counted, and what it still will. Twice is fine."""
        if self.queue.consumption.leave(self):
            into.consumed([self])
            self.counters = _Late(into, into.of_type(self.queue.type))


class _Late(Consumption):
    """What a client decides on deliveries of a consumer that is counted elsewhere already."""

    __slots__ = ("_into",)

    def __init__(self, *into: Consumption) -> None:
        super().__init__()
        self._into = into

    def settled(self, verdict: Verdict, deliveries: int) -> None:
        """See `Consumption`."""
        super().settled(verdict, deliveries)
        for each in self._into:
            each.settled(verdict, deliveries)
