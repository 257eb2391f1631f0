"""Where a quorum queue's messages are while its state holds only their indexes.

`BodyStore` is what the queue asks for. `PagedBodies` keeps messages in pages of 4096 consecutive indexes,
of which a few are lists of messages and all others packed bytes. Where those are is the business of
`Packs`: in memory, where a long backlog costs little more than its bytes, or out of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Final, Protocol

from amqp10broker.message.batch import decode_batch, decode_some, encode_batch
from amqp10broker.message.message import Message

_PAGE_BITS: Final = 12
_PAGE: Final = 1 << _PAGE_BITS
_MASK: Final = _PAGE - 1

OPEN_PAGES_MAX: Final = 6
"""Pages that are lists of messages: where publishers write, where consumers read, where they settle."""


PEEKS_MAX: Final = 32
"""Messages that are read of a page while it is packed. Then it is opened, which costs as much as those."""


class BodyStore(Protocol):
    """Messages by index. An index has at most one message; indexes of new messages only grow."""

    def put(self, first: int, messages: Sequence[Message]) -> None:
        """Keep new messages under consecutive indexes."""

    def put_again(self, index: int, message: Message) -> None:
        """Keep a message under an index that was dropped before."""

    def fetch(self, indexes: Sequence[int]) -> list[Message]:
        """The messages of these indexes, which are all there."""

    def drop(self, indexes: Sequence[int]) -> None:
        """Nobody will ask for these any more. All of them are there."""

    def renumber(self, indexes: Sequence[int], first: int) -> None:
        """The messages of these indexes have new, consecutive ones from now on."""

    def clear(self) -> None:
        """Drop everything."""


Handle = object
"""Packed messages, as `Packs` knows them."""


class Packs(Protocol):
    """Where packed messages are."""

    def keep(self, pieces: Sequence[bytes]) -> Handle:
        """Take them."""

    def read(self, handle: Handle) -> bytes:
        """Give them back, as often as they are asked for."""

    def read_at(self, handle: Handle, at: int, length: int) -> bytes:
        """Give a part of them: so many bytes, from there on."""

    def drop(self, handle: Handle) -> None:
        """Nobody will ask for them any more."""


class MemoryPacks:
    """In memory."""

    def keep(self, pieces: Sequence[bytes]) -> Handle:
        """See `Packs`."""
        return b"".join(pieces)

    def read(self, handle: Handle) -> bytes:
        """See `Packs`."""
        assert isinstance(handle, bytes)
        return handle

    def read_at(self, handle: Handle, at: int, length: int) -> bytes:
        """See `Packs`."""
        assert isinstance(handle, bytes)
        return handle[at : at + length]

    def drop(self, handle: Handle) -> None:
        """See `Packs`."""


class _Page:
    """Messages of 4096 consecutive indexes: packed, or a list with holes, or both.

    Attributes:
        live: messages that are there.
        messages: the list, None while the page is closed.
        packed: all messages of `slots`, None if it would not say the same as the list.
        slots: which places the packed messages have.
        dropped: places dropped since it was packed.
        peeks: messages that were read of it since it was closed.
    """

    __slots__ = ("_packs", "dropped", "live", "messages", "packed", "peeks", "slots")

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self.live = 0
        self.messages: list[Message | None] | None = []
        self.packed: Handle | None = None
        self.slots: array[int] = array("H")
        self.dropped: array[int] = array("H")
        self.peeks = 0

    def open(self) -> list[Message | None]:
        """The list of messages."""
        messages = self.messages
        if messages is None:
            messages = self.messages = [None] * _PAGE
            assert self.packed is not None
            packed = decode_batch(self._packs.read(self.packed))
            for slot, message in zip(self.slots, packed, strict=True):
                messages[slot] = message
            if self.dropped:
                for slot in self.dropped:
                    messages[slot] = None
                del self.dropped[:]
                self.changed()
        return messages

    def peek(self, slots: Sequence[int]) -> list[Message]:
        """Messages of a page that is closed, and stays so. All of them are there."""
        self.peeks += len(slots)
        places = [bisect_left(self.slots, slot) for slot in slots]
        return decode_some(partial(self._packs.read_at, self.packed), places)

    def changed(self) -> None:
        """What is packed does not say the same as the list any more, or is not needed."""
        if self.packed is not None:
            self._packs.drop(self.packed)
            self.packed = None

    def close(self) -> None:
        """Have it packed only."""
        messages = self.messages
        assert messages is not None
        if self.packed is None:
            there = [message is not None for message in messages]
            self.slots = array("H", compress(range(len(messages)), there))
            pieces = encode_batch([message for message in messages if message is not None])
            self.packed = self._packs.keep(pieces)
        self.messages = None
        self.peeks = 0

    def places(self) -> list[int]:
        """Which places have a message."""
        if self.messages is not None:
            return [slot for slot, message in enumerate(self.messages) if message is not None]
        dropped = dict.fromkeys(self.dropped)
        return [slot for slot in self.slots if slot not in dropped]

    def drop(self, slots: Sequence[int]) -> None:
        """Forget messages; at least one other stays."""
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
    """Messages in pages, packed while nobody is near them."""

    def __init__(self, packs: Packs | None = None) -> None:
        """Begin empty.

        Args:
            packs: where packed messages are; None: in memory.
        """
        self._packs = packs or MemoryPacks()
        self._pages: dict[int, _Page] = {}
        self._open: dict[int, None] = {}
        """Pages that are lists, the one longest untouched first."""
        self._latest = -1
        self._next = -1
        """Behind the last message that was fetched."""

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
        """Of all messages, sorted."""
        return [
            number << _PAGE_BITS | slot
            for number in sorted(self._pages)
            for slot in self._pages[number].places()
        ]

    def put(self, first: int, messages: Sequence[Message]) -> None:
        """See `BodyStore`."""
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
        """See `BodyStore`."""
        page, held = self._opened(index >> _PAGE_BITS)
        slot = index & _MASK
        if len(held) <= slot:
            held.extend([None] * (slot + 1 - len(held)))
        assert held[slot] is None
        held[slot] = message
        page.live += 1
        page.changed()

    def fetch(self, indexes: Sequence[int]) -> list[Message]:
        """See `BodyStore`."""
        first, last = indexes[0], indexes[-1]
        number = first >> _PAGE_BITS
        goes_on, self._next = first == self._next, last + 1
        if last - first == len(indexes) - 1 and last >> _PAGE_BITS == number and _grows(indexes):
            slots = range(first & _MASK, (last & _MASK) + 1)
            return self._messages_of(number, slots, peek=not goes_on)
        by_page: dict[int, list[int]] = {}
        for at, index in enumerate(indexes):
            by_page.setdefault(index >> _PAGE_BITS, []).append(at)
        messages: dict[int, Message] = {}
        for number, places in by_page.items():
            found = self._messages_of(number, [indexes[at] & _MASK for at in places], peek=True)
            messages.update(zip(places, found, strict=True))
        return [messages[at] for at in range(len(indexes))]

    def _messages_of(self, number: int, slots: Sequence[int], *, peek: bool) -> list[Message]:
        """Messages of one page, which is opened for them unless they are few and far between."""
        page = self._pages.get(number)
        if peek and page is not None and page.messages is None and page.peeks + len(slots) <= PEEKS_MAX:
            return page.peek(slots)
        held = self._opened(number)[1]
        found = held[slots.start : slots.stop] if isinstance(slots, range) else [held[slot] for slot in slots]
        messages = [message for message in found if message is not None]
        assert len(messages) == len(slots), "a message that is not there was asked for"
        return messages

    def drop(self, indexes: Sequence[int]) -> None:
        """See `BodyStore`."""
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
        # The page that publishers fill may be emptied too, and made anew by the next of them.
        page.changed()
        del self._pages[number]
        self._open.pop(number, None)

    def renumber(self, indexes: Sequence[int], first: int) -> None:
        """See `BodyStore`."""
        messages = self.fetch(indexes)
        self.drop(indexes)
        self.put(first, messages)

    def clear(self) -> None:
        """See `BodyStore`."""
        for page in self._pages.values():
            page.changed()
        self._pages.clear()
        self._open.clear()
        self._latest = -1

    def _opened(self, number: int) -> tuple[_Page, list[Message | None]]:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page(self._packs)
        if self._latest != number or page.messages is None:
            self._latest = number
            self._open.pop(number, None)
            self._open[number] = None
            if len(self._open) > OPEN_PAGES_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._pages[oldest].close()
        return page, page.open()


def _grows(indexes: Sequence[int]) -> bool:
    """Whether each index is one more than the one before, given that the ends say so."""
    return isinstance(indexes, range) or all(map(int.__eq__, indexes, range(indexes[0], indexes[-1] + 1)))


def ranges_of(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted indexes as ranges (first, last + 1)."""
    ranges: list[tuple[int, int]] = []
    start = stop = -1
    for index in indexes:
        if index != stop:
            if stop > start:
                ranges.append((start, stop))
            start = index
        stop = index + 1
    if stop > start:
        ranges.append((start, stop))
    return ranges
