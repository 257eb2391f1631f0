"""How a stream keeps what is published: in its own log, whose file is synced with the node's commits.

What is published while a sync is under way waits, and makes the next chunk: so chunks get large when
the disk is slow, and nobody else waits for it. Consumers are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from amqp10broker.errors import DiskFull
from amqp10broker.persistence.keeper import Keeper
from amqp10broker.queues.outlook import Progress
from amqp10broker.queues.stream.queue import StreamQueue

RETRY_MS: Final = 1000
"""A write for which the disk had no room is tried again after this time."""

MARK_AFTER_MS: Final = 1000
"""After so long without a commit the inventory is told of the last."""


class Log(Protocol):
    """A stream's log, as whoever has it written and synced uses it (`storage.stream_log`)."""

    def recover(self) -> Iterable[int]:
        """Read what is there: bytes, in steps."""

    def write(self) -> int:
        """Write what was appended; the offset up to which a sync makes it durable.

        Raises:
            DiskFull: nothing is lost; it can be tried again.
        """

    def fds_to_sync(self) -> Sequence[int]:
        """Descriptors of what was written."""

    def commit(self, offset: int) -> None:
        """What is below the offset is durable."""

    def mark(self) -> None:
        """Have it known how much is durable."""

    def close(self) -> None:
        """Nothing more will be asked."""

    def delete(self) -> None:
        """Remove everything; nothing more will be asked."""


class Syncs(Protocol):
    """Makes files durable (`tasks.stream_syncs`)."""

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        """Have a function called when what was written is durable; never, if storage fails."""

    def withdraw(self, callback: Callable[[], None]) -> None:
        """It is not to be called any more: the files are closed."""


class StreamKeeper(Keeper[StreamQueue]):
    """Writes chunks of what was published, one at a time, and commits each when it is synced."""

    def __init__(
        self,
        queue: StreamQueue,
        log: Log,
        syncs: Syncs | None,
        on_full: Callable[[StreamKeeper, DiskFull | None], None],
    ) -> None:
        """Keep for a stream.

        Args:
            queue: its state.
            log: the queue's log, not recovered yet.
            syncs: make the log's files durable; None for a log in memory.
            on_full: told when the disk has no room for what was published, and, with None, that it has again,
                or that it does not matter any more.
        """
        super().__init__(queue)
        self.kept = syncs is not None
        self.recovered = False
        self._log = log
        self._syncs = syncs
        self._on_full = on_full
        self._writing: int | None = None
        self._synced = False
        self._unwritten = False
        self._sync_ms = 0
        self._full_ms: int | None = None
        self._retry_ms = 0
        self._marked = 0
        self._mark_ms: int | None = None
        """When the inventory is to be told of the last commit; None if it was, or there was none."""

    @property
    def busy(self) -> bool:
        """See `Keeper`."""
        return self._writing is not None

    def recover(self, now_ms: int) -> Iterator[int]:
        """See `Keeper`."""
        yield from self._log.recover()
        self.recovered = True

    def keep(self, now_ms: int) -> None:
        """See `Keeper`."""
        self._commit(now_ms)
        self._mark_if_quiet(now_ms)
        if (self.queue.waiting or self._unwritten) and self._writing is None:
            self._write(now_ms)
        self.due_ms = self._mark_ms
        if self._full_ms is not None and (self.due_ms is None or self._retry_ms < self.due_ms):
            self.due_ms = self._retry_ms

    def _write(self, now_ms: int) -> None:
        if self._full_ms is not None and now_ms < self._retry_ms:
            return
        log = self._log
        try:
            if not self._unwritten:
                self.queue.write(now_ms)
                self._unwritten = True
            offset = log.write()
        except DiskFull as error:
            self._retry_ms = now_ms + RETRY_MS
            if self._full_ms is None:
                self._full_ms = now_ms
                self._on_full(self, error)
            return
        self._unwritten = False
        self.end()
        if self._syncs is None:
            log.commit(offset)
            self.queue.commit(now_ms)
        else:
            self._writing = offset
            self._sync_ms = now_ms
            self._syncs.when_synced(log.fds_to_sync(), self._on_synced)

    def _on_synced(self) -> None:
        self._synced = True
        self.wake()

    def _commit(self, now_ms: int) -> None:
        """Take over what has been synced."""
        if self._synced:
            assert self._writing is not None
            self._log.commit(self._writing)
            if self._writing > self._marked:
                self._marked = self._writing
                self._mark_ms = now_ms + MARK_AFTER_MS
            self._writing = None
            self._synced = False
            self.queue.commit(now_ms)

    def _mark_if_quiet(self, now_ms: int) -> None:
        """After a while without a commit the inventory is told how much is synced; it guards the last one."""
        if self._mark_ms is not None and now_ms >= self._mark_ms:
            self._mark_ms = None
            if self._writing is None and not self._unwritten and not self.queue.waiting:
                self._log.mark()

    def close(self) -> None:
        """See `Keeper`."""
        self.recovered = False
        if self._syncs is not None:
            self._syncs.withdraw(self._on_synced)
        if self.queue.deleted:
            self._log.delete()
        else:
            self._log.close()

    def end(self) -> None:
        """See `Keeper`."""
        if self._full_ms is not None:
            self._full_ms = None
            self._on_full(self, None)

    def progress(self, *, busy: bool) -> Progress:
        """See `Keeper`."""
        recovering = not self.recovered
        sync_ms = None if self._writing is None else self._sync_ms
        return Progress(busy or recovering, recovering, sync_ms, self._full_ms)

    def storage_failed(self) -> None:
        """See `Keeper`."""
        if self.kept:
            self.queue.refuse_waiting(failed=True)
            self.tell()
