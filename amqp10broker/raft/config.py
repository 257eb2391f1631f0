"""Membership of a group, and its changes: one member at a time (the dissertation, chapter 4).

A configuration is in force as soon as it is in the log, committed or not, and a truncation removes it. So the
log's configurations are a list, back to the one in force at the last snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.errors import ChangeRefused


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


class ConfigLog:
    """The configurations in the log, oldest first."""

    __slots__ = ("_entries",)

    def __init__(
        self, index: int, config: Configuration, behind: Sequence[tuple[int, Configuration]]
    ) -> None:
        self._entries = [(index, config), *behind]

    @property
    def latest(self) -> Configuration:
        return self._entries[-1][1]

    @property
    def index(self) -> int:
        return self._entries[-1][0]

    def at(self, index: int) -> Configuration:
        """In force when this was the last entry; not before the last `compact`."""
        return next(config for first, config in reversed(self._entries) if first <= index)

    def append(self, index: int, config: Configuration) -> None:
        self._entries.append((index, config))

    def truncate(self, first: int) -> None:
        while self._entries[-1][0] >= first:
            self._entries.pop()

    def compact(self, index: int) -> None:
        """Nothing before this index will be asked for."""
        config = self.at(index)
        self._entries = [(index, config), *(each for each in self._entries if each[0] > index)]

    def restore(self, index: int, config: Configuration) -> None:
        self._entries = [(index, config)]
