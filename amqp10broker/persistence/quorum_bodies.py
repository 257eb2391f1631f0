"""The messages of a durable quorum queue: in pages to be read, in the journal to be there again.

A queue puts and drops messages while it carries out commands; where they are in the journal is known when
the record has been appended. So what happens meanwhile is noted, and worked off then (`placed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from amqp10broker.message.message import Message
from amqp10broker.persistence.extents import Accounts, Extents
from amqp10broker.persistence.quorum_records import Place
from amqp10broker.queues.quorum_bodies import Packs, PagedBodies, ranges_of

RELOCATED_MAX: Final = 1024
"""Messages of one record that cleaning appends."""


class _Put(NamedTuple):
    first: int
    messages: int
    batch: int
    """Which of the batches of the record they begin; -1: they are appended in a record of their own."""


class JournalBodies:
    """A `queues.quorum_bodies.BodyStore` that knows which files of the journal its messages are in.

    Attributes:
        batch: number of the batch in the record that is put next.
        recovering: the past is repeated. Messages may be missing, for the record that has them now
            comes later in the journal.
    """

    def __init__(self, accounts: Accounts, packs: Packs | None = None) -> None:
        self.batch = 0
        self.recovering = False
        self._messages = PagedBodies(packs)
        self._extents = Extents(accounts)
        self._noted: list[_Put | Sequence[int]] = []
        self._abandoned = False
        # What was put again while the past is repeated, and no record read so far has.
        self._homeless: set[int] = set()
        # Extents join what follows each other; here that is what was put one after the other.
        self._end = 0

    def __len__(self) -> int:
        return len(self._messages)

    # --- what the queue asks ------------------------------------------------------------------------

    def put(self, first: int, messages: Sequence[Message]) -> None:
        """See `BodyStore`."""
        self._messages.put(first, messages)
        self._noted.append(_Put(first, len(messages), self.batch))

    def put_again(self, index: int, message: Message) -> None:
        """See `BodyStore`."""
        if not self.recovering:
            self._messages.put_again(index, message)
            self._noted.append(_Put(index, 1, -1))
        elif index not in self._messages:
            self._messages.put_again(index, message)
            self._homeless.add(index)

    def fetch(self, indexes: Sequence[int]) -> list[Message]:
        """See `BodyStore`."""
        return self._messages.fetch(indexes)

    def drop(self, indexes: Sequence[int]) -> None:
        """See `BodyStore`."""
        if self.recovering:
            indexes = [index for index in indexes if index in self._messages]
        self._messages.drop(indexes)
        self._noted.append(indexes)

    def renumber(self, indexes: Sequence[int], first: int) -> None:
        """See `BodyStore`. They are appended again under their new numbers."""
        if self.recovering:
            # A record behind this one has them under the new numbers, if it was written whole.
            for index, new in zip(indexes, range(first, first + len(indexes)), strict=True):
                if index in self._messages:
                    (message,) = self._messages.fetch([index])
                    self.put_again(new, message)
            self.drop(indexes)
            return
        self._messages.renumber(indexes, first)
        self._noted.append(indexes)
        self._noted.append(_Put(first, len(indexes), -1))

    def clear(self) -> None:
        """See `BodyStore`."""
        self._messages.clear()
        self._noted.clear()
        if not self._abandoned:
            self._extents.clear()

    def abandon(self) -> None:
        """Whatever is dropped from now on, the journal is to keep."""
        self._abandoned = True

    # --- where they are -----------------------------------------------------------------------------

    def puts(self) -> list[_Put]:
        """Messages put since the last call of `placed`, in batches of the record."""
        return [each for each in self._noted if isinstance(each, _Put) and each.batch >= 0]

    def orphans(self) -> list[tuple[int, int]]:
        """Runs (first, end) of messages put since then, in no batch of the record, and still there."""
        indexes = sorted(
            index
            for each in self._noted
            if isinstance(each, _Put) and each.batch < 0
            for index in range(each.first, each.first + each.messages)
            if index in self._messages
        )
        return ranges_of(dict.fromkeys(indexes))

    def placed(self, file: int, places: Sequence[Place]) -> None:
        """The record that holds what was put is in this file: work off what was noted."""
        left = iter(places)
        for each in self._noted:
            if isinstance(each, _Put):
                if each.batch >= 0:
                    self._place(file, next(left))
            elif each:
                for first, end in ranges_of(sorted(each)):
                    self._extents.remove(first, end)
        self._noted.clear()

    def relocated(self, file: int, places: Sequence[Place]) -> None:
        """These messages are in this file from now on."""
        for place in places:
            self._place(file, place)

    def found(self, file: int, place: Place, messages: Sequence[Message]) -> None:
        """A record of the journal that is read has these messages.

        The latest record of an index counts: a settled delivery that was given back may have another head.
        """
        for index, message in enumerate(messages, place.first):
            if index in self._messages:
                self._messages.drop([index])
            self._messages.put_again(index, message)
            self._homeless.discard(index)
        self._place(file, place)

    def _place(self, file: int, place: Place) -> None:
        self._extents.add(place.first, place.messages, file, self._end, place.length, 0)
        self._end += place.length

    def in_file(self, file: int) -> Iterator[tuple[int, int]]:
        """Runs (first, end) of at most `RELOCATED_MAX` messages of a file, until it has none.

        The caller has relocated each before it asks for the next.
        """
        while not self._abandoned and (extents := self._extents.of_file(file)):
            run = next(extents[0].live_runs())
            yield run.start, min(run.stop, run.start + RELOCATED_MAX)

    def homeless(self) -> list[tuple[int, int]]:
        """Runs (first, end) of messages that recovery found in no record of their own: append them."""
        runs = ranges_of(sorted(index for index in self._homeless if index in self._messages))
        self._homeless.clear()
        return runs

    def keep_only(self, indexes: Sequence[int]) -> list[int]:
        """Recovery is over: forget everything else. Returns those that are missing."""
        wanted = set(indexes)
        self.recovering = False
        self._noted.clear()
        self._messages.drop([index for index in self._messages.indexes() if index not in wanted])
        at = 0
        for first, end in (*ranges_of(sorted(wanted)), (1 << 64, 1 << 64)):
            self._extents.remove(at, first)
            at = end
        return [index for index in indexes if index not in self._messages]
