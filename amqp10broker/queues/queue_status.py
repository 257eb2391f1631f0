"""Counters of queues, and reports on their waiting messages and consumers.

The queue's machine counts its actions on messages, once a batch. It does not count deliveries, because it
takes back messages that were handed out and not sent. Each consumer counts its written deliveries and those
that its client settled, and a queue's numbers are the sum over its consumers. All times are in ms of the
queue's clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import field
from itertools import chain
from typing import ClassVar, Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import ConsumerRef, DeadLetterReason, DeliveryOutcome
from amqp10broker.queues.settings import QueueSettings

CONSUMING: Final = (
    *("delivered", "delivered_settled", "got", "got_settled", "redelivered", "got_nothing"),
    *("acknowledged", "requeued", "discarded"),
)

CONFIRMED: Final = "confirmed"

GONE_MAX: Final = 512
"""The number of deleted queues with separate counters, because commands sent before may still change them."""

_LOST_AS: Final = {
    DeadLetterReason.MAXLEN: "dropped",
    DeadLetterReason.EXPIRED: "expired",
    DeadLetterReason.REJECTED: "discarded",
    DeadLetterReason.DELIVERY_LIMIT: "delivery_limit",
}


DISABLED: Final = "disabled"
AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
"""The dead-letter strategies, as RabbitMQ's metrics name them. Disabled means that the message is dropped."""


class Consumption:
    """Counters of deliveries and their outcomes. `credit_requests`: for metrics only, not in `document`."""

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
        """Return the counters as in `status`. `names`: the others are null; None: all apply."""
        return {name: getattr(self, name) if names is None or name in names else None for name in self.names}


class QueueConsumption:
    __slots__ = ("_gone", "_there")

    def __init__(self) -> None:
        self._gone = Consumption()
        self._there: dict[Callable[[], Consumption], None] = {}

    def join(self, counted: Callable[[], Consumption]) -> None:
        self._there[counted] = None

    def leave(self, counted: Callable[[], Consumption]) -> bool:
        """Move a consumer's numbers to the sum of the removed ones; return False if that was done before."""
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
    """Counters of a queue's own decisions.

    Attributes:
        lost: messages that it gave up, by reason, whether or not they were dead-lettered.
        given_up: the same by reason and strategy, for metrics only, not in `document`.
        settled_elsewhere: of `AT_LEAST_ONCE`, those that their targets have confirmed; likewise.
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
    __slots__ = ("_given_up", "_last", "_sum")

    def __init__(self) -> None:
        self._sum: Counter[str] = Counter()
        self._given_up: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[tuple[str, QueueCounters, QueueConsumption]] = deque()

    def add(self, kind: str, counters: QueueCounters, consumption: QueueConsumption) -> None:
        """Add a queue that is deleted, or will be after the commands that were sent before."""
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
    """Return all counters of one queue; ``discarded`` counts messages that consumers rejected."""
    got = consumption.counted()
    return {name: getattr(got, name) for name in CONSUMING} | counters.document()


class Looking(NamedTuple):
    selects: bool
    looked_at: int
    passed: int
    rests: bool
    """The consumer has credit, and has looked at all messages."""


class ConsumerStatus(NamedTuple):
    ref: ConsumerRef
    credit: int
    priority: int = 0
    held: int = 0
    """The number of unsettled deliveries; 0 if they are sent settled."""
    held_ms: int = 0
    """Since when it holds the oldest of them; for a classic queue: any of them."""
    settled_ms: int | None = None
    silent: bool = False
    """The consumer let a delivery time out, and has sent nothing since."""
    quiescing: bool = False
    """The consumer is active until it has settled its deliveries."""
    name: str = ""
    away: bool = False
    looking: Looking | None = None
    browses: bool = False


class StreamReading(NamedTuple):
    position: int
    end: int | None
    filtered: bool
    looked_at: int
    passed: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's waiting messages and consumers. `arrived`: all messages that ever came, as far as known."""

    ready: int
    arrived: int
    parts: Mapping[ConsumerRef, ConsumerStatus]
    single: bool = False
    active: ConsumerRef | None = None
    counters: QueueCounters = field(default_factory=QueueCounters)
    expired_ms: int | None = None
    delivered_ms: int | None = None
    dead: int = 0
    delayed: int = 0
    delayed_until_ms: int | None = None
    delayed_returns: int = 0
    unsynced: int = 0
    unsynced_ms: int | None = None
    unconfirmed: int = 0
    unconfirmed_ms: int | None = None
    next_offset: int | None = None
    readings: Mapping[ConsumerRef, StreamReading] = field(default_factory=dict)
    # Computed once for all consumers that may need it, of which there may be thousands.
    holders: list[ConsumerStatus] = field(init=False, repr=False, compare=False)
    """The consumers with unsettled deliveries, those with the most first."""
    _foremost: ConsumerStatus | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = list(self.parts.values())
        holders = sorted((each for each in parts if each.held), key=lambda each: -each.held)
        takers = (
            each
            for each in parts
            if each.credit and not (each.silent or each.away or each.looking is not None)
        )
        foremost = max(takers, key=lambda each: each.priority, default=None)
        object.__setattr__(self, "holders", holders)
        object.__setattr__(self, "_foremost", foremost)

    def ahead_of(self, ref: ConsumerRef) -> ConsumerStatus | None:
        """Return a consumer of higher priority that would take the next message."""
        own = self.parts.get(ref)
        foremost = self._foremost
        if own is None or self.single or foremost is None or foremost.priority <= own.priority:
            return None
        return foremost


