"""A durable classic queue in the journal: its store, its records, and when messages are confirmed.

Messages are written as they come, removals as ranges, once a step. The middle of a long backlog is read back
from the same records when it is needed; a page with messages that are not in the journal goes to the spool.

==============  ==========================  =====================================================
kind            index                       payload
==============  ==========================  =====================================================
`MESSAGES`      position of the first one   `HEAD`, and the batch
`GONE`          0                           `REMOVED`
`DELIVERED`     position of the last one    level u8: those up to it may have been delivered
==============  ==========================  =====================================================

Kinds 1 to 15 are the classic queues'.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.layout import NUMBERS, U16, U32, U64, Layout, Many, maybe, row
from amqp10broker.message.message import Message, batch_lengths, decode_batch, encode_batch
from amqp10broker.queues.classic.backlog import (
    DELAYED,
    PAGE_BYTES_MAX,
    PAGE_MESSAGES_MAX,
    Handle,
    Page,
    Store,
    chosen,
    content_bytes,
)
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.journal import Commits, Extent, Extents, Place, RecordLog, Spool, grows, ranges_of
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.settings import ConfirmWhen
from amqp10broker.storage.record import RECORD_BYTES, Record

MESSAGES: Final = 1
GONE: Final = 2
DELIVERED: Final = 3


class MessagesHead(NamedTuple):
    """The head of the payload of `MESSAGES`. `level`: with one for delayed messages. `expiries`, `dues`: None
    if no message expires, or is delayed. `moved`: former positions of these messages as delayed ones.
    """

    level: int
    messages: int
    expiries: Sequence[int] | None
    dues: Sequence[int] | None
    moved: Sequence[int] | None


COLUMN: Final = maybe(NUMBERS)
HEAD: Final = Layout(MessagesHead, level=U16, messages=U32, expiries=COLUMN, dues=COLUMN, moved=COLUMN)
_PLAIN: Final = Struct("<HI3x")
REMOVED: Final = row(U16, Many(row(U64, U64)))
"""The level, and runs of removed positions: the first, and the one behind the last."""


def encode_messages(
    level: int,
    messages: Sequence[Message],
    expiries: Sequence[int] | None,
    dues: Sequence[int] | None = None,
    moved: Sequence[int] | None = None,
) -> list[bytes]:
    pieces = encode_batch(messages)
    if expiries is None and dues is None and moved is None:
        pieces[0] = _PLAIN.pack(level, len(messages)) + pieces[0]
    else:
        pieces[0] = HEAD.encode(MessagesHead(level, len(messages), expiries, dues, moved)) + pieces[0]
    return pieces


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return unique positions, in any order, as runs (first, behind the last)."""
    if not positions:
        return []
    if positions[-1] - positions[0] == len(positions) - 1 and grows(positions):
        return [(positions[0], positions[-1] + 1)]
    return ranges_of(sorted(positions))


RECORD_MESSAGES_MAX: Final = 8192
"""A larger publish becomes several records."""

_BUCKET: Final = 256
"""The number of consecutive delayed messages for which a start stores only the first due time."""

_FIRST: Final = attrgetter("first")


@dataclass(frozen=True, slots=True)
class JournalPage:
    level: int
    first: int
    count: int


@dataclass(slots=True, eq=False)
class _Read:
    """A record of messages, decoded once for all wanted parts of it."""

    first: int
    head: MessagesHead
    _at: int
    payload: bytes
    _messages: Sequence[Message] | None = None
    _lengths: Sequence[int] | None = None

    def messages(self) -> Sequence[Message]:
        if self._messages is None:
            self._messages = decode_batch(self.payload, self._at)
        return self._messages

    def lengths(self) -> Sequence[int]:
        if self._lengths is None:
            self._lengths = batch_lengths(self.payload, self._at)
        return self._lengths


class _RecordPart(NamedTuple):
    first: int
    wanted: slice
    record: _Read

    def messages(self) -> Sequence[Message]:
        return self.record.messages()[self.wanted]

    def size(self) -> int:
        return sum(self.record.lengths()[self.wanted])

    def column(self, numbers: Sequence[int] | None) -> Sequence[int] | None:
        return None if numbers is None else numbers[self.wanted]


class _Level:
    """The state of one level. `delivered`: messages up to this position may have been delivered; -1: none.
    `soonest`: for delayed messages found at start, the first due time or expiry in each `_BUCKET` positions,
    even if that message has been removed.
    """

    __slots__ = ("delivered", "extents", "gone", "may_expire", "next", "soonest", "written")

    def __init__(self, log: RecordLog) -> None:
        self.extents = Extents(log)
        self.next = 0
        self.may_expire = False
        self.delivered = -1
        self.written = -1
        self.gone: list[tuple[int, int]] = []
        self.soonest: dict[int, int] = {}

    def leave(self, positions: Sequence[int]) -> int:
        found = 0
        for start, stop in runs_of(positions):
            found += self.extents.remove(start, stop)
            self.next = max(self.next, stop)
        return found


