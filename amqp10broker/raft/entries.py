"""Entries of the log, and what a group's store hands over at a start.

Entries go through the room as *runs*: consecutive entries of one term and kind. What a wake brings is one
run, so 256 proposals cost little more than one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.config import Configuration


class Kind(enum.IntEnum):
    """The kind of an entry's payload."""

    EMPTY = 0
    """Nothing: the first entry of a leader's term (the paper, section 8)."""
    COMMAND = 1
    CONFIG = 2


class Run(NamedTuple):
    """Consecutive entries of one term and kind. A tuple, because one is made a proposal."""

    first: int
    """Index of the first, 1 or more."""
    term: int
    kind: Kind
    payloads: tuple[bytes, ...]
    size: int

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1

    def since(self, index: int) -> Run:
        """The part from this index on, which is at most `last`."""
        if index <= self.first:
            return self
        return run_of(index, self.term, self.kind, self.payloads[index - self.first :])

    def until(self, index: int) -> Run:
        """The part up to this index, which is at least `first`."""
        if index >= self.last:
            return self
        return run_of(self.first, self.term, self.kind, self.payloads[: index - self.first + 1])

    def within(self, size: int) -> Run:
        """As many of the first entries as these bytes hold, and one at least."""
        if self.size <= size:
            return self
        total = count = 0
        for payload in self.payloads:
            total += len(payload)
            if total > size:
                break
            count += 1
        return self.until(self.first + max(count, 1) - 1)


def run_of(first: int, term: int, kind: Kind, payloads: tuple[bytes, ...]) -> Run:
    """A run; its size is counted."""
    return Run(first, term, kind, payloads, sum(map(len, payloads)))


@dataclass(slots=True)
class Point:
    """A place in the log that a snapshot covers. Not frozen: one is made an entry. It is never changed."""

    index: int
    """Of the last entry that is part of the state; 1 for the state in which a group begins."""
    term: int
    config: Configuration
    """In force *at that index*, not the newest there was (the dissertation, section 5.1.2)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state to begin with instead of the entries before it."""

    point: Point
    data: bytes
    """The state, or whatever the shell finds it by; the room hands it on unread."""


@dataclass(frozen=True, slots=True)
class Hard:
    """The state that must be durable before messages depend on it (the paper, figure 2: persistent state)."""

    term: int
    vote: int | None
    """For whom this member voted in `term`."""
    commit: int
    """A hint, so that a start applies at once: at least this much is committed. Never written for itself."""


@dataclass(frozen=True, slots=True)
class Stored:
    """All that is durable of a member when it starts."""

    point: Point
    hard: Hard
    last: int
    """Index of the last entry; that of `point` if there is none behind it."""
    terms: Sequence[tuple[int, int]] = ()
    """(first index, term) of each stretch of equal terms behind `point`, ascending."""
    configs: Sequence[tuple[int, Configuration]] = ()
    """(index, configuration) of each entry of kind CONFIG behind `point`, ascending."""


def new_group(config: Configuration) -> Stored:
    """Return the initial state of each first member of a group; all start from the same. It counts as a
    snapshot at index 1. So a member that is added later, and is empty, gets a snapshot first, and with it a
    configuration: its log always has a known initial configuration.
    """
    return Stored(Point(1, 0, config), Hard(0, None, 0), 1)


def new_member() -> Stored:
    return Stored(Point(0, 0, Configuration(())), Hard(0, None, 0), 0)


class LogStore(Protocol):
    """Where entries are that are durable."""

    def read(self, first: int, last: int, size: int, /) -> Sequence[Run]:
        """Entries from index `first` on. `size`: bytes of payloads to read, about; one entry at least."""
