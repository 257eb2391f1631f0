"""A quorum queue as a group of one on a journal in a list: what is asked is committed and applied at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.messages import Status
from tests.support.memory_journal import MemoryJournal

GROUP = 7


class Alone:
    """Reads the journal, and goes on; a `GroupMachine`."""

    def __init__(
        self,
        journal: MemoryJournal,
        settings: QueueSettings = DEFAULTS,
        now_ms: int = 1000,
        *,
        incarnation: int = 1,
    ) -> None:
        self.store = store_on(journal, incarnation=incarnation)
        self.store.restore(journal.records)
        self.queue: QuorumQueue = self.store.recovered(settings, now_ms)
        self._committed = 0
        groups = Groups(lambda: 0, lambda *_: None)
        self.member = Member(GROUP, self.store.me, self.store, self, groups, lambda: 0.5)
        groups.add(self.member)
        self.member.campaign()
        self.member.advance()
        self._apply()
        assert self.member.leads

    def carry_out(self, commands: Sequence[QuorumCommand], now_ms: int) -> None:
        proposal = self.store.propose(commands, now_ms)
        self.member.raft.propose([proposal.payload])
        self.member.advance()
        self._apply()

    def _apply(self) -> None:
        while self.store.apply(self._committed) is not None:
            pass

    def committed(self, index: int) -> None:
        self._committed = index

    def status(self, status: Status) -> None:
        """See `GroupMachine`."""

    def snapshot_for(self, to: int) -> None:
        raise AssertionError("there is nobody else")


def at_once(ticket: int, callback: Callable[[], None]) -> None:
    callback()


def store_on(journal: MemoryJournal, *, incarnation: int = 1) -> QuorumStore:
    return QuorumStore(GROUP, "q", journal, when_durable=at_once, incarnation=incarnation)
