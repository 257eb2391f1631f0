"""The task of one queue of any kind, the handle of a queue elsewhere, and commits over several queues.

A step takes all waiting commands, lets the machine execute them, stores the decisions, and publishes the
effects. Storage, and so the time of publication, is up to the `DurabilityBackend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, Final

import trio

from amqp10broker.cluster.remote_queue.home_link import HomeLink
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.errors import StorageError
from amqp10broker.metadata.queue import QueueCommand, QueueHandle
from amqp10broker.queues.commands import (
    TICK,
    Command,
    Configure,
    DeadLetters,
    Delete,
    Effect,
    PeerId,
    Publish,
    RequestRef,
    Settle,
    Touch,
    Unconfirmed,
)
from amqp10broker.queues.durability import DurabilityBackend, EffectBatch, PublishEffects, Wake
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import (
    UP_TO_DATE,
    QueueCounters,
    QueueProgress,
    QueueStats,
    QueueStatus,
    QueueWeight,
)
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import BatchHandle, Mailbox, OwnQueue, ReplyRegistry, send_commands
from amqp10broker.runtime.queues.dead_letter_worker import AtLeastOnce, DeadLetterWorker
from amqp10broker.sessions.dead_letters import DeadLetterTarget
from amqp10broker.sessions.messages import Committed, NoRoom, NotYet, Part, SessionMessage

_log = Log("amqp10broker.queues")


class QueueTask(OwnQueue):
    """A queue and its task, and the `QueueHandle` of sessions. `begun`: set when it has its former content,
    or a fault has ended it. `notify`: in a cluster, receives the effects instead of this node's sessions,
    with the index of the last entry that made them, 0 without a log.
    """

    def __init__(
        self,
        make_backend: Callable[[Wake, PublishEffects], DurabilityBackend[Any]],
        reply_registry: ReplyRegistry,
        clock: WallClock,
        on_deleted: Callable[[QueueTask], None],
        on_dead_letters: Callable[[Sequence[DeadLetters]], None],
        start_worker: Callable[[QueueTask, DeadLetterTarget], DeadLetterWorker],
        *,
        journal_task: JournalTask | None = None,
        own_files: bool = False,
        confirm_delay_ms: int = 0,
    ) -> None:
        """Create the task's state. `start_worker`: called for the first message to be forwarded at least
        once. `journal_task`: has the journal that must be read first. `own_files`: only commits of the queue
        are there; its own files are read meanwhile. `confirm_delay_ms`: fault injection: every batch takes
        this long to commit.
        """
        self.begun = trio.Event()
        # Functions to call when the queue can take part in a commit, or never will.
        self.awaiting: list[Callable[[], object]] = []
        self._taking_up = False
        self.notify: Callable[[Mapping[PeerId, list[Effect]], int], None] | None = None
        self._reply_registry = reply_registry
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_dead_letters = on_dead_letters
        self._journal_task = journal_task
        self._turns = None if journal_task is None else journal_task.turns_for_queue()
        self._own_files = own_files
        self._at_least_once: AtLeastOnce | None = None
        self._silent = False
        self._start_worker = start_worker
        self._delay_s = confirm_delay_ms / 1000
        self._mailbox: Mailbox[list[Command]] = Mailbox(reply_registry.inline)
        self._at_work: list[Command] = []
        self._due_ms: int | None = None
        # The error of a commit that was carried out outside of the task.
        self._fault: Exception | None = None
        self._queue_status: QueueStatus | None = None
        self.backend = make_backend(self._wake, self._publish)

    @property
    def queue(self) -> QueueMachine:
        machine: QueueMachine = self.backend.queue
        return machine

    @property
    def busy(self) -> bool:
        return self._mailbox.waiting > 0 or bool(self._at_work) or self.backend.busy

    def post_all(self, commands: list[Command]) -> None:
        if not self._mailbox.put(commands) and not self._silent:
            # A deleted queue has no task. Its commands are answered here, so that a publisher that found the
            # queue a moment ago is notified of the deletion.
            for command in commands:
                self.queue.apply(command, self._clock.now_ms())
                if type(command) is Delete:
                    # If it had failed, its records were left for the next start.
                    self._forget()
            self._tell_at_once()

    def queue_status(self) -> QueueStatus:
        if self._queue_status is None:
            self._queue_status = self.backend.queue_status()
        return self._queue_status

    def progress(self) -> QueueProgress:
        return self.backend.progress(busy=self._mailbox.waiting > 0 or bool(self._at_work))

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the queue is deleted, or cancelled. Raises `StorageError` if its data is damaged, or
        cannot be read or written; the broker must stop.
        """
        try:
            try:
                await self._recover()
            finally:
                self._queue_status = None
                self.begun.set()
                if self.awaiting:
                    self._tell_awaiting()
            await self._work()
        finally:
            self.backend.close()
        self._end()

    async def _recover(self) -> None:
        # Begin with the former content, unless a commit was first (`_begin_early`).
        if self.backend.recovered:
            return
        if self._journal_task is None or self._turns is None:
            await self._take_up()
            return
        if self._own_files:
            await self._take_up()
            await self._journal_task.recovered.wait()
            self.backend.recover_parts()
            return
        await self._journal_task.recovered.wait()
        async with self._turns:
            if not self.backend.recovered:
                await self._take_up()

    def _begin_early(self) -> None:
        journal_task = self._journal_task
        if self._taking_up or self._own_files or self.backend.by_log:
            return
        if journal_task is not None and not journal_task.recovered.is_set():
            return
        self._taking_up = True
        for _ in self.backend.recover(self._clock.now_ms()):
            pass  # a new one has nothing to read
        self.begun.set()

    async def _take_up(self) -> None:
        self._taking_up = True
        read = 0
        for step in self.backend.recover(self._clock.now_ms()):
            read += step
            await trio.lowlevel.checkpoint()
        if read:
            found = self.figures()
            _log.info(
                "stream recovered",
                queue=self.queue.name,
                bytes=read,
                first_offset=found.first_offset,
                next_offset=found.next_offset,
            )
        if self.backend.queue.deleted:
            # Power may have been lost when its end was durable here, and not yet in the catalog.
            self._forget()

    async def _work(self) -> None:
        while True:
            commands = await self._next_commands()
            self._check_fault()
            self._decide(commands)
            if self._delay_s and any(type(command) is Publish for command in commands):
                await trio.sleep(self._delay_s)
            self._tell()
            if self.backend.queue.deleted:
                return

    def _run_inline(self, batches: list[list[Command]]) -> bool:
        self._check_fault()
        self._decide(_joined(batches))
        self._tell()
        return not self.backend.queue.deleted and self._deadline() == self._due_ms

    def _decide(self, commands: list[Command]) -> None:
        backend = self.backend
        now_ms = int((trio.current_time() + self._clock.offset_s) * 1000)
        self._at_work = commands = backend.admission.admitted(commands, now_ms)
        if self._due_ms is not None and self._due_ms <= now_ms:
            commands = [*commands, TICK]
        self._queue_status = None
        backend.apply(commands, now_ms)
        if backend.by_log:
            self._at_work = []
        gone = backend.queue.deleted
        if gone:
            self._forget()
        backend.flush(now_ms)
        if backend.queue.deleted and not gone:
            self._forget()
        self._look_after_dead_letters(commands)

    def _tell(self) -> None:
        self.backend.publish()
        if self.awaiting:
            self._tell_awaiting()
        self._queue_status = None
        self._at_work = []

    # --- for one who commits a transaction, between two awaits of the task ------------------------------

    def take_put(self) -> list[Command]:
        return _joined(self._mailbox.take_now())

    def catch_up(self) -> None:
        """Handle the commands that were put before."""
        try:
            if not self.begun.is_set():
                self._begin_early()
            if (
                not self.begun.is_set()
                or self.queue.deleted
                or not (self._mailbox.waiting or self.backend.by_log)
            ):
                return
            if self._mailbox.waiting:
                self._decide(self.take_put())
            self.backend.catch_up()
            self._look_after_dead_letters([])
            if self.backend.queue.deleted:
                self._forget()
            self._tell()
        except Exception as error:
            self._fault = error
        self._wake()

    @property
    def starting(self) -> bool:
        """Whether the queue does not take part in a commit yet, and soon will."""
        if self.failed or self.queue.deleted:
            return False
        return not self.begun.is_set() or self.backend.starting

    def _tell_awaiting(self) -> None:
        if not self.starting:
            awaiting, self.awaiting = self.awaiting, []
            for then in awaiting:
                then()

    @property
    def failed(self) -> bool:
        """Whether its machine is not reliable, and its task is about to find that."""
        return self._fault is not None

    def decide_within(self, commands: list[Command]) -> None:
        """Execute and store a part of a commit; `tell_decided` publishes the effects."""
        self._at_work = commands
        self._queue_status = None
        try:
            self.backend.apply_part(commands, self._clock.now_ms())
            self._look_after_dead_letters(commands)
        except Exception as error:
            # It is the queue's own fault, not the committing session's: it ends the queue's task.
            self._fault = error
        # The task must be woken when something is due now.
        self._wake()

    def tell_decided(self) -> None:
        if self._fault is None:
            self._tell()
        if self.queue.deleted:
            self._forget()

    def _check_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _look_after_dead_letters(self, commands: list[Command]) -> None:
        if self._at_least_once is None:
            return
        applied = self.backend.applied_in_step(commands)
        if applied is not None:
            self._at_least_once.look_after(applied, self.backend.queue)
        else:
            # The present leader forwards the messages that have not arrived.
            self._at_least_once.end()
            self._at_least_once = None

    async def _next_commands(self) -> list[Command]:
        # Wait for commands; return none if something else is due first.
        self._due_ms = due_ms = self._deadline()
        batches: list[list[Command]] = []
        step = None if self._delay_s else self._run_inline
        if due_ms is None:
            batches = await self._mailbox.take_all(step)
        elif due_ms == 0:
            await trio.lowlevel.checkpoint()
            batches = self._mailbox.take_now()
        else:
            with trio.move_on_at(self._clock.trio_time(due_ms)):
                batches = await self._mailbox.take_all(step)
        return _joined(batches)

    def _deadline(self) -> int | None:
        # Return when something is due, in milliseconds since 1970; 0: now; None: nothing is.
        own, backends = self.backend.deadline(), self.backend.due_ms
        if own is None or backends is None:
            return backends if own is None else own
        return min(own, backends)

    def _wake(self) -> None:
        self._mailbox.put([])

    # --- telling ----------------------------------------------------------------------------------

    def _publish(self, batch: EffectBatch) -> None:
        if batch.dead_letters:
            self._on_dead_letters(batch.dead_letters)
        if batch.dead:
            if self._at_least_once is None:
                self._at_least_once = AtLeastOnce(lambda destination: self._start_worker(self, destination))
            self._at_least_once.offer(batch.dead, self.backend.queue.settings)
        if self.notify is not None:
            self.notify(batch.effects, batch.index)
        elif batch.effects:
            self._reply_registry.post(batch.effects)

    def _tell_at_once(self) -> None:
        self._publish(EffectBatch(self.queue.take_effects(), self.queue.take_dead_letters()))

    # --- the end ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._on_deleted(self)
        self.backend.delete()

    def storage_failed(self) -> None:
        self.backend.storage_failed()
        for each in self.backend.admission.take():
            refused = Unconfirmed(each.publisher, each.ids, each.settled, failed=True, queue=self.queue.name)
            self._reply_registry.post({each.publisher.reply_to: [refused]})
        self._tell_awaiting()

    def finish(self) -> None:
        """Decide and store all waiting commands, after the task has ended because the broker stops."""
        backend = self.backend
        if not backend.recovered or backend.queue.deleted:
            return  # the mailbox has commands about messages that have not been read, or are deleted
        # Other nodes stay connected for a moment. Their commands cannot be stored, and get no answer.
        self._silent = True
        commands = [command for batch in self._mailbox.close() for command in batch]
        now_ms = self._clock.now_ms()
        backend.apply(backend.admission.admitted(commands, now_ms), now_ms)
        if backend.queue.deleted:
            backend.delete()
        backend.flush(now_ms)
        if backend.queue.deleted:
            backend.delete()

    def restart(self) -> None:
        self.queue.break_down(self._at_work)
        self._tell_at_once()
        self._at_work = []
        self.backend.restart()

    def fail(self) -> None:
        """Give up an unreliable state: end as if deleted, so that links are notified. If other members have
        the queue, they continue with it, without notification.
        """
        if self.backend.shared:
            self._silent = True
            self.backend.abandon()
            self._end()
            return
        at_work = [*self.backend.abandon(), *self._at_work, *self.backend.admission.take()]
        self.queue.break_down(at_work)
        self._tell_at_once()
        self._end()

    def _end(self) -> None:
        if self._at_least_once is not None:
            self._at_least_once.end()
        waiting: list[Command] = [*self.backend.admission.take()]
        for commands in (waiting, *self._mailbox.close()):
            self.post_all(commands)
        self._tell_awaiting()


