"""Whose turn it is among the consumers of a queue, and how many deliveries make one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sized
from itertools import accumulate
from typing import Final, Protocol, TypeVar

TURN_MAX: Final = 32
"""Deliveries one consumer gets at most before the next has its turn. Long turns make batches, and
batches make deliveries cheap."""

_TURNS_PER_GRANT: Final = 8
"""A consumer's turn is an eighth of what it was granted: who asks for few at a time gets them one by
one in rotation with the others, who asks for hundreds gets them in batches."""

_SHARED_OUT_MAX: Final = 8
"""With so few consumers, a backlog shorter than their turns is shared out evenly."""


SCAN_MAX: Final = 1_000
"""Messages of one queue that all who select or browse look at together before others have the process: some
milliseconds."""


T = TypeVar("T")


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


class Taker(Protocol):
    """A consumer of whatever kind of queue: what it may have now, and how much of it in one turn."""

    credit: int
    turn: int


def turn_within(credit: int) -> int:
    """How many deliveries make a turn of a consumer that was granted so many."""
    return min(TURN_MAX, credit // _TURNS_PER_GRANT) or 1


def turn_of(consumer: Taker, ring: Sized, ready: int, waiting: int) -> int:
    """How many messages the first consumer of a ring gets now.

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
