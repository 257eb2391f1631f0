"""The portions in which one connection's reader hands over its input.

A read of 64 KiB may be two thousand frames, and each may make a task, a link, or a declaration. It is handed
over in portions, and between two of them every other task of the broker runs once. So the wait of others
depends on a portion, not on the size of a client's input. Runs (transfers, publishes, acknowledgements of one
kind) are one item of any length, so normal traffic is one portion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from amqp10broker.protocols.amqp091.items import MethodFrame
from amqp10broker.protocols.amqp091.methods import ChannelClose, ChannelOpen
from amqp10broker.protocols.amqp10.performatives import Attach, Detach, End

T = TypeVar("T")

PORTION: Final = 256
"""What is handed over in one turn, in units of the cheapest frame: some five milliseconds of work."""

HEAVY: Final = 16
"""What makes or ends a session, a channel or a link: 16 of them a turn."""

_METHOD: Final = 4
"""A method of AMQP 0-9-1 that declares, binds, consumes, ...: 64 of them a turn."""

_HEAVY_ITEMS: Final = frozenset((Attach, Detach, End))
_HEAVY_METHODS: Final = frozenset((ChannelOpen, ChannelClose))
_NOT_LIGHT: Final = _HEAVY_ITEMS | {MethodFrame}


class ReadBudget:
    """One reader's turn. `left`: what may still be handed over in it. At 0 or below it is over: the reader
    lets other tasks run, and sets it to `PORTION`.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PORTION

    def portions(self, items: Sequence[T]) -> Iterable[Sequence[T]]:
        """Cut items of one session or channel into portions; the turn ends between two of them.

        Each is counted before it is yielded, so that the receiver can check `left` behind it. An input that
        fits is returned without a copy.
        """
        if len(items) * HEAVY <= self.left:
            self.left -= len(items) * HEAVY
            return (items,)
        return self._cut(items)

    def _cut(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        start = 0
        while start < len(items):
            stop = self._fill(items, start)
            yield items if stop - start == len(items) else items[start:stop]
            start = stop

    def _fill(self, items: Sequence[object], start: int) -> int:
        # Count items from `start` on, one at least; where the turn ends.
        count = len(items) - start
        if count * HEAVY <= self.left:
            self.left -= count * HEAVY
            return len(items)
        if _NOT_LIGHT.isdisjoint(map(type, items)):
            count = max(1, min(count, self.left))
            self.left -= count
            return start + count
        stop = start
        while stop < len(items) and (stop == start or self.left > 0):
            self.left -= _weight(items[stop])
            stop += 1
        return stop


def _weight(item: object) -> int:
    if type(item) is MethodFrame:
        return HEAVY if type(item.method) in _HEAVY_METHODS else _METHOD
    return HEAVY if type(item) in _HEAVY_ITEMS else 1
