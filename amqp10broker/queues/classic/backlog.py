"""The messages of one priority level that have not been delivered: first in, first out, of any length.

Positions are consecutive numbers, with gaps after a restart, and where a selecting consumer has taken
messages. The head consists of objects: up to `HEAD_MESSAGES_MAX` messages or `HEAD_BYTES_MAX` bytes of
content (thirty times as much if pages are in memory). Messages behind a full head are collected in the tail,
which is given to the store page by page. A page is loaded when the head is used up.

In memory pages are packed: a million messages of 100 bytes take 110 MB, as objects twice that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message, decode_batch, encode_batch
from amqp10broker.message.traits import acquired
from amqp10broker.queues.commands import NO_BOUND
from amqp10broker.queues.machine import that_fill

PAGE_MESSAGES_MAX: Final = 4096
"""At this size a page costs little, and can still be loaded at once."""
PAGE_BYTES_MAX: Final = 1024 * 1024

Handle = object

DELAYED: Final = 256
"""The level, for stores, of messages with a delay; priorities end at 255. They have positions of their own
until they join the level of their priority.
"""


def chosen(
    messages: Sequence[Message], expiries: Sequence[int] | None, ranks: Sequence[int]
) -> tuple[Sequence[Message], Sequence[int] | None]:
    if len(ranks) == len(messages):
        return messages, expiries
    times = None if expiries is None else [expiries[rank] for rank in ranks]
    return [messages[rank] for rank in ranks], times


class _Packed(NamedTuple):
    messages: bytes
    expiries: array[int] | None


class Store:
    """The store of one classic queue; this one is in memory. Positions are numbers in one priority level.
    `durable`: messages given to `keep` survive a restart; without it, `keep` is never called.
    """

    durable = False
    in_memory = True

    def keep(
        self,
        level: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        *,
        dues: Sequence[int] | None = None,
        moved: Sequence[int] | None = None,
    ) -> int:
        """Store messages with consecutive positions; they are durable when the returned ticket is.
        `expiries`: ms of wall clock, 0: never. None: no message expires. `moved`: former positions in
        `DELAYED`, which are removed atomically: after a restart the messages are in one of the two levels.
        """
        raise AssertionError("nothing survives in memory")

    def forget(self, level: int, positions: Sequence[int]) -> None:
        """Remove messages. Positions that were never stored are ignored."""

    def delivered(self, level: int, position: int) -> None:
        """Note that messages up to a position were delivered. After a restart they count as redelivered."""

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        return self.pack(level, messages, expiries)

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        """Store messages as `page_out` does, with positions that need not be consecutive."""
        times = None if expiries is None else array("Q", expiries)
        return _Packed(b"".join(encode_batch(messages)), times)

    def is_packed(self, handle: Handle) -> bool:
        """Return whether the page uses memory of its own, even for removed messages, until it is dropped."""
        return True

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        assert isinstance(handle, _Packed)
        return decode_batch(handle.messages), handle.expiries

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        """Return messages of a page and their expiries, without removing it."""
        return chosen(*self.page_in(handle), ranks)

    def look_delayed(
        self, handle: Handle
    ) -> tuple[Sequence[int], Sequence[Message], Sequence[int] | None, Sequence[int]]:
        """Return positions, messages, expiries and due times of a page of `DELAYED`."""
        raise AssertionError("nothing survives in memory")

    def drop_page(self, handle: Handle) -> None: ...


HEAD_MESSAGES_MAX: Final = 16_384
HEAD_BYTES_MAX: Final = 4 * 1024 * 1024
HEADS_IN_MEMORY: Final = 30
"""The factor for stores with pages in memory: packing saves half of the memory, and costs a tenth of the time
that a message takes.
"""


_CONTENT: Final = itemgetter(1)
_LAST: Final = attrgetter("last")
_SHORT: Final = 64
_PACK_AGAIN: Final = 4
"""A packed page is packed again when only this part of it remains: removed messages use memory until then."""

T = TypeVar("T")


def content_bytes(messages: Iterable[Message]) -> int:
    return sum(map(len, map(_CONTENT, messages)))


class Window(NamedTuple):
    """Consecutive ready messages. It is valid as long as no message is taken or returned."""

    positions: Sequence[int]
    messages: Sequence[Message]
    expiries: Sequence[int] | None
    """0: never; None: no message expires, or expiries are stored elsewhere."""
    again: bool
    """Some messages may have been handed out before."""


@dataclass(eq=False)
class Page:
    """Messages in the store. `positions`: None: consecutive. `ranks`: places in the page; None: all.
    `may_expire`: some may have a time to live; used after a restart only.
    """

    first: int
    count: int
    handle: Handle
    size: int
    redelivered: bool = False
    may_expire: bool = False
    positions: list[int] | None = None
    ranks: list[int] | None = None
    stored: int = field(init=False)
    soonest_ms: int = 0

    def __post_init__(self) -> None:
        self.stored = self.count

    @property
    def run(self) -> Sequence[int]:
        return range(self.first, self.first + self.count) if self.positions is None else self.positions

    @property
    def last(self) -> int:
        return self.first + self.count - 1 if self.positions is None else self.positions[-1]

    def lose(self, places: Iterable[int]) -> None:
        if self.positions is None:
            self.positions = list(self.run)
        if self.ranks is None:
            self.ranks = list(range(self.count))
        for place in reversed(list(places)):
            del self.positions[place], self.ranks[place]
        self.count = len(self.positions)


class Backlog:
    """The messages of one level. `counting`: `size` is maintained, which only a limit of bytes needs."""

    __slots__ = (
        "_head", "_head_expiries", "_head_first", "_head_positions", "_head_size", "_level", "_looked",
        "_pages", "_store", "_tail", "_tail_expiries", "_tail_positions", "_tail_size", "_times",
        "again", "count", "counting", "next", "size",
    )  # fmt: skip

    def __init__(self, level: int, store: Store) -> None:
        self._level = level
        self._store = store
        self._times = HEADS_IN_MEMORY if store.in_memory else 1
        self._head: deque[Message] = deque()
        self._head_first = 0
        # The positions of all messages in the head, or in the tail, if there are gaps.
        self._head_positions: deque[int] | None = None
        self._tail_positions: list[int] | None = None
        # The messages and expiries of the page that was read last without being removed.
        self._looked: tuple[Page, list[Message], list[int] | None] | None = None
        self._head_expiries: deque[int] | None = None
        self._head_size = 0
        self._pages: deque[Page] = deque()
        self._tail: list[Message] = []
        self._tail_expiries: list[int] | None = None
        self._tail_size = 0
        self.count = 0
        self.counting = False
        self.size = 0
        self.next = 0
        self.again = False

    def count_bytes(self) -> None:
        if not self.counting:
            self.counting = True
            self.size = content_bytes(self._head) + self._tail_size + sum(page.size for page in self._pages)

    def weigh(self) -> tuple[int, int, int]:
        """Return the bytes of all contents, and the number and bytes of unpacked messages."""
        paged, here = sum([page.size for page in self._pages]), self._head_size + self._tail_size
        return here + paged, len(self._head) + len(self._tail), here

    def recover(self, pages: Sequence[Page], next_position: int) -> None:
        assert not self.count
        self._pages.extend(pages)
        self.count = sum(page.count for page in pages)
        self.next = next_position
        self.again = any(page.redelivered for page in pages)
        if self.counting:
            self.size = sum(page.size for page in pages)

    def extend(self, messages: Sequence[Message], expiries: Sequence[int] | None) -> None:
        count = len(messages)
        size = content_bytes(messages)
        if self._tail or self._pages or self._head_is_full() or not self._head_ends_at_next():
            self._extend_tail(messages, expiries, size)
        else:
            head = self._head
            if not head:
                self._head_first = self.next
                self._head_positions = None
                self._head_expiries = None
                self._head_size = 0
            elif self._head_positions is not None:
                self._head_positions.extend(range(self.next, self.next + count))
            if expiries is not None or self._head_expiries is not None:
                if self._head_expiries is None:
                    self._head_expiries = deque([0] * len(head))
                self._head_expiries.extend(expiries if expiries is not None else [0] * count)
            head.extend(messages)
            self._head_size += size
        self.next += count
        self.count += count
        if self.counting:
            self.size += size

    def skip(self, count: int) -> int:
        """Assign positions to messages that are handed out at once, and return the first."""
        assert not self.count
        first = self.next
        self.next = first + count
        return first

    def _head_is_full(self) -> bool:
        times = self._times
        return len(self._head) >= times * HEAD_MESSAGES_MAX or self._head_size >= times * HEAD_BYTES_MAX

    def _head_ends_at_next(self) -> bool:
        # Not so if the last page found after a restart is the head, and later messages were removed.
        if not self._head or self._head_positions is not None:
            return True
        return self._head_first + len(self._head) == self.next

    def _extend_tail(self, messages: Sequence[Message], expiries: Sequence[int] | None, size: int) -> None:
        if expiries is not None or self._tail_expiries is not None:
            if self._tail_expiries is None:
                self._tail_expiries = [0] * len(self._tail)
            self._tail_expiries.extend(expiries if expiries is not None else [0] * len(messages))
        if self._tail_positions is not None:
            # `next` does not include these messages yet.
            self._tail_positions.extend(range(self.next, self.next + len(messages)))
        self._tail.extend(messages)
        self._tail_size += size
        if len(self._tail) >= PAGE_MESSAGES_MAX or self._tail_size >= PAGE_BYTES_MAX:
            if self._tail_positions is None:
                self._page_out(self.next + len(messages) - len(self._tail))
            else:
                # Such a page is at most one publish longer than the others.
                positions, count, tail_size = self._tail_positions, len(self._tail), self._tail_size
                handle = self._store.pack(self._level, self._tail, self._tail_expiries)
                self._pages.append(Page(positions[0], count, handle, tail_size, positions=positions))
            self._forget_tail()

    def _forget_tail(self) -> None:
        self._tail = []
        self._tail_positions = None
        self._tail_expiries = None
        self._tail_size = 0

    def _page_out(self, first: int) -> None:
        tail, expiries = self._tail, self._tail_expiries
        whole = len(tail) <= PAGE_MESSAGES_MAX
        for start in range(0, len(tail), PAGE_MESSAGES_MAX):
            part = tail[start : start + PAGE_MESSAGES_MAX]
            times = None if expiries is None else expiries[start : start + PAGE_MESSAGES_MAX]
            handle = self._store.page_out(self._level, first + start, part, times)
            size = self._tail_size if whole else content_bytes(part)
            self._pages.append(Page(first + start, len(part), handle, size))

    def take(
        self, count: int, room: int = NO_BOUND
    ) -> tuple[Sequence[int], list[Message], Sequence[int] | None, int]:
        """Take the first messages, at least one. `room`: bytes of contents; the message that uses it up is
        the last. Returns positions, messages, expiries, and bytes of contents.
        """
        head = self._head or self._refill()
        here = min(count, len(head))
        take = head.popleft
        messages = [take() for _ in range(here)]
        size = content_bytes(messages)
        if size > room:
            here = that_fill(map(len, map(_CONTENT, messages)), room)
            head.extendleft(reversed(messages[here:]))
            del messages[here:]
            size = content_bytes(messages)
        expiries = self._head_expiries
        taken = None
        if expiries is not None:
            next_expiry = expiries.popleft
            taken = [next_expiry() for _ in range(here)]
        self._head_size -= size
        positions: Sequence[int]
        if self._head_positions is None:
            first = self._head_first
            self._head_first = past = first + here
            positions = range(first, past)
        else:
            next_position = self._head_positions.popleft
            positions = [next_position() for _ in range(here)]
        self.count -= here
        if self.counting:
            self.size -= size
        return positions, messages, taken, size

    def count_before(self, position: int) -> int:
        """Return how many messages of the part that `take` returns next are before a position."""
        head = self._head or self._refill()
        if self._head_positions is not None:
            return bisect_left(self._head_positions, position)
        return max(0, min(len(head), position - self._head_first))

    def first_position(self) -> int:
        if self._head:
            return self._head_first if self._head_positions is None else self._head_positions[0]
        if self._pages:
            return self._pages[0].run[0]
        return self._tail_run()[0]

    def first_expiry(self) -> int:
        """Return the expiry of the first message; 0: never, or there is no message."""
        if not self.count:
            return 0
        if not self._head:
            self._refill()
        return self._head_expiries[0] if self._head_expiries is not None else 0

    def _refill(self) -> deque[Message]:
        if self._pages:
            page = self._pages.popleft()
            if page.ranks is None:
                messages, expiries = self._store.page_in(page.handle)
            else:
                messages, expiries = self._store.look(page.handle, page.ranks)
                self._store.drop_page(page.handle)
            self._looked = None
            assert len(messages) == page.count, "a page has lost messages"
            # After a restart, the size of a page is only known as a whole, from its record.
            size = content_bytes(messages)
            if self.counting:
                self.size += size - page.size
            self.again = page.redelivered
            if page.redelivered:
                messages = [acquired(message, failed=False) for message in messages]
            self._head = deque(messages)
            self._head_first = page.first
            self._head_positions = None if page.positions is None else deque(page.positions)
            self._head_expiries = None if expiries is None else deque(expiries)
            self._head_size = size
        else:
            self.again = False
            self._head = deque(self._tail)
            self._head_first = self.next - len(self._tail)
            self._head_positions = None if self._tail_positions is None else deque(self._tail_positions)
            self._head_expiries = None if self._tail_expiries is None else deque(self._tail_expiries)
            self._head_size = self._tail_size
            self._forget_tail()
        return self._head

    def clear(self) -> Iterator[Sequence[int]]:
        if self._head:
            yield self._head_run()
        for page in self._pages:
            self._store.drop_page(page.handle)
            yield page.run
        if self._tail:
            yield self._tail_run()
        self._head.clear()
        self._head_positions = None
        self._head_expiries = None
        self._head_size = 0
        self._pages.clear()
        self._looked = None
        self._forget_tail()
        self.count = 0
        self.size = 0

    def _head_run(self) -> Sequence[int]:
        if self._head_positions is not None:
            return self._head_positions
        return range(self._head_first, self._head_first + len(self._head))

    def _tail_run(self) -> Sequence[int]:
        if self._tail_positions is not None:
            return self._tail_positions
        return range(self.next - len(self._tail), self.next)

    def window(self, position: int, most: int) -> Window | None:
        """Return at most `most` messages from a position on, fewer at a part's end; None: there are none."""
        head = self._head_run()
        if head and position <= head[-1]:
            start = bisect_left(head, position)
            stop = min(start + most, len(head))
            expiries = None if self._head_expiries is None else _part(self._head_expiries, start, stop)
            positions = _part(head, start, stop)
            return Window(positions, _part(self._head, start, stop), expiries, self.again)
        at = bisect_left(self._pages, position, key=_LAST)
        if at < len(self._pages):
            page, messages, times = self._look_at(self._pages[at])
            start = bisect_left(page.run, position)
            wanted = slice(start, start + most)
            return Window(
                page.run[wanted], messages[wanted], None if times is None else times[wanted], page.redelivered
            )
        if not self._tail:
            return None
        tail = self._tail_run()
        start = bisect_left(tail, position)
        if start == len(tail):
            return None
        wanted = slice(start, start + most)
        expiries = None if self._tail_expiries is None else self._tail_expiries[wanted]
        return Window(tail[wanted], self._tail[wanted], expiries, again=False)

    def _look_at(self, page: Page) -> tuple[Page, list[Message], list[int] | None]:
        if self._looked is None or self._looked[0] is not page:
            found, expiries = self._store.look(page.handle, page.ranks or range(page.count))
            messages = list(found)
            if page.redelivered:
                messages = [acquired(message, failed=False) for message in messages]
            self._looked = page, messages, None if expiries is None else list(expiries)
        return self._looked

    def take_out(self, window: Window, places: Sequence[int]) -> None:
        """Take messages at ascending places of a window, since which nothing has changed."""
        size = sum([len(window.messages[place][1]) for place in places])
        first = window.positions[0]
        head = self._head_run()
        if head and first <= head[-1]:
            start = bisect_left(head, first)
            if not start and places[-1] + 1 == len(places):
                self.take(len(places))
                return
            if self._head_positions is None:
                self._head_positions = deque(head)
            _cut(self._head_positions, start, places)
            _cut(self._head, start, places)
            if self._head_expiries is not None:
                _cut(self._head_expiries, start, places)
            self._head_size -= size
        elif not self._tail or first < self._tail_run()[0]:
            self._take_out_of_page(first, places, size)
        else:
            start = bisect_left(self._tail_run(), first)
            if self._tail_positions is None:
                self._tail_positions = list(self._tail_run())
            for place in reversed(places):
                del self._tail_positions[start + place], self._tail[start + place]
                if self._tail_expiries is not None:
                    del self._tail_expiries[start + place]
            self._tail_size -= size
            if not self._tail:
                self._forget_tail()
        self.count -= len(places)
        if self.counting:
            self.size -= size

    def _take_out_of_page(self, first: int, places: Sequence[int], size: int) -> None:
        at = bisect_left(self._pages, first, key=_LAST)
        page, messages, times = self._look_at(self._pages[at])
        start = bisect_left(page.run, first)
        gone = [start + place for place in places]
        page.lose(gone)
        page.size -= size
        for place in reversed(gone):
            del messages[place]
            if times is not None:
                del times[place]
        if not page.count:
            del self._pages[at]
            self._store.drop_page(page.handle)
            self._looked = None
        elif page.count * _PACK_AGAIN < page.stored and self._store.is_packed(page.handle):
            self._store.drop_page(page.handle)
            page.handle = self._store.pack(self._level, messages, times)
            page.ranks, page.stored = None, page.count


def _part(whole: Sequence[T], start: int, stop: int) -> Sequence[T]:
    # Delete from the nearer end of the deque.
    if not isinstance(whole, deque):
        return whole[start:stop]
    if stop - start <= _SHORT:
        return [whole[at] for at in range(start, stop)]
    if start <= len(whole) - stop:
        return list(islice(whole, start, stop))
    found = list(islice(reversed(whole), len(whole) - stop, len(whole) - start))
    found.reverse()
    return found


def _cut(whole: deque[T], start: int, places: Sequence[int]) -> None:
    whole.rotate(-start)
    stay = [whole.popleft() for _ in range(places[-1] + 1)]
    for place in reversed(places):
        del stay[place]
    whole.extendleft(reversed(stay))
    whole.rotate(start)
