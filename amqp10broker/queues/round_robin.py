"""The rotation of a queue's consumers, and the number of deliveries in a turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate, islice
from typing import Final, Protocol, TypeVar

from amqp10broker.queues.commands import NO_BOUND

TURN_MAX: Final = 32
"""Deliveries of a consumer's turn at most. Long turns make batches, and batches make deliveries cheap."""

_TURNS_PER_GRANT: Final = 8
"""A consumer's turn is an eighth of its grant: a small grant gets messages one by one in rotation with the
others, a grant of hundreds gets batches.
"""

_SHARED_OUT_MAX: Final = 8
"""Up to so few consumers share every batch. Of more, a batch goes to so many, or to as many as make each part
a turn: a message costs twice as much in a hundred parts of a batch, and five times in a thousand.
"""

SCAN_MAX: Final = 1_000
"""Messages of one queue that all selecting and browsing consumers look at together before other tasks run:
some milliseconds.
"""


class Taker(Protocol):
    """A consumer of any kind of queue: its credit, its room in bytes, and the deliveries of its turn."""

    credit: int
    room: int
    turn: int


T = TypeVar("T")
C = TypeVar("C", bound=Taker)


class RoundRobin(OrderedDict[T, None]):
    """Consumers in the order of rotation, from which any one can be removed at once."""

    @property
    def first(self) -> T:
        """The next consumer, of which there must be one."""
        return next(iter(self))

    def add(self, consumer: T) -> None:
        self[consumer] = None

    def remove(self, consumer: T) -> None:
        del self[consumer]

    def turn(self) -> None:
        self.move_to_end(next(iter(self)))

    def turn_by(self, takers: Sequence[T], count: int) -> None:
        """Rotate after these first ones got `count` messages one each: the one behind the last is next."""
        for taker in takers[: count % len(takers) or len(takers)]:
            self.move_to_end(taker)


def turn_within(credit: int) -> int:
    return min(TURN_MAX, credit // _TURNS_PER_GRANT) or 1


def next_takers(ring: RoundRobin[C], ready: int) -> tuple[list[C], int, int]:
    """Return the consumers that get messages next, one each in as many rounds as all of them have credit for.
    `ready`: number of messages, at least 1. Returns consumers; messages for all of them together; bytes of
    contents after which one may have no room.
    """
    size = len(ring)
    if size > _SHARED_OUT_MAX:
        size = max(_SHARED_OUT_MAX, -(-ready // ring.first.turn))
    takers = list(islice(ring, min(size, ready)))
    rounds = ready // len(takers)
    if rounds == 1:
        return takers, len(takers), NO_BOUND
    rounds = min(rounds, min([each.credit for each in takers]))
    return takers, rounds * len(takers), min([each.room for each in takers])


def turn_of(consumer: Taker, ring: Sized, ready: int, waiting: int) -> int:
    """Return how many messages the first consumer of a ring gets now, where some consumers select. `ready`:
    number of messages, at least 1.
    """
    if len(ring) == 1:
        return min(consumer.credit, ready)
    count = min(consumer.credit, consumer.turn, ready)
    if len(ring) <= _SHARED_OUT_MAX:
        count = min(count, -(-ready // waiting))
    return count


def that_fill(sizes: Iterable[int], room: int) -> int:
    """Return how many of these sizes, from the first on, use up a room; their sum must exceed it."""
    for count, used in enumerate(accumulate(sizes), 1):
        if used >= room:
            return count
    raise AssertionError("there is room for all of them")
