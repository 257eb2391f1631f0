"""What became of a queue's messages, in numbers that only grow while the broker runs.

What the queue did with them is counted by its machine, once a batch. What consumers got is not: a queue takes
back what was handed out and not sent. Each consumer counts what it has written, and what its client decided;
a queue's numbers are the sum of those of its consumers, made when somebody looks (docs/adr/0043).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container
from typing import ClassVar, Final, Protocol

from amqp10broker.queues.commands import Verdict
from amqp10broker.queues.effects import Reason

CONSUMING: Final = (
    *("delivered", "delivered_settled", "got", "got_settled", "redelivered", "got_nothing"),
    *("acknowledged", "requeued", "discarded"),
)

CONFIRMED: Final = "confirmed"

GONE_MAX: Final = 512
"""Queues that were deleted last, and may still come to a letter that was put before; the others are a sum."""

_LOST_AS: Final = {
    Reason.MAXLEN: "dropped",
    Reason.EXPIRED: "expired",
    Reason.REJECTED: "discarded",
    Reason.DELIVERY_LIMIT: "delivery_limit",
}


DISABLED: Final = "disabled"
AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
"""What becomes of a message that a queue gives up, as RabbitMQ's metrics name it. Disabled: it is gone."""


class Consumption:
    """What consumers got, and what clients decided on it.

    Attributes:
        delivered: to be settled, or acknowledged, by the client.
        delivered_settled: with nothing to come from the client.
        got: delivered to basic.get, to be acknowledged.
        got_settled: delivered to basic.get, without.
        redelivered: of all these, those that the queue had handed out before.
        got_nothing: how often basic.get found no message.
        acknowledged: accepted by the client.
        requeued: returned to the queue by the client.
        discarded: rejected by the client for good.
        credit_requests: how often the queue was asked for messages. For metrics alone, so it is not shown.
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
        """Deliveries on which the client has decided."""
        return self.acknowledged + self.requeued + self.discarded

    def settled(self, verdict: Verdict, deliveries: int) -> None:
        """Count what the client has decided on deliveries."""
        if verdict is Verdict.ACCEPT:
            self.acknowledged += deliveries
        elif verdict in (Verdict.DISCARD, Verdict.DISCARD_FAILED):
            self.discarded += deliveries
        else:
            self.requeued += deliveries

    def add(self, other: Consumption) -> None:
        """Count what another one has counted, too."""
        for name in (*other.names, *other.unnamed):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self, names: Container[str] | None = None) -> dict[str, int | None]:
        """As `status` has it.

        Args:
            names: those that mean something here, the others are null; None: all.
        """
        return {name: getattr(self, name) if names is None or name in names else None for name in self.names}


class Counted(Protocol):
    """One consumer of a queue."""

    def counted(self) -> Consumption:
        """What it got so far."""


class QueueConsumption:
    """What the consumers of one queue got: those that are there, and the sum of those that are gone."""

    __slots__ = ("_gone", "_there")

    def __init__(self) -> None:
        self._gone = Consumption()
        self._there: dict[Counted, None] = {}

    def join(self, consumer: Counted) -> None:
        """A consumer comes."""
        self._there[consumer] = None

    def leave(self, consumer: Counted) -> bool:
        """A consumer gets no more; False: it has left already, and nothing is counted again."""
        if consumer not in self._there:
            return False
        del self._there[consumer]
        self._gone.add(consumer.counted())
        return True

    def counted(self) -> Consumption:
        """All together."""
        total = Consumption()
        total.add(self._gone)
        for consumer in self._there:
            total.add(consumer.counted())
        return total


class QueueCounters:
    """What a queue did with messages.

    Attributes:
        published: messages that the queue took.
        rejected: publishes that it refused because it was full.
        lost: messages that it gave up, by reason, whether or not they were dead-lettered.
        dead_lettered: messages that it handed on to a dead-letter exchange, by reason.
        given_up: messages that it gave up, by reason and strategy. For metrics alone, so it is not shown.
        settled_elsewhere: of those of `AT_LEAST_ONCE`, how many their targets have confirmed. Likewise.
    """

    __slots__ = ("dead_lettered", "given_up", "lost", "published", "rejected", "settled_elsewhere")

    def __init__(self) -> None:
        self.published = 0
        self.rejected = 0
        self.lost: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.dead_lettered: Counter[str] = Counter()
        self.given_up: Counter[tuple[Reason, str]] = Counter()
        self.settled_elsewhere = 0

    def document(self) -> dict[str, int]:
        """As `status` has it."""
        lost = {name: self.lost[reason] for reason, name in _LOST_AS.items()}
        dead_lettered = sum(self.dead_lettered.values())
        return {
            "published": self.published,
            "rejected": self.rejected,
            **lost,
            "dead_lettered": dead_lettered,
        }


class QueuesGone:
    """What was counted of queues that are gone: a sum, but for the last ones."""

    __slots__ = ("_given_up", "_last", "_sum")

    def __init__(self) -> None:
        self._sum: Counter[str] = Counter()
        self._given_up: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[tuple[str, QueueCounters, QueueConsumption]] = deque()

    def add(self, kind: str, counters: QueueCounters, consumption: QueueConsumption) -> None:
        """A queue is gone, or will be when it has come to the letters that were put before."""
        self._last.append((kind, counters, consumption))
        if len(self._last) > GONE_MAX:
            kind, counters, consumption = self._last.popleft()
            self._sum.update(tally(counters, consumption))
            self._given_up.update(given_up(kind, counters))

    def counted(self) -> Counter[str]:
        """All together."""
        total = self._sum.copy()
        for _, counters, consumption in self._last:
            total.update(tally(counters, consumption))
        return total

    def given_up(self) -> Counter[tuple[str, str, str]]:
        """What they gave up, by kind of queue, reason and strategy; see `given_up`."""
        total = self._given_up.copy()
        for kind, counters, _ in self._last:
            total.update(given_up(kind, counters))
        return total


def given_up(kind: str, counters: QueueCounters) -> dict[tuple[str, str, str], int]:
    """What a queue of a kind gave up, by kind, reason and strategy; `CONFIRMED` stands among the reasons."""
    found = {(kind, reason.value, strategy): n for (reason, strategy), n in counters.given_up.items()}
    if counters.settled_elsewhere:
        found[kind, CONFIRMED, AT_LEAST_ONCE] = counters.settled_elsewhere
    return found


def tally(counters: QueueCounters, consumption: QueueConsumption) -> dict[str, int]:
    """All that is counted of one queue. What it gave up because consumers rejected it is ``discarded``."""
    got = consumption.counted()
    return {name: getattr(got, name) for name in CONSUMING} | counters.document()
