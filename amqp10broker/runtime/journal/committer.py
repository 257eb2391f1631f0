"""Group commit: one task writes the journal's collected records, syncs them, and resumes the waiting tasks.

While a sync is under way the next batch collects, so batches grow with a slow disk. A full disk is not fatal:
appends use the journal's reserve, which queues keep for all but publishes, and a retry each second makes it
whole. A failed sync is fatal: the broker stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final

import trio

from amqp10broker.errors import DiskFull, StorageError, StorageFailed
from amqp10broker.queues.stream.durability import StreamSyncs
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import InlineSteps
from amqp10broker.storage.catalog_log import CatalogLog
from amqp10broker.storage.folder import Inventory
from amqp10broker.storage.journal import Journal

_log = Log("amqp10broker.storage")

FULL_RETRY_S: Final = 1.0
MARK_AFTER_S: Final = 1.0
"""So long after a commit, however many follow it, the inventory is told how much is synced."""
FEW: Final = 4
"""So many queues go on at once when what they have kept is durable; more take their own turns."""


AlsoSynced = CatalogLog | Inventory | StreamSyncs
"""Another file that must be durable before anything is confirmed that was written after it."""


class Committer:
    """Commits one journal, and other files with it. `full`: the disk does not take what is published."""

    def __init__(
        self,
        journal: Journal,
        sync: Callable[[Sequence[int]], Awaitable[None]],
        *,
        also: Sequence[AlsoSynced] = (),
        on_full: Callable[[bool], None] = lambda full: None,
        held: Callable[[], bool] = lambda: False,
        on_mark: Callable[[], None] = lambda: None,
        inline: InlineSteps | None = None,
    ) -> None:
        """Commit a journal, once `run` runs. `sync`: makes files durable, or raises `StorageFailed`:
        `Syncer.sync`. `also`: other files; their owners write them and call `wake`. `on_full`: called with
        True when the disk is full, and with False when it takes writes again. `held`: whether another file
        must be durable before the journal is written. `on_mark`: called to record in the inventory how much
        of other files is synced.
        """
        self.journal = journal
        self.commits = 0
        self.sync_ms = 0.0
        self.full = False
        self.full_at = 0.0
        self.began: float | None = None
        """Since when a sync is running, by Trio's clock; None: none is."""
        self.failure: StorageFailed | None = None
        self._sync = sync
        self._also = also
        self._on_full = on_full
        self._held = held
        self._on_mark = on_mark
        self._inline = inline or InlineSteps()
        self._lot = trio.lowlevel.ParkingLot()
        self._wanted = False
        self._stopping = False
        # A commit since the inventory was told last.
        self._unmarked = False
        self._to_mark = trio.Event()
        self._mark_due = False
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._for_room: list[Callable[[], object]] = []
        self._events: set[trio.Event] = set()
        self.to_clean = trio.Event()
        """Set, and replaced, when a commit, or a try while the disk is full, leaves a file to clean."""

    # --- for callers that append --------------------------------------------------------------------

    @property
    def last_sync_ms(self) -> float:
        """How long the last sync took, or has taken so far if one is running that has taken longer."""
        if self.began is None:
            return self.sync_ms
        return max(self.sync_ms, (trio.current_time() - self.began) * 1000)

    def wake(self) -> None:
        """There is something to write; after appending, once a batch."""
        if not self._wanted:
            self._wanted = True
            self._lot.unpark()

    def when_durable(self, ticket: int, callback: Callable[[], object]) -> None:
        """Have a function called when a ticket is durable; also wakes the committer. Ask for the newest
        ticket once, and for the next when that was called: a queue waits in one place at most. It is called
        in the committer's task, or before this returns if it is durable already; never, if storage fails.
        """
        if ticket <= self.journal.durable:
            callback()
        else:
            self._waiting.append((ticket, callback))
            self.wake()

    def when_room(self, callback: Callable[[], object]) -> None:
        """Have a function called when the journal has no `shortage`; also wakes the committer. It is called
        once, in the committer's task; never, if storage fails.
        """
        self._for_room.append(callback)
        self.wake()

    async def wait_durable(self, ticket: int) -> None:
        """Wait until a ticket is durable. Raises `StorageFailed` if it may never be."""
        if ticket <= self.journal.durable or self.failure is not None:
            await trio.lowlevel.checkpoint()
        else:
            event = trio.Event()
            self._events.add(event)
            self.when_durable(ticket, event.set)
            try:
                await event.wait()
            finally:
                self._events.discard(event)
        if ticket > self.journal.durable:
            assert self.failure is not None
            raise self.failure

    def stop(self) -> None:
        self._stopping = True
        self.wake()

    # --- the task -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit, until `stop`. Raises `StorageFailed` if a write or a sync failed otherwise than for lack of
        room. Reported records are durable; no others will be.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._mark_in_time)
            try:
                await self._commit_always()
            except StorageError as error:
                self._fail(error)
            nursery.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure

    async def _commit_always(self) -> None:
        while True:
            if self._mark_due:
                self._mark_due = self._unmarked = False
                self.journal.mark()
                self._on_mark()
            if await self._commit() and (self._wanted or not self.journal.at_rest):
                continue
            if self._stopping:
                if not self._unmarked:
                    return
                self._mark_due = True
            elif not (self._wanted or self._mark_due):
                with trio.move_on_after(FULL_RETRY_S) if self.full else nullcontext():
                    await self._lot.park()

    def _fail(self, error: StorageError) -> None:
        failure = error
        if not isinstance(failure, StorageFailed):
            failure = StorageFailed(error.path, error.problem, error.remedy, offset=error.offset)
            failure.__cause__ = error
        self.failure = failure
        _log.error("storage has failed, the broker stops", reason=str(failure))
        for event in self._events:
            event.set()

    async def _mark_in_time(self) -> None:
        while True:
            await self._to_mark.wait()
            self._to_mark = trio.Event()
            await trio.sleep(MARK_AFTER_S)
            self._mark_due = True
            self._lot.unpark()

    async def _commit(self) -> bool:
        self._wanted = False
        full: DiskFull | None = None
        held, ticket = self._held(), None
        try:
            if not held:
                ticket = self.journal.write()
        except DiskFull as error:
            # What others have written is synced all the same: deleting is how room is made.
            full = error
        also = [(each, fds) for each in self._also if (fds := each.fds_to_sync())]
        if ticket is not None or also:
            await self._sync_all(ticket, also)
            self._wanted = self._wanted or held
        if full is not None:
            await self._wait_for_room(full)
            return not self._stopping
        self._note(self.journal.shortage)
        if self.journal.shortage is None and self._for_room:
            waiting, self._for_room = self._for_room, []
            for callback in waiting:
                callback()
        done = ticket is not None or bool(also)
        if done:
            self._tell()
        if self.journal.to_clean() is not None:
            self.to_clean.set()
            self.to_clean = trio.Event()
        return done

    async def _sync_all(self, ticket: int | None, also: Sequence[tuple[AlsoSynced, Sequence[int]]]) -> None:
        fds = [fd for _, part in also for fd in part]
        if ticket is not None:
            fds += self.journal.fds_to_sync()
        began = self.began = trio.current_time()
        await self._sync(fds)
        self.began = None
        self.sync_ms = (trio.current_time() - began) * 1000
        self.commits += 1
        for each, _ in also:
            each.synced()
        if ticket is not None:
            self.journal.synced(ticket)
        self.journal.remove_dropped()
        if not self._unmarked:
            self._unmarked = True
            self._to_mark.set()

    def _tell(self) -> None:
        durable = self.journal.durable
        ready = [callback for ticket, callback in self._waiting if ticket <= durable]
        if ready:
            # First the list: a callback may ask for the next ticket.
            self._waiting = [each for each in self._waiting if each[0] > durable]
            self._inline.open = len(ready) <= FEW
            for callback in ready:
                callback()
            self._inline.run()

    def _note(self, shortage: DiskFull | None) -> None:
        full = shortage is not None
        if full == self.full:
            return
        self.full = full
        if full:
            self.full_at = trio.current_time()
            _log.error(
                "the disk is full, nothing that is published is confirmed until there is room",
                reason=str(shortage),
                reserve_bytes=self.journal.room_bytes,
            )
        else:
            _log.info("the disk takes writes again")
        self._on_full(full)

    async def _wait_for_room(self, error: DiskFull) -> None:
        self._note(error)
        if self._stopping:
            _log.warning("stopping with a full disk, what was not confirmed is lost")
            self._unmarked = False
        else:
            await trio.sleep(FULL_RETRY_S)
            self._wanted = True  # what could not be written, by whoever it was asked for
