"""A consumer's credit with its queue, for both protocols; and limits that adapt themselves (``auto``).

A request gives the queue's delivery-count up to the last *written* delivery, and the credit from there, so
deliveries that wait in the session for the socket count against it. It is bounded in deliveries and bytes. At
most one request is open. When deliveries go back to the queue, all credit goes back with them. Deliveries and
answers from before that have an older epoch, and the queue has taken those deliveries back by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.message.traits import redelivered
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand, QueueKind
from amqp10broker.protocols.amqp10.credit import ReceiverCredit
from amqp10broker.protocols.serial import MASK, diff
from amqp10broker.queues.commands import (
    NO_BOUND,
    ROOM_BYTES,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    Unsubscribe,
)
from amqp10broker.queues.queue_status import Consumption
from amqp10broker.sessions.counters import ClientCounters


class Mode(StrEnum):
    """The names of the counters of written deliveries."""

    DELIVERED = "delivered"
    DELIVERED_SETTLED = "delivered_settled"
    GOT = "got"
    GOT_SETTLED = "got_settled"


@dataclass(eq=False, slots=True)
class QueueCredit:
    """The credit of one consumer with its queue.

    Attributes:
        in_flight: a request has no answer yet, or the answer has not been acted on.
        returned: deliveries that were not written, and went back to the queue or were lost with it.
        granted: what the queue may still deliver; negative if it delivered more before a reduction.
        forfeited: credit that the queue gave up with its last answer, to a drain.
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
    # For waiting deliveries that were delivered before: how many others are written before each.
    _again: deque[int] = field(default_factory=deque)
    # How far the queue's count is ahead of `seen`: the credit that drains have made it give up.
    _ahead: int = 0
    # The credit of the last request; 0 when its deliveries were not all for the client.
    _asked: int = 0

    def __post_init__(self) -> None:
        self.kind = self.queue.kind
        self.queue.consumption.join(self.counted)

    def renewed(self, to_queue: Callable[[QueueCommand], None]) -> QueueCredit:
        """Return the credit for another end of a resumable link: it continues the queue's counts."""
        new = QueueCredit(self.queue, self.ref, to_queue, self.mode)
        new.seen = new.returned = self.seen
        new.epoch, new._ahead = self.epoch, self._ahead
        return new

    @property
    def left(self) -> int:
        """The number of deliveries of the last request that are not written, in the session or the queue."""
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
        """Request deliveries, replacing the last request. `most`: its limit, unless the queue's kind has its
        own or permits more (`_more`).
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
            return False  # a request is bounded in bytes: with one at a time, waiting ones are, too
        elif self.kind.asked_times > 1:
            limit, renew_at = self._more(most), max(renew_at, self._asked // 2)
        left = max(0, self.granted + self.waiting)
        if left > renew_at or min(wanted, limit) <= left:
            return False
        self.request(wanted, most, drain=drain)
        return True

    def _more(self, most: int) -> int:
        # Queues that answer after a write to their log would otherwise bound the rate to one request per
        # sync. The request is doubled when half of the last one is written and nothing waits here. It stays
        # `most` for a client that does not read.
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
        """Leave the queue; return unsent deliveries, and settle all others with the outcome."""
        self.closed = True
        self.post(Unsubscribe(self.ref, keys, messages, self.seen, delivery_outcome))

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> bool:
        """Count deliveries; return False if the queue has taken them back."""
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
            # Nothing was delivered since, so the queue gave up the difference between its count and ours.
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
        """Drop the last or the oldest deliveries, which the queue has taken back or lost."""
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
        """Add all counts, also later ones, to `into`. May be called twice."""
        if self.queue.consumption.leave(self.counted):
            add_consumed(into, [self])
            self.counters = _Late(into, into.of_type(self.queue.type))


def add_consumed(total: ClientCounters, credits: Iterable[QueueCredit]) -> ClientCounters:
    for credit in credits:
        counted = credit.counted()
        total.add(counted)
        total.of_type(credit.queue.type).add(counted)
    return total


class _Late(Consumption):
    # Counts decisions on deliveries of a consumer after its counts were taken over.
    __slots__ = ("_into",)

    def __init__(self, *into: Consumption) -> None:
        super().__init__()
        self._into = into

    def settled(self, delivery_outcome: DeliveryOutcome, deliveries: int) -> None:
        super().settled(delivery_outcome, deliveries)
        for each in self._into:
            each.settled(delivery_outcome, deliveries)


ROUNDS: Final = 4
"""The least number of times in an epoch that the limit holds deliveries up."""
EPOCH_MS_MIN: Final = 100
EPOCH_MS_MAX: Final = 1_000
"""The length in ms after which an epoch ends in which the limit holds nothing up."""
HELD_PART: Final = 8
"""The least part of an epoch, as a divisor, for which deliveries must be held up before a try: with less a
try cannot yield `GAIN`.
"""
GAIN: Final = 1.15
"""The factor by which the rate must rise for a doubled limit to remain."""
SLOWER: Final = 2
"""The factor by which the wait must grow for the limit to shrink, ..."""
SLOWER_MS: Final = 10
"""... and the least difference in ms: a smaller one may be due to scheduling."""
RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000
"""A try without gain is repeated after a pause, which doubles from the minimum to this maximum."""


class Why(StrEnum):
    """Why an automatic limit has its value (`docs/settings.md`)."""

    DEFAULT = "default"
    GROWING = "growing"
    GROWN = "grown"
    NO_GAIN = "no-gain"
    CONFIRMS_SLOW = "confirms-slow"
    MEMORY_TIGHT = "memory-tight"
    MESSAGES_BOUND = "messages-bound"
    BYTES_BOUND = "bytes-bound"


@dataclass(eq=False, slots=True)
class AutoLimit:
    """An automatic limit, from `_base` to `_most` messages of at most `_most_bytes` together.

    It grows only while the limit itself holds deliveries up: it is doubled, and stays so if the rate rises;
    else it returns to its earlier value. It shrinks when messages take much longer than when it was last
    confirmed, and when memory is tight. It is judged in epochs of some round trips.
    """

    _base: int
    _most: int
    _most_bytes: int
    since_ms: int
    _is_tight: Callable[[], bool] = lambda: False
    limit: int = field(init=False)
    highest: int = field(init=False)
    why: Why = Why.DEFAULT
    # The limit and the rate before a try, for comparison; None: no try is running.
    _before: tuple[int, float] | None = None
    _retry_ms: int = RETRY_MS_MIN
    _retry_at_ms: int = field(init=False)
    # How long messages took when the limit was last confirmed.
    _usual_ms: float = 0.0
    # The bytes of a message: rises at once with larger messages, falls slowly with smaller ones.
    _size: int = 1
    _in_flight: int = 0
    _at_ms: int = field(init=False)
    _round_ms: int = field(init=False)
    # The start and the counts of the present epoch.
    _began_ms: int = field(init=False)
    _settled_ms: int = field(init=False)
    _done: int = field(init=False)
    _held_ms: int = field(init=False)
    _rounds: int = field(init=False)
    _area: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.highest = self._base
        now_ms = self._retry_at_ms = self._at_ms = self._round_ms = self.since_ms
        self._restart(now_ms, now_ms)

    def _restart(self, now_ms: int, settled_ms: int) -> None:
        # The epoch begins when the limit has its effect.
        self._began_ms = now_ms
        self._settled_ms = settled_ms
        self._done = self._held_ms = self._rounds = self._area = 0

    @property
    def top(self) -> int:
        return max(self._base, min(self._most, self._most_bytes // self._size))

    # --- events -----------------------------------------------------------------------------------

    def came(self, now_ms: int, count: int, size_bytes: int, in_flight: int) -> None:
        """Count messages that have arrived; `in_flight` includes them."""
        size = size_bytes // count + 1
        self._size = size if size > self._size else (7 * self._size + size) // 8
        self._note(now_ms, in_flight)
        top = self.top
        if self.limit > top:
            self._change(top, Why.BYTES_BOUND, now_ms, 0)

    def resumed(self, now_ms: int, held_ms: int) -> None:
        """Note that messages arrive again after this limit alone had held them up for `held_ms`."""
        self._held_ms += held_ms
        self._rounds += 1
        self._round_ms = now_ms
        if self._settled_ms > self._began_ms:
            if now_ms >= self._settled_ms:
                self._restart(now_ms, now_ms)
        elif self._rounds >= ROUNDS and now_ms - self._began_ms >= EPOCH_MS_MIN:
            self._judge(now_ms)

    def done(self, now_ms: int, count: int, in_flight: int) -> None:
        self._note(now_ms, in_flight)
        self._done += count
        began_ms = self._began_ms
        if self._settled_ms > began_ms:
            # Nothing is held up any more, so this is the best moment to judge the epoch.
            if now_ms >= 2 * self._settled_ms - began_ms:
                self._restart(now_ms, now_ms)
        elif now_ms - max(began_ms, self._round_ms) >= EPOCH_MS_MAX:
            self._judge(now_ms)

    def tighten(self, now_ms: int) -> None:
        if self.limit > self._base:
            self._change(self._base, Why.MEMORY_TIGHT, now_ms, 0)
            self._pause(now_ms)

    def _note(self, now_ms: int, in_flight: int) -> None:
        self._area += self._in_flight * (now_ms - self._at_ms)
        self._at_ms = now_ms
        self._in_flight = in_flight

    # --- decisions --------------------------------------------------------------------------------

    def _judge(self, now_ms: int) -> None:
        # This runs at the end of an epoch.
        elapsed = now_ms - self._began_ms
        loop_ms = elapsed // self._rounds if self._rounds else 0
        per_ms = self._done / elapsed
        # Little's law: the average number in flight divided by the rate is the time that one message takes.
        wait_ms = self._area / self._done if self._done else 0.0
        if self._is_tight():
            self.tighten(now_ms)
            self._restart(now_ms, now_ms)
            return
        before, self._before = self._before, None
        if before is not None and per_ms < GAIN * before[1]:
            self._change(before[0], Why.NO_GAIN, now_ms, loop_ms)
            self._pause(now_ms)
            return
        if before is not None:
            self._tell(Why.GROWN, now_ms)
            self._retry_ms = RETRY_MS_MIN
            self._usual_ms = wait_ms
        elif self.limit == self._base:
            self._usual_ms = wait_ms
        elif wait_ms > SLOWER * self._usual_ms + SLOWER_MS:
            self._change(max(self._base, self.limit // 2), Why.CONFIRMS_SLOW, now_ms, loop_ms)
            self._pause(now_ms)
            return
        if self._held_ms * HELD_PART >= elapsed and now_ms >= self._retry_at_ms:
            self._try_more(now_ms, loop_ms, per_ms)
        else:
            self._restart(now_ms, now_ms)

    def _try_more(self, now_ms: int, loop_ms: int, per_ms: float) -> None:
        top, limit = self.top, self.limit
        if limit >= top:
            self._tell(Why.MESSAGES_BOUND if top == self._most else Why.BYTES_BOUND, now_ms)
            self._restart(now_ms, now_ms)
            return
        self._change(min(2 * limit, top), Why.GROWING, now_ms, loop_ms)
        self._before = (limit, per_ms)

    def _change(self, limit: int, why: Why, now_ms: int, loop_ms: int) -> None:
        # The limit has its effect a round trip later.
        self.limit = limit
        self.highest = max(self.highest, limit)
        self._before = None
        self._tell(why, now_ms)
        self._restart(now_ms, now_ms + loop_ms)

    def _tell(self, why: Why, now_ms: int) -> None:
        if why is not self.why or why is Why.GROWING:
            self.why = why
            self.since_ms = now_ms

    def _pause(self, now_ms: int) -> None:
        # The pause before the next try grows with each one without gain.
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)


@dataclass(eq=False, slots=True)
class AutoCredit:
    """The automatic credit of one link on which a client publishes.

    A client that only credit holds up stops exactly where a grant ends; more credit would save the time until
    it continues. A client that stops elsewhere has nothing to send, or waits for its session's window.
    """

    _credit: ReceiverCredit
    auto: AutoLimit
    _changed: Callable[[], None]
    # The delivery-counts at which grants end that the client may not have reached yet.
    _ends: deque[int] = field(default_factory=deque)
    _stopped_ms: int | None = None

    def __post_init__(self) -> None:
        self._note()

    def received(self, now_ms: int, count: int, size_bytes: int, *, held_back: bool) -> None:
        """Count a batch of deliveries; `held_back` if an alarm holds the client back as well."""
        auto, credit, ends = self.auto, self._credit, self._ends
        auto.came(now_ms, count, size_bytes, credit.outstanding)
        stopped_ms, self._stopped_ms = self._stopped_ms, None
        if stopped_ms is not None and now_ms > stopped_ms and not held_back:
            auto.resumed(now_ms, now_ms - stopped_ms)
        # The grants before these deliveries are all that the client can have received.
        reached = credit.delivery_count
        while ends and diff(ends[0], reached) < 0:
            ends.popleft()
        if ends and ends[0] == reached and not held_back:
            self._stopped_ms = now_ms
        self._note()

    def answered(self, now_ms: int, count: int) -> None:
        self.auto.done(now_ms, count, self._credit.outstanding)
        self._note()

    def tighten(self, now_ms: int) -> None:
        self.auto.tighten(now_ms)
        self._note()

    def _note(self) -> None:
        credit = self._credit
        if credit.limit != self.auto.limit:
            credit.limit = self.auto.limit
            self._changed()
        grant = credit.last_granted
        if grant is not None:
            end = (grant[0] + grant[1]) & MASK
            if not self._ends or self._ends[-1] != end:
                self._ends.append(end)
