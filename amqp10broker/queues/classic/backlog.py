"""The messages of one level of priority that nobody has had yet: first in, first out, of any length.

Positions are consecutive numbers. In the front part, up to `HEAD_MESSAGES_MAX` messages or
`HEAD_BYTES_MAX` bytes of content (thirty times as much if pages are in memory), messages are objects.
What comes when that is full gathers in the tail, which is handed to the store page by page; a page is
taken in when the head is used up.

After a restart positions may have gaps: between pages only, so that within head and tail they are
consecutive always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

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


def content_bytes(messages: Iterable[Message]) -> int:
    """Bytes of the contents of messages."""
    return sum(map(len, map(_CONTENT, messages)))


class Page:
    """Consecutive messages that are in the store."""

    __slots__ = ("count", "first", "handle", "may_expire", "redelivered", "size")

    def __init__(
        self,
        first: int,
        count: int,
        handle: Handle,
        size: int,
        redelivered: bool = False,
        may_expire: bool = False,
    ) -> None:
        """Describe a page.

        Args:
            first: position of its first message.
            count: of messages.
            handle: for the store.
            size: bytes of content.
            redelivered: somebody may have had them before a restart.
            may_expire: some of them may have a time to live; told after a restart only.
        """
        self.first = first
        self.count = count
        self.handle = handle
        self.size = size
        self.redelivered = redelivered
        self.may_expire = may_expire


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
        "_head_size",
        "_level",
        "_pages",
        "_store",
        "_tail",
        "_tail_expiries",
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
                self._head_expiries = None
                self._head_size = 0
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
        return not self._head or self._head_first + len(self._head) == self.next

    def _extend_tail(self, messages: Sequence[Message], expiries: Sequence[int] | None, size: int) -> None:
        if expiries is not None or self._tail_expiries is not None:
            if self._tail_expiries is None:
                self._tail_expiries = [0] * len(self._tail)
            self._tail_expiries.extend(expiries if expiries is not None else [0] * len(messages))
        self._tail.extend(messages)
        self._tail_size += size
        if len(self._tail) >= PAGE_MESSAGES_MAX or self._tail_size >= PAGE_BYTES_MAX:
            # `next` still counts without these.
            self._page_out(self.next + len(messages) - len(self._tail))

    def _page_out(self, first: int) -> None:
        tail, expiries = self._tail, self._tail_expiries
        whole = len(tail) <= PAGE_MESSAGES_MAX
        for start in range(0, len(tail), PAGE_MESSAGES_MAX):
            part = tail[start : start + PAGE_MESSAGES_MAX]
            times = None if expiries is None else expiries[start : start + PAGE_MESSAGES_MAX]
            handle = self._store.page_out(self._level, first + start, part, times)
            size = self._tail_size if whole else content_bytes(part)
            self._pages.append(Page(first + start, len(part), handle, size))
        self._tail = []
        self._tail_expiries = None
        self._tail_size = 0

    # --- at the front -----------------------------------------------------------------------------

    def take(self, count: int, room: int = NO_BOUND) -> tuple[int, list[Message], Sequence[int] | None, int]:
        """The first messages, at least one.

        Args:
            count: at most so many.
            room: bytes of contents; the message that uses it up is the last.

        Returns:
            The position of the first one, consecutive messages, when each expires, and the bytes of
            their contents.
        """
        head = self._head or self._refill()
        first = self._head_first
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
        self._head_first = first + here
        self.count -= here
        if self.counting:
            self.size -= size
        return first, messages, taken, size

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
            messages, expiries = self._store.page_in(page.handle)
            assert len(messages) == page.count, "a page has lost messages"
            if self.counting:
                # What was found after a restart is known by its record only, as a whole.
                self.size += content_bytes(messages) - page.size
            self.again = page.redelivered
            if page.redelivered:
                messages = [acquired(message, failed=False) for message in messages]
            self._head = deque(messages)
            self._head_first = page.first
            self._head_expiries = None if expiries is None else deque(expiries)
            self._head_size = page.size
        else:
            self.again = False
            self._head = deque(self._tail)
            self._head_first = self.next - len(self._tail)
            self._head_expiries = None if self._tail_expiries is None else deque(self._tail_expiries)
            self._head_size = self._tail_size
            self._tail = []
            self._tail_expiries = None
            self._tail_size = 0
        return self._head

    def clear(self) -> Iterator[range]:
        """Drop everything; the positions that went, as runs."""
        if self._head:
            yield range(self._head_first, self._head_first + len(self._head))
        for page in self._pages:
            self._store.drop_page(page.handle)
            yield range(page.first, page.first + page.count)
        if self._tail:
            yield range(self.next - len(self._tail), self.next)
        self._head.clear()
        self._head_expiries = None
        self._head_size = 0
        self._pages.clear()
        self._tail = []
        self._tail_expiries = None
        self._tail_size = 0
        self.count = 0
        self.size = 0