class ClassicStore(Store):
    durable = True
    in_memory = False

    def __init__(self, group: int, log: RecordLog, spool: Spool) -> None:
        self.group = group
        self.live = 0
        self._log = log
        self._spool = spool
        self._levels: defaultdict[int, _Level] = defaultdict(lambda: _Level(log))
        self._appended = False  # records for which no client waits, since the last flush
        # The extent with holes that was read last: the next page is mostly behind its next hole.
        self._last: tuple[tuple[int, int, int, int], list[_Read]] | None = None

    def keep(
        self,
        level: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        *,
        dues: Sequence[int] | None = None,
        moved: Sequence[int] | None = None,
    ) -> int:
        ticket = 0
        if len(messages) <= RECORD_MESSAGES_MAX:
            return self._append(level, first, messages, expiries, dues, moved)
        for start in range(0, len(messages), RECORD_MESSAGES_MAX):
            part = slice(start, start + RECORD_MESSAGES_MAX)
            times, their_dues, positions = (
                None if each is None else each[part] for each in (expiries, dues, moved)
            )
            ticket = self._append(level, first + start, messages[part], times, their_dues, positions)
        return ticket

    def _append(
        self,
        number: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        dues: Sequence[int] | None,
        moved: Sequence[int] | None,
    ) -> int:
        pieces = encode_messages(number, messages, expiries, dues, moved)
        ticket, file, offset = self._log.append(self.group, MESSAGES, first, pieces)
        level = self._levels[number]
        count = len(messages)
        length = RECORD_BYTES + sum(map(len, pieces))
        level.extents.add(first, count, file, offset, length, content_bytes(messages))
        level.next = max(level.next, first + count)
        self.live += count
        if moved is not None:
            self.live -= self._levels[DELAYED].leave(moved)
            self._appended = True
        return ticket

    def forget(self, level: int, positions: Sequence[int]) -> None:
        if not self.live:
            return
        kept = self._levels[level]
        for start, stop in runs_of(positions):
            found = kept.extents.remove(start, stop)
            if found:
                self.live -= found
                kept.gone.append((start, stop))

    def delivered(self, level: int, position: int) -> None:
        if self.live:
            kept = self._levels[level]
            if position > kept.delivered:
                kept.delivered = position

    def flush(self) -> bool:
        """Append removals and deliveries of this step; return whether there were any."""
        wrote, self._appended = self._appended, False
        for number, level in self._levels.items():
            if level.gone:
                self._log.append(self.group, GONE, 0, [REMOVED.encode((number, level.gone))])
                level.gone = []
                wrote = True
            if level.delivered != level.written and level.extents:
                self._write_delivered(number, level)
                wrote = True
        return wrote

    def _write_delivered(self, number: int, level: _Level) -> None:
        self._log.append(self.group, DELIVERED, level.delivered, [bytes((number,))])
        level.written = level.delivered

    def delete(self) -> None:
        for level in self._levels.values():
            level.extents.clear()
            level.gone = []
        self.live = 0
        self._last = None

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        if self.live and self._levels[level].extents.covers(first, len(messages)):
            return JournalPage(level, first, len(messages))
        return self.pack(level, messages, expiries)

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        return self._spool.keep(encode_messages(level, messages, expiries))

    def is_packed(self, handle: Handle) -> bool:
        return not isinstance(handle, JournalPage)

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        if isinstance(handle, Place | bytes):
            found = self._unpack(handle)
            self.drop_page(handle)
            return found
        assert isinstance(handle, JournalPage)
        _, messages, expiries, _ = self._from_journal(handle)
        assert len(messages) == handle.count, "messages of a page are gone"
        return messages, expiries

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        # Removed messages of a page in the journal are not read.
        if isinstance(handle, Place | bytes):
            return chosen(*self._unpack(handle), ranks)
        assert isinstance(handle, JournalPage)
        positions, messages, expiries, _ = self._from_journal(handle)
        places = dict(zip(positions, range(len(positions)), strict=True))
        found = [places[handle.first + rank] for rank in ranks]
        return chosen(messages, expiries, found)

    def look_delayed(
        self, handle: Handle
    ) -> tuple[Sequence[int], Sequence[Message], Sequence[int] | None, Sequence[int]]:
        assert isinstance(handle, JournalPage)
        return self._from_journal(handle)

    def _unpack(self, handle: Place | bytes) -> tuple[Sequence[Message], Sequence[int] | None]:
        try:
            payload = self._spool.read(handle)
        except OSError as error:
            raise StorageError(
                "a file of messages that need not survive a restart",
                f"cannot be read back: {error.strerror}",
                "look at the disk, and start again: those messages are lost",
            ) from error
        head, at = HEAD.decode_part(payload)
        return decode_batch(payload, at), head.expiries

    def _from_journal(
        self, handle: JournalPage
    ) -> tuple[list[int], list[Message], Sequence[int] | None, list[int]]:
        # The columns of the rest of a page: positions, messages, expiries, and due times of delayed messages.
        positions: list[int] = []
        messages: list[Message] = []
        times: list[int] = []
        dues: list[int] = []
        expire = False
        wanted = range(handle.first, handle.first + handle.count)
        for extent in self._levels[handle.level].extents.overlapping(wanted.start, wanted.stop):
            for part in self._parts(handle.level, extent, wanted):
                found = part.messages()
                positions += range(part.first, part.first + len(found))
                messages += found
                expiries = part.column(part.record.head.expiries)
                expire = expire or expiries is not None
                times += [0] * len(found) if expiries is None else expiries
                dues += part.column(part.record.head.dues) or ()
            if wanted.stop >= extent.stop:
                self._last = None
        return positions, messages, times if expire else None, dues

    def drop_page(self, handle: Handle) -> None:
        if isinstance(handle, Place):
            self._spool.drop(handle)

    def _parts(self, number: int, extent: Extent, wanted: range) -> Iterator[_RecordPart]:
        start, stop = max(wanted.start, extent.first), min(wanted.stop, extent.stop)
        records = self._read(number, extent)
        for at in range(max(0, bisect_right(records, start, key=_FIRST) - 1), len(records)):
            record = records[at]
            first = record.first
            if first >= stop:
                break
            low, high = max(start, first), min(stop, first + record.head.messages)
            if low < high:
                yield _RecordPart(low, slice(low - first, high - first), record)

    def _read(self, number: int, extent: Extent) -> list[_Read]:
        # By position: between the records are those of other queues and levels, and some without live
        # messages.
        key = number, extent.file, extent.offset, extent.length
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        records: list[_Read] = []
        for record in self._log.read_run(extent.file, extent.offset, extent.length):
            if record.group == self.group and record.kind == MESSAGES:
                head, at = HEAD.decode_part(record.payload)
                if head.level == number:
                    records.append(_Read(record.index, head, at, record.payload))
        records.sort(key=_FIRST)
        self._last = (key, records) if extent.gone_count else None
        return records

    def relocate(self, file: int) -> Iterator[None]:
        """Append the live records of a file again, in steps. The file can be removed then."""
        for number, level in list(self._levels.items()):
            for extent in level.extents.of_file(file):
                if file not in level.extents.files:
                    break  # the queue was deleted meanwhile
                # Parts are read before anything is appended, because an append replaces the extent.
                parts = [part for run in extent.live_runs() for part in self._parts(number, extent, run)]
                for part in parts:
                    self._append_again(number, part)
                self._last = None
                yield
            if level.extents and level.delivered >= 0:
                # The record of `delivered` may be in that file.
                self._write_delivered(number, level)

    def _append_again(self, number: int, part: _RecordPart) -> None:
        head, payload = part.record.head, part.record.payload
        first, last = part.wanted.start, part.wanted.stop
        if last - first == head.messages:
            _, file, offset = self._log.append(self.group, MESSAGES, part.first, [payload])
            length = RECORD_BYTES + len(payload)
            self._levels[number].extents.add(part.first, head.messages, file, offset, length, part.size())
        else:
            expiries, dues = part.column(head.expiries), part.column(head.dues)
            self._append(number, part.first, part.messages(), expiries, dues, None)
            self.live -= last - first  # they were counted before

    def restore(self, records: Iterable[Record]) -> None:
        for record in records:
            try:
                self._restore(record)
            except ValueError as error:
                raise DamagedFile(
                    f"file {record.file} of the journal at offset {record.offset}",
                    str(error),
                    "restore the data folder from a copy",
                ) from error

    def _restore(self, record: Record) -> None:
        payload = record.payload
        if record.kind == MESSAGES:
            self._restore_messages(record, *HEAD.decode_part(payload))
        elif record.kind == GONE:
            number, runs = REMOVED.decode(payload)
            level = self._levels[number]
            for start, stop in runs:
                level.extents.remove(start, stop)
                level.next = max(level.next, stop)
        elif record.kind == DELIVERED and payload:
            level = self._levels[payload[0]]
            level.delivered = level.written = record.index
            level.next = max(level.next, record.index + 1)
        else:
            raise ValueError(f"a record of kind {record.kind} is none of a classic queue")

    def _restore_messages(self, record: Record, start: MessagesHead, at: int) -> None:
        level = self._levels[start.level]
        first, count, expiries, dues = record.index, start.messages, start.expiries, start.dues
        level.may_expire = level.may_expire or expiries is not None
        size = sum(batch_lengths(record.payload, at))
        level.extents.add(first, count, record.file, record.offset, record.length, size)
        level.next = max(level.next, first + count)
        if start.moved is not None:
            self._levels[DELAYED].leave(start.moved)
        if dues is not None:
            times = [when for when in expiries or () if when]
            when = min([*dues, *times])
            for bucket in range(first // _BUCKET, (first + count - 1) // _BUCKET + 1):
                level.soonest[bucket] = min(when, level.soonest.get(bucket, when))

    def backlogs(self) -> dict[int, tuple[list[Page], int]]:
        """Return the recovered messages by level or `DELAYED`: pages in order, and the next position."""
        backlogs = {}
        self.live = 0
        for number, level in self._levels.items():
            pages: list[Page] = []
            for extent in level.extents:
                for run in extent.live_runs():
                    size = extent.size
                    if len(run) < extent.count:
                        size = sum(part.size() for part in self._parts(number, extent, run))
                    self.live += len(run)
                    _add_run(pages, number, run, size, level)
            if number == DELAYED:
                for page in pages:
                    buckets = range(page.first // _BUCKET, (page.first + page.count - 1) // _BUCKET + 1)
                    page.soonest_ms = min(level.soonest.get(each, 0) for each in buckets)
                level.soonest = {}
            backlogs[number] = pages, level.next
        self._last = None
        return backlogs


def _add_run(pages: list[Page], number: int, run: range, size: int, level: _Level) -> None:
    average = size // len(run)
    most = min(PAGE_MESSAGES_MAX, max(1, PAGE_BYTES_MAX // max(1, average)))
    start = run.start
    while start < run.stop:
        stop = min(run.stop, start + most)
        if start <= level.delivered < stop - 1:
            stop = level.delivered + 1
        count = stop - start
        # The last part gets the rounding error.
        part = size if stop == run.stop else average * count
        size -= part
        redelivered = start <= level.delivered
        last = pages[-1] if pages else None
        if (
            last is not None
            and last.first + last.count == start
            and last.redelivered == redelivered
            and last.count + count <= PAGE_MESSAGES_MAX
            and last.size + part <= PAGE_BYTES_MAX
        ):
            last.count += count
            last.size += part
            last.handle = JournalPage(number, last.first, last.count)
        else:
            page = JournalPage(number, start, count)
            pages.append(Page(start, count, page, part, redelivered, level.may_expire))
        start = stop


MakeQueue = Callable[[ClassicQueue | None], ClassicQueue]
"""Makes an empty machine, with the settings and counters of a machine that failed."""


class ClassicInJournal(DurabilityBackend[ClassicQueue]):
    def __init__(
        self,
        make: MakeQueue,
        wake: Wake,
        publish: PublishEffects,
        commits: Commits,
        store: ClassicStore,
        confirm_when: ConfirmWhen = ConfirmWhen.SYNCED,
    ) -> None:
        super().__init__(make(None), wake, publish, commits)
        self._make = make
        self._commits = commits
        self._store = store
        self._confirm_when = confirm_when
        self._asked_for = 0  # the ticket that wakes the queue when it is durable

    def recover(self, now_ms: int) -> Iterator[int]:
        self.queue.recover(self._store.backlogs())
        self.recovered = True
        return iter(())

    def delete(self) -> None:
        self._store.delete()
        self._commits.forget(self._store.group)

    def flush(self, now_ms: int) -> None:
        wrote = self._store.flush()
        ticket = self.queue.safe_up_to(self._commits.journal.durable) if self.queue.unsafe else None
        confirm_when = self.queue.settings.confirm_when or self._confirm_when
        if ticket is not None and confirm_when is ConfirmWhen.WRITTEN:
            ticket, wrote = self.queue.safe_up_to(self._commits.write_early()), True
        if ticket is not None and ticket > self._asked_for:
            self._asked_for = ticket
            self._commits.when_durable(ticket, self.wake)
        elif wrote:
            # This also runs during a sync, which may not cover the records.
            self._commits.write_soon()

    def progress(self, *, busy: bool) -> QueueProgress:
        waits = bool(self.admission.waiting or self.queue.unsafe)
        return self._commits.progress(busy=busy, waits=waits)

    def storage_failed(self) -> None:
        self.queue.refuse_unsafe()
        self.publish()

    def restart(self) -> None:
        self.queue = self._make(self.queue)
        self.recovered = False
