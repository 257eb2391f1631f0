"""Storage for the messages of a quorum queue. The queue's state holds only their indexes.

`PagedBodies` stores messages in pages of 4096 consecutive indexes, of which a few are lists of messages and
all others packed bytes in a spool. An index has at most one message, and the indexes of new messages only
grow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Final

from amqp10broker.message.batch import decode_batch, decode_some, encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.extents import grows
from amqp10broker.queues.spool import Page, Spool

_PAGE_BITS: Final = 12
_PAGE: Final = 1 << _PAGE_BITS
_MASK: Final = _PAGE - 1

OPEN_PAGES_MAX: Final = 6
"""Pages that are lists of messages at the same time: for publishers, readers and settlements."""


PEEKS_MAX: Final = 32
"""Messages that are read from a packed page before it is opened, which costs as much."""

_IN_MEMORY: Final = Spool()


class _BodyPage:
    """Messages of 4096 consecutive indexes: packed, or a list with holes, or both. `messages`: the list, None
    while the page is closed. `packed`: all messages of `slots`; None: it would differ from the list.
    """

    __slots__ = ("_spool", "dropped", "live", "messages", "packed", "peeks", "slots")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.live = 0
        self.messages: list[Message | None] | None = []
        self.packed: Page | None = None
        self.slots: array[int] = array("H")
        self.dropped: array[int] = array("H")
        self.peeks = 0

    def open(self) -> list[Message | None]:
        messages = self.messages
        if messages is None:
            messages = self.messages = [None] * _PAGE
            assert self.packed is not None
            packed = decode_batch(self._spool.read(self.packed))
            for slot, message in zip(self.slots, packed, strict=True):
                messages[slot] = message
            if self.dropped:
                for slot in self.dropped:
                    messages[slot] = None
                del self.dropped[:]
                self.changed()
        return messages

    def peek(self, slots: Sequence[int]) -> list[Message]:
        # Return messages of a closed page without opening it; all of them must be present.
        assert self.packed is not None
        self.peeks += len(slots)
        places = [bisect_left(self.slots, slot) for slot in slots]
        return decode_some(partial(self._spool.read_at, self.packed), places)

    def changed(self) -> None:
        if self.packed is not None:
            self._spool.drop(self.packed)
            self.packed = None

    def close(self) -> None:
        messages = self.messages
        assert messages is not None
        if self.packed is None:
            there = [message is not None for message in messages]
            self.slots = array("H", compress(range(len(messages)), there))
            pieces = encode_batch([message for message in messages if message is not None])
            self.packed = self._spool.keep(pieces)
        self.messages = None
        self.peeks = 0

    def places(self) -> list[int]:
        if self.messages is not None:
            return [slot for slot, message in enumerate(self.messages) if message is not None]
        dropped = dict.fromkeys(self.dropped)
        return [slot for slot in self.slots if slot not in dropped]

    def drop(self, slots: Sequence[int]) -> None:
        # Remove messages of which at least one other remains.
        self.live -= len(slots)
        messages = self.messages
        if messages is not None:
            self.changed()
            for slot in slots:
                messages[slot] = None
            return
        self.dropped.extend(slots)
        if self.live * 2 < len(self.slots):
            self.open()
            self.close()


class PagedBodies:
    """A store of messages in pages, which are packed while they are not in use."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool or _IN_MEMORY
        self._pages: dict[int, _BodyPage] = {}
        self._open: dict[int, None] = {}
        """Pages that are lists, least recently used first."""
        self._latest = -1
        self._next = -1
        """Follows the last message that was fetched."""

    def __len__(self) -> int:
        return sum(page.live for page in self._pages.values())

    def __contains__(self, index: int) -> bool:
        page = self._pages.get(index >> _PAGE_BITS)
        if page is None:
            return False
        messages, slot = page.messages, index & _MASK
        if messages is None:
            messages = self._opened(index >> _PAGE_BITS)[1]
        return slot < len(messages) and messages[slot] is not None

    def indexes(self) -> list[int]:
        return [
            number << _PAGE_BITS | slot
            for number in sorted(self._pages)
            for slot in self._pages[number].places()
        ]

    def put(self, first: int, messages: Sequence[Message]) -> None:
        at, left = 0, len(messages)
        while left:
            number, slot = first >> _PAGE_BITS, first & _MASK
            count = min(left, _PAGE - slot)
            page, held = self._opened(number)
            if len(held) < slot:
                held.extend([None] * (slot - len(held)))
            held[slot : slot + count] = messages if count == left and not at else messages[at : at + count]
            page.live += count
            page.changed()
            first, at, left = first + count, at + count, left - count

    def put_again(self, index: int, message: Message) -> None:
        page, held = self._opened(index >> _PAGE_BITS)
        slot = index & _MASK
        if len(held) <= slot:
            held.extend([None] * (slot + 1 - len(held)))
        assert held[slot] is None
        held[slot] = message
        page.live += 1
        page.changed()

    def fetch(self, indexes: Sequence[int]) -> list[Message]:
        first, last = indexes[0], indexes[-1]
        number = first >> _PAGE_BITS
        run_inline, self._next = first == self._next, last + 1
        if last - first == len(indexes) - 1 and last >> _PAGE_BITS == number and grows(indexes):
            slots = range(first & _MASK, (last & _MASK) + 1)
            return self._messages_of(number, slots, peek=not run_inline)
        by_page: dict[int, list[int]] = {}
        for at, index in enumerate(indexes):
            by_page.setdefault(index >> _PAGE_BITS, []).append(at)
        messages: dict[int, Message] = {}
        for number, places in by_page.items():
            found = self._messages_of(number, [indexes[at] & _MASK for at in places], peek=True)
            messages.update(zip(places, found, strict=True))
        return [messages[at] for at in range(len(indexes))]

    def _messages_of(self, number: int, slots: Sequence[int], *, peek: bool) -> list[Message]:
        # The page is opened for them unless they are few and far between.
        page = self._pages.get(number)
        if peek and page is not None and page.messages is None and page.peeks + len(slots) <= PEEKS_MAX:
            return page.peek(slots)
        held = self._opened(number)[1]
        found = held[slots.start : slots.stop] if isinstance(slots, range) else [held[slot] for slot in slots]
        messages = [message for message in found if message is not None]
        assert len(messages) == len(slots), "a message that is not there was asked for"
        return messages

    def drop(self, indexes: Sequence[int]) -> None:
        if not indexes:
            return
        number = min(indexes) >> _PAGE_BITS
        if max(indexes) >> _PAGE_BITS == number:
            self._drop_in(number, [index & _MASK for index in indexes])
            return
        by_page: dict[int, list[int]] = {}
        for index in indexes:
            by_page.setdefault(index >> _PAGE_BITS, []).append(index & _MASK)
        for number, slots in by_page.items():
            self._drop_in(number, slots)

    def _drop_in(self, number: int, slots: list[int]) -> None:
        page = self._pages[number]
        if page.live > len(slots):
            page.drop(slots)
            return
        # The page that publishers fill may be emptied too, and is made anew by the next of them.
        page.changed()
        del self._pages[number]
        self._open.pop(number, None)

    def clear(self) -> None:
        for page in self._pages.values():
            page.changed()
        self._pages.clear()
        self._open.clear()
        self._latest = -1

    def _opened(self, number: int) -> tuple[_BodyPage, list[Message | None]]:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _BodyPage(self._spool)
        if self._latest != number or page.messages is None:
            self._latest = number
            self._open.pop(number, None)
            self._open[number] = None
            if len(self._open) > OPEN_PAGES_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._pages[oldest].close()
        return page, page.open()
