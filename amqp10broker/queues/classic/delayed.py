"""The messages of a classic queue for later delivery, in order of their due times.

The soonest are objects, at most `SOON_MESSAGES_MAX` of them and `SOON_BYTES_MAX` bytes. Beyond that, the
later half goes to the store in pages of a few messages; a page is loaded when its first message is due, and
messages of it that are later than all others in memory are stored again. So memory holds some thousands and a
line for each page, whatever the order of arrival. In a page, time and position precede each message.

A message is due when it may be delivered, or when it expires, if that is earlier.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.backlog import Page
from amqp10broker.queues.classic.store import Handle, Store

SOON_MESSAGES_MAX: Final = 8192
SOON_BYTES_MAX: Final = 2 * 1024 * 1024

PAGE_MESSAGES: Final = 128
"""Small, so that of all pages that were stored at one time about one is in memory."""
PAGE_BYTES: Final = 32 * 1024

_RUN_MAX: Final = 2**31
"""Positions that a store is notified of in one range."""

_BEFORE: Final = struct.Struct("<QQ")


class Delayed(NamedTuple):
    """A message, ordered by due time and then by position."""

    when_ms: int
    position: int
    expiry: int
    """Time of its expiry in ms; 0: never."""
    message: Message


class _DelayedPage(NamedTuple):
    when_ms: int
    """Due time of its first message, or a lower bound."""
    position: int
    """Position of its first message, or a lower bound."""
    handle: Handle
    messages: int
    size: int


class DelayedMessages:
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
        """Take the first due messages. `most`: maximum, roughly also of messages in pages loaded for it."""
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
        # Or may be: the due time of a page can be a lower bound.
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
        """Remove all messages, and return ranges that contain their positions."""
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
        # After a restart, the size of a page is known from its record as a whole only.
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
