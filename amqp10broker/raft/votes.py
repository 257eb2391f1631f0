"""Counting votes: one of each voter, however often it answers."""

from __future__ import annotations

from amqp10broker.raft.config import Configuration


class Tally:
    """The answers of one election, or of one question for pre-votes."""

    __slots__ = ("_denied", "_granted", "config")

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self._granted: set[int] = set()
        self._denied: set[int] = set()

    def count(self, member: int, *, granted: bool) -> None:
        """An answer, which takes the place of an earlier one. That of a member that is no voter counts for
        nothing.
        """
        if member in self.config.voters:
            now, before = (self._granted, self._denied) if granted else (self._denied, self._granted)
            now.add(member)
            before.discard(member)

    @property
    def won(self) -> bool:
        """A majority of the voters has granted."""
        return len(self._granted) >= self.config.majority

    @property
    def refused(self) -> bool:
        return bool(self._denied)

    @property
    def lost(self) -> bool:
        """A majority cannot be reached any more."""
        return len(self.config.voters) - len(self._denied) < self.config.majority
