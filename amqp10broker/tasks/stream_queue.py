"""One stream's task: letters in, the state machine applied, its log written and synced.

What is published while a sync is under way waits, and makes the next chunk: so chunks get large when
the disk is slow, and nobody else waits for it. Consumers are served meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.queues.commands import TICK, Command, Delete
from amqp10broker.queues.figures import QueueFigures
from amqp10broker.queues.outlook import Outlook, Progress
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.storage.stream_log import StreamLog
from amqp10broker.tasks.askers import Askers
from amqp10broker.tasks.clock import WallClock
from amqp10broker.tasks.committer import MARK_AFTER_S
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.mail import QueueLetter
from amqp10broker.tasks.mailbox import Mailbox
from amqp10broker.tasks.queue import LetterBox

_log = Log("amqp10broker.stream")

RETRY_S: Final = 1.0
"""A write for which the disk had no room is tried again after this time."""

Sync = Callable[[Sequence[int]], Awaitable[None]]
"""Makes files durable, by their descriptors."""


def storage_error_in(error: BaseException) -> StorageError | None:
    """The fault of storage that ended a stream's task, perhaps inside groups; None if it was another."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := storage_error_in(each))), None)
    return error if isinstance(error, StorageError) else None


class RunningStream(LetterBox):
    """A stream and its task; also the `QueueHandle` by which sessions reach it.

    Attributes:
        queue: the state machine; only this task applies commands, others read counts.
        begun: set when it has what it had before the start, or a fault has ended it.
    """

    __slots__ = (
        "_askers",
        "_at_work",
        "_clock",
        "_delay_s",
        "_full",
        "_full_at",
        "_mailbox",
        "_mark_at",
        "_marked",
        "_on_deleted",
        "_on_full",
        "_outlook",
        "_recovered",
        "_retry_at",
        "_start_sync",
        "_store",
        "_sync",
        "_sync_at",
        "_synced",
        "_unwritten",
        "_writing",
        "begun",
        "queue",
    )

    def __init__(
        self,
        queue: StreamQueue,
        log: StreamLog,
        askers: Askers,
        on_deleted: Callable[[RunningStream], None],
        clock: WallClock,
        *,
        sync: Sync | None = None,
        on_full: Callable[[RunningStream, bool], None] | None = None,
        confirm_delay_ms: int = 0,
    ) -> None:
        """Make a stream ready to run.

        Args:
            queue: its state.
            log: the queue's log, not recovered yet.
            askers: who may ask it.
            on_deleted: called when the stream is gone, before anybody hears of it; perhaps again.
            clock: the time.
            sync: how the log's files are made durable; None for a log in memory.
            on_full: told when the disk has no room for what was published, and when it has again.
            confirm_delay_ms: fault injection: every commit takes so much longer.
        """
        self.queue = queue
        self.begun = trio.Event()
        self._store = log
        self._askers = askers
        self._on_deleted = on_deleted
        self._clock = clock
        self._sync = sync
        self._on_full = on_full
        self._delay_s = confirm_delay_ms / 1000
        self._mailbox: Mailbox[QueueLetter] = Mailbox()
        self._at_work: list[QueueLetter] = []
        self._start_sync = trio.Event()
        self._writing: int | None = None
        self._synced = False
        self._full = False
        self._full_at = self._sync_at = 0.0
        self._recovered = False
        self._outlook: Outlook | None = None
        self._unwritten = False
        self._retry_at = 0.0
        self._marked = 0
        # When the inventory is to be told of the last commit; infinite if it was, or there was none.
        self._mark_at = math.inf

    @property
    def busy(self) -> bool:
        """See `LetterBox`."""
        return self._mailbox.waiting > 0 or bool(self._at_work) or self._writing is not None

    def post(self, command: Command) -> None:
        """Put one letter."""
        self.post_all([command])

    def post_all(self, commands: QueueLetter) -> None:
        """Put several commands of one sender as one letter."""
        if not self._mailbox.put(commands):
            # A deleted stream has no task any more; see `RunningQueue.post_all`.
            for command in commands:
                self.queue.apply(command, self._clock.now_ms())
                if type(command) is Delete:
                    # It had failed. Its files go at the next start.
                    self._on_deleted(self)
            self._send_effects()

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer."""
        return self.queue.ready

    def outlook(self) -> Outlook:
        """See `QueueHandle`. Made once a wake at most, however many ask."""
        if self._outlook is None:
            self._outlook = self.queue.outlook()
        return self._outlook

    def progress(self) -> Progress:
        """See `QueueHandle`."""
        busy = self._mailbox.waiting > 0 or bool(self._at_work)
        recovering = not self._recovered
        ms_at = self._clock.ms_at
        return Progress(
            busy or recovering,
            recovering,
            None if self._writing is None else ms_at(self._sync_at),
            ms_at(self._full_at) if self._full else None,
        )

    @property
    def unsettled(self) -> int:
        """See `QueueHandle`."""
        return self.queue.unsettled

    def figures(self) -> QueueFigures:
        """See `QueueHandle`. A stream is never full: what is too old, or too much, goes."""
        queue, log = self.queue, self._store
        return QueueFigures(
            messages_ready=queue.ready,
            messages_unsettled=queue.unsettled,
            consumers=queue.consumers,
            publishers=queue.publishers,
            first_offset=log.first_offset,
            next_offset=log.committed,
            segments=log.segments,
            size_bytes=log.size_bytes,
            counters=queue.counters.document(),
        )

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read what the log holds, then work until the stream is deleted, or cancelled.

        Raises:
            StorageError: a file of the log is damaged or cannot be synced; the broker must stop.
        """
        try:
            try:
                await self._recover()
            finally:
                self.begun.set()
            async with trio.open_nursery() as nursery:
                if self._sync is not None or self._delay_s:
                    nursery.start_soon(self._sync_forever)
                await self._work()
                nursery.cancel_scope.cancel()
        finally:
            if self.queue.deleted:
                self._store.delete()
            else:
                self._store.close()
        for commands in self._mailbox.close():
            self.post_all(commands)

    async def _recover(self) -> None:
        read = 0
        for step in self._store.recover():
            read += step
            await trio.lowlevel.checkpoint()
        if read:
            _log.info(
                "stream recovered",
                queue=self.queue.name,
                bytes=read,
                first_offset=self._store.first_offset,
                next_offset=self._store.committed,
            )

    async def _work(self) -> None:
        queue = self.queue
        self._recovered = True
        while not queue.deleted:
            letters = self._at_work = await self._next_letters()
            self._outlook = None
            now_ms = self._clock.now_ms()
            for commands in letters:
                for command in commands:
                    queue.apply(command, now_ms)
            self._forget_if_deleted()
            self._commit(now_ms)
            self._mark_if_quiet()
            if (queue.waiting or self._unwritten) and self._writing is None:
                self._write(now_ms)
            due = queue.deadline()
            if due is not None and due <= now_ms:
                queue.apply(TICK, now_ms)
            self._send_effects()
            self._at_work = []

    def _forget_if_deleted(self) -> None:
        """Nobody may find the stream any more when the first hears that it is gone."""
        if self.queue.deleted:
            self._on_deleted(self)

    async def _next_letters(self) -> list[QueueLetter]:
        """Wait for letters; none if something else is due first."""
        due = self.queue.deadline()
        if due == 0:
            await trio.lowlevel.checkpoint()
            return await self._mailbox.take_all() if self._mailbox.waiting else []
        at = math.inf if due is None else self._clock.trio_time(due)
        at = min(at, self._mark_at)
        if self._full:
            at = min(at, self._retry_at)
        if at == math.inf:
            return await self._mailbox.take_all()
        with trio.move_on_at(at):
            return await self._mailbox.take_all()
        return []

    def _write(self, now_ms: int) -> None:
        if self._full and trio.current_time() < self._retry_at:
            return
        log = self._store
        try:
            if not self._unwritten:
                self.queue.write(now_ms)
                self._unwritten = True
            offset = log.write()
        except DiskFull as error:
            self._retry_at = trio.current_time() + RETRY_S
            self._tell_full(error)
            return
        self._unwritten = False
        self._tell_full(None)
        if self._sync is None and not self._delay_s:
            log.commit(offset)
            self.queue.commit(now_ms)
        else:
            self._writing = offset
            self._sync_at = trio.current_time()
            self._start_sync.set()

    def _commit(self, now_ms: int) -> None:
        """Take over what the other task has synced."""
        if self._synced:
            assert self._writing is not None
            self._store.commit(self._writing)
            if self._writing > self._marked:
                self._marked = self._writing
                self._mark_at = trio.current_time() + MARK_AFTER_S
            self._writing = None
            self._synced = False
            self.queue.commit(now_ms)

    def _mark_if_quiet(self) -> None:
        """After a while without a commit the inventory is told how much is synced; it guards the last one."""
        if trio.current_time() >= self._mark_at:
            self._mark_at = math.inf
            if self._writing is None and not self._unwritten and not self.queue.waiting:
                self._store.mark()

    async def _sync_forever(self) -> None:
        while True:
            await self._start_sync.wait()
            self._start_sync = trio.Event()
            if self._sync is not None:
                await self._sync(self._store.fds_to_sync())
            if self._delay_s:
                await trio.sleep(self._delay_s)
            self._synced = True
            self._mailbox.put([])

    def _tell_full(self, error: DiskFull | None) -> None:
        full = error is not None
        if full == self._full:
            return
        self._full = full
        self._full_at = trio.current_time()
        if error is not None:
            _log.error("no room for what was published to a stream", queue=self.queue.name, reason=str(error))
        else:
            _log.warning("there is room again for a stream", queue=self.queue.name)
        if self._on_full is not None:
            self._on_full(self, full)

    def storage_failed(self) -> None:
        """Nothing can be kept any more: who waits for it hears so."""
        if self._sync is not None:
            self.queue.refuse_waiting()
            self._send_effects()

    def fail(self) -> None:
        """Nobody can trust the state any more: end as if deleted, so that links hear of it."""
        self.queue.break_down(command for commands in self._at_work for command in commands)
        self._send_effects()
        for commands in self._mailbox.close():
            self.post_all(commands)

    def _send_effects(self) -> None:
        self._askers.post(self.queue.take_effects())