class QueueProgress(NamedTuple):
    """The reasons for which a queue makes no progress. Times are in ms: since when."""

    busy: bool = False
    recovering: bool = False
    """The queue waits until the journal, or its own log, has been read."""
    sync_ms: int | None = None
    full_ms: int | None = None
    unled_ms: int | None = None
    """The queue has no leader in the view of this node, or its node is unreachable."""


UP_TO_DATE = QueueProgress()


T = TypeVar("T")

LOOKED_THROUGH_MAX: Final = 50_000
"""The number of messages, unsettled or returned, up to which sizes are added up on request: a few ms."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The limits of a queue's length; None: any number."""

    messages: int | None
    bytes: int | None
    overflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The figures of one queue; None: its kind does not have them. `messages_delayed`: in a quorum queue
    returned messages, in a classic one those that publishers delayed. `messages_dlx`: dead letters of a
    quorum queue that are not yet at their target.
    """

    messages_ready: int = 0
    messages_unsettled: int = 0
    consumers: int = 0
    publishers: int = 0
    messages_delayed: int | None = None
    messages_dlx: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    segments: int | None = None
    size_bytes: int | None = None
    single_active_consumer_tag: str | None = None
    full: bool = False
    limits: LengthLimits | None = None


class QueueWeight(NamedTuple):
    """Bytes of contents; None: counting would take too long, or this kind of queue does not support it."""

    ready: int | None
    """Messages that a start has found and no consumer has read count as their bytes in the journal."""
    unsettled: int | None
    ready_in_memory: int | None = None
    ready_bytes_in_memory: int | None = None
    """Unsettled messages are in memory too."""


def few(parts: Iterable[Collection[T]]) -> Iterable[T] | None:
    """Return the items of all parts; None: there are more than may be counted."""
    parts = list(parts)
    return None if sum(map(len, parts)) > LOOKED_THROUGH_MAX else chain.from_iterable(parts)


def length_limits(settings: QueueSettings) -> LengthLimits | None:
    most, most_bytes = settings.max_length, settings.max_length_bytes
    if most is None and most_bytes is None:
        return None
    return LengthLimits(most, most_bytes, str(settings.overflow.value))


def is_full(limits: LengthLimits | None, messages: int, size_bytes: int) -> bool:
    if limits is None:
        return False
    return (limits.messages is not None and messages >= limits.messages) or (
        limits.bytes is not None and size_bytes >= limits.bytes
    )
