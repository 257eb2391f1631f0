"""The journal: one sequence of numbered files in which every queue of the node keeps its records.

A record belongs to a *group*, a queue's number. `append` collects it and gives a *ticket*; `write` hands
everything collected to the system; when what `fds_to_sync` names has been synced, `synced` makes the
tickets durable. Nothing that must survive a loss of power is confirmed before; what need only survive the
end of the process may be when it is written, and `write_early` waits for no sync. Nobody here waits or knows
the time: `tasks/committer.py` does it in the right order.

Three rules keep the files readable after a loss of power (`reader` and `sequence` rely on them):

- One commit writes records to one file. The next file is made, header only, in the commit that fills the
  one before; records go there when both are durable.
- A file is removed when everything appended before it was dropped is durable, and then its entry in the
  inventory, in this order. A new one has its entry, in the same commit, before anything in it counts.
- Recovery syncs the last file and the folder before anything is appended: what a crashed broker wrote
  without syncing is then as good as confirmed.

A disk that is full takes nothing, and yet records must be appended for room to be made: settlements, what
lives in the oldest file. So room is kept allocated behind the end, the *reserve*, and the next file is made
in advance. Whoever appends what does not free room asks first (`admits`): while there is a `shortage` it
would be at the expense of the reserve.

Space comes back from the oldest file on. The queues say how many bytes of each file they still need
(`add_live`, `add_dead`); `to_clean` names the oldest file when cleaning pays, the queues append what lives
in it again, and `drop` removes it when that is durable.
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
from amqp10broker.storage.inventory import Part
from amqp10broker.storage.logfile import LogFile, go_on
from amqp10broker.storage.reader import FileReader, Known, Torn
from amqp10broker.storage.record import HEADER_BYTES, Header, Purpose, Record
from amqp10broker.storage.sequence import JOURNAL, FolderSurvey, survey

FILE_BYTES_MAX: Final = 32 * 1024 * 1024
"""A file that has grown to this takes no further record. Less than the disk alarm leaves free (50 MB), or
there would be no room to clean one when it is on."""

ALLOCATED_AT_ONCE: Final = 8
"""Beyond the reserve, this share of a file is allocated at a time."""

RESERVE_BYTES_MIN: Final = 1024 * 1024
"""A journal shorter than its reserve may get has a reserve as long as itself, and at least this: what can be
settled or cleaned is not more than there is, and an empty folder takes little of a disk."""

NEXT_BYTES: Final = 64 * 1024
"""Allocated in the next file as long as it is not begun."""

GROUP_BEGINS: Final = 253
"""A record of the journal's own: those up to the next `GROUP_ENDS` count together, or not at all."""

GROUP_ENDS: Final = 254
"""Likewise. With index 1 the records since `GROUP_BEGINS` count; with 0 they do not."""

_KIND: Final = attrgetter("kind")

