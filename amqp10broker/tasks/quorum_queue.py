"""One quorum queue's task: letters in, the machine applied, its log kept, effects to whom they concern.

Without a data folder effects are told at once. With one, what a wake has decided is appended to the
journal as one record, and nobody hears of it before that is durable; the next wakes are worked off
meanwhile. So everybody who was told something may rely on it after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import trio

from amqp10broker.queues.commands import (
    TICK,
    Command,
    Configure,
    Delete,
    GiveBack,
    PeerId,
    Publish,
    Purge,
    Unsubscribe,
)
from amqp10broker.queues.effects import Confirmed, DeadLetters, Deliver, Effect, Unconfirmed
from amqp10broker.queues.figures import QueueFigures
from amqp10broker.queues.outlook import Outlook, Progress
from amqp10broker.queues.quorum.commands import DlxSettle, QuorumCommand, joined
from amqp10broker.queues.quorum.dead_letters import DeadMessage
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.service.at_least_once_dead_letters import Destination
from amqp10broker.tasks.admission import Admission
from amqp10broker.tasks.askers import Askers
from amqp10broker.tasks.clock import WallClock
from amqp10broker.tasks.dead_letter import DeadLetterWorker
from amqp10broker.tasks.mail import QueueLetter
from amqp10broker.tasks.mailbox import Mailbox
from amqp10broker.tasks.queue import LetterBox, refuse

if TYPE_CHECKING:
    from amqp10broker.persistence.quorum_store import QuorumStore
    from amqp10broker.tasks.keeping import Keeping

MakeWorker = Callable[[Destination, Callable[[Sequence[int]], None]], DeadLetterWorker]
"""Starts what forwards dead messages at least once: to where, and how the queue hears that they arrived."""


class Told(NamedTuple):
    """What one wake has to tell."""

    ticket: int
    """Of the record that must be durable first."""
    effects: dict[PeerId, list[Effect]]
    dead_letters: list[DeadLetters]
    dead: list[DeadMessage]
    at_ms: int
    """When it was decided."""


class RunningQuorum(LetterBox):
    """A quorum queue and its task; also the `QueueHandle` by which sessions reach it.

    Attributes:
        queue: the state machine; only this task applies commands, others read counts.
        begun: set when it has what it had before the start, or a fault has ended it.
        dead_lettered: messages that it gave up for its dead-letter exchange, by reason.
    """

    __slots__ = (
        "_admission",
        "_askers",
        "_at_work",
        "_clock",
        "_delay_s",
        "_due_ms",
        "_keeping",
        "_mailbox",
        "_make_worker",
        "_on_dead_letters",
        "_on_deleted",
        "_outlook",
        "_ready",
        "_store",
        "_told",
        "_worker",
        "begun",
        "dead_lettered",
        "queue",
    )

    def __init__(
        self,
        queue: QuorumQueue,
        askers: Askers,
        clock: WallClock,
        on_deleted: Callable[[RunningQuorum], None],
        on_dead_letters: Callable[[list[DeadLetters]], None],
        make_worker: MakeWorker,
        *,
        confirm_delay_ms: int = 0,
        keeping: Keeping | None = None,
        store: QuorumStore | None = None,
    ) -> None:
        """Make a queue ready to run.

        Args:
            queue: its state; with a store, only its settings are of use.
            askers: who may ask it.
            clock: the time.
            on_deleted: called when the queue is gone, before anybody hears of it; perhaps again.
            on_dead_letters: called with what is to be handed on at most once.
            make_worker: called once, when the first message is to be handed on at least once.
            confirm_delay_ms: fault injection: every batch takes this long to commit.
            keeping: where the log is kept; None: nowhere.
            store: the queue's part of it.
        """
        self.queue = queue
        self.begun = trio.Event()
        self.dead_lettered: dict[str, int] = {}
        self._askers = askers
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_dead_letters = on_dead_letters
        self._make_worker = make_worker
        self._delay_s = confirm_delay_ms / 1000
        self._keeping = keeping
        self._store = store
        self._admission = Admission(None if store is None else keeping, self._wake)
        self._mailbox: Mailbox[list[QuorumCommand]] = Mailbox()
        self._at_work: list[list[QuorumCommand]] = []
        self._due_ms: int | None = None
        self._told: deque[Told] = deque()
        self._worker: DeadLetterWorker | None = None
        self._ready = store is None
        self._outlook: Outlook | None = None

    @property
    def busy(self) -> bool:
        """See `LetterBox`: dead letters are handed on when they are durable."""
        return self._mailbox.waiting > 0 or bool(self._at_work) or bool(self._told)

    def post(self, command: Command) -> None:
        """Put one letter."""
        self._put([command])

    def post_all(self, commands: QueueLetter) -> None:
        """Put several commands of one sender as one letter."""
        self._put(cast("list[QuorumCommand]", commands))

    def _put(self, commands: list[QuorumCommand]) -> None:
        if not self._mailbox.put(commands):
            # A deleted queue has no task any more; see `RunningQueue.post_all`.
            now_ms = self._clock.now_ms()
            for command in commands:
                self.queue.apply(command, now_ms)
                if type(command) is Delete and self._store is not None and self._keeping is not None:
                    # It had failed, and what it left was still kept for the next start.
                    self._on_deleted(self)
                    self._keeping.forget(self._store.group)
            self._tell(self._take(0))

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer."""
        return self.queue.ready

    def outlook(self) -> Outlook:
        """See `QueueHandle`. Made once a wake at most, however many ask."""
        if self._outlook is None:
            outlook, told = self.queue.outlook(), self._told
            effects = [each for entry in told for batch in entry.effects.values() for each in batch]
            outlook = replace(
                outlook,
                unsynced=sum(len(each.keys) for each in effects if isinstance(each, Deliver)),
                unsynced_ms=told[0].at_ms if told else None,
                unconfirmed=sum(len(each.ids) for each in effects if isinstance(each, Confirmed)),
                unconfirmed_ms=told[0].at_ms if told else None,
            )
            self._outlook = self._admission.told(outlook)
        return self._outlook

    def progress(self) -> Progress:
        """See `QueueHandle`."""
        busy = self._mailbox.waiting > 0 or bool(self._at_work)
        keeping = self._keeping
        if keeping is None or self._store is None:
            return Progress(busy)
        return keeping.progress(self._clock, busy=busy, waits=bool(self._told or self._admission.waiting))

    @property
    def unsettled(self) -> int:
        """See `QueueHandle`."""
        return self.queue.unsettled

    def figures(self) -> QueueFigures:
        """See `QueueHandle`."""
        return self.queue.figures(self.dead_lettered)

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the queue is deleted, or cancelled."""
        try:
            await self._recover()
        finally:
            self.begun.set()
        while not self.queue.deleted:
            letters = await self._next_letters()
            letters = self._at_work = self._admission.admitted(letters, self._clock.now_ms())
            self._outlook = None
            commands = joined(command for letter in letters for command in letter)
            self._work(commands)
            if self._delay_s and any(type(command) is Publish for command in commands):
                await trio.sleep(self._delay_s)
            self._tell_what_is_durable()
            self._at_work = []
        await self._tell_the_rest()
        if self._worker is not None:
            self._worker.end()
        waiting: list[QuorumCommand] = [*self._admission.take()]
        for letter in (waiting, *self._mailbox.close()):
            self._put(letter)

    async def _recover(self) -> None:
        """Begin with what was there before a restart."""
        keeping, store = self._keeping, self._store
        if keeping is not None and store is not None:
            await keeping.recovered.wait()
            self.queue = store.recovered(self.queue.settings, self._clock.now_ms())
            self._ready = True
            self._outlook = None
            # Power may have gone when its end was durable here, and not yet in the catalog.
            self._forget_if_deleted()
            # What came back may have died of it.
            self._tell_when_durable(store.ticket)

    async def _next_letters(self) -> list[list[QuorumCommand]]:
        """Wait for letters; none if something else is due first."""
        due_ms = self._due_ms = self.queue.deadline()
        if due_ms is None:
            return await self._mailbox.take_all()
        with trio.move_on_at(self._clock.trio_time(due_ms)):
            return await self._mailbox.take_all()
        return []

    def _work(self, commands: list[QuorumCommand]) -> None:
        """Decide, and have written what was decided."""
        queue, store = self.queue, self._store
        # What is due was reckoned by the queue's time, which a clock that was set back does not take with it.
        now_ms = max(self._clock.now_ms(), queue.now_ms)
        if self._due_ms is not None and self._due_ms <= now_ms:
            commands.append(TICK)
        if not commands:
            if self._ready and queue.dlx and not self._told:
                self._offer(queue.take_dlx())
            return
        before = queue.settings
        if store is None:
            for command in commands:
                queue.apply(command, now_ms)
            ticket = 0
        else:
            ticket = store.carry_out(self._without_copies(commands), now_ms)
        self._forget_if_deleted()
        self._look_after_worker(commands, before)
        self._tell_when_durable(ticket)

    def _forget_if_deleted(self) -> None:
        """Nobody may find the queue any more when the first hears that it is gone."""
        if not self.queue.deleted:
            return
        self._on_deleted(self)
        if self._store is not None and self._keeping is not None:
            self._store.delete()
            self._keeping.forget(self._store.group)

    def _tell_when_durable(self, ticket: int) -> None:
        """Have what was decided told when the record with this ticket is durable, and written in any case."""
        told = self._take(ticket)
        if told.effects or told.dead_letters or told.dead:
            self._told.append(told)
        if self._store is not None and self._keeping is not None:
            if self._told:
                self._keeping.committer.when_durable(ticket, self._wake)
            else:
                self._keeping.write_soon()

    def _without_copies(self, commands: list[QuorumCommand]) -> list[QuorumCommand]:
        """Leave messages that come back and are here out of the log; settled ones may not be here."""
        has = self.queue.has_copies_for
        for at, command in enumerate(commands):
            if type(command) is GiveBack and command.messages and has(command.consumer):
                commands[at] = replace(command, messages=())
            elif type(command) is Unsubscribe and command.unsent_messages and has(command.consumer):
                commands[at] = replace(command, unsent_messages=())
        return commands

    def _take(self, ticket: int) -> Told:
        queue = self.queue
        dead = [] if queue.deleted or not queue.dlx else queue.take_dlx()
        now_ms = self._clock.now_ms()
        return Told(ticket, queue.take_effects(), queue.take_dead_letters(), dead, now_ms)

    def _wake(self) -> None:
        """Something is durable, or there is room again: an empty letter makes the queue look."""
        self._mailbox.put([])

    # --- telling ----------------------------------------------------------------------------------

    def _tell_what_is_durable(self) -> None:
        self._outlook = None
        told = self._told
        durable = 0 if self._keeping is None or self._store is None else self._keeping.committer.durable
        while told and told[0].ticket <= durable:
            self._tell(told.popleft())

    async def _tell_the_rest(self) -> None:
        """The queue is gone: its last words wait for the disk as all others did."""
        while self._told:
            if self._keeping is not None:
                await self._keeping.committer.wait_durable(self._told[0].ticket)
            self._tell_what_is_durable()

    def _tell(self, told: Told) -> None:
        if told.dead_letters:
            counts = self.dead_lettered
            for letters in told.dead_letters:
                counts[letters.reason] = counts.get(letters.reason, 0) + len(letters.messages)
            self._on_dead_letters(told.dead_letters)
        if told.dead:
            self._offer(told.dead)
        self._askers.post(told.effects)

    # --- dead messages at least once ----------------------------------------------------------------

    def _offer(self, dead: list[DeadMessage]) -> None:
        for each in dead:
            self.dead_lettered[each.reason] = self.dead_lettered.get(each.reason, 0) + 1
        if self._worker is None:
            destination = _destination(self.queue.settings)
            if destination is None:
                return  # a policy has deleted them meanwhile
            self._worker = self._make_worker(destination, self._settle_dead)
        self._worker.offer(dead)

    def _settle_dead(self, keys: Sequence[int]) -> None:
        self._put([DlxSettle(keys)])

    def _look_after_worker(self, commands: Sequence[QuorumCommand], before: QueueSettings) -> None:
        """Tell the worker of what it could not know: another exchange, or messages that are no more."""
        worker = self._worker
        if worker is None:
            return
        if any(type(command) is Purge or type(command) is Configure for command in commands):
            if any(type(command) is Purge for command in commands) or not self.queue.dlx:
                worker.forget()
            destination = _destination(self.queue.settings)
            if destination is not None and destination != _destination(before):
                worker.redirect(destination)

    # --- the end ------------------------------------------------------------------------------------

    def storage_failed(self) -> None:
        """Nothing can be kept any more: who waits for a confirm hears that it does not come."""
        if self._store is not None:
            self._refuse_told()
            refuse(self._askers, self._admission.take(), self.queue.name)

    def _refuse_told(self) -> None:
        """What has not been told, because it is not durable, never will be: publishers hear so."""
        for told in self._told:
            for reply_to, batch in told.effects.items():
                refused: list[Effect] = [
                    Unconfirmed(each.publisher, each.ids, each.settled, failed=True, queue=self.queue.name)
                    for each in batch
                    if isinstance(each, Confirmed)
                ]
                if refused:
                    self._askers.post({reply_to: refused})
        self._told.clear()

    def finish(self) -> None:
        """The task is over because the broker stops: what was put before is still decided and kept."""
        if not self._ready:
            return  # what is in the mailbox is about messages that have not been read
        self._due_ms = None
        letters = self._admission.admitted(self._mailbox.close(), self._clock.now_ms())
        self._work([command for letter in letters for command in letter])

    def fail(self) -> None:
        """Nobody can trust the state any more: end as if deleted, so that links hear of it."""
        if self._store is not None and self._keeping is not None:
            self._store.abandon()
            self._keeping.abandoned(self._store.group)
        self._tell_what_is_durable()
        self._refuse_told()
        at_work: list[list[QuorumCommand]] = [*self._at_work, [*self._admission.take()]]
        self.queue.break_down(command for letter in at_work for command in letter)
        self._tell(self._take(0))
        if self._worker is not None:
            self._worker.end()
        for letter in self._mailbox.close():
            self._put(letter)


def _destination(settings: QueueSettings) -> Destination | None:
    exchange = settings.dead_letter_exchange
    return None if exchange is None else Destination(exchange, settings.dead_letter_routing_key)
