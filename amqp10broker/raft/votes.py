"""Counting votes: one of each voter, however often it answers."""

from __future__ import annotations

from amqp10broker.raft.config import Configuration


class Tally:
    """The answers of one election, or of one round of pre-votes."""

    __slots__ = ("_config", "_denied", "_granted")

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._granted: set[int] = set()
        self._denied: set[int] = set()

    def count(self, member: int, *, granted: bool) -> None:
        """An answer. That of a member that is no voter counts for nothing."""
        if member in self._config.voters:
            (self._granted if granted else self._denied).add(member)

    @property
    def won(self) -> bool:
        """A majority of the voters has granted."""
        return len(self._granted) >= self._config.majority

    @property
    def lost(self) -> bool:
        """A majority cannot be reached any more."""
        return len(self._config.voters) - len(self._denied) < self._config.majority
