"""Reports on the waiting messages and consumers of a queue.

They are made on request, from the state of the queue; only a few times per batch are stored for them. All
times are in ms of the queue's clock, as in its commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.settings import QueueSettings


class Looking(NamedTuple):
    """The progress of a consumer that selects or browses."""

    selects: bool
    looked_at: int
    """Messages that it has looked at since it subscribed."""
    passed: int
    """Messages of these that it was given."""
    rests: bool
    """It has credit, and has looked at all messages."""


class ConsumerStatus(NamedTuple):
    """A consumer in the view of its queue."""

    ref: ConsumerRef
    credit: int
    priority: int = 0
    held: int = 0
    """Unsettled deliveries; 0 if they are sent settled."""
    held_ms: int = 0
    """Since when it holds the oldest of them; of a classic queue: since when it holds any."""
    settled_ms: int | None = None
    silent: bool = False
    """It let a delivery time out, and has sent nothing since."""
    quiescing: bool = False
    """It is the active one until it has settled its deliveries."""
    name: str = ""
    away: bool = False
    """Its node is unreachable, and it gets nothing meanwhile."""
    looking: Looking | None = None
    """None: it gets the first message."""
    browses: bool = False
    """It receives copies, and takes no message."""


class StreamReading(NamedTuple):
    """A consumer of a stream."""

    position: int
    """The offset that it looks at next."""
    end: int | None
    """The first offset that it does not want; None: it wants all."""
    filtered: bool
    looked_at: int
    passed: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's waiting messages and consumers. `arrived`: messages that ever came, as far as known."""

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
    """Consumers with unsettled deliveries, the one with the most first."""
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
    """Reasons that keep a queue from going on. All times are in ms: since when."""

    busy: bool = False
    """It has commands that it has not applied yet."""
    recovering: bool = False
    """It waits until the journal, or its own log, has been read."""
    sync_ms: int | None = None
    """It waits for a sync that is running."""
    full_ms: int | None = None
    """It waits for room on a full disk."""
    unled_ms: int | None = None
    """The queue has no leader in the view of this node, or its node is unreachable."""


UP_TO_DATE = QueueProgress()


T = TypeVar("T")

LOOKED_THROUGH_MAX: Final = 50_000
"""Messages, unsettled or returned, up to which sizes are summed on request: a few ms."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The limits of a queue's length: ready messages, and bytes of them; None: any number."""

    messages: int | None
    bytes: int | None
    overflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The figures of one queue; None: its kind does not have them. `messages_delayed`: waiting for their
    time: of a quorum queue returned ones, of a classic one those that publishers delayed. `messages_dlx`: of
    a quorum queue: dead letters that are not yet at their target. `limits`: None: there are none.
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
    """Bytes of the contents of a queue's messages, as far as they are known without looking at each of many.
    None: counting would take too long, or this kind of queue does not support it.
    """

    ready: int | None
    """Of waiting messages; of those that a start has found and no consumer has read yet, bytes in the
    journal.
    """
    unsettled: int | None
    """Bytes of messages that are handed out."""
    ready_in_memory: int | None = None
    """Number of waiting messages that are in memory."""
    ready_bytes_in_memory: int | None = None
    """Bytes of the waiting messages in memory. Unsettled ones are in memory too."""


def few(parts: Iterable[Collection[T]]) -> Iterable[T] | None:
    """Return the items of all parts; None: there are more than may be looked at."""
    parts = list(parts)
    return None if sum(map(len, parts)) > LOOKED_THROUGH_MAX else chain.from_iterable(parts)


def length_limits(settings: QueueSettings) -> LengthLimits | None:
    """Return the limits of length of these settings; None: there are none."""
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
