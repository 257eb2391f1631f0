"""The ready messages of a classic queue in priority levels, and the messages with a delay.

The key of a message is its position in its level times the number of levels, plus the level. A returned
message goes back to its old place: each level is a heap of returned messages and a backlog. Returned messages
are before the backlog, except for those that a selecting consumer took from the middle. Messages expire at
the head of their level only, as in RabbitMQ.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

from amqp10broker.message.filters.filter_set import MessageFilter
from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.classic.backlog import Backlog, Handle, Page, Store, Window, content_bytes
from amqp10broker.queues.commands import NO_BOUND
from amqp10broker.queues.queue_status import QueueWeight, few


class Cursor:
    """The progress of one consumer, which looks at each message once. `at`: for each level, the highest
    priority first, the position before which everything was looked at. `behind`: for each level, a heap of
    earlier positions, of which some may be empty by now.
    """

    __slots__ = ("at", "behind", "looked_at", "passed", "takes", "wanted")

    def __init__(self, levels: int, wanted: MessageFilter | None, *, takes: bool) -> None:
        self.wanted = wanted
        self.takes = takes
        self.at = [0] * levels
        self.behind: list[list[int]] = [[] for _ in range(levels)]
        self.looked_at = 0
        self.passed = 0

    def on_return(self, level: int, position: int) -> None:
        if position < self.at[level]:
            heappush(self.behind[level], position)


_HEAD: Final = itemgetter(0)
_POSITION: Final = itemgetter(0)

Keyed = tuple[int, Message]

EXPIRED_MAX: Final = 1024
"""The number of messages that expire in one step; each may have to be dead-lettered."""


class Level:
    """One priority level. `ordered`: `returned` is sorted, because a consumer looks through it."""

    __slots__ = ("backlog", "number", "ordered", "returned")

    def __init__(self, number: int, store: Store) -> None:
        self.number = number
        self.ordered = False
        self.returned: list[Keyed] = []
        self.backlog = Backlog(number, store)

    @property
    def count(self) -> int:
        return len(self.returned) + self.backlog.count

    def put_back(self, position: int, message: Message) -> None:
        if self.ordered:
            insort(self.returned, (position, message), key=_POSITION)
        else:
            heappush(self.returned, (position, message))

    def pop_returned(self) -> Keyed:
        if self.ordered:
            return self.returned.pop(0)
        return heappop(self.returned)

    @property
    def returned_is_first(self) -> bool:
        return not self.backlog.count or self.returned[0][0] < self.backlog.first_position()

    def window(self, position: int, most: int) -> Window | None:
        """Return a `Backlog.window` over returned messages as well."""
        fresh = self.backlog.window(position, most) if self.backlog.count else None
        if not self.returned:
            return fresh
        if not self.ordered:
            self.returned.sort(key=_POSITION)
            self.ordered = True
        start = bisect_left(self.returned, position, key=_POSITION)
        if start == len(self.returned):
            return fresh
        if fresh is not None and fresh.positions[0] < self.returned[start][0]:
            stop = bisect_left(fresh.positions, self.returned[start][0])
            positions, messages, expiries, again = fresh
            return Window(
                positions[:stop], messages[:stop], None if expiries is None else expiries[:stop], again
            )
        found = self.returned[start : start + most]
        if fresh is not None:
            del found[bisect_left(found, fresh.positions[0], key=_POSITION) :]
        return Window([each for each, _ in found], [message for _, message in found], None, again=True)

    def take_out(self, window: Window, places: Sequence[int]) -> None:
        at = bisect_left(self.returned, window.positions[0], key=_POSITION)
        if at == len(self.returned) or self.returned[at][0] != window.positions[0]:
            self.backlog.take_out(window, places)
            return
        for place in reversed(places):
            del self.returned[at + place]


class ReadyMessages:
    """The ready messages of a queue. `counting`: `size` is maintained, because there is a limit of bytes.
    `expiries`: key -> expiry of messages outside the backlogs; never 0.
    """

    __slots__ = (
        "_in_memory", "_returned_size", "again", "count", "counting", "cursors", "default", "expiries",
        "levels", "may_expire", "plain", "width",
    )  # fmt: skip

    def __init__(self, max_priority: int | None, store: Store, default_priority: int = 0) -> None:
        self.width = (max_priority or 0) + 1
        self.levels = [Level(number, store) for number in reversed(range(self.width))]
        self.default = default_priority
        self.plain = self.levels[self.width - 1 - default_priority]
        self.count = 0
        self.counting = False
        self._in_memory = store.in_memory
        self._returned_size = 0
        self.expiries: dict[int, int] = {}
        self.may_expire = False
        self.again = False
        self.cursors: list[Cursor] = []

    def recover(self, backlogs: Mapping[int, tuple[Sequence[Page], int]]) -> None:
        for number, (pages, next_position) in backlogs.items():
            # The number of levels is an argument of the queue, so it cannot have changed.
            self.levels[self.width - 1 - number].backlog.recover(pages, next_position)
            self.may_expire = self.may_expire or any(page.may_expire for page in pages)
        self.count = sum(level.count for level in self.levels)
        self.again = any(level.backlog.again for level in self.levels)

    def count_bytes(self) -> None:
        if not self.counting:
            self.counting = True
            for level in self.levels:
                level.backlog.count_bytes()
                self._returned_size += content_bytes(message for _, message in level.returned)

    @property
    def arrived(self) -> int:
        """The number of messages that were ever added, as far as the store has recorded it."""
        return sum([level.backlog.next for level in self.levels])

    @property
    def size(self) -> int:
        """Bytes of contents, if `counting`."""
        return self._returned_size + sum([level.backlog.size for level in self.levels])

    def weigh(self) -> QueueWeight:
        """Return the bytes of contents; None where too many messages would have to be read."""
        returned = few(level.returned for level in self.levels)
        if returned is None:
            return QueueWeight(None, None)
        back = [len(message[1]) for _, message in returned]
        every, here, here_bytes = map(
            sum, zip(*(level.backlog.weigh() for level in self.levels), strict=True)
        )
        if self._in_memory:
            return QueueWeight(every + sum(back), None, self.count, every + sum(back))
        return QueueWeight(every + sum(back), None, here + len(back), here_bytes + sum(back))

    def by_level(self, messages: Sequence[Message]) -> Iterator[tuple[Level, Sequence[int] | None]]:
        """Sort messages into levels. Yields a level and the indexes of its messages in order; None: all of
        them.
        """
        if self.width == 1:
            yield self.levels[0], None
            return
        top = self.width - 1
        numbers: dict[bytes, int] = {}
        for head in set(map(_HEAD, messages)):
            priority = traits_of(head).priority
            numbers[head] = self.default if priority is None else min(priority, top)
        if len(set(numbers.values())) == 1:
            yield self.levels[top - next(iter(numbers.values()))], None
            return
        sorted_out: dict[int, list[int]] = {}
        for index, (head, _) in enumerate(messages):
            sorted_out.setdefault(numbers[head], []).append(index)
        for number, indexes in sorted_out.items():
            yield self.levels[top - number], indexes

    def add(self, level: Level, messages: Sequence[Message], expiries: Sequence[int] | None) -> None:
        level.backlog.extend(messages, expiries)
        self.count += len(messages)
        if expiries is not None:
            self.may_expire = True

    def put_back(self, key: int, message: Message) -> None:
        which, position = self.width - 1 - key % self.width, key // self.width
        self.levels[which].put_back(position, message)
        for cursor in self.cursors:
            cursor.on_return(which, position)
        self.again = True
        self.count += 1
        if self.counting:
            self._returned_size += len(message[1])

    def let_go(self) -> None:
        """Stop sorting returned messages."""
        for level in self.levels:
            level.ordered = False

    def take(
        self, count: int, now_ms: int, room: int = NO_BOUND
    ) -> tuple[Sequence[int], list[Message], Sequence[Keyed], int]:
        """Take the next messages in order, at most `count`, which are ready. `room`: as in `Backlog.take`.

        Returns keys, messages, (key, message) of those that had expired, and bytes of contents. Fewer than
        `count` only if some had expired, or the room is used up.
        """
        level = self._first_level()
        keys: Sequence[int] = ()
        messages: list[Message] = []
        size = 0
        if level is not None and not self.again and not self.may_expire:
            positions, messages, _, size = level.backlog.take(count, room)
            here = len(messages)
            self.count -= here
            keys = self._keys(level, positions)
            if here == count or size >= room:
                return keys, messages, (), size
        return self._take_rest(count, now_ms, room, list(keys), messages, size)

    def _take_rest(
        self, count: int, now_ms: int, room: int, keys: list[int], messages: list[Message], size: int
    ) -> tuple[list[int], list[Message], list[Keyed], int]:
        here = len(keys)
        expired: list[Keyed] = []
        while (
            here < count
            and size < room
            and len(expired) < EXPIRED_MAX
            and (level := self._first_level()) is not None
        ):
            for key, message in self._take_from(level, count - here, room - size):
                expiry = self.expiries.get(key, 0) if self.may_expire else 0
                if expiry and expiry < now_ms:
                    expired.append((key, message))
                else:
                    keys.append(key)
                    messages.append(message)
                    size += len(message[1])
            here = len(keys)
        self.again = any(level.returned or level.backlog.again for level in self.levels)
        return keys, messages, expired, size

    def _first_level(self) -> Level | None:
        for level in self.levels:
            if level.returned or level.backlog.count:
                return level
        return None

    def _keys(self, level: Level, positions: Sequence[int]) -> Sequence[int]:
        width = self.width
        if width == 1:
            return positions
        if type(positions) is range:
            start = positions.start * width + level.number
            return range(start, start + len(positions) * width, width)
        return [position * width + level.number for position in positions]

    def _take_from(self, level: Level, count: int, room: int = NO_BOUND) -> list[Keyed]:
        width, number = self.width, level.number
        taken: list[Keyed] = []
        while level.returned and level.returned_is_first and len(taken) < count and room > 0:
            position, message = level.pop_returned()
            taken.append((position * width + number, message))
            room -= len(message[1])
            if self.counting:
                self._returned_size -= len(message[1])
        if len(taken) < count and room > 0 and level.backlog.count:
            most = count - len(taken)
            if level.returned:
                most = min(most, level.backlog.count_before(level.returned[0][0]))
            positions, messages, expiries, _ = level.backlog.take(most, room)
            keys = self._keys(level, positions)
            if expiries is not None:
                for key, expiry in zip(keys, expiries, strict=True):
                    if expiry:
                        self.expiries[key] = expiry
            taken.extend(zip(keys, messages, strict=True))
        self.count -= len(taken)
        return taken

    def take_out(self, level: Level, window: Window, places: Sequence[int]) -> list[Keyed]:
        taken = self.seen(level, window, places)
        before = len(level.returned)
        level.take_out(window, places)
        if self.counting and len(level.returned) < before:
            self._returned_size -= content_bytes(message for _, message in taken)
        if window.expiries is not None:
            for (key, _), place in zip(taken, places, strict=True):
                if window.expiries[place]:
                    self.expiries[key] = window.expiries[place]
        self.count -= len(taken)
        return taken

    def seen(self, level: Level, window: Window, places: Sequence[int]) -> list[Keyed]:
        keys = self._keys(level, [window.positions[place] for place in places])
        return list(zip(keys, [window.messages[place] for place in places], strict=True))

    def drop_head(self) -> Keyed:
        for level in reversed(self.levels):
            if level.count:
                return self._take_from(level, 1)[0]
        raise AssertionError("nothing is ready")

    def take_expired(self, now_ms: int) -> list[Keyed]:
        """Take expired messages at the heads of the levels, at most `EXPIRED_MAX`. If there are more,
        `next_expiry` is in the past, so that other tasks run before the next call.
        """
        gone: list[Keyed] = []
        if not self.may_expire:
            return gone
        for level in self.levels:
            while len(gone) < EXPIRED_MAX and 0 < self._first_expiry(level) <= now_ms:
                gone += self._take_from(level, 1)
        return gone

    def next_expiry(self) -> int | None:
        if not self.may_expire:
            return None
        return min((expiry for level in self.levels if (expiry := self._first_expiry(level))), default=None)

    def _first_expiry(self, level: Level) -> int:
        if level.returned and level.returned_is_first:
            return self.expiries.get(level.returned[0][0] * self.width + level.number, 0)
        return level.backlog.first_expiry()

    def clear(self) -> Iterator[tuple[Level, Sequence[int]]]:
        for level in self.levels:
            positions = [position for position, _ in level.returned]
            level.returned.clear()
            level.ordered = False
            for position in positions:
                self.expiries.pop(position * self.width + level.number, None)
            if positions:
                yield level, positions
            for run in level.backlog.clear():
                yield level, run
        self.count = 0
        self._returned_size = 0


SOON_MESSAGES_MAX: Final = 8192
SOON_BYTES_MAX: Final = 2 * 1024 * 1024

PAGE_MESSAGES: Final = 128
"""Pages are small, so that of all pages that were stored at one time about one is in memory."""
PAGE_BYTES: Final = 32 * 1024

_RUN_MAX: Final = 2**31

_BEFORE: Final = struct.Struct("<QQ")


class Delayed(NamedTuple):
    """A delayed message, ordered by due time and then by position."""

    when_ms: int
    position: int
    expiry: int
    """In ms; 0: never."""
    message: Message


class _DelayedPage(NamedTuple):
    when_ms: int
    position: int
    """Time and position are those of the page's first message, or lower bounds."""
    handle: Handle
    messages: int
    size: int


