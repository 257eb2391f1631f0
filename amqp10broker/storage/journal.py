"""The journal: a sequence of numbered files in which all queues of a node store their records.

A record belongs to a *group*, a queue's number. `append` collects it and returns a *ticket*; `write` writes
collected records; when the descriptors of `fds_to_sync` have been synced, `synced` makes the tickets durable.
Publishes that must survive a loss of power are not confirmed before; those that need only survive the process
may be when they are written (`write_early`).

Three rules make the files readable after a loss of power (`record` and `logfile` rely on them):

- One commit writes records to one file. The next file is made, header only, in the commit that fills the one
  before; records go there when both are durable.
- A file is removed when everything appended before it was dropped is durable, and then its entry in the
  inventory, in this order. A new file has its entry, in the same commit, before anything in it counts.
- Recovery syncs the last file and the folder before anything is appended: records that a crashed broker wrote
  without syncing count as confirmed then.

On a full disk records must still be appended to make room: settlements, and the live records of the oldest
file. So room is allocated behind the end, the *reserve*, and the next file is made in advance. Appends that
free no room must be admitted first.

Space is reclaimed from the oldest file on. The queues count the bytes of each file that they still need; when
cleaning pays they append the live records of the oldest file again, and `drop` removes it.
"""

from __future__ import annotations

import os.path
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.storage.disk import Disk, sync_folder
from amqp10broker.storage.folder import FolderInventory
from amqp10broker.storage.logfile import JOURNAL, FolderSurvey, LogFile, go_on, survey
from amqp10broker.storage.record import HEADER_BYTES, FileHeader, FileReader, Purpose, Record, Torn

FILE_BYTES_MAX: Final = 32 * 1024 * 1024
"""The size of a file that takes no further record. It is below the disk alarm's limit (50 MB), because
otherwise there would be no room to clean a file during an alarm.
"""

ALLOCATED_AT_ONCE: Final = 8

RESERVE_BYTES_MIN: Final = 1024 * 1024
"""The least reserve. A journal shorter than the largest reserve has a reserve of its own length: no more than
that can be settled or cleaned.
"""

NEXT_BYTES: Final = 64 * 1024
"""The room that is allocated in the next file before it is used."""

GROUP_BEGINS: Final = 253
"""A record of the journal itself: records up to the next `GROUP_ENDS` count together, or not at all."""

GROUP_ENDS: Final = 254
"""With index 1 the records since `GROUP_BEGINS` count."""

_KIND: Final = attrgetter("kind")

OPEN_FILES_MAX: Final = 64
"""The number of open descriptors of files that are only read."""


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    files: int
    records: int
    bytes: int
    torn: Torn | None
    torn_path: str | None


