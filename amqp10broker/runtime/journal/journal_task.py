"""The journal of a running broker: syncs, group commit, recovery and cleaning.

During a sync the next batch collects, so batches grow with a slow disk. A full disk is not fatal: appends use
the journal's reserve, which is not for publishes, and a retry each second restores it. A failed sync is
fatal: the broker stops.

A small helper process syncs, not a thread. A thread that returns from the system requests the interpreter's
lock from a busy loop, and waits 5 ms and more for it, each time (`docs/adr/0010`). The helper gets
descriptors over a Unix socket; where sockets cannot carry descriptors a thread is used. There is no second
attempt after an error, and no second helper after one that died: it would be unknown what the system has done
with the unwritten pages.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import trio

from amqp10broker import portable, syncing
from amqp10broker.errors import BrokerError, DiskFull, StorageError, StorageFailed
from amqp10broker.operations.snapshot import JournalView
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.journal import ResumableLinksInJournal, Spool
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.stream.durability import StreamCommits, StreamSyncs
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.journal.data import Data
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import InlineSteps
from amqp10broker.storage.catalog_log import CatalogLog
from amqp10broker.storage.disk import Disk, Scratch
from amqp10broker.storage.folder import DataFolder, Inventory
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import Record, Torn
from amqp10broker.storage.stream_files import FileShelf, part_of, remove_leftovers

_log = Log("amqp10broker.keeping")
_storage_log = Log("amqp10broker.storage")

_CHILD: Final = Path(syncing.__file__)
# How long the helper may take to end when its socket is closed, before it is killed.
_END_S: Final = 5.0


class Syncer:
    """The connection to the helper, for one sync at a time."""

    def __init__(self, channel: socket.socket, *, delay_ms: int = 0) -> None:
        self._channel = channel
        self._delay_s = delay_ms / 1000
        # Unread answers to syncs that were cancelled.
        self._unread = 0

    async def sync(self, fds: Sequence[int]) -> None:
        """Make durable the written content of these files and folders. Raises `StorageFailed`: stop then,
        because no later sync can show that they are durable.
        """
        try:
            while self._unread:
                await self._take_answer()
            for start in range(0, len(fds), syncing.FDS_MAX):
                some = fds[start : start + syncing.FDS_MAX]
                # Here and below the system is called directly: Trio's own sockets let other tasks run at each
                # call, which is half the time of a commit. There is always room for one byte.
                portable.send_fds(self._channel, [b"s"], some)
                self._unread += 1
                await self._take_answer()
        except OSError as error:
            raise _failed(f"cannot be reached: {error.strerror}") from error
        if self._delay_s:
            await trio.sleep(self._delay_s)

    async def _take_answer(self) -> None:
        await trio.lowlevel.wait_readable(self._channel)
        # Four bytes that one call has sent arrive together.
        data = self._channel.recv(syncing.ANSWER.size)
        if len(data) < syncing.ANSWER.size:
            raise _failed("has ended")
        self._unread -= 1
        _check(syncing.ANSWER.unpack(data)[0])


class ThreadSyncer:
    """A `Syncer` in a thread, with descriptors of its own."""

    def __init__(self, *, delay_ms: int = 0) -> None:
        self._delay_s = delay_ms / 1000

    async def sync(self, fds: Sequence[int]) -> None:
        _check(await trio.to_thread.run_sync(syncing.sync, [os.dup(fd) for fd in fds]))
        await trio.sleep(self._delay_s)


def _check(number: int) -> None:
    if number:
        raise StorageFailed(
            "the data folder",
            f"what was written cannot be synced: {os.strerror(number)}",
            "look at the disk; the broker stops, and a start recovers what was confirmed",
        )


@asynccontextmanager
async def open_syncer(*, delay_ms: int = 0) -> AsyncIterator[Syncer | ThreadSyncer]:
    """Start the helper; it ends with the block. Raises `StorageFailed` if it cannot be started."""
    if portable.send_fds is None:
        yield ThreadSyncer(delay_ms=delay_ms)
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours:
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-I", "-S", str(_CHILD), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C at a terminal is sent to a whole session; the helper must outlive it.
                    **portable.OWN_SESSION,
                    **portable.inherited(theirs),
                )
            except OSError as error:
                raise _failed(f"cannot be started: {error.strerror}") from error
        try:
            yield Syncer(ours, delay_ms=delay_ms)
        finally:
            trio.lowlevel.notify_closing(ours)
            ours.close()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(_END_S) as ending:
                    await process.wait()
                if ending.cancelled_caught:
                    # It hangs in a sync that the disk does not complete; even this may take that long.
                    process.kill()
                    await process.wait()


def _failed(problem: str) -> StorageFailed:
    return StorageFailed(
        "the helper process that syncs files",
        problem,
        "start the broker again; what was confirmed is recovered",
    )


FULL_RETRY_S: Final = 1.0
MARK_AFTER_S: Final = 1.0
"""The delay after a commit, regardless of later ones, until the inventory records the synced length."""
FEW: Final = 4
"""Up to so many queues run inline when their records are durable; more run in their own tasks."""


AlsoSynced = CatalogLog | Inventory | StreamSyncs
"""Another file that must be durable before later records are confirmed."""


class Committer:
    """Commits one journal, and other files with it. `full`: the disk has no room for publishes."""

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
        """Commit a journal, once `run` runs.

        `sync`: makes files durable, or raises `StorageFailed`. `also`: other files; their owners write them
        and call `wake`. `on_full`: called with whether the disk is full, when that changes. `held`: whether
        another file must be durable before the journal is written. `on_mark`: called to record in the
        inventory how much of other files is synced.
        """
        self.journal = journal
        self.commits = 0
        self.sync_ms = 0.0
        self.full = False
        self.full_at = 0.0
        self.began: float | None = None
        """Since when a sync is running, by Trio's clock; None: no sync is."""
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
        # Whether there was a commit since the inventory was updated last.
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
        """How long the last sync took, or the running one so far, if that is longer."""
        if self.began is None:
            return self.sync_ms
        return max(self.sync_ms, (trio.current_time() - self.began) * 1000)

    def wake(self) -> None:
        """Request that appended records are written; once a batch."""
        if not self._wanted:
            self._wanted = True
            self._lot.unpark()

    def when_durable(self, ticket: int, callback: Callable[[], object]) -> None:
        """Call a function when a ticket is durable; also wakes the committer.

        Request this for the newest ticket once, and for the next ticket when the function was called: a queue
        waits in one place at most. It is called in the committer's task, or before this returns; never, if
        storage fails.
        """
        if ticket <= self.journal.durable:
            callback()
        else:
            self._waiting.append((ticket, callback))
            self.wake()

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call a function once, in the committer's task, when the journal has no `shortage`; also wakes the
        committer. It is never called if storage fails.
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
        """Commit, until `stop`. Raises `StorageFailed` if a write or a sync failed for another reason than
        lack of room: no more records will be durable.
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
        _storage_log.error("storage has failed, the broker stops", reason=str(failure))
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
            # Other written data is synced all the same: deleting makes room.
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
        else:
            self.journal.remove_dropped()
        if not self._unmarked:
            self._unmarked = True
            self._to_mark.set()

    def _tell(self) -> None:
        durable = self.journal.durable
        ready = [callback for ticket, callback in self._waiting if ticket <= durable]
        if ready:
            # The list is changed first: a callback may register the next ticket.
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
            _storage_log.error(
                "the disk is full, nothing that is published is confirmed until there is room",
                reason=str(shortage),
                reserve_bytes=self.journal.room_bytes,
            )
        else:
            _storage_log.info("the disk takes writes again")
        self._on_full(full)

    async def _wait_for_room(self, error: DiskFull) -> None:
        self._note(error)
        if self._stopping:
            _storage_log.warning("stopping with a full disk, what was not confirmed is lost")
            self._unmarked = False
        else:
            await trio.sleep(FULL_RETRY_S)
            self._wanted = True  # for what could not be written, for any caller


_GROUP: Final = attrgetter("group")

UNSAFE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes that cleaning may have appended before it waits until they are durable; likewise the bytes
without a waiting client before they are synced: the next sync should not have much more to do.
"""