OPEN_FILES_MAX: Final = 64
"""Descriptors of files that are only read; more are closed, the longest unused first."""


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery found."""

    files: int
    records: int
    bytes: int
    torn: Torn | None
    """What was cut off the last file."""
    torn_path: str | None


class Journal:
    """The journal of one node. Use it after `recover` has been read to its end.

    Attributes:
        durable: everything with this ticket or a lower one is durable.
        found: what recovery found; None before.
        live_bytes: what the queues need of all files.
        shortage: why the reserve is not whole, or there is no room for what was asked for beside it; None if
            there is, or no reserve.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        part: Part,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        reserve_bytes: int = 0,
    ) -> None:
        """Name the journal; nothing is opened.

        Args:
            disk: where it is.
            folder: a folder of its own, which is there.
            part: the folder's part of the inventory. Whoever syncs for the journal syncs the inventory
                before `synced`, and then calls `remove_dropped`.
            file_bytes_max: see `FILE_BYTES_MAX`.
            reserve_bytes: room that is kept allocated behind the end, see above, once the journal is as long
                as that; 0: none.
        """
        self.shortage: DiskFull | None = None
        self.durable = 0
        self.found: Found | None = None
        self.live_bytes = 0
        self._disk = disk
        self._folder = folder
        self._part = part
        self._folder_fd: int | None = None
        self._file_bytes_max = file_bytes_max
        self._reserve = reserve_bytes
        # Behind this offset of the file being filled the reserve begins.
        self._limit = 0
        # What was asked for last that there is no room for.
        self._refused = 0
        # The next file, made in advance: when the disk is full there may be no room to make one.
        self._next: LogFile | None = None
        self._ticket = 0
        # Everything with this ticket or a lower one has been given to the system.
        self._written = 0
        # What is appended belongs to one group; see `together`.
        self._together = False
        # At start: records of a group whose end has not been read.
        self._unended: list[Record] | None = None
        # All files that can be read, oldest first, those that are still to be made included.
        self._files: dict[int, LogFile] = {}
        self._live: dict[int, int] = {}
        # Bytes of all files but the one being filled.
        self._full_bytes = 0
        # Descriptors of closed files, the longest unused first.
        self._reading: OrderedDict[int, LogFile] = OrderedDict()
        # Records are written to `_current`; the files behind it are filled one after the other, in
        # memory, and `_filling` is the last of them. `_last_tickets` are those of files filled.
        self._current: LogFile | None = None
        self._pending: deque[LogFile] = deque()
        self._filling: LogFile | None = None
        self._last_tickets: dict[int, int] = {}
        # What a sync of everything written so far would make durable.
        self._points: deque[tuple[int, LogFile, int, LogFile | None, int]] = deque()
        self._syncing = False
        # Files made, and how many of their names are durable.
        self._names = self._names_synced = 0
        # Files to remove, and the ticket that must be durable first; then the change of the inventory.
        self._dropped: deque[tuple[int, LogFile]] = deque()
        self._leaving: deque[tuple[int, LogFile]] = deque()

    # --- appending --------------------------------------------------------------------------------

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        """Collect a record; nothing is written yet.

        The record counts as dead until `add_live` says otherwise.

        Args:
            group: the queue's number, 0 to 2**32 - 1.
            kind: 1 to 254.
            index: 0 to 2**64 - 1.
            payload: pieces, kept as they are until they have been written.
            term: 0 to 2**64 - 1.

        Returns:
            Ticket, file number, offset. The record takes `RECORD_BYTES` and the payload's bytes.
        """
        filling = self._filling
        assert filling is not None, "recover first"
        if filling.end >= self._file_bytes_max and not self._together and self._may_roll(filling):
            filling = self._roll(filling)
        offset = filling.append(group, kind, index, payload, term)
        if filling.end > self._limit and self._reserve:
            self._extend()
        self._ticket = ticket = self._ticket + 1
        return ticket, filling.number, offset

    @contextmanager
    def together(self) -> Iterator[None]:
        """Records appended within it are all there after a loss of power, or none of them is.

        Nothing may be awaited meanwhile. A group lies in one file, between two records of the journal's own,
        and a start reads it as far as records are right: it is whole if its end is. What comes before the
        end is kept back until then, and given up if there is none.
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
        """Whether records that free no room may be appended, now: so that the reserve stays whole.

        Args:
            size: about their bytes, with those that were admitted before and are still to be appended.
            last: how many of them are asked about. If there is no room, there is a shortage until there is.

        Raises:
            StorageError: it cannot be told.
        """
        filling = self._filling
        assert filling is not None, "recover first"
        if self.shortage is not None:
            return False
        if not self._reserve or filling.end + size <= self._limit:
            return True
        if filling.end >= self._file_bytes_max and self._may_roll(filling):
            self._roll(filling)
        self._refused = last
        self._make_next(filling.number + 1)
        self._extend(size)
        return self.shortage is None

    def withdraw(self) -> None:
        """What was refused last is not asked for any more: a shortage ends when the reserve is whole."""
        self._refused = 0

    @property
    def ticket(self) -> int:
        """The last ticket given: when it is durable, all is."""
        return self._ticket

    @property
    def collected_bytes(self) -> int:
        """What waits to be written."""
        assert self._current is not None, "recover first"
        return self._current.collected_bytes + sum(file.collected_bytes for file in self._pending)

    @property
    def unsynced_bytes(self) -> int:
        """What a loss of power could take, with what waits to be written."""
        assert self._current is not None, "recover first"
        return self.collected_bytes + self._current.written - self._current.synced

    @property
    def at_rest(self) -> bool:
        """Whether nothing is half done that the next commit goes on with: a file to begin, or to remove.

        What is only collected waits for a commit that somebody asks for.
        """
        return not (self._pending or self._dropped or self._leaving)

    def mark(self) -> None:
        """Have the inventory know how much is synced, so that damage in it, or its loss, can be told.

        When it cannot be written, all is as well kept as before.
        """
        current = self._current
        assert current is not None, "recover first"
        try:
            self._claim(current)
        except StorageError:
            return

    def write(self) -> int | None:
        """Write what is collected, as far as it belongs into one file.

        Returns:
            The ticket that will be durable when `fds_to_sync` is synced; it may be one that is durable
            already, when only names and headers are to be synced. None: there is nothing to sync.

        Raises:
            DiskFull: the rest is still collected; try again when there is room.
            StorageError: the same, for another reason.
        """
        assert not self._syncing, "a sync is under way: it would be taken to cover this as well"
        current = self._advance()
        if self._reserve:
            self._refill()
        if current.collected_bytes:
            current.write()
        following = self._pending[0] if self._pending else self._next
        if following is self._next and following is not None and not following.is_made:
            following = None  # made in advance, when there is room
        if following is not None and not following.is_made:
            try:
                following.make()
            except StorageError:
                if current.written == current.synced:
                    raise
                # First let what has been written be synced and confirmed; the next call tries again.
                following = None
            else:
                self._names += 1
        made = following if following is not None and not following.synced else None
        names = self._names if made is not None and self._names > self._names_synced else 0
        if current.written == current.synced and made is None:
            return None
        ticket = self._last_tickets[current.number] if self._pending else self._ticket
        self._points.append((ticket, current, current.written, made, names))
        return ticket

    def write_early(self) -> int:
        """Write what is collected for the file that is written to, also while a sync is under way.

        It does not count for that sync, but for that of the next `write`. What belongs into the next file
        waits for `write`, since that file must be durable first; so does a group that has not ended.

        Returns:
            The ticket up to which everything has been written.

        Raises:
            DiskFull: all is still collected; `write` tries again.
            StorageError: the same, for another reason.
        """
        current = self._current
        assert current is not None, "recover first"
        if not self._together:
            if current.collected_bytes:
                current.write()
            self._written = self._last_tickets[current.number] if self._pending else self._ticket
        return max(self._written, self.durable)

    def fds_to_sync(self) -> list[int]:
        """The descriptors whose sync makes the last `write` durable; no further write until `synced`.

        Raises:
            StorageError: one cannot be opened; nothing was done, ask again.
        """
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
        """Note that what `fds_to_sync` named has been synced, after the `write` that gave this ticket."""
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

    # --- reading ----------------------------------------------------------------------------------

    def read(self, file: int, offset: int) -> bytes:
        """The payload of a record, written or still collected.

        Raises:
            DamagedFile: what stands there is not what was written.
            StorageError: the file cannot be read.
        """
        return self._to_read(file).read(offset)

    def read_run(self, file: int, offset: int, length: int) -> list[Record]:
        """Consecutive records of any groups, with one call of the system.

        Args:
            file: the number of the file.
            offset: where the first begins.
            length: bytes to the end of the last.

        Raises:
            DamagedFile: what stands there is not what was written.
            StorageError: the file cannot be read.
        """
        return self._to_read(file).read_run(offset, length)

    # --- cleaning ---------------------------------------------------------------------------------

    def add_live(self, file: int, length: int) -> None:
        """Count bytes of a file as needed."""
        self._live[file] += length
        self.live_bytes += length

    def add_dead(self, file: int, length: int) -> None:
        """Count bytes of a file, counted as live before, as needed no more."""
        self._live[file] -= length
        self.live_bytes -= length
        assert self._live[file] >= 0, "more bytes are dead than were alive"

    def to_clean(self) -> int | None:
        """The oldest file, if it is full and it pays to clean it.

        That is when no byte in it lives, or when more than half of all bytes are dead and there are two
        full files or more. While there is a shortage it is when more than half of the oldest files' bytes
        are dead, however many files these are, and the copies fit into what room there is. Append its live
        records again, count them as dead here and live there, then `drop` it.
        """
        assert self._current is not None, "recover first"
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
        """Whether to clean the oldest full files, some or all of them, gives more than it takes."""
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

    def records_of(self, file: int) -> Iterator[Record]:
        """All records of a full file, read in parts: let others run between some thousands.

        Raises:
            DamagedFile: one is not what was written.
            StorageError: the file cannot be read.
        """
        reader = FileReader(
            self._disk, self._files[file].path, purpose=Purpose.JOURNAL, number=file, last=False
        )
        for batch in reader.batches():
            yield from batch

    def drop(self, file: int, *, after: int | None = None) -> None:
        """Remove the oldest file, which nobody needs any more, as soon as it is safe.

        Args:
            file: its number; it is full, and the oldest.
            after: the ticket that must be durable first; None takes all that was appended. That is right
                for whoever cannot do without a record that is dead only because of one behind it, as
                quorum queues: if the later one were lost, they would miss the earlier one. 0: at once.

        Raises:
            ValueError: it is another one, or something in it lives.
        """
        assert self._current is not None, "recover first"
        if file != next(iter(self._files)) or file >= self._current.number:
            raise ValueError(f"file {file} is not the oldest full file")
        if self._live[file]:
            raise ValueError(f"{self._live[file]} bytes of file {file} are needed still")
        dropped = self._files.pop(file)
        self.live_bytes -= self._live.pop(file)
        self._full_bytes -= dropped.end
        self._reading.pop(file, None)
        dropped.close()
        self._dropped.append((self._ticket if after is None else after, dropped))
        self.remove_dropped()

    def remove_dropped(self) -> None:
        """Remove what was dropped, as far as what must be durable first is: after each sync."""
        while self._dropped and self._dropped[0][0] <= self.durable:
            _, file = self._dropped.popleft()
            self._leaving.append((self._part.forget([_name(file)]), file))
        while self._leaving and self._part.is_durable(self._leaving[0][0]):
            try:
                self._disk.unlink(self._leaving[0][1].path)
            except OSError:
                # Nothing is lost but room: it is tried again with the next sync, or by the next start.
                return
            self._leaving.popleft()

    # --- what there is ----------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """What can still be appended whether or not the disk is full; 0 without a reserve."""
        assert self._filling is not None, "recover first"
        return max(0, self._filling.allocated - self._filling.end)

    @property
    def reserves(self) -> bool:
        """Whether there is a reserve, or would be if there were room: not every file system can allocate."""
        return self._reserve > 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, with what is collected, without those dropped."""
        assert self._filling is not None, "recover first"
        return self._full_bytes + self._filling.end

    @property
    def files(self) -> int:
        """How many files there are, those still to be removed included."""
        return len(self._files) + len(self._dropped) + len(self._leaving)

    # --- beginning and end ------------------------------------------------------------------------

    def recover(self) -> Iterator[Sequence[Record]]:
        """Read everything, oldest first, in batches; then the journal can be used, and `found` tells.

        Every record counts as dead until `add_live`. The same record may come twice, when the broker
        stopped after cleaning had copied it: the later one is the copy.

        Raises:
            DamagedFile: a record is not what was written; nothing was changed.
            StorageError: a file cannot be read or cut.
        """
        assert self._current is None, "recover once"
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
            # What is appended from now on is no part of it.
            self.append(0, GROUP_ENDS, 0, ())
            self._unended = None
        torn = None if reader is None else reader.torn
        torn_path = None if reader is None or torn is None else reader.path
        self.found = Found(len(found.files), records, self.size_bytes, torn, torn_path)

    def _without_unended(self, batch: Sequence[Record]) -> list[Record]:
        """The records that count, with those of a group when its end has come."""
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
        """Close all descriptors; what is only collected is lost."""
        for file in self._files.values():
            file.close()
        if self._next is not None:
            self._next.close()
        if self._folder_fd is not None:
            self._disk.close(self._folder_fd)
            self._folder_fd = None

    # --- parts ------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, JOURNAL.name(number))

    def _roll(self, full: LogFile) -> LogFile:
        """Go on in a further file, which `write` will make."""
        self._last_tickets[full.number] = self._ticket
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
        return LogFile(self._disk, self._path(number), Header(Purpose.JOURNAL, number, self._disk.fresh_id()))

    # --- the reserve ------------------------------------------------------------------------------

    def _may_roll(self, full: LogFile) -> bool:
        """Whether to go on in a further file now that this one is long enough.

        While there is a shortage the reserve is behind the end of this one, and the next has little room. So
        it is left when hardly anything in it is needed, and it can be cleaned, or when its room is used up.
        """
        if not self._reserve:
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
        """Make the file after the one being filled; whether it is there.

        Only one empty file may stand behind records that are not durable: `survey` takes the file before it
        for the one that may end in the middle of a record.
        """
        if self._pending:
            return False
        if self._next is None:
            self._next = self._new(number)
        if not self._next.is_made:
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
                return True  # it has its header, and on most systems a block with it
        return True

    def _extend(self, size: int = 0) -> None:
        """Allocate so much behind the end that the reserve is whole, if there is room.

        Args:
            size: bytes that are to be appended before the reserve begins.
        """
        file = self._filling
        assert file is not None
        if not file.is_made:
            return  # when it is; it was made in advance, or there is room to make it
        reserve = min(self._reserve, max(RESERVE_BYTES_MIN, self.size_bytes))
        wanted = reserve + max(size, self._refused)
        beyond = min(reserve, self._file_bytes_max // ALLOCATED_AT_ONCE)
        part = wanted + beyond
        shortage: DiskFull | None = None
        while part > self.room_bytes:
            try:
                if not file.allocate(file.end + part):
                    self._reserve = 0  # this file system cannot
                    return
            except DiskFull as error:
                if part > wanted:
                    part = wanted
                    continue
                # What there is is better than nothing.
                shortage = error
                part //= 2
                if part < reserve // 16:
                    break
        self.shortage = shortage
        if shortage is None:
            self._refused = 0
        # While there is a shortage not every record is a reason to ask: `write` does it again and again.
        self._limit = file.allocated - reserve if shortage is None else file.end + reserve

    def _refill(self) -> None:
        """Before a write: what could not be allocated or made earlier is tried again."""
        filling = self._filling
        assert filling is not None
        # First the next file, for which a little is enough: the reserve takes all there is, and without room
        # in the next file this one could not be left, and so never be cleaned.
        self._make_next(filling.number + 1)
        if self.shortage is not None or filling.end > self._limit:
            self._extend()
        if self.shortage is not None and not self._pending and self._may_roll(filling):
            # With hardly anything alive in it it can be cleaned now.
            filling = self._roll(filling)
        self._make_next(filling.number + 1)

    def _advance(self) -> LogFile:
        """The file to write to: the next one, if that is made and all before it is durable."""
        current = self._current
        assert current is not None, "recover first"
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
        self._part.put({_name(file): Known(file.header.file_id, file.synced) for file in files})

    def _to_read(self, number: int) -> LogFile:
        file = self._files[number]
        assert self._current is not None, "recover first"
        if number < self._current.number:
            self._keep_open(file)
        return file

    def _keep_open(self, file: LogFile) -> None:
        """Count a full file as used just now; close the one whose use is longest ago."""
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
        """Make the files on the disk be what was read, durably, and go on in the last one."""
        number = found.files[-1].number if found.files else 1
        path = self._path(number)
        try:
            for leftover in found.leftovers:
                self._disk.unlink(leftover)
            if found.unused is not None and not self._reserve:
                self._disk.unlink(found.unused)
            if last is not None and last.header is None:
                self._disk.unlink(path)
            if last is not None and last.header is not None:
                current = go_on(self._disk, last)
            else:
                current = LogFile(self._disk, path, Header(Purpose.JOURNAL, number, self._disk.fresh_id()))
                current.make_durable()
            if found.unused is not None and self._reserve:
                self._adopt(found.unused, number + 1)
            sync_folder(self._disk, self._folder)
        except OSError as error:
            raise StorageError(
                path, f"cannot be made ready: {error.strerror}", "look at the disk, and start again"
            ) from error
        self._files[number] = self._current = self._filling = current
        self._live.setdefault(number, 0)
        self._full_bytes = sum(file.end for file in self._files.values()) - current.end
        if self._reserve:
            self._extend()
        try:
            self._claim(*self._files.values())
            self._part.sync()
        except DiskFull:
            # What is claimed is as true as before, and a broker must start on a full disk: that may free it.
            return

    def _adopt(self, unused: str, number: int) -> None:
        """A next file that was made in advance is kept: there may be no room to make one."""
        named = JOURNAL.number(os.path.basename(unused))
        assert named is not None
        reader = FileReader(self._disk, unused, purpose=Purpose.JOURNAL, number=named, last=True)
        reader.close()
        if reader.header is None or named != number:
            # Not whole; or a file before it was given up.
            self._disk.unlink(unused)
        else:
            self._next = LogFile(self._disk, unused, reader.header, size=HEADER_BYTES)
            self._next.sync()


def _name(file: LogFile) -> str:
    return os.path.basename(file.path)