class Journal:
    """The journal of one node, usable after `recover` has been iterated to its end. `shortage`: why the
    reserve is incomplete, or there is no room for a refused append besides it; None: there is, or there is no
    reserve.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        part: FolderInventory,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        reserve_bytes: int = 0,
    ) -> None:
        """Create a journal without opening any file. `folder`: must exist. `part`: of the inventory; it must
        be synced before each `synced`, with `remove_dropped` afterwards. `reserve_bytes`: maximum of the
        reserve; 0: none.
        """
        self.shortage: DiskFull | None = None
        self.durable = 0
        self.found: RecoveryResult | None = None
        self.live_bytes = 0
        self._disk = disk
        self._folder = folder
        self._part = part
        self._folder_fd: int | None = None
        self._file_bytes_max = file_bytes_max
        self.reserve = reserve_bytes
        # The reserve of the file being filled begins at this offset.
        self._limit = 0
        self._refused = 0
        # The next file, made in advance: a full disk may have no room for it.
        self._next: LogFile | None = None
        self.ticket = 0
        """The last one returned: when it is durable, all records are."""
        self._written = 0
        self._together = False
        # The records of a group during recovery, before its end has been read.
        self._unended: list[Record] | None = None
        # All readable files, oldest first, including those that are not created yet.
        self._files: dict[int, LogFile] = {}
        self._live: dict[int, int] = {}
        self._full_bytes = 0
        # Descriptors of closed files, least recently used first.
        self._reading: OrderedDict[int, LogFile] = OrderedDict()
        # Records are written to `_current`. The later files are filled one after the other, in memory, and
        # `_filling` is the last of them. `_last_tickets` are those of files filled.
        self._current: LogFile
        self._pending: deque[LogFile] = deque()
        self._filling: LogFile
        self._last_tickets: dict[int, int] = {}
        # The states that a sync of everything written so far would make durable.
        self._points: deque[tuple[int, LogFile, int, LogFile | None, int]] = deque()
        self._syncing = False
        self._names = self._names_synced = 0
        # Files to remove, each with the ticket that must be durable first; then the inventory's change.
        self._dropped: deque[tuple[int, LogFile]] = deque()
        self._leaving: deque[tuple[int, LogFile]] = deque()

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        """Collect a record without writing it; it is dead until `add_live`. `group`: u32; `kind`: 1 to 254;
        `index`, `term`: u64. Returns ticket, file number, offset.
        """
        filling = self._filling
        if filling.end >= self._file_bytes_max and not self._together and self._may_roll(filling):
            filling = self._roll(filling)
        offset = filling.append(group, kind, index, payload, term)
        if filling.end > self._limit and self.reserve:
            self._extend()
        self.ticket = ticket = self.ticket + 1
        return ticket, filling.number, offset

    @contextmanager
    def together(self) -> Iterator[None]:
        """Append the records of a block atomically: after a loss of power all of them exist, or none. The
        block must not await. A group lies in one file, and recovery drops it if its end is missing.
        """
        self.append(0, GROUP_BEGINS, 0, ())
        self._together = True
        whole = False
        try:
            yield
            whole = True
        finally:
            self.append(0, GROUP_ENDS, int(whole), ())
            self._together = False

    def admits(self, size: int, last: int) -> bool:
        """Return whether records that free no room may be appended without using the reserve. `size`: their
        approximate bytes, with those that were admitted before and not yet appended. `last`: how many of them
        are new. If there is no room, there is a shortage until there is.
        """
        filling = self._filling
        if self.shortage is not None:
            return False
        if not self.reserve or filling.end + size <= self._limit:
            return True
        if filling.end >= self._file_bytes_max and self._may_roll(filling):
            self._roll(filling)
        self._refused = last
        self._make_next(filling.number + 1)
        self._extend(size)
        return self.shortage is None

    def withdraw(self) -> None:
        """Withdraw the refused append, so that a shortage ends when the reserve is whole."""
        self._refused = 0

    @property
    def collected_bytes(self) -> int:
        return self._current.collected_bytes + sum(file.collected_bytes for file in self._pending)

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that a loss of power could destroy."""
        collected = sum(file.collected_bytes for file in self._pending) if self._pending else 0
        return collected + self._current.end - self._current.synced

    @property
    def at_rest(self) -> bool:
        """Whether the next commit has no file to begin or to remove."""
        return not (self._pending or self._dropped or self._leaving)

    def mark(self) -> None:
        """Record the synced position in the inventory, to detect damage or loss before it. A failure is
        ignored, since the records themselves are safe.
        """
        try:
            self._claim(self._current)
        except StorageError:
            return

    def write(self) -> int | None:
        """Write collected records, as far as they belong into one file. Returns the ticket that is durable
        when `fds_to_sync` is synced; None: there is nothing to sync. Raises `DiskFull` if the rest is still
        collected; repeat when there is room.
        """
        assert not self._syncing, "a sync is under way: it would be taken to cover this as well"
        current = self._advance()
        if self.reserve:
            self._refill()
        current.write()
        following = self._pending[0] if self._pending else self._next
        if following is self._next and following is not None and not following.written:
            following = None  # made in advance, when there is room
        if following is not None and not following.written:
            try:
                following.make()
            except StorageError:
                if current.written == current.synced:
                    raise
                # The written records can be synced and confirmed first; the next call tries again.
                following = None
            else:
                self._names += 1
        made = following if following is not None and not following.synced else None
        names = self._names if made is not None and self._names > self._names_synced else 0
        if current.written == current.synced and made is None:
            return None
        ticket = self._last_tickets[current.number] if self._pending else self.ticket
        self._points.append((ticket, current, current.written, made, names))
        return ticket

    def write_early(self) -> int:
        """Write collected records for the current file, also during a sync; they count for the sync of the
        next `write`. Those for the next file wait, as does a group that has not ended. Returns the ticket up
        to which everything has been written. Raises `DiskFull` if all is still collected.
        """
        current = self._current
        if not self._together:
            current.write()
            self._written = self._last_tickets[current.number] if self._pending else self.ticket
        return max(self._written, self.durable)

    def fds_to_sync(self) -> list[int]:
        """Return what to sync for the last `write`; the next waits for `synced`. Raises `StorageError`."""
        fds: dict[int, None] = {}
        for _, current, size, made, names in self._points:
            if size > current.synced:
                fds[current.fileno()] = None
            if made is not None:
                fds[made.fileno()] = None
            if names:
                fds[self._folder_descriptor()] = None
        self._syncing = True
        return list(fds)

    def synced(self, ticket: int) -> None:
        self._syncing = False
        while self._points and self._points[0][0] <= ticket:
            _, current, size, made, names = self._points.popleft()
            current.synced_to(size)
            if made is not None:
                made.synced_to(HEADER_BYTES)
            # More may have been made since.
            self._names_synced = max(self._names_synced, names)
        self.durable = max(self.durable, ticket)
        self.remove_dropped()

    def read(self, file: int, offset: int) -> bytes:
        """Return the payload of a record, written or collected. Raises `DamagedFile`."""
        return self._to_read(file).read(offset)

    def read_run(self, file: int, offset: int, length: int) -> list[Record]:
        """Return consecutive records of any groups, with one system call. `length`: bytes to the end of the
        last. Raises `DamagedFile`.
        """
        return self._to_read(file).read_run(offset, length)

    def add_live(self, file: int, length: int) -> None:
        self._live[file] += length
        self.live_bytes += length

    def add_dead(self, file: int, length: int) -> None:
        self._live[file] -= length
        self.live_bytes -= length
        assert self._live[file] >= 0, "more bytes are dead than were alive"

    def to_clean(self) -> int | None:
        """Return the oldest file, if it is full and cleaning it pays: no byte in it is live, or more than
        half of all bytes are dead and two files are full. During a shortage: more than half of the bytes of
        the oldest files are dead, and the copies fit into the remaining room. To clean, append its live
        records again, then `drop` it.
        """
        oldest = next(iter(self._files))
        full = self._current.number - oldest
        if full < 1:
            return None
        if not self._live[oldest]:
            return oldest
        if self.shortage is not None:
            return oldest if self._frees_room() else None
        if full >= 2 and 2 * self.live_bytes < self.size_bytes:
            return oldest
        return None

    def _frees_room(self) -> bool:
        room = self.room_bytes // 2
        size = live = 0
        for number, file in self._files.items():
            if file is self._current or file is self._filling:
                return False
            size += file.end
            live += self._live[number]
            if live > room:
                return False
            if 2 * live < size:
                return True
        return False

    def drop(self, file: int, *, after: int | None = None) -> None:
        """Remove the oldest file as soon as it is safe. `after`: the ticket that must be durable first, 0: at
        once; None: all that was appended, which is required if a record is dead only because of a later one,
        as in quorum queues. Raises `ValueError` if it is another file, not full, or has live bytes.
        """
        if file != next(iter(self._files)) or file >= self._current.number:
            raise ValueError(f"file {file} is not the oldest full file")
        if self._live[file]:
            raise ValueError(f"{self._live[file]} bytes of file {file} are needed still")
        dropped = self._files.pop(file)
        self.live_bytes -= self._live.pop(file)
        self._full_bytes -= dropped.end
        self._reading.pop(file, None)
        dropped.close()
        self._dropped.append((self.ticket if after is None else after, dropped))
        self.remove_dropped()

    def remove_dropped(self) -> None:
        while self._dropped and self._dropped[0][0] <= self.durable:
            _, file = self._dropped.popleft()
            self._leaving.append((self._part.forget([file.name]), file))
        while self._leaving and self._part.is_durable(self._leaving[0][0]):
            try:
                self._disk.unlink(self._leaving[0][1].path)
            except OSError:
                # Only room is lost: the next sync, or the next start, tries again.
                return
            self._leaving.popleft()

    @property
    def room_bytes(self) -> int:
        return max(0, self._filling.allocated - self._filling.end)

    @property
    def size_bytes(self) -> int:
        return self._full_bytes + self._filling.end

    @property
    def files(self) -> int:
        return len(self._files) + len(self._dropped) + len(self._leaving)

    def recover(self) -> Iterator[Sequence[Record]]:
        """Read all records, oldest first, in batches; `found` is set then. Every record counts as dead until
        `add_live`. A record may come twice, when the broker stopped after cleaning had copied it. Raises
        `DamagedFile` if a record is not what was written; nothing was changed.
        """
        assert self.found is None, "recover once"
        found = survey(self._disk, self._folder, JOURNAL, self._part.known)
        if found.missing:
            raise found.missing[0]
        reader: FileReader | None = None
        records = 0
        for member in found.files:
            reader = member.reader(self._disk, JOURNAL)
            self._live[member.number] = 0
            for batch in reader.batches():
                kinds = set(map(_KIND, batch))
                if self._unended is not None or not kinds.isdisjoint((GROUP_BEGINS, GROUP_ENDS)):
                    batch = self._without_unended(batch)
                if batch:
                    yield batch
            records += reader.records
            if reader.header is not None and member is not found.files[-1]:
                self._files[member.number] = LogFile(
                    self._disk, member.path, reader.header, size=reader.end, synced=reader.end
                )
        self._begin(found, reader)
        if self._unended is not None:
            # Later records must not be part of it.
            self.append(0, GROUP_ENDS, 0, ())
            self._unended = None
        torn = None if reader is None else reader.torn
        torn_path = None if reader is None or torn is None else reader.path
        self.found = RecoveryResult(len(found.files), records, self.size_bytes, torn, torn_path)

    def _without_unended(self, batch: Sequence[Record]) -> list[Record]:
        # The records of a group count when its end has been read.
        counting: list[Record] = []
        for record in batch:
            if record.kind == GROUP_BEGINS:
                self._unended = []
            elif record.kind == GROUP_ENDS:
                if record.index and self._unended is not None:
                    counting += self._unended
                self._unended = None
            elif self._unended is not None:
                self._unended.append(record)
            else:
                counting.append(record)
        return counting

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        if self._next is not None:
            self._next.close()
        if self._folder_fd is not None:
            self._disk.close(self._folder_fd)
            self._folder_fd = None

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, JOURNAL.name(number))

    def _roll(self, full: LogFile) -> LogFile:
        self._last_tickets[full.number] = self.ticket
        self._full_bytes += full.end
        number = full.number + 1
        filling, self._next = self._next or self._new(number), None
        self._limit = 0
        self._files[number] = filling
        self._live[number] = 0
        self._pending.append(filling)
        self._filling = filling
        return filling

    def _new(self, number: int) -> LogFile:
        return LogFile(
            self._disk, self._path(number), FileHeader(Purpose.JOURNAL, number, self._disk.fresh_id())
        )

    def _may_roll(self, full: LogFile) -> bool:
        # During a shortage the reserve is after the end of this file, and the next has little room. So this
        # one is left when hardly anything in it is live, so that it can be cleaned, or when its room is used
        # up.
        if not self.reserve:
            return True
        if not self._make_next(full.number + 1):
            return False
        following = self._next
        if self.shortage is None or following is None:
            return True
        if full.end >= full.allocated and (following.allocated or full.end >= self._file_bytes_max):
            return True
        little = self._live[full.number] <= min(following.allocated, full.end) // 4
        return little and full.end >= self._file_bytes_max // ALLOCATED_AT_ONCE

    def _make_next(self, number: int) -> bool:
        # Only one empty file may follow records that are not durable: `survey` assumes that the file before
        # it may end in the middle of a record.
        if self._pending:
            return False
        if self._next is None:
            self._next = self._new(number)
        if not self._next.written:
            try:
                self._next.make()
            except DiskFull as error:
                self.shortage = self.shortage or error
                return False
            self._names += 1
        if not self._next.allocated:
            try:
                self._next.allocate(HEADER_BYTES + NEXT_BYTES)
            except DiskFull:
                return True  # it has its header, and on most systems a block for it
        return True

    def _extend(self, size: int = 0) -> None:
        file = self._filling
        if not file.written:
            return  # otherwise it was made in advance, or there is room to make it
        reserve = min(self.reserve, max(RESERVE_BYTES_MIN, self.size_bytes))
        wanted = reserve + max(size, self._refused)
        beyond = min(reserve, self._file_bytes_max // ALLOCATED_AT_ONCE)
        part = wanted + beyond
        shortage: DiskFull | None = None
        while part > self.room_bytes:
            try:
                if not file.allocate(file.end + part):
                    self.reserve = 0  # this file system cannot allocate
                    return
            except DiskFull as error:
                if part > wanted:
                    part = wanted
                    continue
                # A part of the reserve is better than no reserve.
                shortage = error
                part //= 2
                if part < reserve // 16:
                    break
        self.shortage = shortage
        if shortage is None:
            self._refused = 0
        # During a shortage an append does not always allocate: `write` tries it again and again.
        self._limit = file.allocated - reserve if shortage is None else file.end + reserve

    def _refill(self) -> None:
        # Before a write, allocations and files that failed earlier are tried again.
        filling = self._filling
        # The next file comes first, which needs little: the reserve takes all the room, and without room in
        # the next file this one could not be left, and so never be cleaned.
        self._make_next(filling.number + 1)
        if self.shortage is not None or filling.end > self._limit:
            self._extend()
        if self.shortage is not None and not self._pending and self._may_roll(filling):
            # It has hardly any live record, so it can be cleaned now.
            filling = self._roll(filling)
        self._make_next(filling.number + 1)

    def _advance(self) -> LogFile:
        current = self._current
        if (
            self._pending
            and self._pending[0].synced
            and not current.collected_bytes
            and current.synced == current.written
        ):
            following = self._pending[0]
            self._claim(current, following)
            current.give_back()
            del self._last_tickets[current.number]
            self._keep_open(current)
            self._current = current = self._pending.popleft()
        return current

    def _claim(self, *files: LogFile) -> None:
        self._part.put({file.name: file.known for file in files})

    def _to_read(self, number: int) -> LogFile:
        file = self._files[number]
        if number < self._current.number:
            self._keep_open(file)
        return file

    def _keep_open(self, file: LogFile) -> None:
        self._reading[file.number] = file
        self._reading.move_to_end(file.number)
        if len(self._reading) > OPEN_FILES_MAX:
            _, oldest = self._reading.popitem(last=False)
            oldest.close()

    def _folder_descriptor(self) -> int:
        if self._folder_fd is None:
            try:
                self._folder_fd = self._disk.open_folder(self._folder)
            except OSError as error:
                raise StorageError(
                    self._folder, f"cannot be opened: {error.strerror}", "check that it is there"
                ) from error
        return self._folder_fd

    def _begin(self, found: FolderSurvey, last: FileReader | None) -> None:
        # Make the files on disk durable as they were read, and append to the last one.
        number = found.files[-1].number if found.files else 1
        path = self._path(number)
        try:
            for leftover in found.leftovers:
                self._disk.unlink(leftover)
            if found.unused is not None and not self.reserve:
                self._disk.unlink(found.unused)
            if last is not None and last.header is None:
                self._disk.unlink(path)
            if last is not None and last.header is not None:
                current = go_on(self._disk, last)
            else:
                current = LogFile(
                    self._disk, path, FileHeader(Purpose.JOURNAL, number, self._disk.fresh_id())
                )
                current.make_durable()
            if found.unused is not None and self.reserve:
                self._adopt(found.unused, number + 1)
            sync_folder(self._disk, self._folder)
        except OSError as error:
            raise StorageError(
                path, f"cannot be made ready: {error.strerror}", "look at the disk, and start again"
            ) from error
        self._files[number] = self._current = self._filling = current
        self._live.setdefault(number, 0)
        self._full_bytes = sum(file.end for file in self._files.values()) - current.end
        if self.reserve:
            self._extend()
        try:
            self._claim(*self._files.values())
            self._part.sync()
        except DiskFull:
            # The inventory is still true, and a broker must start on a full disk, because it may free room.
            return

    def _adopt(self, unused: str, number: int) -> None:
        # A next file that was made in advance is retained: there may be no room to make one.
        named = JOURNAL.number(os.path.basename(unused))
        assert named is not None
        reader = FileReader(self._disk, unused, purpose=Purpose.JOURNAL, number=named, last=True)
        reader.close()
        if reader.header is None or named != number:
            # It is incomplete, or a file before it was given up.
            self._disk.unlink(unused)
        else:
            self._next = LogFile(self._disk, unused, reader.header, size=HEADER_BYTES)
            self._next.sync()
