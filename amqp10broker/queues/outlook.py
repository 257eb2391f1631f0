"""What a queue can tell somebody who waits for it: who holds its messages, who is first, what became of them.

Made when somebody asks, from what the queue knows anyway; nothing is kept for it but a few times a batch.
All times are in ms of the queue's clock, as in its commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.counters import QueueCounters


class Looking(NamedTuple):
    """How far a consumer that selects or browses has come in its queue."""

    selects: bool
    """It does not want all messages."""
    looked_at: int
    """Messages that it has gone over, since it came."""
    passed: int
    """Messages of these that it was given."""
    rests: bool
    """It has credit, and has looked through all there is."""


class Part(NamedTuple):
    """One consumer as its queue sees it."""

    ref: ConsumerRef
    credit: int
    """Deliveries that it may have now."""
    priority: int = 0
    held: int = 0
    """Deliveries that it has not settled; 0 if they need not be."""
    held_ms: int = 0
    """Since when it holds the oldest of them; of a classic queue: since when it holds any."""
    settled_ms: int | None = None
    """When it decided on some last."""
    silent: bool = False
    """It let a delivery time out, and has not been heard of since."""
    quiescing: bool = False
    """It is the active one, and gives that up when it has settled what it holds."""
    name: str = ""
    """For people, as its `Subscribe` says."""
    away: bool = False
    """Its node is not heard of: it gets nothing until that is back."""
    looking: Looking | None = None
    """None: it gets whatever is first."""
    browses: bool = False
    """It takes nothing."""


class Reading(NamedTuple):
    """One consumer of a stream."""

    position: int
    """The offset that it looks at next."""
    end: int | None
    """The offset from which on it wants nothing; None: it wants all."""
    filtered: bool
    looked_at: int
    """Messages that it has gone over."""
    passed: int
    """Messages of these that it was given."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A queue, for those who wait.

    Attributes:
        ready: messages that wait for a consumer.
        arrived: messages that ever came; of a queue that was recovered at least those that it found.
        parts: all consumers.
        single: there is one active consumer only.
        active: which.
        counters: what became of messages since the broker was started.
        expired_ms: when a message expired last.
        delivered_ms: when messages were handed out last.
        dead: messages that wait until their dead-letter exchange has them.
        delayed: messages that wait for their time.
        delayed_until_ms: when the first of them is due.
        delayed_returns: how many of them were returned, and not published so.
        unsynced: messages that are handed out when the disk has them.
        unsynced_ms: since when the oldest of them waits.
        unconfirmed: published messages that are confirmed when the disk has them.
        unconfirmed_ms: since when the oldest of them waits.
        next_offset: of a stream.
        readings: of a stream, by consumer.
    """

    ready: int
    arrived: int
    parts: Mapping[ConsumerRef, Part]
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
    readings: Mapping[ConsumerRef, Reading] = field(default_factory=dict)
    # Found once, for all the consumers that ask: they may be thousands.
    _holders: list[Part] = field(init=False, repr=False, compare=False)
    _foremost: Part | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look at all consumers."""
        parts = list(self.parts.values())
        holders = sorted((each for each in parts if each.held), key=lambda each: -each.held)
        takers = (
            each
            for each in parts
            if each.credit and not (each.silent or each.away or each.looking is not None)
        )
        foremost = max(takers, key=lambda each: each.priority, default=None)
        object.__setattr__(self, "_holders", holders)
        object.__setattr__(self, "_foremost", foremost)

    def holders(self) -> list[Part]:
        """Who holds messages, the one with the most first."""
        return self._holders

    def ahead_of(self, ref: ConsumerRef) -> Part | None:
        """A consumer of higher priority that would take the next message."""
        own = self.parts.get(ref)
        foremost = self._foremost
        if own is None or self.single or foremost is None or foremost.priority <= own.priority:
            return None
        return foremost


class Progress(NamedTuple):
    """What keeps a queue from getting on.

    All times in ms: since when.
    """

    busy: bool = False
    """It has letters that it has not come to."""
    recovering: bool = False
    """It waits until the journal, or its own log, has been read."""
    sync_ms: int | None = None
    """A sync is running on which it waits."""
    full_ms: int | None = None
    """The disk is full."""
    unled_ms: int | None = None
    """No member of the queue leads it, as far as this node knows, or the queue's node cannot be reached."""


UP_TO_DATE = Progress()
"""Of a queue that keeps nothing and is up to date."""
