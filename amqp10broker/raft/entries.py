"""What the log of a group consists of, and what a store has of a member: entries, configurations, snapshots.

Entries go through the room as *runs*: consecutive entries of one term and kind. What a step brings is one
run, so 256 proposals cost little more than one. Members change one at a time (the dissertation, chapter 4).

What a member refuses::

    RaftError
    |-- NotLeader        ask the leader, if one is known
    |-- NotReady         it leads, and takes nothing now: try again
    |-- Full             too much is waiting to be committed: try again when something is
    `-- ChangeRefused    a change of members, or a transfer, that cannot be begun now, or at all
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError


class RaftError(BrokerError):
    """Any error of this room that is not a fault in its own code."""


class NotLeader(RaftError):
    """Another member leads, or none. `leader`: the member to ask; None if none is known."""

    def __init__(self, leader: int | None) -> None:
        super().__init__(
            "this member does not lead; " + (f"ask member {leader}" if leader else "none is known")
        )
        self.leader = leader


class NotReady(RaftError):
    """This member leads, and accepts no proposals for the moment; the message gives the reason."""


class Full(RaftError):
    """Uncommitted proposals have reached their bound; grant no credit until some are committed."""


class ChangeRefused(RaftError):
    """A change of members or a transfer cannot begin; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group. Ids are 1 to 2**64 - 1, ascending; none stands twice."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    """They get the log; they count for no majority and never stand for election."""

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


@dataclass(frozen=True, slots=True)
class Add:
    """A new member, as a learner."""

    member: int


@dataclass(frozen=True, slots=True)
class Promote:
    """A learner that has caught up becomes a voter."""

    member: int


@dataclass(frozen=True, slots=True)
class Remove:
    """A member goes: the leader, too, when the change is committed."""

    member: int


Change = Add | Promote | Remove


def changed(config: Configuration, change: Change) -> Configuration:
    """The configuration after a change. Raises `ChangeRefused` if it changes nothing or leaves no voter."""
    member = change.member
    voters, learners = set(config.voters), set(config.learners)
    match change:
        case Add():
            if member in voters or member in learners:
                raise ChangeRefused(f"{member} is a member already")
            learners.add(member)
        case Promote():
            if member not in learners:
                raise ChangeRefused(f"{member} is no learner; add it first")
            learners.remove(member)
            voters.add(member)
        case Remove():
            if member not in voters and member not in learners:
                raise ChangeRefused(f"{member} is no member")
            if voters == {member}:
                raise ChangeRefused(f"{member} is the last voter")
            voters.discard(member)
            learners.discard(member)
        case _:
            assert_never(change)
    return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


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