class DelayedMessages:
    """Messages for later delivery, ordered by the time when they may be delivered, or expire if that is
    earlier.

    The soonest are objects, at most `SOON_MESSAGES_MAX` of them and `SOON_BYTES_MAX` bytes. Beyond that, the
    later half goes to the store in pages of a few messages, each ordered by its time and position. A page is
    loaded when its first message is due. So memory holds some thousands of messages and one entry for each
    page, whatever the order of arrival.
    """

    __slots__ = ("_first", "_pages", "_soon", "_soon_size", "_store", "count", "next", "size")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._soon: list[Delayed] = []  # a heap
        self._soon_size = 0
        self._pages: list[_DelayedPage] = []  # a heap
        self._first = 0
        self.count = 0
        self.size = 0
        self.next = 0

    def recover(self, pages: Sequence[Page], next_position: int) -> None:
        assert not self.count
        for page in pages:
            heappush(
                self._pages, _DelayedPage(page.soonest_ms, page.first, page.handle, page.count, page.size)
            )
        self._first = pages[0].first if pages else next_position
        self.count = sum(page.count for page in pages)
        self.size = sum(page.size for page in pages)
        self.next = next_position

    def add(self, messages: Sequence[Message], dues: Sequence[int], expiries: Sequence[int] | None) -> None:
        """Add messages, the first at position `next`. `expiries`: ms, 0: never; None: no message expires."""
        self._push(range(self.next, self.next + len(messages)), messages, dues, expiries)
        size = sum([len(content) for _, content in messages])
        self._soon_size += size
        self.size += size
        self.count += len(messages)
        self.next += len(messages)
        self._put_out()

    def next_due(self) -> int | None:
        times = [line[0].when_ms for line in (self._soon, self._pages) if line]
        return min(times, default=None)

    def take_due(self, now_ms: int, most: int) -> list[Delayed]:
        """Take the first due messages, at most `most`, which limits the loading of pages roughly, too."""
        taken: list[Delayed] = []
        looked_at = 0
        while len(taken) < most and looked_at < most:
            due_ms = self.next_due()
            if due_ms is None or due_ms > now_ms:
                break
            if self._page_is_first:
                looked_at += self._pages[0].messages
                self._take_in(heappop(self._pages))
            else:
                taken.append(self._pop())
        return taken

    def take_first(self) -> Delayed:
        while self._page_is_first:
            self._take_in(heappop(self._pages))
        return self._pop()

    @property
    def _page_is_first(self) -> bool:
        # Or the message may be due: the due time of a page can be a lower bound.
        pages, soon = self._pages, self._soon
        return bool(pages) and (not soon or pages[0][:2] <= soon[0][:2])

    def _pop(self) -> Delayed:
        first = heappop(self._soon)
        size = len(first.message[1])
        self._soon_size -= size
        self.size -= size
        self.count -= 1
        return first

    def clear(self) -> Iterator[range]:
        """Remove all messages, and iterate over ranges that contain their positions."""
        for page in self._pages:
            self._store.drop_page(page.handle)
        self._pages.clear()
        self._soon.clear()
        self._soon_size = self.count = self.size = 0
        first, self._first = self._first, self.next
        for start in range(first, self.next, _RUN_MAX):
            yield range(start, min(start + _RUN_MAX, self.next))

    def _push(
        self,
        positions: Sequence[int],
        messages: Sequence[Message],
        dues: Sequence[int],
        expiries: Sequence[int] | None,
    ) -> None:
        soon = self._soon
        for at, message in enumerate(messages):
            due = dues[at]
            expiry = 0 if expiries is None else expiries[at]
            when = expiry if 0 < expiry < due else due
            heappush(soon, Delayed(when, positions[at], expiry, message))

    def _take_in(self, page: _DelayedPage) -> None:
        if self._store.is_packed(page.handle):
            packed, expiries = self._store.page_in(page.handle)
            before = [_BEFORE.unpack_from(content) for _, content in packed]
            messages: Sequence[Message] = [(head, content[_BEFORE.size :]) for head, content in packed]
            positions: Sequence[int] = [position for _, position in before]
            dues: Sequence[int] = [when for when, _ in before]
        else:
            positions, messages, expiries, dues = self._store.look_delayed(page.handle)
            self._store.drop_page(page.handle)
        assert len(messages) == page.messages, "a page has lost messages"
        self._push(positions, messages, dues, expiries)
        size = sum([len(content) for _, content in messages])
        # After a restart, the size of a page is only known as a whole, from its record.
        self.size += size - page.size
        self._soon_size += size
        self._put_out()

    def _put_out(self) -> None:
        soon = self._soon
        if len(soon) <= SOON_MESSAGES_MAX and self._soon_size <= SOON_BYTES_MAX:
            return
        first = len(soon[0].message[1])
        if len(soon) <= SOON_MESSAGES_MAX and self._soon_size - first <= SOON_BYTES_MAX:
            return
        # A sorted list is a heap as well.
        soon.sort()
        sizes = accumulate((len(each.message[1]) for each in soon[1:]), initial=0)
        fitting = sum(1 for _ in takewhile(lambda size: size <= SOON_BYTES_MAX // 2, sizes))
        stay = min(SOON_MESSAGES_MAX // 2, fitting)
        later = soon[stay:]
        del soon[stay:]
        self._soon_size = sum([len(each.message[1]) for each in soon])
        part: list[Delayed] = []
        part_size = 0
        for each in later:
            part.append(each)
            part_size += len(each.message[1])
            if len(part) == PAGE_MESSAGES or part_size >= PAGE_BYTES:
                self._pack(part, part_size)
                part, part_size = [], 0
        if part:
            self._pack(part, part_size)

    def _pack(self, part: list[Delayed], size: int) -> None:
        packed = [
            (each.message[0], _BEFORE.pack(each.when_ms, each.position) + each.message[1]) for each in part
        ]
        expiries = [each.expiry for each in part]
        handle = self._store.pack(0, packed, expiries if any(expiries) else None)
        heappush(self._pages, _DelayedPage(part[0].when_ms, part[0].position, handle, len(part), size))
