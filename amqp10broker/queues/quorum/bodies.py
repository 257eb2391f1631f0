"""The messages of a quorum queue, whose state has only their indexes: in pages for reading, and in the
journal.

An index has at most one message, and the indexes of new messages only grow. A queue adds and removes messages
while it applies an entry; the entry's record holds them. So these changes are collected, and applied to the
index of the journal then (`JournalBodies.placed`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Final, NamedTuple

from amqp10broker.message.message import Message, decode_batch, decode_some, encode_batch
from amqp10broker.queues.journal import Extents, Page, RecordLog, Spool, grows, ranges_of

_PAGE_BITS: Final = 12
_PAGE: Final = 1 << _PAGE_BITS
_MASK: Final = _PAGE - 1

OPEN_PAGES_MAX: Final = 6
"""The pages that are lists of messages at the same time: for publishers, readers and settlements."""


PEEKS_MAX: Final = 32
"""The number of messages that are read from a packed page before it is opened, which takes as long."""

_IN_MEMORY: Final = Spool()


class BodyPlace(NamedTuple):
    first: int
    messages: int
    at: int
    """The offset from the start of the entry."""
    length: int


class _BodyPage:
    """The messages of 4096 consecutive indexes: packed, or a list with holes, or both. `messages`: the list,
    None while the page is closed. `packed`: all messages of `slots`; None if it would differ from the list.
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
        # At least one other message remains in the page.
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
    """A store of messages in pages, of which all but a few are packed bytes in a spool."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool or _IN_MEMORY
        self._pages: dict[int, _BodyPage] = {}
        self._open: dict[int, None] = {}
        """The pages that are lists, least recently used first."""
        self._latest = -1
        self._next = -1
        """The index after the last message that was fetched."""

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
        # The page is opened unless few of its messages are requested.
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
        # This may also empty the page that publishers fill. The next publish makes it again.
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


RELOCATED_MAX: Final = 1024


class _Put(NamedTuple):
    first: int
    messages: int


class JournalBodies(PagedBodies):
    """`PagedBodies` with the places of its messages in the journal. `recovering`: entries are applied again,
    and messages may be missing, because their latest record comes later in the journal.
    """

    def __init__(self, journal: RecordLog, spool: Spool | None = None) -> None:
        super().__init__(spool)
        self.recovering = False
        self._extents = Extents(journal)
        self._noted: list[_Put | Sequence[int]] = []
        self._readers = 0
        self._dropped: set[int] = set()
        """Messages to be removed when no reader is left."""
        self._abandoned = False
        # Messages put again during recovery that no record read so far contains.
        self._unplaced: set[int] = set()
        # Extents join consecutive indexes: here those of messages that were put in sequence.
        self._end = 0

    def put(self, first: int, messages: Sequence[Message]) -> None:
        super().put(first, messages)
        self._noted.append(_Put(first, len(messages)))

    def put_again(self, index: int, message: Message) -> None:
        if index in self._dropped:
            self._dropped.discard(index)
            super().drop([index])
        if not self.recovering:
            super().put_again(index, message)
            self._noted.append(_Put(index, 1))
        elif index not in self:
            super().put_again(index, message)
            self._unplaced.add(index)

    def drop(self, indexes: Sequence[int]) -> None:
        if self.recovering:
            indexes = [index for index in indexes if index in self]
        if self._readers:
            self._dropped.update(indexes)
        else:
            super().drop(indexes)
        self._noted.append(indexes)

    def clear(self) -> None:
        super().clear()
        self._dropped.clear()
        self._noted.clear()
        if not self._abandoned:
            self._extents.clear()

    def read_all(self, indexes: Sequence[int], size: int) -> Iterator[tuple[int, list[Message]]]:
        """Iterate over (first index, messages) of runs of about `size` bytes. The messages are those of now,
        even if they are dropped before `read_done`.
        """
        self._readers += 1
        return self._runs(indexes, size)

    def _runs(self, indexes: Sequence[int], size: int) -> Iterator[tuple[int, list[Message]]]:
        for start, end in ranges_of(indexes):
            first, bytes_ = start, 0
            run: list[Message] = []
            for index in range(start, end):
                (message,) = self.fetch([index])
                if run and (bytes_ + len(message[1]) > size or len(run) == RELOCATED_MAX):
                    yield first, run
                    first, run, bytes_ = index, [], 0
                run.append(message)
                bytes_ += len(message[1])
            yield first, run

    def read_done(self) -> None:
        self._readers -= 1
        if not self._readers and self._dropped:
            super().drop(sorted(self._dropped))
            self._dropped.clear()

    def abandon(self) -> None:
        """Leave dropped messages in the journal from now on, until `delete`."""
        self._abandoned = True

    def delete(self) -> None:
        self._abandoned = False
        self.clear()

    def placed(self, file: int, places: Sequence[BodyPlace]) -> list[tuple[int, int]]:
        """Apply collected changes after an entry with its record in this file. `places`: those of all its
        messages, accepted or not. Returns runs (first, end) of messages added again that no record contains:
        append them.
        """
        place_of = {place.first: place for place in places}
        unplaced: dict[int, None] = {}
        for each in self._noted:
            if isinstance(each, _Put):
                place = place_of.get(each.first)
                if place is not None:
                    self._place(file, each.first, each.messages, place.length)
                elif each.first in self:
                    unplaced[each.first] = None
            elif each:
                for first, end in ranges_of(sorted(each)):
                    self._extents.remove(first, end)
        self._noted.clear()
        return ranges_of(sorted(unplaced)) if unplaced else []

    def relocated(self, file: int, places: Sequence[BodyPlace]) -> None:
        for place in places:
            self._place(file, place.first, place.messages, place.length)

    def found(self, file: int, place: BodyPlace, messages: Sequence[Message]) -> None:
        """Add messages of a record that is read from the journal. The latest record of an index counts: a
        settled delivery that was given back may have another head.
        """
        for index, message in enumerate(messages, place.first):
            if index in self:
                super().drop([index])
            super().put_again(index, message)
            self._unplaced.discard(index)
        self._place(file, place.first, place.messages, place.length)

    def _place(self, file: int, first: int, messages: int, length: int) -> None:
        self._extents.add(first, messages, file, self._end, length, 0)
        self._end += length

    def in_file(self, file: int) -> Iterator[tuple[int, int]]:
        """Iterate over runs (first, end) of a file, until it has none; the caller relocates each before the
        next.
        """
        while not self._abandoned and (extents := self._extents.of_file(file)):
            run = next(extents[0].live_runs())
            yield run.start, min(run.stop, run.start + RELOCATED_MAX)

    def unplaced(self) -> list[tuple[int, int]]:
        """Return runs (first, end) of messages without a record of their own, for the caller to append."""
        runs = ranges_of(sorted(index for index in self._unplaced if index in self))
        self._unplaced.clear()
        return runs

    def forget(self, places: Sequence[BodyPlace]) -> None:
        """Remove the messages that other records have at the indexes of an entry, before it is applied.
        Messages at later indexes stay: a later state may include them, though their entries are not read
        again.
        """
        for place in places:
            stale = [each for each in range(place.first, place.first + place.messages) if each in self]
            if stale:
                super().drop(stale)
                self._extents.remove(place.first, place.first + place.messages)

    def keep_only(self, indexes: Sequence[int]) -> list[int]:
        """End recovery, remove all other messages, and return the indexes of missing ones."""
        self.recovering = False
        self._noted.clear()
        wanted, there = sorted(indexes), self.indexes()
        missing: set[int] = set()
        if wanted != there:  # deliveries that were settled after the last record of their messages
            missing = set(wanted).difference(there)
            super().drop(sorted(set(there).difference(wanted)))
            wanted = sorted(set(wanted))
        at = 0
        for first, end in (*ranges_of(wanted), (1 << 64, 1 << 64)):
            self._extents.remove(at, first)
            at = end
        return sorted(missing)
