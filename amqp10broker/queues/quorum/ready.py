"""The waiting messages of a quorum queue, and the order in which they are served.

`returns` has the messages that consumers gave back, in order of return, and is served first. `levels` have
new messages by priority, the highest first; `normal` is the level of a message without a priority.

With two levels, as in RabbitMQ 4.0 to 4.2, the high level gets two turns and the normal one gets one, the
high level first. A high message published before the oldest normal one is served first even in the normal
level's turn. With another number of levels the order is strict.

`tail` has returns to a queue without a delivery limit, in order of return, and messages published for later
delivery that are due. It is part of the normal level: its messages are served after all that had been
published when they were put there, and before what was published since. `delayed` has returned messages that
must not be delivered yet, `later` those that were published so.

A message that a consumer holds has left its place. The place is recorded, so that a message which never
reached the client returns to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from amqp10broker.queues.commands import NO_BOUND
from amqp10broker.queues.quorum.ordered_entries import NEVER, DueMessage, LaterMessages, OrderedEntries

HIGH_TURNS: Final = 2
"""The turns of the high level for each turn of the normal level."""

FAIR_LEVELS: Final = 2
PRIORITY: Final = 4
"""The priority of a message without one; with two levels, the highest that is normal."""

_NOTHING: Final = OrderedEntries()
RETURNS: Final = 0
"""The first line in the order of `ReadyIndexes.lines`; the levels follow, and then the tail."""

Place = tuple[int, int]
"""Line, and key in it. A message keeps its place until a consumer has decided on it and returned it; no other
message ever has the same place.
"""

Delayed = tuple[int, int, int, int, int]
"""The due time in ms, number of the return, index, size, and expiry."""


class ReadyIndexes:
    """The waiting messages of one queue. `normal_line`, `tail_line`: positions in `lines`."""

    __slots__ = (
        "_index_of_return", "behind", "delayed_bytes", "delayed_returns", "expiries", "high_turns",
        "later", "levels", "lines", "normal", "normal_line", "places", "returns", "returns_made",
        "size_bytes", "tail", "tail_line",
    )  # fmt: skip

    def __init__(self, levels: int = FAIR_LEVELS) -> None:
        self.levels = levels
        self.tail_line = levels + 1
        self.normal_line = self.line_of(None)
        self._use([OrderedEntries() for _ in range(levels + 2)])
        self.size_bytes = 0
        self.delayed_bytes = 0
        self.later = LaterMessages()
        self.delayed_returns: list[Delayed] = []
        self._index_of_return: dict[int, int] | Numbers = {}
        self.returns_made = 0
        self.places: dict[int, int] = {}
        """For messages that consumers hold, by index: the number of their return, or minus the line of their
        level; absent: normal.
        """
        self.behind: dict[int, int] | Numbers = {}
        """For each return to the tail, by its number, also while a consumer holds the message: the index of
        the next message at that time. The returned message is served before that one.
        """
        self.expiries: dict[int, int] = {}
        """The expiries of messages that consumers hold, by index."""
        self.high_turns = 0
        """The turns of the high level since the last one of the normal level."""

    def line_of(self, priority: int | None) -> int:
        if self.levels == FAIR_LEVELS:
            return 1 if priority is not None and priority > PRIORITY else 2
        return self.levels - min(PRIORITY if priority is None else priority, self.levels - 1)

    def _use(self, lines: list[OrderedEntries]) -> None:
        self.lines = lines
        self.returns, self.normal, self.tail = lines[RETURNS], lines[self.normal_line], lines[-1]

    @property
    def length(self) -> int:
        length = 0
        for line in self.lines:
            length += line.length
        return length

    @property
    def delayed(self) -> int:
        return len(self.delayed_returns) + self.later.count

    @property
    def next_delayed(self) -> int | None:
        later = self.later.next_due if self.later.count else None
        if not self.delayed_returns:
            return later
        back = self.delayed_returns[0][0]
        return back if later is None else min(back, later)

    @property
    def expiring(self) -> bool:
        # This is a loop, not any(), because it runs for each command.
        for line in self.lines:  # noqa: SIM110
            if line.expiring:
                return True
        return False

    def deadline(self, others: Iterable[int | None]) -> int | None:
        """Return the first of the times at which a message expires or is due, and of the given times."""
        times = [when for line in self.lines if line.expiring and (when := line.head_expiry) != NEVER]
        times += [when for when in (self.next_delayed, *others) if when is not None]
        return min(times, default=None)

    def indexes_of(self, number: int, keys: list[int]) -> list[int]:
        if RETURNS < number < self.tail_line:
            return keys
        return [self._index_of_return[key] for key in keys]

    def ends(self, next_index: int) -> list[int]:
        """Return for each line a key above all keys in it."""
        return [self.returns_made, *[next_index] * self.levels, self.returns_made]

    def places_of(self, indexes: Iterable[int]) -> list[Place]:
        """Return the original places of messages that consumers hold, in the order of the lines."""
        return sorted(map(self._place_of, indexes))

    def _place_of(self, index: int) -> Place:
        place = self.places.get(index)
        if place is None:
            return self.normal_line, index
        if place < 0:
            return -place, index
        return (self.tail_line if place in self.behind else RETURNS), place

    def where(self, index: int) -> Place | None:
        """Return where a message waits, or None. The time is linear in the number of returns."""
        for line in range(1, self.tail_line):
            if self.find(line, (index,)):
                return line, index
        for key, at in self._index_of_return.items():
            if at == index:
                return (self.tail_line if key in self.behind else RETURNS), key
        return None

    def find(self, number: int, keys: Sequence[int]) -> list[tuple[int, int, int]]:
        return self.lines[number].find(keys)

    def has_before(self, bounds: Sequence[int]) -> bool:
        return any(
            line.length and line.head_key < bound for line, bound in zip(self.lines, bounds, strict=True)
        )

    def add(
        self, line: int, indexes: Sequence[int], sizes: Sequence[int], expiries: Sequence[int] | None
    ) -> None:
        self.lines[line].append(indexes, sizes, expiries)
        self.size_bytes += sum(sizes)

    def give_return(self, index: int, size: int, expiry: int) -> None:
        number = self.returns_made
        self.returns_made = number + 1
        self._index_of_return[number] = index
        self.returns.append((number,), (size,), (expiry,) if expiry else None)
        self.size_bytes += size

    def give_to_tail(self, index: int, size: int, expiry: int, behind: int) -> None:
        number = self.returns_made
        self.returns_made = number + 1
        self._index_of_return[number] = index
        self.behind[number] = behind
        if type(self.behind) is dict and len(self.behind) >= NUMBERS_MIN:
            self._index_of_return = Numbers(self._index_of_return.items())
            self.behind = Numbers(self.behind.items())
        self.tail.append((number,), (size,), (expiry,) if expiry else None)
        self.size_bytes += size

    def give_delayed(self, index: int, size: int, expiry: int, due_ms: int) -> None:
        number = self.returns_made
        self.returns_made = number + 1
        heappush(self.delayed_returns, (due_ms, number, index, size, expiry))
        self.delayed_bytes += size

    def line_up(self, due: Sequence[DueMessage], behind: int) -> list[Place]:
        """Make due messages ready. Returns their places, except those at the ends of their lines."""
        for each in due:
            if each.line:
                self.put_back_unknown(each.key, each.size, each.expiry, each.line)
            else:
                self.give_to_tail(each.key, each.size, each.expiry, behind)
        return sorted((each.line, each.key) for each in due if each.line)

    def put_back(self, indexes: Sequence[int], sizes: Sequence[int]) -> None:
        by_line: dict[int, list[tuple[int, int, int]]] = {}
        for index, size in zip(indexes, sizes, strict=True):
            line, key = self._place_of(index)
            if self.places.pop(index, -1) >= 0:
                self._index_of_return[key] = index
            by_line.setdefault(line, []).append((key, size, self.expiries.pop(index, NEVER)))
        for line, entries in by_line.items():
            self.lines[line].put_back(entries)
        self.size_bytes += sum(sizes)

    def put_back_unknown(self, index: int, size: int, expiry: int, line: int) -> None:
        self.lines[line].put_back([(index, size, expiry)])
        self.size_bytes += size

    def take_before(self, bounds: Sequence[int], expired_at: int, room: int) -> tuple[list[int], list[int]]:
        lines = self.lines
        self._use(
            [
                line if line.length and line.head_key < bound else _NOTHING
                for line, bound in zip(lines, bounds, strict=True)
            ]
        )
        try:
            return self.take(1, expired_at, room)
        finally:
            self._use(lines)

    def take_out(self, number: int, keys: Sequence[int]) -> list[int]:
        """Take messages from anywhere in a line, and return their indexes."""
        line = self.lines[number]
        entries = line.find(keys)
        line.take_out(keys)
        indexes = list(keys)
        if RETURNS < number < self.tail_line:
            self._remember_level(number, indexes)
        else:
            indexes = self._take_indexes(keys)
            self.places.update(zip(indexes, keys, strict=True))
        self._took(indexes, [size for _, size, _ in entries], [expiry for _, _, expiry in entries])
        return indexes

    def take(self, count: int, expired_at: int, room: int = NO_BOUND) -> tuple[list[int], list[int]]:
        """Take the next messages for a consumer, and return their indexes and sizes. `count` is at least 1.
        The result may be smaller although there are more, and is empty if the next message has expired.
        `room`: as in `OrderedEntries.take`.
        """
        if self.returns.length:
            return self._took(*self._take_returned(self.returns, count, expired_at, room))
        if self.levels != FAIR_LEVELS:
            return self._took(*self._take_level(self._highest(), count, expired_at, room))
        high = self.lines[1]
        if high.length:
            contended = self.normal.length or self.tail.length
            if contended:
                count = 1
                if self.high_turns == HIGH_TURNS and high.head_key > self._normal_age():
                    indexes, sizes, expiries = self._take_normal(count, expired_at, NO_BOUND)
                    if indexes:
                        self.high_turns = 0
                    return self._took(indexes, sizes, expiries)
            indexes, sizes, expiries = high.take(count, expired_at, room)
            if indexes:
                self.high_turns = min(self.high_turns + 1, HIGH_TURNS) if contended else 0
            self._remember_level(1, indexes)
        else:
            self.high_turns = 0
            indexes, sizes, expiries = self._take_normal(count, expired_at, room)
        return self._took(indexes, sizes, expiries)

    def _highest(self) -> int:
        # The tail is part of the normal level.
        waiting = (number for number in range(1, self.tail_line) if self._level_waits(number))
        return next(waiting, self.normal_line)

    def _level_waits(self, number: int) -> bool:
        return bool(self.lines[number].length or (number == self.normal_line and self.tail.length))

    def _take_level(
        self, number: int, count: int, expired_at: int, room: int
    ) -> tuple[list[int], list[int], list[int] | None]:
        if number == self.normal_line:
            return self._take_normal(count, expired_at, room)
        indexes, sizes, expiries = self.lines[number].take(count, expired_at, room)
        self._remember_level(number, indexes)
        return indexes, sizes, expiries

    def _remember_level(self, number: int, indexes: Sequence[int]) -> None:
        if number != self.normal_line:
            self.places.update(dict.fromkeys(indexes, -number))

    def _take_returned(
        self, line: OrderedEntries, count: int, expired_at: int, room: int
    ) -> tuple[list[int], list[int], list[int] | None]:
        numbers, sizes, expiries = line.take(count, expired_at, room)
        indexes = self._take_indexes(numbers)
        self.places.update(zip(indexes, numbers, strict=True))
        return indexes, sizes, expiries

    def _take_normal(
        self, count: int, expired_at: int, room: int
    ) -> tuple[list[int], list[int], list[int] | None]:
        normal, tail = self.normal, self.tail
        if not tail.length:
            return normal.take(count, expired_at, room)
        if not normal.length:
            return self._take_returned(tail, count, expired_at, room)
        behind = self.behind[tail.head_key]
        if normal.head_key >= behind:
            # Later returns of the tail may belong after messages published meanwhile, so they are taken one
            # at a time.
            return self._take_returned(tail, 1, expired_at, room)
        return normal.take(count, expired_at, room, below=behind)

    def _normal_age(self) -> int:
        # For a message of the tail, the index recorded at its return counts.
        normal, tail = self.normal, self.tail
        ages = [normal.head_key] if normal.length else []
        if tail.length:
            ages.append(self.behind[tail.head_key] - 1)
        return min(ages)

    def _took(
        self, indexes: list[int], sizes: list[int], expiries: list[int] | None
    ) -> tuple[list[int], list[int]]:
        self.size_bytes -= sum(sizes)
        if expiries is not None:
            self.expiries.update((index, when) for index, when in zip(indexes, expiries, strict=True) if when)
        return indexes, sizes

    def expiry_of(self, index: int) -> int:
        """Remove and return the expiry of a message that a consumer holds."""
        self.behind.pop(self.places.pop(index, -1), None)
        return self.expiries.pop(index, NEVER)

    def forget(self, indexes: Sequence[int]) -> None:
        """Remove the places and expiries of messages that consumers held and will not return."""
        if self.places:
            for index in indexes:
                self.behind.pop(self.places.pop(index, -1), None)
        if self.expiries:
            for index in indexes:
                self.expiries.pop(index, None)

    def take_expired(self, expired_at: int) -> list[tuple[list[int], list[int]]]:
        found: list[tuple[list[int], list[int]]] = []
        for line in self.lines:
            if line.expiring and NEVER < line.head_expiry <= expired_at:
                keys, sizes = line.take_expired(expired_at)
                if line is self.returns or line is self.tail:
                    keys = self._forget_returns(keys)
                self.size_bytes -= sum(sizes)
                found.append((keys, sizes))
        return found

    def take_heads(self, count: int, *, drops_next: bool) -> tuple[list[int], list[int]]:
        """Take messages that a full queue drops, and return their indexes and sizes: the oldest returns, then
        the oldest of low priority, or of the highest with `drops_next`. There must be at least `count`.
        """
        numbers = range(1, self.tail_line) if drops_next else range(self.tail_line - 1, 0, -1)
        indexes: list[int] = []
        sizes: list[int] = []
        while len(indexes) < count:
            left = count - len(indexes)
            if self.returns.length:
                keys, their_sizes, _ = self.returns.take(left, NEVER)
                keys = self._forget_returns(keys)
            else:
                number = next(filter(self._level_waits, numbers))
                keys, their_sizes, _ = self._take_level(number, left, NEVER, NO_BOUND)
                self.forget(keys)
            indexes += keys
            sizes += their_sizes
        self.size_bytes -= sum(sizes)
        return indexes, sizes

    def take_due(self, now_ms: int) -> list[Delayed]:
        due: list[Delayed] = []
        while self.delayed_returns and self.delayed_returns[0][0] <= now_ms:
            entry = heappop(self.delayed_returns)
            self.delayed_bytes -= entry[3]
            due.append(entry)
        return due

    def clear(self) -> list[int]:
        indexes = self._forget_returns(self.returns.clear() + self.tail.clear())
        for line in self.lines[1:-1]:
            indexes += line.clear()
        indexes += [entry[2] for entry in sorted(self.delayed_returns)]
        self.delayed_returns.clear()
        indexes += self.later.clear()
        self.size_bytes = self.delayed_bytes = 0
        return indexes

    def _forget_returns(self, numbers: Sequence[int]) -> list[int]:
        for number in numbers:
            self.behind.pop(number, None)
        return self._take_indexes(numbers)

    def _take_indexes(self, numbers: Sequence[int]) -> list[int]:
        if type(self._index_of_return) is dict:
            return list(map(self._index_of_return.pop, numbers))
        indexes = [self._index_of_return[number] for number in numbers]
        for number in numbers:
            self._index_of_return.pop(number)
        return indexes

    def indexes_of_returns(self) -> list[int]:
        return [self._index_of_return[number] for number in self.returns.columns()[0]]

    def indexes_of_tail(self) -> list[int]:
        return [self._index_of_return[number] for number in self.tail.columns()[0]]

    def restore(
        self,
        numbers: tuple[int, int],
        indexes_of_returns: Sequence[int],
        indexes_of_tail: Sequence[int],
        returns_to_tail: Sequence[tuple[int, int]],
        delayed: Sequence[Delayed],
        places: Sequence[tuple[int, int]],
        expiries: Sequence[tuple[int, int]],
    ) -> None:
        """Restore a snapshot into a new object with lines that are filled already."""
        self.returns_made, self.high_turns = numbers
        kind = Numbers if len(returns_to_tail) >= NUMBERS_MIN else dict
        returned = zip(self.returns.columns()[0], indexes_of_returns, strict=True)
        self._index_of_return = kind([*returned, *zip(self.tail.columns()[0], indexes_of_tail, strict=True)])
        self.behind = kind(returns_to_tail)
        self.delayed_returns = list(delayed)
        heapify(self.delayed_returns)
        self.places = dict(places)
        self.expiries = dict(expiries)
        self.size_bytes = sum(sum(line.columns()[1]) for line in self.lines)
        self.delayed_bytes = sum(entry[3] for entry in self.delayed_returns)


_BITS: Final = 6
_PAGE: Final = 1 << _BITS
_MASK: Final = _PAGE - 1

NUMBERS_MIN: Final = 4096
"""The number of entries from which it replaces a dict, which is faster."""


class Numbers:
    """A dict of numbers from 0 on, in pages of 64 keys: 12 bytes an entry in a full page."""

    __slots__ = ("_pages",)

    def __init__(self, items: Iterable[tuple[int, int]]) -> None:
        self._pages: dict[int, array[int]] = {}
        """For each page: the values plus 1, or 0 for none; then the number of values."""
        for key, value in items:
            self[key] = value

    def __setitem__(self, key: int, value: int) -> None:
        page = self._pages.get(key >> _BITS)
        if page is None:
            page = self._pages[key >> _BITS] = array("Q", bytes(8 * (_PAGE + 1)))
        if not page[key & _MASK]:
            page[_PAGE] += 1
        page[key & _MASK] = value + 1

    def __contains__(self, key: int) -> bool:
        page = self._pages.get(key >> _BITS)
        return page is not None and page[key & _MASK] > 0

    def __getitem__(self, key: int) -> int:
        return self._pages[key >> _BITS][key & _MASK] - 1

    def pop(self, key: int, default: None = None) -> int | None:
        page = self._pages.get(key >> _BITS)
        found = 0 if page is None else page[key & _MASK]
        if page is None or not found:
            return default
        page[key & _MASK] = 0
        page[_PAGE] -= 1
        if not page[_PAGE]:
            del self._pages[key >> _BITS]
        return found - 1

    def items(self) -> Iterator[tuple[int, int]]:
        for number, page in self._pages.items():
            for at in range(_PAGE):
                if page[at]:
                    yield number << _BITS | at, page[at] - 1
