"""One queue's task: letters in, the state machine applied, effects to whom they concern."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.persistence.classic_store import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import TICK, Command, Delete, Publish
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.effects import DeadLetters, Unconfirmed
from amqp10broker.queues.figures import QueueFigures
from amqp10broker.queues.outlook import UP_TO_DATE, Outlook, Progress
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.tasks.admission import Admission
from amqp10broker.tasks.askers import Askers
from amqp10broker.tasks.clock import WallClock
from amqp10broker.tasks.mail import QueueLetter
from amqp10broker.tasks.mailbox import Mailbox

if TYPE_CHECKING:
    from amqp10broker.tasks.keeping import Keeping


class LetterBox(ABC):
    """What every `QueueHandle` of this room can do beside."""

    __slots__ = ()

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether something was put that has not been worked off, or told to whom it concerns."""

    @abstractmethod
    def post_all(self, commands: QueueLetter) -> None:
        """Put several commands of one sender as one letter."""


class RunningQueue(LetterBox):
    """A queue and its task; also the `QueueHandle` by which sessions reach it.

    Attributes:
        queue: the state machine; only this task applies commands, others read counts.
        begun: set when it has what it had before the start, or a fault has ended it.
        dead_lettered: messages that it gave up for its dead-letter exchange, by reason.
    """

    __slots__ = (
        "_admission",
        "_asked_for",
        "_askers",
        "_at_work",
        "_clock",
        "_delay_s",
        "_due_ms",
        "_keeping",
        "_mailbox",
        "_on_dead_letters",
        "_on_deleted",
        "_outlook",
        "_store",
        "begun",
        "dead_lettered",
        "queue",
    )

    def __init__(
        self,
        queue: ClassicQueue,
        askers: Askers,
        clock: WallClock,
        on_deleted: Callable[[RunningQueue], None],
        on_dead_letters: Callable[[list[DeadLetters]], None],
        *,
        confirm_delay_ms: int = 0,
        keeping: Keeping | None = None,
        store: ClassicStore | None = None,
    ) -> None:
        """Make a queue ready to run.

        Args:
            queue: its state.
            askers: who may ask it.
            clock: the time.
            on_deleted: called when the queue is gone, before anybody hears of it; perhaps again.
            on_dead_letters: called with what the queue gave up, after each wake in which it did.
            confirm_delay_ms: fault injection: every batch takes this long to commit, as if each
                waited for a disk.
            keeping: where messages are kept; None: nowhere.
            store: the queue's part of it.
        """
        self.queue = queue
        self.begun = trio.Event()
        self.dead_lettered: dict[str, int] = {}
        self._askers = askers
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_dead_letters = on_dead_letters
        self._mailbox: Mailbox[QueueLetter] = Mailbox()
        self._at_work: list[QueueLetter] = []
        self._outlook: Outlook | None = None
        self._due_ms: int | None = None
        self._delay_s = confirm_delay_ms / 1000
        self._keeping = keeping
        self._store = store
        self._admission = Admission(None if store is None else keeping, self._wake)
        self._asked_for = 0  # the ticket whose being durable we are told of

    @property
    def busy(self) -> bool:
        """See `LetterBox`. Who waits for a confirm has gone when this is asked."""
        return self._mailbox.waiting > 0 or bool(self._at_work)

    def post(self, command: Command) -> None:
        """Put one letter."""
        self.post_all([command])

    def post_all(self, commands: QueueLetter) -> None:
        """Put several commands of one sender as one letter."""
        if not self._mailbox.put(commands):
            # A deleted queue has no task any more. What was on its way is answered here, so that
            # a publisher that found the queue a moment ago hears that it is gone.
            for command in commands:
                self.queue.apply(command, 0)
                if type(command) is Delete and self._store is not None and self._keeping is not None:
                    # It had failed, and what it left was still kept for the next start.
                    self._on_deleted(self)
                    self._store.delete()
                    self._keeping.forget(self._store.group)
            self._send_effects()

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer."""
        return self.queue.ready

    def outlook(self) -> Outlook:
        """See `QueueHandle`. Made once a wake at most, however many ask."""
        if self._outlook is None:
            self._outlook = self._admission.told(self.queue.outlook())
        return self._outlook

    def progress(self) -> Progress:
        """See `QueueHandle`."""
        keeping = self._keeping
        if keeping is None or self._store is None:
            return Progress(self.busy)
        waits = bool(self._admission.waiting) or self.queue.unsafe_ticket is not None
        return keeping.progress(self._clock, busy=self.busy, waits=waits)

    @property
    def unsettled(self) -> int:
        """See `QueueHandle`."""
        return self.queue.unsettled

    def figures(self) -> QueueFigures:
        """See `QueueHandle`. Reading between two awaits of a single-threaded program is exact."""
        return self.queue.figures(self.dead_lettered)

    async def run(self) -> None:
        """Work until the queue is deleted, or cancelled."""
        queue = self.queue
        mailbox = self._mailbox
        try:
            await self._recover()
        finally:
            self.begun.set()
        while not queue.deleted:
            letters = await self._next_letters()
            now_ms = self._clock.now_ms()
            letters = self._at_work = self._admission.admitted(letters, now_ms)
            self._outlook = None
            published = False
            for commands in letters:
                for command in commands:
                    queue.apply(command, now_ms)
                    published = published or type(command) is Publish
            if self._due_ms is not None and self._due_ms <= now_ms:
                queue.apply(TICK, now_ms)
            self._forget_if_deleted()
            self._keep()
            if published and self._delay_s:
                await trio.sleep(self._delay_s)
            self._send_effects()
            self._at_work = []
        waiting: list[Command] = [*self._admission.take()]
        for commands in (waiting, *mailbox.close()):
            self.post_all(commands)

    async def _recover(self) -> None:
        """Begin with what was there before a restart."""
        keeping, store = self._keeping, self._store
        if keeping is not None and store is not None:
            await keeping.recovered.wait()
            self.queue.recover(store.backlogs())

    def storage_failed(self) -> None:
        """Nothing can be kept any more: who waits for it hears so."""
        if self._store is not None:
            self.queue.refuse_unsafe()
            self._send_effects()
            refuse(self._askers, self._admission.take(), self.queue.name)

    def finish(self) -> None:
        """The task is over because the broker stops: what was put before is still decided and kept."""
        keeping = self._keeping
        if keeping is not None and self._store is not None and not keeping.recovered.is_set():
            return  # what is in the mailbox is about messages that have not been read
        for commands in self._admission.admitted(self._mailbox.close(), self._clock.now_ms()):
            for command in commands:
                self.queue.apply(command, 0)
        self._keep()

    def _keep(self) -> None:
        """Have written what this wake has decided, and confirm what is safe by now."""
        keeping, store = self._keeping, self._store
        if keeping is None or store is None:
            return
        if self.queue.deleted:
            store.delete()
            keeping.forget(store.group)
        wrote = store.flush()
        self.queue.safe_up_to(keeping.committer.durable)
        ticket = self.queue.unsafe_ticket
        if wrote and ticket is None:
            keeping.write_soon()
        if ticket is not None and ticket > self._asked_for:
            self._asked_for = ticket
            keeping.committer.when_durable(ticket, self._wake)

    def _wake(self) -> None:
        """Something is durable, or there is room again: an empty letter makes the queue look."""
        self._mailbox.put([])

    async def _next_letters(self) -> list[QueueLetter]:
        """Wait for letters; none if something else is due first."""
        due_ms = self._due_ms = self.queue.deadline()
        if due_ms is None:
            return await self._mailbox.take_all()
        with trio.move_on_at(self._clock.trio_time(due_ms)):
            return await self._mailbox.take_all()
        return []

    def _forget_if_deleted(self) -> None:
        """Nobody may find the queue any more when the first hears that it is gone."""
        if self.queue.deleted:
            self._on_deleted(self)

    def restart(self, queue: ClassicQueue) -> None:
        """Nobody can trust the state any more: begin again with another, and what the store has."""
        self._outlook = None
        self.queue.break_down(command for commands in self._at_work for command in commands)
        self._send_effects()
        self._at_work = []
        self.queue = queue

    def fail(self) -> None:
        """Nobody can trust the state any more: end as if deleted, so that links hear of it."""
        at_work: list[QueueLetter] = [*self._at_work, [*self._admission.take()]]
        self.queue.break_down(command for commands in at_work for command in commands)
        self._send_effects()
        for commands in self._mailbox.close():
            self.post_all(commands)

    def _send_effects(self) -> None:
        dead_letters = self.queue.take_dead_letters()
        if dead_letters:
            counts = self.dead_lettered
            for letters in dead_letters:
                counts[letters.reason] = counts.get(letters.reason, 0) + len(letters.messages)
            self._on_dead_letters(dead_letters)
        self._askers.post(self.queue.take_effects())


class InlineQueue(LetterBox):
    """A queue without a task: letters are worked off as they are put, and answered at once.

    For queues that hold nothing (direct reply-to), so that they need no turn of their own.
    """

    __slots__ = ("_askers", "queue")

    def __init__(self, queue: VolatileQueue, askers: Askers) -> None:
        self._askers = askers
        self.queue = queue

    @property
    def busy(self) -> bool:
        """Never: it answers at once."""
        return False

    @property
    def ready(self) -> int:
        """It keeps nothing."""
        return 0

    def outlook(self) -> Outlook:
        """It has nothing to tell."""
        return Outlook(0, 0, {})

    def progress(self) -> Progress:
        """It answers at once."""
        return UP_TO_DATE

    def post(self, command: Command) -> None:
        """Put one letter."""
        self.post_all([command])

    def post_all(self, commands: QueueLetter) -> None:
        """Put several commands of one sender as one letter."""
        for command in commands:
            self.queue.apply(command, 0)
        self._askers.post(self.queue.take_effects())

    @property
    def unsettled(self) -> int:
        """It keeps no message."""
        return 0

    def figures(self) -> QueueFigures:
        """See `QueueHandle`. It keeps no message, and counts none."""
        return QueueFigures(consumers=self.queue.consumers, counters=QueueCounters().document())


def refuse(askers: Askers, publishes: Sequence[Publish], queue: str) -> None:
    """Tell publishers that what they published is not kept, because nothing is any more."""
    for each in publishes:
        refused = Unconfirmed(each.publisher, each.ids, each.settled, failed=True, queue=queue)
        askers.post({each.publisher.reply_to: [refused]})


def post_mail(mail: list[tuple[QueueHandle, Command]]) -> None:
    """Put letters to queues, those for the same queue as one."""
    if len(mail) == 1:
        handle, command = mail[0]
        handle.post(command)
        return
    by_queue: dict[LetterBox, list[Command]] = {}
    for handle, command in mail:
        assert isinstance(handle, LetterBox)
        commands = by_queue.get(handle)
        if commands is None:
            by_queue[handle] = [command]
        else:
            commands.append(command)
    for queue, commands in by_queue.items():
        queue.post_all(commands)
