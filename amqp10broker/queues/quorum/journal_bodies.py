"""The messages of a durable quorum queue, in pages for reading and in the journal for recovery.

A queue adds and removes messages while it applies an entry; the entry's record holds them. So these changes
are collected, and applied to the index of the journal then (`placed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.extents import Extents, ranges_of
from amqp10broker.queues.journal import RecordLog
from amqp10broker.queues.quorum.bodies import PagedBodies
from amqp10broker.queues.quorum.command_codec import Place
from amqp10broker.queues.spool import Spool

RELOCATED_MAX: Final = 1024


class _Put(NamedTuple):
    first: int
    messages: int


class JournalBodies(PagedBodies):
    """`PagedBodies` with the places of its messages in the journal. `recovering`: entries are applied again.
    Messages may be missing, since their present record comes later in the journal.
    """

    def __init__(self, journal: RecordLog, spool: Spool | None = None) -> None:
        super().__init__(spool)
        self.recovering = False
        self._extents = Extents(journal)
        self._noted: list[_Put | Sequence[int]] = []
        self._readers = 0
        self._dropped: set[int] = set()
        """To be forgotten when no reader is left."""
        self._abandoned = False
        # Messages put again during recovery that no record read so far contains.
        self._unplaced: set[int] = set()
        # Extents join consecutive indexes; here the messages that were put one after the other.
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
        """Iterate over (first index, messages) of runs of about `size` bytes, as they are now, even if they
        are dropped meanwhile, until `read_done`.
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

    def placed(self, file: int, places: Sequence[Place]) -> list[tuple[int, int]]:
        """Apply collected changes after an entry with its record in this file. `places`: of all its messages,
        accepted or not. Returns runs (first, end) of messages put again that are in no record: append them.
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
        return ranges_of(sorted(unplaced))

    def relocated(self, file: int, places: Sequence[Place]) -> None:
        for place in places:
            self._place(file, place.first, place.messages, place.length)

    def found(self, file: int, place: Place, messages: Sequence[Message]) -> None:
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
        """Iterate over runs (first, end) of at most `RELOCATED_MAX` messages of a file, until it has none.
        The caller must relocate each run before the next.
        """
        while not self._abandoned and (extents := self._extents.of_file(file)):
            run = next(extents[0].live_runs())
            yield run.start, min(run.stop, run.start + RELOCATED_MAX)

    def unplaced(self) -> list[tuple[int, int]]:
        """Return runs (first, end) of messages that recovery found in no record of their own: append them."""
        runs = ranges_of(sorted(index for index in self._unplaced if index in self))
        self._unplaced.clear()
        return runs

    def forget(self, places: Sequence[Place]) -> None:
        """Remove what other records have of the messages of an entry that is about to be applied. Messages
        behind them stay: a later state may include them, though their entries are not read again.
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
        if wanted != there:  # deliveries that were settled behind the last record of their messages
            missing = set(wanted).difference(there)
            super().drop(sorted(set(there).difference(wanted)))
            wanted = sorted(set(wanted))
        at = 0
        for first, end in (*ranges_of(wanted), (1 << 64, 1 << 64)):
            self._extents.remove(at, first)
            at = end
        return sorted(missing)