RECOVERING_MAX: Final = 64
"""The number of queues that recover in one iteration of the loop: some ten milliseconds. Heartbeats to other
nodes are sent in between.
"""

FILE_BYTES_MIN: Final = 1024 * 1024
FILES_MIN: Final = 16
"""A file of the journal is at most this part of the file system, and at least `FILE_BYTES_MIN`."""

SOON_S: Final = 0.2
"""The delay until records without a waiting client are written: settlements in classic queues, and messages
that were confirmed when they were written.
"""


JournalOwner = ClassicStore | QuorumStore | StreamCommits | ResumableLinksInJournal
"""An owner of records in the journal: it takes those found at start, and appends live ones again."""


class JournalTask:
    def __init__(
        self,
        disk: Disk,
        folder: DataFolder,
        journal: Journal,
        committer: Committer,
        stream_syncs: StreamSyncs,
        clock: WallClock,
        on_failed: Callable[[BrokerError], None],
        held: Callable[[], bool],
    ) -> None:
        self._held = held
        self.failure: BrokerError | None = None
        self._disk = disk
        self._folder = folder
        self.stream_syncs = stream_syncs
        self._clock = clock
        self._on_failed = on_failed
        self._begun = trio.Event()
        self._soon = trio.Event()
        self.journal = journal
        self.committer = committer
        self.when_durable, self.when_room = committer.when_durable, committer.when_room
        self.spool = Spool(lambda: Scratch(disk, folder.journal))
        self.recovered = trio.Event()
        self._turns = trio.CapacityLimiter(RECOVERING_MAX)
        self._turns_of_new = trio.CapacityLimiter(RECOVERING_MAX)
        self._kept: dict[int, JournalOwner] = {}
        self._abandoned: set[int] = set()

    def write_early(self) -> int:
        if self._held():
            self.committer.wake()
            return self.journal.durable
        try:
            return self.journal.write_early()
        except DiskFull:
            # The committer gets the error again, reports it, and tries until there is room.
            self.committer.wake()
            return self.journal.durable

    def write_soon(self) -> None:
        if self.journal.unsynced_bytes > UNSAFE_BYTES_MAX:
            self.committer.wake()
        else:
            self._soon.set()

    async def _write_always(self) -> None:
        while True:
            await self._soon.wait()
            await trio.sleep(SOON_S)
            self._soon = trio.Event()
            self.committer.wake()

    def stream(self, number: int) -> FileShelf:
        part = part_of(self._folder.inventory, number)
        when_synced = self.stream_syncs.when_synced
        return FileShelf(self._disk, self._folder.streams, number, part, when_synced, _tell_torn)

    def remove_deleted_streams(self, numbers: Iterable[int]) -> None:
        """Remove the remaining files of deleted streams. Raises `StorageError`."""
        for name in remove_leftovers(self._disk, self._folder.streams, numbers, self._folder.inventory):
            _log.info("files of a deleted stream removed", folder=name)

    def failed(self, error: BrokerError) -> None:
        """Stop the broker: storage besides the journal has failed."""
        _log.error("storage has failed, the broker stops", reason=str(error))
        self._fail(error)

    def turns_for_queue(self) -> trio.CapacityLimiter:
        """Return the limiter that a queue awaits first: a new queue does not wait for all recovered ones."""
        return self._turns_of_new if self.recovered.is_set() else self._turns

    def add(self, kept: JournalOwner) -> None:
        self._kept[kept.group] = kept

    def forget(self, group: int) -> None:
        self._kept.pop(group, None)
        self._abandoned.discard(group)

    def abandoned(self, group: int) -> None:
        """Clean nothing until the next start, which needs the records of a failed queue."""
        self._abandoned.add(group)
        _log.warning(
            "the journal is not cleaned, so that nothing of a failed queue is lost; "
            "start the broker again, or delete the queue"
        )

    def begin(self) -> None:
        """Begin to read the journal, when all its owners were added."""
        self._begun.set()

    async def run(self) -> None:
        """Recover when `begin` was called, then commit and clean, until the committer stops."""
        await self._begun.wait()
        try:
            await self._recover()
        except StorageError as error:
            self._fail(error)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clean_always)
            nursery.start_soon(self._write_always)
            try:
                await self.committer.run()
            except StorageError as error:
                self._fail(error)
            nursery.cancel_scope.cancel()

    def _fail(self, error: BrokerError) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failed(error)

    async def _recover(self) -> None:
        started_at = trio.current_time()
        of_deleted_queues = 0
        for batch in self.journal.recover():
            of_deleted_queues += self._hand_out(batch)
            await trio.lowlevel.checkpoint()
        found = self.journal.found
        assert found is not None
        if found.torn is not None and found.torn_path is not None:
            _tell_torn(found.torn_path, found.torn)
        _log.info(
            "journal read",
            files=found.files,
            records=found.records,
            bytes=found.bytes,
            of_deleted_queues=of_deleted_queues,
            seconds=round(trio.current_time() - started_at, 3),
            reserve_bytes=self.journal.room_bytes,
        )
        if not self.journal.reserve:
            _log.warning(
                "this file system cannot reserve room: while it is full nothing can be settled",
                folder=self._folder.path,
            )
        self.recovered.set()

    def _hand_out(self, batch: Sequence[Record]) -> int:
        of_deleted_queues = 0
        for group, records in groupby(batch, key=_GROUP):
            part, kept = list(records), self._kept.get(group)
            if kept is None:
                of_deleted_queues += len(part)
            else:
                kept.restore(part)
        return of_deleted_queues

    async def _clean_always(self) -> None:
        try:
            while True:
                await self.committer.to_clean.wait()
                while not self._abandoned and (file := self.journal.to_clean()) is not None:
                    await self._clean(file)
        except StorageError as error:
            self._fail(error)

    async def _clean(self, file: int) -> None:
        for kept in list(self._kept.values()):
            for _ in kept.relocate(file):
                self.committer.wake()
                if self.journal.collected_bytes > UNSAFE_BYTES_MAX:
                    await self.committer.wait_durable(self.journal.ticket)
                else:
                    await trio.lowlevel.checkpoint()
        if self._abandoned:
            return  # the file may have records that a queue which failed meanwhile could not append again
        self.journal.drop(file)
        self.committer.wake()
        await self.committer.wait_durable(self.journal.ticket)

    def progress(self, *, busy: bool, waits: bool) -> QueueProgress:
        if not self.recovered.is_set():
            return QueueProgress(busy, recovering=True)
        committer = self.committer
        return QueueProgress(
            busy,
            sync_ms=self._clock.ms_at(committer.began) if waits and committer.began is not None else None,
            full_ms=self._clock.ms_at(committer.full_at) if waits and committer.full else None,
        )

    def view(self) -> JournalView:
        if not self.recovered.is_set():
            return JournalView(recovered=False)
        journal, committer = self.journal, self.committer
        return JournalView(
            recovered=True,
            files=journal.files,
            bytes=journal.size_bytes,
            live_bytes=journal.live_bytes,
            spool_bytes=self.spool.bytes_used,
            commits=committer.commits,
            last_sync_ms=round(committer.last_sync_ms, 3),
            sync_running=committer.began is not None,
            disk_full=committer.full,
            reserve_bytes=journal.room_bytes,
        )


