"""The durability backend of a stream: its own log, synced with the node's commits.

Messages published during a sync wait, and make the next chunk, so chunks get large when the disk is slow.

A commit over several queues must be whole or absent. So its messages are written to the journal first, with a
number that grows from commit to commit. When they are durable they are written to the stream as one chunk.
Each chunk records which commits are in the stream up to it. A start writes the later ones from the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from amqp10broker.errors import DamagedFile, DiskFull
from amqp10broker.message.message import Message, decode_batch, encode_batch
from amqp10broker.queues.commands import Command, PeerId, Publish, PublisherRef
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.journal import Commits, Place, RecordLog
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.stream.log import StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.storage.record import Record

PART: Final = 1
"""A record with the messages of a commit. Its index is the commit's number."""

WRITTEN: Final = 2
"""The stream has all commits up to the record's index. The chunks that had this information may be gone."""


class StreamCommits:
    def __init__(self, group: int, log: RecordLog) -> None:
        self.group = group
        self.bytes = 0
        self._log = log
        self._places: dict[int, Place] = {}
        self._last = 0

    def append(self, messages: Sequence[Message]) -> int:
        self._last += 1
        self._append(self._last, encode_batch(messages))
        return self._last

    def _append(self, number: int, payload: Sequence[bytes]) -> None:
        _, file, offset = self._log.append(self.group, PART, number, payload)
        self._keep(number, Place(file, offset, sum(map(len, payload))))

    def _keep(self, number: int, place: Place) -> None:
        self._let_go(number)
        self._places[number] = place
        self._log.add_live(place.file, place.length)
        self.bytes += place.length

    def _let_go(self, number: int) -> None:
        place = self._places.pop(number, None)
        if place is not None:
            self._log.add_dead(place.file, place.length)
            self.bytes -= place.length

    def written(self, number: int) -> None:
        """Note that the stream's files durably have all commits up to this one."""
        gone = [each for each in self._places if each <= number]
        for each in gone:
            self._let_go(each)
        if gone:
            self._log.append(self.group, WRITTEN, number, ())

    def missing(self, number: int) -> Iterator[tuple[int, Sequence[Message]]]:
        """Iterate over numbers and messages of commits that the stream lacks."""
        self._last = max(self._last, number)
        self.written(number)
        for each in sorted(self._places):
            yield each, decode_batch(self._read(each))

    def _read(self, number: int) -> bytes:
        place = self._places[number]
        return self._log.read(place.file, place.offset)

    def restore(self, records: Sequence[Record]) -> None:
        for record in records:
            number = record.index
            self._last = max(self._last, number)
            if record.kind == PART:
                self._keep(number, Place(record.file, record.offset, len(record.payload)))
            elif record.kind == WRITTEN:
                for each in [each for each in self._places if each <= number]:
                    self._let_go(each)
            else:
                raise DamagedFile(
                    f"file {record.file} of the journal at offset {record.offset}",
                    f"this version does not know kind {record.kind} of a record of stream {self.group}",
                    "restore the data folder from a copy",
                )

    def relocate(self, file: int) -> Iterator[None]:
        for number in [each for each, place in self._places.items() if place.file <= file]:
            self._append(number, [self._read(number)])
            yield

    def delete(self) -> None:
        for number in list(self._places):
            self._let_go(number)


# A stream requests the sync of its one file, and the committer includes some waiting files in each commit. So
# declarations, which are in every commit, are durable before a message of a stream is confirmed.

FILES_MAX: Final = 8
"""The number of streams' files in one commit, so that no commit takes long."""

_Wait = tuple[Sequence[int], Callable[[], None]]


class StreamSyncs:
    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[_Wait] = []
        self._under_way: list[_Wait] = []

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        """Call a function when data written to files is durable. It is never called if storage fails."""
        assert len(fds) <= FILES_MAX
        self._waiting.append((fds, callback))
        self.wake()

    def withdraw(self, callback: Callable[[], None]) -> None:
        self._waiting = [each for each in self._waiting if each[1] != callback]

    def fds_to_sync(self) -> Sequence[int]:
        fds: list[int] = []
        taken = 0
        for each, _ in self._waiting:
            if len(fds) + len(each) > FILES_MAX:
                break
            fds += each
            taken += 1
        self._under_way = self._waiting[:taken]
        del self._waiting[:taken]
        return fds

    def synced(self) -> None:
        under_way, self._under_way = self._under_way, []
        for _, callback in under_way:
            callback()
        if self._waiting:
            self.wake()


RETRY_MS: Final = 1000

MARK_AFTER_MS: Final = 1000
"""Delay after a commit until the inventory records the synced length."""


PARTS_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of commits that are in the journal and not in the stream's files. Beyond that the stream takes
part in no commit.
"""

NOBODY: Final = PublisherRef(PeerId(0, 0, 0), 0)


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
        # Parts of commits that are not durable in the journal, and the number up to which they are.
        self._undurable: deque[tuple[int, Publish]] = deque()
        self._durable = self._asked = 0
        self._writing: int | None = None
        self._synced = False
        self._unwritten = False
        self._sync_ms = 0
        self._full_ms: int | None = None
        self._retry_ms = 0
        self._mark_ms: int | None = None
        """When the inventory has to record the committed length."""

    @property
    def busy(self) -> bool:
        return self._writing is not None or bool(self._undurable)

    def recover(self, now_ms: int) -> Iterator[int]:
        yield from self._log.recover()
        self.recovered = True

    def recover_parts(self) -> None:
        # Commits that are only in the journal are written to the stream now.
        if self._parts is not None:
            for number, messages in self._parts.missing(self._log.number):
                self._durable = self._asked = number
                self._undurable.append((number, Publish(NOBODY, range(len(messages)), messages, True)))
            self.wake()

    def takes_part(self, size: int) -> bool:
        return self._full_ms is None and (self._parts is None or self._parts.bytes <= PARTS_BYTES_MAX)

    def apply_part(self, commands: list[Command], now_ms: int) -> None:
        # Messages that were sent before must be in the journal first.
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
            # This is after the end of the commit, which may be appended after this queue's part.
            self._commits.when_durable(self._commits.journal.ticket, partial(self._on_durable, last))

    def _on_durable(self, number: int) -> None:
        self._durable = number
        self.wake()

    def _publish_durable(self, now_ms: int) -> None:
        # Only parts that are durable in the journal are written: otherwise a part of a commit could survive a
        # loss of power without the others.
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
