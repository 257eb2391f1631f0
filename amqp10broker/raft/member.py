"""The state of a member in every role."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.raft.codec import CONFIG
from amqp10broker.raft.config import ConfigLog, Configuration
from amqp10broker.raft.entries import Hard, Kind, LogStore, Point, Run, Stored
from amqp10broker.raft.messages import Message

_FIRST: Final = itemgetter(0)


class MemberState:
    """The common state of leader and followers (the paper, figure 2). `commit`: up to here the log is
    committed, as far as it knows. `commit_wait_ms`: how long the commit index may wait for an append to go
    with.
    """

    def __init__(self, me: int, stored: Stored, store: LogStore) -> None:
        self.me = me
        self.term = stored.hard.term
        self.vote = stored.hard.vote
        # A hint may be ahead of the entries: nothing orders the two within one write.
        self.commit = max(min(stored.hard.commit, stored.last), stored.point.index)
        self.log = LogView(stored, store)
        self.configs = ConfigLog(stored.point.index, stored.point.config, stored.configs)
        self.suspected: frozenset[int] = frozenset()
        self.outbox: list[Message] = []
        self.commit_wait_ms = 0

    @property
    def hard(self) -> Hard:
        return Hard(self.term, self.vote, self.commit)

    @property
    def config(self) -> Configuration:
        """The newest configuration, committed or not."""
        return self.configs.latest

    @property
    def last(self) -> int:
        return self.log.last

    @property
    def votes(self) -> bool:
        return self.me in self.configs.latest.voters

    @property
    def may_campaign(self) -> bool:
        """Whether it may stand for election. One whose removal is not known to be committed may: the others
        may not be able to win without it (the dissertation, section 4.2.2); its own vote does not count then.
        """
        return self.votes or self.me in self.configs.at(self.commit).voters

    @property
    def reaches_majority(self) -> bool:
        config = self.configs.latest
        return sum(voter not in self.suspected for voter in config.voters) >= config.majority

    def append(self, run: Run) -> None:
        self.log.append(run)
        if run.kind is Kind.CONFIG:
            for index, payload in enumerate(run.payloads, run.first):
                self.configs.append(index, CONFIG.decode(payload))

    def truncate(self, first: int) -> None:
        assert first > self.commit, (first, self.commit)
        self.log.truncate(first)
        self.configs.truncate(first)


class LogView:
    """The log of one member as the core sees it: terms of all entries, as stretches, and the payloads of
    those that are not durable yet.

    Writes are numbered by *tickets*. A durable ticket means that the whole log at its creation is durable. A
    truncation makes that untrue for the removed entries, even if the same index and term come again later, so
    it lowers the index of older tickets. `base`: index of the last entry that a snapshot covers; its term is
    known, and nothing before it. `ticket`: the last one that was handed out; 0 if none.
    """

    __slots__ = (
        "_handed",
        "_store",
        "_terms",
        "_tickets",
        "_unstable",
        "base",
        "last",
        "persisted",
        "stable",
        "ticket",
    )

    def __init__(self, stored: Stored, store: LogStore) -> None:
        point = stored.point
        self.base = point.index
        self.last = self.stable = self._handed = stored.last
        self.ticket = self.persisted = 0
        self._store = store
        self._terms = [(point.index, point.term)]
        for first, term in stored.terms:
            if term != self._terms[-1][1]:
                self._terms.append((first, term))
        self._unstable: list[Run] = []
        self._tickets: deque[tuple[int, int]] | None = None

    @property
    def last_term(self) -> int:
        return self._terms[-1][1]

    def term(self, index: int) -> int | None:
        """The term of an entry; None if it is not there, or only in a snapshot."""
        if not self.base <= index <= self.last:
            return None
        terms = self._terms
        if index >= terms[-1][0]:
            return terms[-1][1]
        return terms[bisect_right(terms, index, key=_FIRST) - 1][1]

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """A log that ends so has all that this one may have to keep (the paper, section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last)

    def agreement(self, index: int, term: int) -> int:
        """Return the largest index up to `index` at which no entry has a term above `term`. Where two logs
        differ at an index, they cannot agree behind the result for the other's term. It skips a term at a
        time (the paper, end of section 5.3).
        """
        index = min(index, self.last)
        for first, of in reversed(self._terms):
            if first <= index:
                if of <= term:
                    return index
                index = first - 1
        return min(index, self.base)

    def conflict(self, runs: Iterable[Run]) -> int | None:
        """The first index of these consecutive entries at which the log has another entry, or none. `runs`:
        the entry in front of them is in the log, as it is in theirs. Returns None if the log has them all.
        """
        for run in runs:
            if self.term(run.first) != run.term:
                return run.first
            end = self._end_of_term(run.first)
            if end < run.last:
                return end + 1
        return None

    def append(self, run: Run) -> None:
        assert run.first == self.last + 1, (run.first, self.last)
        if run.term != self._terms[-1][1]:
            self._terms.append((run.first, run.term))
        self._unstable.append(run)
        self.last = run.last

    def truncate(self, first: int) -> None:
        assert first > self.base, (first, self.base)
        last = first - 1
        while self._terms[-1][0] > last:
            self._terms.pop()
        self._unstable = [run.until(last) for run in self._unstable if run.first <= last]
        self.last = last
        self._handed = min(self._handed, last)
        self._lower(last)

    def entries(self, first: int, size: int) -> tuple[Run, ...]:
        """Entries from `first` on, about `size` bytes of payloads, and one at least if there is one. `first`:
        behind `base`, and at most one behind `last`.
        """
        if first <= self.stable:
            return _some(self._store.read(first, self.stable, size), first, size)
        return _some(self._unstable, first, size)

    def hand_out(self) -> tuple[Run, ...]:
        if self._handed == self.last:
            return ()
        first = self._handed + 1
        self._handed = self.last
        newest = self._unstable[-1]
        if newest.first == first:
            return (newest,)
        return tuple(run.since(first) for run in self._unstable if run.last >= first)

    def issue(self) -> int:
        self.ticket += 1
        if self._tickets is None:
            self._tickets = deque()
        self._tickets.append((self.ticket, self._handed))
        return self.ticket

    def persist(self, ticket: int) -> None:
        assert ticket <= self.ticket, f"ticket {ticket} was not handed out"
        self.persisted = max(self.persisted, ticket)
        tickets = self._tickets
        while tickets and tickets[0][0] <= ticket:
            self.stable = max(self.stable, tickets.popleft()[1])
        if not tickets:
            self._tickets = None
        unstable = self._unstable
        if self.stable == self.last:
            unstable.clear()
        elif unstable and unstable[0].first <= self.stable:
            self._unstable = [run.since(self.stable + 1) for run in unstable if run.last > self.stable]

    def compact(self, index: int) -> None:
        assert self.base <= index <= self.stable, (self.base, index, self.stable)
        term = self.term(index)
        assert term is not None
        self._terms = [(index, term), *(each for each in self._terms if each[0] > index)]
        self.base = index

    def restore(self, point: Point, stable: int) -> None:
        """Replace the whole log by a snapshot. `stable`: the durable index until the snapshot is durable: not
        above the commit index.
        """
        self._terms = [(point.index, point.term)]
        self._unstable = []
        self.base = self.last = self._handed = point.index
        self._lower(stable)

    def _lower(self, last: int) -> None:
        self.stable = min(self.stable, last)
        if self._tickets:
            self._tickets = deque((ticket, min(until, last)) for ticket, until in self._tickets)

    def _end_of_term(self, index: int) -> int:
        behind = bisect_right(self._terms, index, key=_FIRST)
        return self._terms[behind][0] - 1 if behind < len(self._terms) else self.last


def _some(runs: Sequence[Run], first: int, size: int) -> tuple[Run, ...]:
    # The entries of `runs` from `first` on that `size` bytes hold, and one at least.
    taken: list[Run] = []
    for run in runs:
        if run.last < first:
            continue
        wanted = run.since(first)
        part = wanted.within(size)
        if taken and part.size > size:
            break
        taken.append(part)
        size -= part.size
        if part is not wanted or size <= 0:
            break
    return tuple(taken)