def _joined(batches: list[list[Command]]) -> list[Command]:
    return batches[0] if len(batches) == 1 else [command for batch in batches for command in batch]


class RemoteQueue(BatchHandle):
    """The `QueueHandle` of a queue that may be on another node. `member`: the queue's task here, or None."""

    def __init__(
        self, client: QueueLink | HomeLink, member: QueueTask | None, name_of: Callable[[int], str]
    ) -> None:
        self.client = client
        self.member = member
        self._name_of = name_of

    @property
    def starting(self) -> bool:
        member, client = self.member, self.client
        if member is None or member.starting:
            return member is not None
        return isinstance(client, QueueLink) and not client.ended and not client.opens()

    def decide_within(self, commands: list[Command]) -> None:
        assert self.member is not None, "it takes part"
        self.client.post_all(commands)
        self.member.decide_within(self.member.take_put())

    def post_all(self, commands: list[Command]) -> None:
        if not any(map(_of_the_catalog, commands)):
            self.client.post_all(commands)
            return
        for command in commands:
            if not _of_the_catalog(command):
                self.client.post_all([command])
                continue
            if self.member is not None and type(command) is not Touch:
                self.member.post_all([command])
            if type(command) is Delete:
                self.client.forget()

    @property
    def ready(self) -> int:
        return self.client.available if self.member is None else self.member.ready

    @property
    def unsettled(self) -> int:
        return 0 if self.member is None else self.member.unsettled

    @property
    def down(self) -> str | None:
        client = self.client
        if isinstance(client, HomeLink) and client.down_ms is not None:
            return self._name_of(client.home)
        return None

    def queue_status(self) -> QueueStatus:
        if self.member is not None:
            return self.member.queue_status()
        # Only the queue has the number of messages that ever came.
        return QueueStatus(self.client.available, max(1, self.client.available), {})

    def progress(self) -> QueueProgress:
        since_ms = self.client.unled_ms
        if since_ms is not None:
            return QueueProgress(unled_ms=since_ms)
        if self.client.full_ms is not None:
            return QueueProgress(full_ms=self.client.full_ms)
        return UP_TO_DATE if self.member is None else self.member.progress()

    @property
    def counters(self) -> QueueCounters:
        return _NOTHING if self.member is None else self.member.counters

    def figures(self) -> QueueStats:
        if self.member is not None:
            return self.member.figures()
        return QueueStats(messages_ready=self.client.available, consumers=self.client.consumers)

    def weight(self) -> QueueWeight | None:
        return None if self.member is None else self.member.weight()


