"""How a quorum queue keeps what it decides: in memory, or as entries of a log in the journal.

Without a data folder effects are told at once. With one, the commands of a wake are appended to the journal
as one entry, and nobody hears what they did before that is durable; the next wakes are worked off meanwhile.
So everybody who was told something may rely on it after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from amqp10broker.persistence.keeper import Commits, Keeper
from amqp10broker.persistence.quorum_store import QuorumStore
from amqp10broker.queues.commands import TICK, Command, GiveBack, PeerId, Unsubscribe
from amqp10broker.queues.effects import Confirmed, DeadLetters, Deliver, Effect, Unconfirmed
from amqp10broker.queues.outlook import Outlook, Progress
from amqp10broker.queues.quorum.commands import CHANGES_NOTHING, QuorumCommand, joined
from amqp10broker.queues.quorum.dead_letters import DeadMessage
from amqp10broker.queues.quorum.queue import QuorumQueue


class Told(NamedTuple):
    """What one wake has to tell."""

    ticket: int
    """Of the entry that must be durable first."""
    effects: dict[PeerId, list[Effect]]
    dead_letters: Sequence[DeadLetters]
    dead: list[DeadMessage]
    at_ms: int
    """When it was decided."""


class QuorumInMemory(Keeper[QuorumQueue]):
    """Keeps nothing."""

    __slots__ = ()

    def carry_out(self, commands: list[Command], now_ms: int) -> None:
        """See `Keeper`."""
        if commands:
            decided = joined(commands)
            if isinstance(decided[0], CHANGES_NOTHING):
                due_ms = self.queue.deadline()
                if due_ms is not None and due_ms <= now_ms:
                    decided.insert(0, TICK)  # time does not pass with it, and passes before whatever follows
            self._decide(decided, now_ms)

    def _decide(self, commands: list[QuorumCommand], now_ms: int) -> None:
        for command in commands:
            self.queue.apply(command, now_ms)

    def tell(self) -> None:
        """See `Keeper`."""
        told = self._take(0, 0)
        self.hand_over(told.effects, told.dead_letters, told.dead)

    def _take(self, ticket: int, now_ms: int) -> Told:
        queue = self.queue
        dead = [] if queue.deleted or not queue.dlx else queue.take_dlx()
        return Told(ticket, queue.take_effects(), queue.take_dead_letters(), dead, now_ms)


class QuorumInJournal(QuorumInMemory):
    """Appends an entry, has it applied, and tells what came of it when the entry is durable."""

    __slots__ = ("_commits", "_seen", "_store", "_told")

    def __init__(self, queue: QuorumQueue, commits: Commits, store: QuorumStore) -> None:
        """Keep for a queue.

        Args:
            queue: only its settings are of use.
            commits: has the journal.
            store: the queue's part of it.
        """
        super().__init__(queue, commits)
        self._commits = commits
        self._store = store
        self._told: deque[Told] = deque()
        self._seen = 0  # the ticket of which `keep` has heard

    @property
    def busy(self) -> bool:
        """See `Keeper`: dead letters are handed on when they are durable."""
        return bool(self._told)

    @property
    def owed(self) -> int | None:
        """See `Keeper`."""
        return self._told[0].ticket if self._told else None

    def recover(self, now_ms: int) -> Iterator[int]:
        """See `Keeper`."""
        self.queue = self._store.recovered(self.queue.settings, now_ms)
        self.recovered = True
        self.wake()  # what came back may have died of it
        return iter(())

    def _decide(self, commands: list[QuorumCommand], now_ms: int) -> None:
        if all(isinstance(each, CHANGES_NOTHING) for each in commands):
            super()._decide(commands, now_ms)
        else:
            self._store.carry_out(self._without_copies(commands), now_ms)

    def _without_copies(self, commands: list[QuorumCommand]) -> list[QuorumCommand]:
        """Leave messages that come back and are here out of the log; settled ones may not be here."""
        has = self.queue.has_copies_for
        for at, command in enumerate(commands):
            if type(command) is GiveBack and command.messages and has(command.consumer):
                commands[at] = replace(command, messages=())
            elif type(command) is Unsubscribe and command.unsent_messages and has(command.consumer):
                commands[at] = replace(command, unsent_messages=())
        return commands

    def delete(self) -> None:
        """See `Keeper`."""
        self._store.delete()
        self._commits.forget(self._store.group)

    def keep(self, now_ms: int) -> None:
        """See `Keeper`."""
        ticket = self._store.ticket
        told = self._take(ticket, now_ms)
        if told.effects or told.dead_letters or told.dead:
            self._told.append(told)
            if ticket > self._commits.journal.durable:
                self._commits.when_durable(ticket, self.wake)
        elif ticket > self._seen:
            self._commits.write_soon()
        self._seen = ticket

    def tell(self) -> None:
        """See `Keeper`."""
        durable = self._commits.journal.durable
        while self._told and self._told[0].ticket <= durable:
            told = self._told.popleft()
            self.hand_over(told.effects, told.dead_letters, told.dead)

    def outlook(self) -> Outlook:
        """See `Keeper`."""
        told = self._told
        effects = [each for entry in told for batch in entry.effects.values() for each in batch]
        since_ms = told[0].at_ms if told else None
        outlook = replace(
            self.queue.outlook(),
            unsynced=sum(len(each.keys) for each in effects if isinstance(each, Deliver)),
            unsynced_ms=since_ms,
            unconfirmed=sum(len(each.ids) for each in effects if isinstance(each, Confirmed)),
            unconfirmed_ms=since_ms,
        )
        return self.admission.told(outlook)

    def progress(self, *, busy: bool) -> Progress:
        """See `Keeper`."""
        waits = bool(self._told or self.admission.waiting)
        return self._commits.progress(busy=busy, waits=waits)

    def storage_failed(self) -> None:
        """See `Keeper`: what has not been told, because it is not durable, never will be."""
        for told in self._told:
            for reply_to, batch in told.effects.items():
                refused: list[Effect] = [
                    Unconfirmed(each.publisher, each.ids, each.settled, failed=True, queue=self.queue.name)
                    for each in batch
                    if isinstance(each, Confirmed)
                ]
                if refused:
                    self.hand_over({reply_to: refused})
        self._told.clear()

    def abandon(self) -> None:
        """See `Keeper`."""
        self._store.abandon()
        self._commits.abandoned(self._store.group)
        self.tell()
        self.storage_failed()
