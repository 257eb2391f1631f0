"""The messages of a quorum queue that were published for later delivery, as packed numbers.

They are in order of their due times: a message becomes ready then, or expires, if that is earlier. The
soonest are tuples in a heap, at most `SOON_MAX` of them. Beyond that, the later half is packed into pages, in
order; a page is loaded when its first message is due, and messages of it that are later than all others in
memory are packed again. So a million of them take some 25 MB, in whatever order they come. `bodies` holds
their contents.

The distribution over heap and pages is not part of the state: members may differ in it, and have the same
order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from amqp10broker.queues.quorum.ordered_entries import NEVER

SOON_MAX: Final = 8192
PAGE_MAX: Final = 128
"""Small, so that of all pages that were packed at one time about one is in memory as tuples."""


class DueMessage(NamedTuple):
    """A message, ordered by due time and then by key."""

    when_ms: int
    key: int
    size: int
    expiry: int
    """Time of its expiry in ms, or `NEVER`."""
    line: int
    """The level of its priority in `ReadyIndexes.lines`; 0: that of a message without one."""


class _DuePage(NamedTuple):
    """Messages in order, as columns. Pages are ordered by their first messages."""

    when_ms: int
    key: int
    whens: array[int]
    indexes: array[int]
    sizes: array[int]
    expiries: array[int] | None
    """None: no message expires."""
    lines: array[int] | None
    """None: all messages are of the normal level."""

    def messages(self) -> Iterator[DueMessage]:
        nothing = bytes(len(self.whens))
        columns = self.whens, self.indexes, self.sizes, self.expiries or nothing, self.lines or nothing
        return map(DueMessage._make, zip(*columns, strict=True))


class LaterMessages:
    __slots__ = ("_pages", "_soon", "count", "size")

    def __init__(self) -> None:
        self._soon: list[DueMessage] = []  # a heap
        self._pages: list[_DuePage] = []  # a heap
        self.count = 0
        self.size = 0

    @property
    def next_due(self) -> int | None:
        times = [line[0].when_ms for line in (self._soon, self._pages) if line]
        return min(times, default=None)

    def add(self, messages: Sequence[DueMessage]) -> None:
        for each in messages:
            heappush(self._soon, each)
            self.size += each.size
        self.count += len(messages)
        self._pack_later()

    def take_due(self, now_ms: int, most: int) -> list[DueMessage]:
        taken: list[DueMessage] = []
        while len(taken) < most and (when := self.next_due) is not None and when <= now_ms:
            taken.append(self._take())
        return taken

    def take_first(self, count: int) -> list[DueMessage]:
        return [self._take() for _ in range(count)]

    def _take(self) -> DueMessage:
        while self._pages and (not self._soon or self._pages[0][:2] < self._soon[0][:2]):
            for each in heappop(self._pages).messages():
                heappush(self._soon, each)
            self._pack_later()
        first = heappop(self._soon)
        self.count -= 1
        self.size -= first.size
        return first

    def indexes(self) -> list[int]:
        found = [each.key for each in self._soon]
        for page in self._pages:
            found += page.indexes
        return found

    def clear(self) -> list[int]:
        indexes = self.indexes()
        self._soon.clear()
        self._pages.clear()
        self.count = self.size = 0
        return indexes

    def _pack_later(self) -> None:
        soon = self._soon
        while len(soon) > SOON_MAX:
            # A sorted list is a heap as well.
            soon.sort()
            for at in range(SOON_MAX // 2, len(soon), PAGE_MAX):
                heappush(self._pages, _packed(soon[at : at + PAGE_MAX]))
            del soon[SOON_MAX // 2 :]

    def columns(self) -> tuple[array[int], ...]:
        """Return indexes, times, sizes, expiries and levels, in order of the indexes. In this order most of
        them are ranges, or one number many times.
        """
        parts = [_packed(self._soon)] if self._soon else []
        parts += self._pages
        columns = array("Q"), array("Q"), array("I"), array("Q"), array("B")
        indexes, whens, sizes, expiries, lines = columns
        for page in parts:
            count = len(page.whens)
            indexes.extend(page.indexes)
            whens.extend(page.whens)
            sizes.extend(page.sizes)
            expiries.extend(array("Q", bytes(8 * count)) if page.expiries is None else page.expiries)
            lines.extend(array("B", bytes(count)) if page.lines is None else page.lines)
        order = sorted(range(len(indexes)), key=indexes.__getitem__)
        return tuple(array(each.typecode, map(each.__getitem__, order)) for each in columns)

    def restore(self, columns: Sequence[Sequence[int]]) -> None:
        indexes, whens, *rest = columns
        for at in range(0, len(indexes), SOON_MAX):
            part = slice(at, at + SOON_MAX)
            self.add(list(map(DueMessage, whens[part], indexes[part], *(each[part] for each in rest))))


def _packed(messages: Sequence[DueMessage]) -> _DuePage:
    whens, indexes, sizes, expiries, lines = zip(*messages, strict=True)
    return _DuePage(
        whens[0],
        indexes[0],
        array("Q", whens),
        array("Q", indexes),
        array("I", sizes),
        array("Q", expiries) if any(expiry != NEVER for expiry in expiries) else None,
        array("B", lines) if any(lines) else None,
    )