_NOTHING: Final = QueueCounters()


def _of_the_catalog(command: Command) -> bool:
    kind = type(command)
    return kind is Configure or kind is Touch or (isinstance(command, Delete) and command.request is None)


Participant = QueueTask | RemoteQueue
"""A handle of a queue that may take part in a commit."""


def _task_of(handle: QueueHandle) -> QueueTask | None:
    # None: no part of the queue is here, and it does not take part.
    if isinstance(handle, RemoteQueue):
        return handle.member
    return handle if isinstance(handle, QueueTask) else None


MESSAGE_BYTES: Final = 64
"""The most bytes of a message besides its contents, and of a decision, in a record."""


class SessionCommits:
    """The commits of one session or channel. It works for each queue, because no queue's task runs between
    two awaits: first each queue executes its earlier commands; then each checks its part; then all apply, and
    the journal's records are one group (`storage.journal.Journal.together`).
    """

    def __init__(self, inbox: Mailbox[SessionMessage], journal_task: JournalTask | None) -> None:
        self._inbox = inbox
        self._journal_task = journal_task
        self.safe = True

    def takes(self, handle: QueueHandle) -> bool:
        task = _task_of(handle)
        return task is not None and task.backend.transacts

    def commit(
        self,
        mail: Sequence[QueueCommand],
        parts: Sequence[Part],
        ref: RequestRef | None = None,
        also: Callable[[], None] | None = None,
    ) -> str | None:
        send_commands(list(mail))
        work: dict[Participant, tuple[QueueTask, list[Command]]] = {}
        for handle, command in parts:
            assert isinstance(handle, Participant)
            task = _task_of(handle)
            if task is None:
                return "a queue has left this node"
            work.setdefault(handle, (task, []))[1].append(command)
        for task, _ in work.values():
            task.catch_up()
        starting = next((task for handle, (task, _) in work.items() if handle.starting), None)
        if starting is not None:
            return NotYet(f"queue '{starting.queue.name}' is not ready yet")
        why = self._refusal([*work.values()])
        if why is not None:
            return why
        there = {handle: part for handle, part in work.items() if not part[0].queue.deleted}
        kept = any(task.backend.durable for task, _ in there.values())
        journal = None if self._journal_task is None or not kept else self._journal_task.journal
        with nullcontext() if journal is None else journal.together():
            for each, (_, commands) in there.items():
                each.decide_within(commands)
            if also is not None and journal is not None:
                also()
        for task, _ in there.values():
            task.tell_decided()
        self.safe = journal is None
        if ref is not None and journal is not None and self._journal_task is not None:
            self._journal_task.when_durable(journal.ticket, partial(self._inbox.put, Committed(ref)))
        return None

    def when_ready(self, parts: Sequence[Part], ref: RequestRef) -> None:
        starting = next(each for each, _ in parts if isinstance(each, Participant) and each.starting)
        task = _task_of(starting)
        assert task is not None, "it has one that starts"
        task.awaiting.append(partial(self._inbox.put, Committed(ref)))

    def _refusal(self, work: Sequence[tuple[QueueTask, Sequence[Command]]]) -> str | None:
        size = 0
        for task, commands in work:
            publishes = [command for command in commands if isinstance(command, Publish)]
            name, backend = task.queue.name, task.backend
            messages = [*chain.from_iterable(publish.messages for publish in publishes)]
            if not task.begun.is_set() or task.failed or (publishes and task.queue.deleted):
                return f"queue '{name}' was deleted, or has broken down"
            bytes_ = _bytes_of(commands)
            if not task.queue.deleted and not backend.takes_part(bytes_):
                return f"queue '{name}' cannot write at present"
            if publishes and not task.queue.has_room_for(messages):
                return NoRoom(f"queue '{name}' would exceed its maximum length")
            if backend.durable:
                size += bytes_
        if not size or self._journal_task is None or not self._journal_task.journal.reserve:
            return None
        try:
            admitted = self._journal_task.journal.admits(size, 0)
        except StorageError as error:
            return str(error)
        return None if admitted else "the disk is full"


def _bytes_of(commands: Sequence[Command]) -> int:
    size = 0
    for command in commands:
        if isinstance(command, Publish):
            size += sum(map(len, chain.from_iterable(command.messages)))
            size += MESSAGE_BYTES * len(command.messages)
        elif isinstance(command, Settle):
            size += MESSAGE_BYTES * len(command.keys)
    return size
