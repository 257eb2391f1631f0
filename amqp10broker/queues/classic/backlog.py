"""The messages of one level of priority that nobody has had yet: first in, first out, of any length.

Positions are consecutive numbers. In the front part, up to `HEAD_MESSAGES_MAX` messages or
`HEAD_BYTES_MAX` bytes of content (thirty times as much if pages are in memory), messages are objects.
What comes when that is full gathers in the tail, which is handed to the store page by page; a page is
taken in when the head is used up.

Positions may have gaps: after a restart between pages, and wherever a consumer that selects has taken
messages out. A part of the backlog without gaps of its own keeps the first position only; one with gaps
keeps them all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, TypeVar

from amqp10broker.message.message import Message, acquired
from amqp10broker.queues.classic.store import PAGE_BYTES_MAX, PAGE_MESSAGES_MAX, Handle, Store
from amqp10broker.queues.commands import NO_BOUND
from amqp10broker.queues.turns import that_fill

HEAD_MESSAGES_MAX: Final = 16_384
HEAD_BYTES_MAX: Final = 4 * 1024 * 1024
HEADS_IN_MEMORY: Final = 30
"""So many times as much where pages are in memory as well: packing saves half of it and costs a tenth of a
message's way, which shorter backlogs do not need."""


_CONTENT: Final = itemgetter(1)
_LAST: Final = attrgetter("last")
_SHORT: Final = 64
"""So many messages in the middle of the head are looked up one by one, more by running there."""
_PACK_AGAIN: Final = 4
"""A packed page of which only this part is left is packed anew: what is gone takes room until then."""

T = TypeVar("T")


def content_bytes(messages: Iterable[Message]) -> int:
    """Bytes of the contents of messages."""
    return sum(map(len, map(_CONTENT, messages)))


class Window(NamedTuple):
    """Ready messages that stand one behind the other, as long as nothing is taken or comes back."""

    positions: Sequence[int]
    """Growing; there may be gaps."""
    messages: Sequence[Message]
    expiries: Sequence[int] | None
    """When each expires, 0: never; None: none does, or that is kept elsewhere."""
    again: bool
    """Some may have been handed out before."""


class Page:
    """Messages that are in the store.

    Attributes:
        positions: of the messages; None: consecutive from `first` on.
        ranks: which of those that were given to the store these are; None: all.
        stored: how many were.
        soonest_ms: of messages that wait for their time: nothing is due to be done about any before.
    """

    __slots__ = (
        "count",
        "first",
        "handle",
        "may_expire",
        "positions",
        "ranks",
        "redelivered",
        "size",
        "soonest_ms",
        "stored",
    )

    def __init__(
        self,
        first: int,
        count: int,
        handle: Handle,
        size: int,
        redelivered: bool = False,
        may_expire: bool = False,
        positions: list[int] | None = None,
        soonest_ms: int = 0,
    ) -> None:
        """Describe a page.

        Args:
            first: position of its first message.
            count: of messages.
            handle: for the store.
            size: bytes of content.
            redelivered: somebody may have had them before a restart.
            may_expire: some of them may have a time to live; told after a restart only.
            positions: of all messages, if they are not consecutive.
            soonest_ms: see the attribute.
        """
        self.first = first
        self.positions = positions
        self.ranks: list[int] | None = None
        self.stored = count
        self.count = count
        self.handle = handle
        self.size = size
        self.redelivered = redelivered
        self.may_expire = may_expire
        self.soonest_ms = soonest_ms

    @property
    def run(self) -> Sequence[int]:
        """Positions of its messages."""
        return range(self.first, self.first + self.count) if self.positions is None else self.positions

    @property
    def last(self) -> int:
        """Position of its last message."""
        return self.first + self.count - 1 if self.positions is None else self.positions[-1]

    def lose(self, places: Iterable[int]) -> None:
        """Some messages are taken, counted from the first that is left."""
        if self.positions is None:
            self.positions = list(self.run)
        if self.ranks is None:
            self.ranks = list(range(self.count))
        for place in reversed(list(places)):
            del self.positions[place], self.ranks[place]
        self.count = len(self.positions)


