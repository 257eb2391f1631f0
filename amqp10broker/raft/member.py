"""The state of a member in every role."""

from __future__ import annotations

from amqp10broker.raft.codec import CONFIG
from amqp10broker.raft.config import ConfigLog
from amqp10broker.raft.entries import Hard, Kind, LogStore, Run, Stored
from amqp10broker.raft.log_view import LogView
from amqp10broker.raft.messages import Message


class Member:
    """The common state of leader and followers (the paper, figure 2). `commit`: up to here the log is
    committed, as far as it knows. `commit_wait_ms`: how long the commit index may wait for an append to go
    with.
    """

    __slots__ = ("commit", "commit_wait_ms", "configs", "log", "me", "outbox", "suspected", "term", "vote")

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
        """The state that must be durable."""
        return Hard(self.term, self.vote, self.commit)

    @property
    def votes(self) -> bool:
        """It is a voter by the newest configuration."""
        return self.me in self.configs.latest.voters

    @property
    def may_campaign(self) -> bool:
        """Whether it may stand for election.

        A member whose removal is not known to be committed may: the others may not be able to win without it
        (the dissertation, section 4.2.2). It does not count its own vote then.
        """
        return self.votes or self.me in self.configs.at(self.commit).voters

    @property
    def reaches_majority(self) -> bool:
        """Whether its node reaches a majority."""
        config = self.configs.latest
        return sum(voter not in self.suspected for voter in config.voters) >= config.majority

    def append(self, run: Run) -> None:
        """Entries behind the last; a configuration is in force from here on."""
        self.log.append(run)
        if run.kind is Kind.CONFIG:
            for index, payload in enumerate(run.payloads, run.first):
                self.configs.append(index, CONFIG.decode(payload))

    def truncate(self, first: int) -> None:
        """Entries from this index on are another leader's, and were never committed."""
        assert first > self.commit, (first, self.commit)
        self.log.truncate(first)
        self.configs.truncate(first)
