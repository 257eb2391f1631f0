"""The waiting messages of a quorum queue as packed numbers: lines, and messages published for later delivery.

An entry of a line consists of a key, which only grows along the line, the size of the body, and the expiry.
Entries are in blocks of arrays, 12 bytes an entry, or 20 in a block with messages that have a time to live: a
million of them take some megabytes.

Messages for later delivery are ordered by the time when they become ready, or expire, if that is earlier. The
soonest are tuples in a heap, at most `SOON_MAX` of them. Beyond that, the later half is packed into pages, in
order. A page is loaded when its first message is due. So a million of them take some 25 MB, in whatever order
they come. The distribution over heap and pages is not part of the state: members may differ in it, and have
the same order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import NO_BOUND
from amqp10broker.queues.machine import that_fill

BLOCK_MAX: Final = 4096
NEVER: Final = 0

SIZE_BITS: Final = 32
_SIZE_MASK: Final = (1 << SIZE_BITS) - 1


def size_of(held: int) -> int:
    """Return the size of a message that a consumer holds (`QuorumConsumer.unsettled`)."""
    return held & _SIZE_MASK


def delivered_at(held: int) -> int:
    return held >> SIZE_BITS


@dataclass(slots=True, eq=False)
class Block:
    keys: array[int]
    sizes: array[int]
    expiries: array[int] | None
    start: int = 0

    def expiries_between(self, start: int, stop: int) -> list[int]:
        return [NEVER] * (stop - start) if self.expiries is None else self.expiries[start:stop].tolist()

    def places_of(self, keys: Sequence[int]) -> Sequence[int]:
        """Return the positions of the entries with these ascending keys that are present."""
        start = bisect_left(self.keys, keys[0], self.start)
        stop = start + len(keys)
        if self.keys[start:stop].tolist() == keys:
            return range(start, stop)
        found: list[int] = []
        for key in keys:
            start = bisect_left(self.keys, key, start)
            if start < len(self.keys) and self.keys[start] == key:
                found.append(start)
        return found

    def remove(self, places: Sequence[int]) -> None:
        first, last = places[0], places[-1]
        if first == self.start and last - first == len(places) - 1:
            self.start = last + 1
            return
        columns = (self.keys, self.sizes) if self.expiries is None else (self.keys, self.sizes, self.expiries)
        for column in columns:
            if last - first == len(places) - 1:
                del column[first : last + 1]
            else:
                for at in reversed(places):
                    del column[at]


_NO_BLOCKS: Final[deque[Block]] = deque()
"""One object for all lines that never had an entry: an empty deque is larger than the rest of such a line."""


MERGED_MAX: Final = 2 * BLOCK_MAX
"""The number of entries at which a block is split when entries are put back into it."""


def _block_of(entries: Sequence[tuple[int, int, int]]) -> Block:
    keys, sizes, expiries = zip(*entries, strict=True)
    return Block(array("Q", keys), array("I", sizes), array("Q", expiries) if any(expiries) else None)


class OrderedEntries:
    __slots__ = ("_blocks", "expiring", "length")

    def __init__(self) -> None:
        self._blocks = _NO_BLOCKS
        self.length = 0
        self.expiring = 0

    @property
    def head_key(self) -> int:
        block = self._blocks[0]
        return block.keys[block.start]

    @property
    def head_expiry(self) -> int:
        if not self.expiring:
            return NEVER
        block = self._blocks[0]
        return NEVER if block.expiries is None else block.expiries[block.start]

    def append(self, keys: Sequence[int], sizes: Sequence[int], expiries: Sequence[int] | None) -> None:
        count = len(keys)
        block = self._blocks[-1] if self._blocks else None
        if block is None or len(block.keys) >= BLOCK_MAX:
            block = Block(array("Q"), array("I"), None)
            self._own_blocks().append(block)
        if expiries is not None:
            if block.expiries is None:
                block.expiries = array("Q", bytes(8 * len(block.keys)))
            block.expiries.extend(expiries)
            self.expiring += count - expiries.count(NEVER)
        elif block.expiries is not None:
            block.expiries.extend([NEVER] * count)
        block.keys.extend(keys)
        block.sizes.extend(sizes)
        self.length += count

    def _own_blocks(self) -> deque[Block]:
        if self._blocks is _NO_BLOCKS:
            self._blocks = deque()
        return self._blocks

    def take(
        self, count: int, expired_at: int, room: int = NO_BOUND, below: int | None = None
    ) -> tuple[list[int], list[int], list[int] | None]:
        """Take entries from the front, up to the first that has expired, and at the end of a block. `count`:
        maximum, at least 1. `room`: bytes; the entry that uses it up is the last. `below`: take only entries
        with smaller keys, of which there is at least one. Returns keys, sizes, and expiries (None: none of
        them expires).
        """
        if not self.length:
            return [], [], None
        blocks = self._blocks
        block = blocks[0]
        start = block.start
        stop = min(start + count, len(block.keys))
        if below is not None:
            stop = bisect_left(block.keys, below, start, stop)
        sizes = block.sizes[start:stop].tolist()
        if sum(sizes) > room:
            stop = start + that_fill(sizes, room)
        expiries: list[int] | None = None
        if self.expiring and block.expiries is not None:
            expiries = block.expiries[start:stop].tolist()
            valid = next(
                (at for at, when in enumerate(expiries) if NEVER < when <= expired_at), len(expiries)
            )
            if valid < len(expiries):
                expiries = expiries[:valid]
                stop = start + valid
            self.expiring -= len(expiries) - expiries.count(NEVER)
        keys = block.keys[start:stop].tolist()
        del sizes[stop - start :]
        self._taken(block, stop)
        return keys, sizes, expiries

    def look(self, key: int, most: int) -> tuple[list[int], list[int]]:
        """Return keys and expiries of entries from a key on, without removing them: at most `most`, and fewer
        at the end of a block.
        """
        for block in self._blocks:
            if block.keys[-1] >= key:
                start = bisect_left(block.keys, key, block.start)
                stop = min(start + most, len(block.keys))
                return block.keys[start:stop].tolist(), block.expiries_between(start, stop)
        return [], []

    def find(self, keys: Sequence[int]) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for block, some in self._by_block(keys):
            places = block.places_of(some)
            if places:
                start, stop = places[0], places[-1] + 1
                expiries = block.expiries_between(start, stop)
                found += [(block.keys[at], block.sizes[at], expiries[at - start]) for at in places]
        return found

    def take_out(self, keys: Sequence[int]) -> None:
        """Remove entries with these growing keys, at least one, all of which must be present."""
        empty: list[Block] = []
        for block, some in self._by_block(keys):
            places = block.places_of(some)
            if self.expiring and block.expiries is not None:
                self.expiring -= sum(1 for at in places if block.expiries[at] != NEVER)
            block.remove(places)
            if block.start == len(block.keys):
                empty.append(block)
        for block in empty:
            self._blocks.remove(block)
        self.length -= len(keys)

    def _by_block(self, keys: Sequence[int]) -> Iterator[tuple[Block, Sequence[int]]]:
        at = 0
        for block in self._blocks:
            if block.keys[-1] >= keys[at]:
                stop = bisect_right(keys, block.keys[-1], at)
                yield block, keys[at:stop]
                at = stop
                if at == len(keys):
                    return

    def take_expired(self, expired_at: int) -> tuple[list[int], list[int]]:
        keys: list[int] = []
        sizes: list[int] = []
        while self.expiring:
            block = self._blocks[0]
            if block.expiries is None:
                break
            start = stop = block.start
            end = len(block.keys)
            while stop < end and NEVER < block.expiries[stop] <= expired_at:
                stop += 1
            if stop == start:
                break
            keys += block.keys[start:stop]
            sizes += block.sizes[start:stop]
            self.expiring -= stop - start
            self._taken(block, stop)
        return keys, sizes

    def _taken(self, block: Block, stop: int) -> None:
        self.length -= stop - block.start
        block.start = stop
        if stop == len(block.keys):
            self._blocks.popleft()

    def put_back(self, entries: list[tuple[int, int, int]]) -> None:
        """Put entries (key, size, expiry) back in the order of the keys; at least one, in any order."""
        self.length += len(entries)
        self.expiring += sum(1 for entry in entries if entry[2])
        blocks = self._own_blocks()
        entries = sorted(entries)
        if not blocks or entries[-1][0] < blocks[0].keys[blocks[0].start]:
            blocks.appendleft(_block_of(entries))
            return
        # Entries that were put back before, or taken from the middle, have keys among these.
        passed: list[Block] = []
        while entries and blocks:
            block = blocks.popleft()
            below = blocks[0].keys[blocks[0].start] if blocks else None
            stop = len(entries) if below is None else bisect_left(entries, (below,))
            if stop:
                merged = sorted([*self._entries_of(block), *entries[:stop]])
                entries = entries[stop:]
                passed += [
                    _block_of(merged[at : at + MERGED_MAX]) for at in range(0, len(merged), MERGED_MAX)
                ]
            else:
                passed.append(block)
        blocks.extendleft(reversed(passed))

    @staticmethod
    def _entries_of(block: Block) -> Iterator[tuple[int, int, int]]:
        start, stop = block.start, len(block.keys)
        return zip(
            block.keys[start:stop], block.sizes[start:stop], block.expiries_between(start, stop), strict=True
        )

    def clear(self) -> list[int]:
        keys = [key for block in self._blocks for key in block.keys[block.start :]]
        self._blocks.clear()
        self.length = self.expiring = 0
        return keys

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        keys, sizes, expiries = array("Q"), array("I"), array("Q")
        for block in self._blocks:
            keys.extend(block.keys[block.start :])
            sizes.extend(block.sizes[block.start :])
            if self.expiring:
                expiries.extend(block.expiries_between(block.start, len(block.keys)))
        return keys, sizes, expiries


SOON_MAX: Final = 8192
PAGE_MAX: Final = 128
"""Small, so that of all pages that were packed at one time about one is in memory as tuples."""


class DueMessage(NamedTuple):
    """A message, ordered by due time and then by key."""

    when_ms: int
    key: int
    size: int
    expiry: int
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