class Backlog:
    """See the module.

    Attributes:
        count: messages.
        counting: `size` is kept; it costs something, and only a limit of bytes needs it.
        size: bytes of their contents, as long as it is kept.
        next: position of the next message to come.
        again: somebody may have had the first messages before a restart.
    """

    __slots__ = (
        "_head",
        "_head_expiries",
        "_head_first",
        "_head_positions",
        "_head_size",
        "_level",
        "_looked",
        "_pages",
        "_store",
        "_tail",
        "_tail_expiries",
        "_tail_positions",
        "_tail_size",
        "_times",
        "again",
        "count",
        "counting",
        "next",
        "size",
    )

    def __init__(self, level: int, store: Store) -> None:
        self._level = level
        self._store = store
        self._times = HEADS_IN_MEMORY if store.in_memory else 1
        self._head: deque[Message] = deque()
        self._head_first = 0
        # Of all in the head, or in the tail, if there are gaps.
        self._head_positions: deque[int] | None = None
        self._tail_positions: list[int] | None = None
        # The messages of the page that was looked at last, and when they expire.
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
        """Keep `size` from now on."""
        if not self.counting:
            self.counting = True
            self.size = content_bytes(self._head) + self._tail_size + sum(page.size for page in self._pages)

    def weigh(self) -> tuple[int, int, int]:
        """Bytes of the contents of all messages; how many are in memory as they are, and bytes of these."""
        paged, here = sum([page.size for page in self._pages]), self._head_size + self._tail_size
        return here + paged, len(self._head) + len(self._tail), here

    def recover(self, pages: Sequence[Page], next_position: int) -> None:
        """Begin with what was there before a restart."""
        assert not self.count
        self._pages.extend(pages)
        self.count = sum(page.count for page in pages)
        self.next = next_position
        self.again = any(page.redelivered for page in pages)
        if self.counting:
            self.size = sum(page.size for page in pages)

    # --- at the end -------------------------------------------------------------------------------

    def extend(self, messages: Sequence[Message], expiries: Sequence[int] | None) -> None:
        """Add messages.

        Args:
            messages: in order.
            expiries: when each expires in milliseconds, 0: never; None: none does.
        """
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
        """Give positions to messages that are handed out at once; the position of the first."""
        assert not self.count
        first = self.next
        self.next = first + count
        return first

    def _head_is_full(self) -> bool:
        times = self._times
        return len(self._head) >= times * HEAD_MESSAGES_MAX or self._head_size >= times * HEAD_BYTES_MAX

    def _head_ends_at_next(self) -> bool:
        """Not if the last page found after a restart is the head, and what came behind it was gone."""
        if not self._head or self._head_positions is not None:
            return True
        return self._head_first + len(self._head) == self.next

    def _extend_tail(self, messages: Sequence[Message], expiries: Sequence[int] | None, size: int) -> None:
        if expiries is not None or self._tail_expiries is not None:
            if self._tail_expiries is None:
                self._tail_expiries = [0] * len(self._tail)
            self._tail_expiries.extend(expiries if expiries is not None else [0] * len(messages))
        if self._tail_positions is not None:
            # `next` still counts without these.
            self._tail_positions.extend(range(self.next, self.next + len(messages)))
        self._tail.extend(messages)
        self._tail_size += size
        if len(self._tail) >= PAGE_MESSAGES_MAX or self._tail_size >= PAGE_BYTES_MAX:
            if self._tail_positions is None:
                self._page_out(self.next + len(messages) - len(self._tail))
            else:
                self._pack_out(self._tail_positions)
            self._forget_tail()

    def _forget_tail(self) -> None:
        self._tail = []
        self._tail_positions = None
        self._tail_expiries = None
        self._tail_size = 0

    def _pack_out(self, positions: list[int]) -> None:
        """The tail as one page with gaps. It is longer than other pages by one publish at most."""
        handle = self._store.pack(self._level, self._tail, self._tail_expiries)
        count, size = len(self._tail), self._tail_size
        self._pages.append(Page(positions[0], count, handle, size, positions=positions))

    def _page_out(self, first: int) -> None:
        tail, expiries = self._tail, self._tail_expiries
        whole = len(tail) <= PAGE_MESSAGES_MAX
        for start in range(0, len(tail), PAGE_MESSAGES_MAX):
            part = tail[start : start + PAGE_MESSAGES_MAX]
            times = None if expiries is None else expiries[start : start + PAGE_MESSAGES_MAX]
            handle = self._store.page_out(self._level, first + start, part, times)
            size = self._tail_size if whole else content_bytes(part)
            self._pages.append(Page(first + start, len(part), handle, size))

    # --- at the front -----------------------------------------------------------------------------

    def take(
        self, count: int, room: int = NO_BOUND
    ) -> tuple[Sequence[int], list[Message], Sequence[int] | None, int]:
        """The first messages, at least one.

        Args:
            count: at most so many.
            room: bytes of contents; the message that uses it up is the last.

        Returns:
            Their positions, the messages, when each expires, and the bytes of their contents.
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
        """How many of those that `take` gives at one time stand before a position."""
        head = self._head or self._refill()
        if self._head_positions is not None:
            return bisect_left(self._head_positions, position)
        return max(0, min(len(head), position - self._head_first))

    def first_position(self) -> int:
        """Of the first message. There is one."""
        if self._head:
            return self._head_first if self._head_positions is None else self._head_positions[0]
        if self._pages:
            return self._pages[0].run[0]
        return self._tail_run()[0]

    def first_expiry(self) -> int:
        """When the first message expires; 0: never, or there is none."""
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
            # What was found after a restart is known by its record only, as a whole.
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
        """Drop everything; the positions that went, as runs."""
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

    # --- in the middle ----------------------------------------------------------------------------

    def window(self, position: int, most: int) -> Window | None:
        """The messages from a position on, at most so many; fewer where a part ends. None: there are none."""
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
        """Take messages of a window, which nothing has changed since.

        Args:
            window: as `window` gave it.
            places: of the messages in it, growing, at least one.
        """
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
    """A slice of a deque, by the shorter way."""
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
    """Take elements out of the middle, at these places behind `start`, which grow."""
    whole.rotate(-start)
    stay = [whole.popleft() for _ in range(places[-1] + 1)]
    for place in reversed(places):
        del stay[place]
    whole.extendleft(reversed(stay))
    whole.rotate(start)
