"""Counters of a queue's messages, which only grow while the broker runs.

The queue's machine counts what it does with messages, once a batch. It does not count what consumers got,
since it takes back messages that were handed out and not sent: each consumer counts what it has written and
what its client settled, and the numbers of a queue are the sum over its consumers, made on request.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container
from typing import ClassVar, Final

from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.queues.effects import DeadLetterReason

CONSUMING: Final = (
    *("delivered", "delivered_settled", "got", "got_settled", "redelivered", "got_nothing"),
    *("acknowledged", "requeued", "discarded"),
)

CONFIRMED: Final = "confirmed"

GONE_MAX: Final = 512
"""Deleted queues of which counters are separate, because commands sent before may still change them; older
ones are a sum.
"""

_LOST_AS: Final = {
    DeadLetterReason.MAXLEN: "dropped",
    DeadLetterReason.EXPIRED: "expired",
    DeadLetterReason.REJECTED: "discarded",
    DeadLetterReason.DELIVERY_LIMIT: "delivery_limit",
}


DISABLED: Final = "disabled"
AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
"""The dead-letter strategies as RabbitMQ's metrics name them. Disabled: the message is dropped."""


class Consumption:
    """Counters of deliveries and their outcomes. `credit_requests`: requests of messages to the queue. For
    metrics only, and not in `document`.
    """

    __slots__ = (*CONSUMING, "credit_requests")

    names: ClassVar[tuple[str, ...]] = CONSUMING
    unnamed: ClassVar[tuple[str, ...]] = ("credit_requests",)

    def __init__(self) -> None:
        self.delivered = 0
        self.delivered_settled = 0
        self.got = 0
        self.got_settled = 0
        self.redelivered = 0
        self.got_nothing = 0
        self.acknowledged = 0
        self.requeued = 0
        self.discarded = 0
        self.credit_requests = 0

    @property
    def decided(self) -> int:
        """Deliveries that the client has settled."""
        return self.acknowledged + self.requeued + self.discarded

    def settled(self, delivery_outcome: DeliveryOutcome, deliveries: int) -> None:
        if delivery_outcome is DeliveryOutcome.ACCEPT:
            self.acknowledged += deliveries
        elif delivery_outcome in (DeliveryOutcome.DISCARD, DeliveryOutcome.DISCARD_FAILED):
            self.discarded += deliveries
        else:
            self.requeued += deliveries

    def add(self, other: Consumption) -> None:
        for name in (*other.names, *other.unnamed):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self, names: Container[str] | None = None) -> dict[str, int | None]:
        """Return the counters as in `status`. `names`: those that apply, the others are null; None: all."""
        return {name: getattr(self, name) if names is None or name in names else None for name in self.names}


class QueueConsumption:
    """The counters of one queue's consumers: of those present, and the sum of those that are gone."""

    __slots__ = ("_gone", "_there")

    def __init__(self) -> None:
        self._gone = Consumption()
        self._there: dict[Callable[[], Consumption], None] = {}

    def join(self, counted: Callable[[], Consumption]) -> None:
        self._there[counted] = None

    def leave(self, counted: Callable[[], Consumption]) -> bool:
        """Move a consumer's numbers to the sum of those that are gone; return False if done before."""
        if counted not in self._there:
            return False
        del self._there[counted]
        self._gone.add(counted())
        return True

    def counted(self) -> Consumption:
        total = Consumption()
        total.add(self._gone)
        for counted in self._there:
            total.add(counted())
        return total


class QueueCounters:
    """Counters of a queue's own decisions. `lost`: messages that it gave up, by reason, whether or not they
    were dead-lettered. `given_up`: messages that it gave up, by reason and strategy. For metrics only, and
    not in `document`. `settled_elsewhere`: of those of `AT_LEAST_ONCE`, the number that their targets have
    confirmed. Likewise.
    """

    __slots__ = ("dead_lettered", "given_up", "lost", "published", "rejected", "settled_elsewhere")

    def __init__(self) -> None:
        self.published = 0
        self.rejected = 0
        self.lost: dict[DeadLetterReason, int] = dict.fromkeys(DeadLetterReason, 0)
        self.dead_lettered: Counter[str] = Counter()
        self.given_up: Counter[tuple[DeadLetterReason, str]] = Counter()
        self.settled_elsewhere = 0

    def document(self) -> dict[str, int]:
        lost = {name: self.lost[reason] for reason, name in _LOST_AS.items()}
        dead_lettered = sum(self.dead_lettered.values())
        return {
            "published": self.published,
            "rejected": self.rejected,
            **lost,
            "dead_lettered": dead_lettered,
        }


class QueuesGone:
    """The counters of deleted queues: a sum, except for the last ones."""

    __slots__ = ("_given_up", "_last", "_sum")

    def __init__(self) -> None:
        self._sum: Counter[str] = Counter()
        self._given_up: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[tuple[str, QueueCounters, QueueConsumption]] = deque()

    def add(self, kind: str, counters: QueueCounters, consumption: QueueConsumption) -> None:
        """Add a queue that is gone, or will be after the commands that were sent before."""
        self._last.append((kind, counters, consumption))
        if len(self._last) > GONE_MAX:
            kind, counters, consumption = self._last.popleft()
            self._sum.update(tally(counters, consumption))
            self._given_up.update(given_up(kind, counters))

    def counted(self) -> Counter[str]:
        total = self._sum.copy()
        for _, counters, consumption in self._last:
            total.update(tally(counters, consumption))
        return total

    def given_up(self) -> Counter[tuple[str, str, str]]:
        total = self._given_up.copy()
        for kind, counters, _ in self._last:
            total.update(given_up(kind, counters))
        return total


def given_up(kind: str, counters: QueueCounters) -> dict[tuple[str, str, str], int]:
    """Return the messages given up, by kind of queue, reason (or `CONFIRMED`) and strategy."""
    found = {(kind, reason.value, strategy): n for (reason, strategy), n in counters.given_up.items()}
    if counters.settled_elsewhere:
        found[kind, CONFIRMED, AT_LEAST_ONCE] = counters.settled_elsewhere
    return found


def tally(counters: QueueCounters, consumption: QueueConsumption) -> dict[str, int]:
    """Return all counters of one queue; messages that consumers rejected are ``discarded``."""
    got = consumption.counted()
    return {name: getattr(got, name) for name in CONSUMING} | counters.document()