def _tell_torn(path: str, torn: Torn) -> None:
    _log.warning(
        "the end of a file was torn and is cut off: it had not been confirmed",
        file=path,
        offset=torn.offset,
        bytes=torn.bytes,
    )


def journal_sizes(folder: DataFolder, largest: int) -> tuple[int, int]:
    """Return the size of a journal file, at most `largest`, and the size of the reserve after the last, in
    bytes. On a small disk files are smaller, so that some are free soon. The reserve is for cleaning one
    file, and for settlements of half its length. Raises `StorageError`.
    """
    # Some file systems report 0 bytes.
    share = folder.total_bytes() // FILES_MIN or largest
    file_bytes_max = min(largest, max(FILE_BYTES_MIN, share))
    return file_bytes_max, file_bytes_max + file_bytes_max // 2


@asynccontextmanager
async def opened_journal(
    data: Data | None,
    clock: WallClock,
    *,
    file_bytes: int,
    sync_delay_ms: int,
    on_full: Callable[[bool], None],
    on_failed: Callable[[BrokerError], None],
    inline: InlineSteps,
) -> AsyncIterator[JournalTask | None]:
    """Store the records of durable queues inside the block, and commit the rest at its end. `data`: None:
    nothing is stored. `file_bytes`: the most of a file of the journal. Raises `StorageFailed` if the helper
    that syncs cannot be started.
    """
    if data is None:
        yield None
        return
    async with open_syncer(delay_ms=sync_delay_ms) as helper:
        inventory = data.folder.inventory
        file_bytes_max, reserve_bytes = journal_sizes(data.folder, file_bytes)
        journal = Journal(
            data.disk,
            data.folder.journal,
            inventory.part("journal"),
            file_bytes_max=file_bytes_max,
            reserve_bytes=reserve_bytes,
        )
        streams = StreamSyncs()
        held = data.catalog_log.holds_journal
        committer = Committer(
            journal,
            helper.sync,
            also=(data.catalog_log, streams, inventory),
            on_full=on_full,
            held=held,
            on_mark=data.catalog_log.mark,
            inline=inline,
        )
        streams.wake = committer.wake
        journal_task = JournalTask(
            data.disk, data.folder, journal, committer, streams, clock, on_failed, held
        )
        data.when_written = committer.wake
        failure: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal_task.run)
                try:
                    yield journal_task
                except Exception as error:
                    # Earlier decisions are committed first, and the error is not wrapped in a group.
                    failure = error
                if journal_task.recovered.is_set():
                    committer.stop()
                else:
                    nursery.cancel_scope.cancel()
        finally:
            data.when_written = lambda: None
            journal_task.spool.close()
            journal.close()
        if failure is not None:
            raise failure
