"""Whose turn it is among the consumers of a queue, and how many deliveries make one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate, islice
from typing import Final, Protocol, TypeVar

from amqp10broker.queues.commands import NO_BOUND

TURN_MAX: Final = 32
"""Deliveries that make a turn of a consumer at most. Long turns make batches, and batches make deliveries
cheap."""

_TURNS_PER_GRANT: Final = 8
"""A consumer's turn is an eighth of what it was granted: who asks for few at a time gets them one by
one in rotation with the others, who asks for hundreds gets them in batches."""

_SHARED_OUT_MAX: Final = 8
"""So few consumers share every batch. Of more, a batch goes to so many, or to as many as make each part a
turn: a message costs twice as much in a hundred parts of a batch, and five times in a thousand."""

SCAN_MAX: Final = 1_000
"""Messages of one queue that all who select or browse look at together before others have the process: some
milliseconds."""


class Taker(Protocol):
    """A consumer of whatever kind of queue: what it may have now, in deliveries and in bytes, and how many
    deliveries make a turn of it."""

    credit: int
    room: int
    turn: int


T = TypeVar("T")
C = TypeVar("C", bound=Taker)


class Ring(OrderedDict[T, None]):
    """Consumers in the order of their turns, from whatever place of which one may leave at once."""

    @property
    def first(self) -> T:
        """Whose turn it is. There is one."""
        return next(iter(self))

    def add(self, consumer: T) -> None:
        """The others are first."""
        self[consumer] = None

    def remove(self, consumer: T) -> None:
        """It takes part no more."""
        del self[consumer]

    def turn(self) -> None:
        """The first was served: it is the last now."""
        self.move_to_end(next(iter(self)))

    def turn_by(self, takers: Sequence[T], count: int) -> None:
        """The first ones, these, were given so many in rotation: the next is the one behind the last."""
        for taker in takers[: count % len(takers) or len(takers)]:
            self.move_to_end(taker)


def turn_within(credit: int) -> int:
    """How many deliveries make a turn of a consumer that was granted so many."""
    return min(TURN_MAX, credit // _TURNS_PER_GRANT) or 1


def next_takers(ring: Ring[C], ready: int) -> tuple[list[C], int, int]:
    """Which consumers get messages next, one each in rotation: as many rounds as all of them have credit for.

    Args:
        ring: all whose turn it is, at least one.
        ready: messages there are, at least 1.

    Returns:
        Consumers; messages for all of them together; bytes of contents after which one may have no room.
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
    """How many messages the first consumer of a ring gets now, where some look for what they select.

    Args:
        consumer: the first.
        ring: all whose turn it is.
        ready: messages there are, at least 1.
        waiting: consumers whose turn in this round is still to come, this one among them.
    """
    if len(ring) == 1:
        return min(consumer.credit, ready)
    count = min(consumer.credit, consumer.turn, ready)
    if len(ring) <= _SHARED_OUT_MAX:
        count = min(count, -(-ready // waiting))
    return count


def that_fill(sizes: Iterable[int], room: int) -> int:
    """How many of these sizes, the first ones, use up a room; together they are more than it."""
    for count, used in enumerate(accumulate(sizes), 1):
        if used >= room:
            return count
    raise AssertionError("there is room for all of them")
