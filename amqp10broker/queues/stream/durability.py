"""The durability backend of a stream: its own log, synced with the node's commits.

Messages published during a sync wait, and make the next chunk: so chunks get large when the disk is slow, and
other queues do not wait for it. Consumers are served meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from amqp10broker.errors import DiskFull
from amqp10broker.queues.commands import Command, PeerId, Publish, PublisherRef
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.stream.commits import StreamCommits, StreamSyncs
from amqp10broker.queues.stream.log import StreamLog
from amqp10broker.queues.stream.queue import StreamQueue

RETRY_MS: Final = 1000
"""Interval after which a write without room on the disk is tried again."""

MARK_AFTER_MS: Final = 1000
"""Delay after a commit, however many follow it, until the inventory records the synced length."""


PARTS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of commits that are in the journal and not in the stream's files; beyond that the stream takes part
in no commit.
"""

NOBODY: Final = PublisherRef(PeerId(0, 0, 0), 0)
"""The publisher of commits recovered at start."""


class StreamBackend(DurabilityBackend[StreamQueue]):
    """Writes published messages as chunks, one at a time, and commits each when it is synced."""

    def __init__(
        self,
        queue: StreamQueue,
        wake: Wake,
        publish: PublishEffects,
        log: StreamLog,
        syncs: StreamSyncs | None,
        on_full: Callable[[StreamBackend, DiskFull | None], None],
        commits: Commits | None = None,
        parts: StreamCommits | None = None,
    ) -> None:
        super().__init__(queue, wake, publish)
        self.durable = syncs is not None
        self.recovered = False
        self._log = log
        self._syncs = syncs
        self._on_full = on_full
        self._commits = commits
        self._parts = parts
        # Parts of commits that are not durable in the journal yet, and up to which one they are.
        self._undurable: deque[tuple[int, Publish]] = deque()
        self._durable = self._asked = 0
        self._writing: int | None = None
        self._synced = False
        self._unwritten = False
        self._sync_ms = 0
        self._full_ms: int | None = None
        self._retry_ms = 0
        self._mark_ms: int | None = None
        """When the inventory has to record the committed length; None if it has."""

    @property
    def busy(self) -> bool:
        return self._writing is not None or bool(self._undurable)

    def recover(self, now_ms: int) -> Iterator[int]:
        yield from self._log.recover()
        self.recovered = True

    def recover_parts(self) -> None:
        # Commits that are in the journal only are written to the stream now.
        if self._parts is not None:
            for number, messages in self._parts.missing(self._log.number):
                self._durable = self._asked = number
                self._undurable.append((number, Publish(NOBODY, range(len(messages)), messages, True)))
            self.wake()

    def takes_part(self, size: int) -> bool:
        return self._full_ms is None and (self._parts is None or self._parts.bytes <= PARTS_BYTES_MAX)

    def apply_part(self, commands: list[Command], now_ms: int) -> None:
        # Messages that were posted before must be in the journal first.
        for command in commands:
            if type(command) is Publish and self._parts is not None:
                self._undurable.append((self._parts.append(command.messages), command))
            else:
                self.queue.apply(command, now_ms)
        self.flush(now_ms)

    def publish(self) -> None:
        super().publish()
        if self._undurable and (last := self._undurable[-1][0]) > self._asked:
            assert self._commits is not None, "it has parts"
            self._asked = last
            # Behind the end of the commit, which may be appended after this queue's part.
            self._commits.when_durable(self._commits.journal.ticket, partial(self._on_durable, last))

    def _on_durable(self, number: int) -> None:
        self._durable = number
        self.wake()

    def _publish_durable(self, now_ms: int) -> None:
        # Only parts that are durable in the journal: after a loss of power, a part of a commit would be there
        # without the others.
        while self._undurable and self._undurable[0][0] <= self._durable:
            number, command = self._undurable.popleft()
            self.queue.publish_part(command, number, now_ms)

    def flush(self, now_ms: int) -> None:
        self._commit(now_ms)
        self._publish_durable(now_ms)
        self._mark_in_time(now_ms)
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
                if (fds := log.prepare_room()) and self._syncs is not None:
                    self._has_room()
                    self._sync(self._syncs, fds, self.queue.log.next_offset, now_ms)
                    return
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
        self._has_room()
        if self._syncs is None:
            log.commit(offset)
            self.queue.commit(now_ms)
        else:
            self._sync(self._syncs, log.shelf.fds_to_sync(), offset, now_ms)

    def _has_room(self) -> None:
        if self._full_ms is not None:
            self._full_ms = None
            self._on_full(self, None)

    def _sync(self, syncs: StreamSyncs, fds: Sequence[int], offset: int, now_ms: int) -> None:
        self._writing = offset
        self._sync_ms = now_ms
        syncs.when_synced(fds, self._on_synced)

    def _on_synced(self) -> None:
        self._synced = True
        self.wake()

    def _commit(self, now_ms: int) -> None:
        if self._synced:
            assert self._writing is not None
            self._log.commit(self._writing)
            if self._parts is not None and self._parts.bytes:
                self._parts.written(self._log.number)
            if self._mark_ms is None:
                self._mark_ms = now_ms + MARK_AFTER_MS
            self._writing = None
            self._synced = False
            self.queue.commit(now_ms)

    def _mark_in_time(self, now_ms: int) -> None:
        if self._mark_ms is not None and now_ms >= self._mark_ms:
            self._mark_ms = None
            self._log.shelf.mark()

    def close(self) -> None:
        self.recovered = False
        if self._syncs is not None:
            self._syncs.withdraw(self._on_synced)
        if self.queue.deleted:
            self._log.delete()
            if self._parts is not None and self._commits is not None:
                self._parts.delete()
                self._commits.forget(self._parts.group)
        else:
            self._log.shelf.close()

    def delete(self) -> None:
        self._has_room()

    def abandon(self) -> list[Command]:
        self._has_room()
        return []

    def progress(self, *, busy: bool) -> QueueProgress:
        recovering = not self.recovered
        sync_ms = None if self._writing is None else self._sync_ms
        return QueueProgress(busy or recovering, recovering, sync_ms, self._full_ms)

    def storage_failed(self) -> None:
        if self.durable:
            self.queue.refuse_waiting(failed=True)
            self.publish()
