"""The places of a Raft log's entries in the journal.

It takes 8 bytes an entry, and a stretch for each file and each term: a queue has hundreds of thousands of
entries between two states.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter, itemgetter

from amqp10broker.raft.entries import Kind


class _Stretch:
    __slots__ = ("file", "first", "offsets")

    def __init__(self, first: int, file: int, offset: int) -> None:
        self.first = first
        self.file = file
        self.offsets = array("Q", (offset,))

    @property
    def end(self) -> int:
        return self.first + len(self.offsets)


_FIRST = attrgetter("first")
_INDEX = itemgetter(0)


class EntryIndex:
    """The index of one group. Entries are added in the order of their indexes, without gaps."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._terms: list[tuple[int, int, Kind]] = []

    def add(self, index: int, term: int, kind: Kind, file: int, offset: int) -> None:
        terms = self._terms
        if not terms or terms[-1][1] != term or terms[-1][2] is not kind:
            terms.append((index, term, kind))
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.file == file:
            last.offsets.append(offset)
        else:
            self._stretches.append(_Stretch(index, file, offset))

    def truncate(self, first: int) -> None:
        while self._stretches and self._stretches[-1].first >= first:
            self._stretches.pop()
        if self._stretches:
            last = self._stretches[-1]
            del last.offsets[first - last.first :]
        while self._terms and self._terms[-1][0] >= first:
            self._terms.pop()

    def move(self, index: int, file: int, offset: int) -> None:
        """Change the place of an entry that was appended again; then of those behind it, in order."""
        at = bisect_right(self._stretches, index, key=_FIRST) - 1
        before = self._stretches[at]
        behind = before.offsets[index - before.first + 1 :]
        del before.offsets[index - before.first :]
        parts: list[_Stretch] = [before] if before.offsets else []
        if parts and before.file == file:
            before.offsets.append(offset)
        elif not parts and at and self._stretches[at - 1].file == file:
            self._stretches[at - 1].offsets.append(offset)
        else:
            parts.append(_Stretch(index, file, offset))
        if behind:
            rest = _Stretch(index + 1, before.file, behind[0])
            rest.offsets = behind
            parts.append(rest)
        self._stretches[at : at + 1] = parts

    def clear(self) -> None:
        self._stretches.clear()
        self._terms.clear()

    def forget_until(self, index: int) -> None:
        while self._stretches and self._stretches[0].end <= index + 1:
            del self._stretches[0]
        if self._stretches and self._stretches[0].first <= index:
            first = self._stretches[0]
            del first.offsets[: index + 1 - first.first]
            first.first = index + 1
        if not self._stretches:
            self._terms.clear()
        while len(self._terms) > 1 and self._terms[1][0] <= index + 1:
            del self._terms[0]

    def last_in(self, file: int) -> int | None:
        ends = [each.end for each in self._stretches if each.file <= file]
        return max(ends) - 1 if ends else None

    def kind(self, index: int) -> tuple[int, Kind]:
        _, term, kind = self._terms[bisect_right(self._terms, index, key=_INDEX) - 1]
        return term, kind

    def terms(self, behind: int) -> Iterator[tuple[int, int, Kind]]:
        """Iterate over (first index, term, kind) of the stretches of one term and kind behind an index."""
        for at, (first, term, kind) in enumerate(self._terms):
            following = self._terms[at + 1][0] if at + 1 < len(self._terms) else None
            if following is None or following > behind + 1:
                yield max(first, behind + 1), term, kind

    def places(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        at = bisect_right(self._stretches, first, key=_FIRST) - 1
        while first <= last:
            stretch = self._stretches[at]
            for index in range(first, min(last + 1, stretch.end)):
                yield index, stretch.file, stretch.offsets[index - stretch.first]
            first = stretch.end
            at += 1
