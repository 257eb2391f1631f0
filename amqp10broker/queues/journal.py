"""The queues' interface to the node's storage: the journal, places of messages in it, pages in scratch files.

An extent is one record of the journal, or several with few others between them. Removed messages are bits of
one number, so that the index takes a few bytes for each message even when they are removed in any order.
Positions grow, so extents are in order.

This module also stores durable AMQP 1.0 links in the journal: their termini, and the unsettled deliveries of
publishers.

=============  ===============  ==================================================================
kind           index            payload
=============  ===============  ==================================================================
`LINK`         number of link   the link's document, which replaces the one before
`TAKEN`        number of link   delivery-tags of deliveries that queues have, each behind a u8 with its
                                length; they are in one group with the queues' records of the messages
`SETTLED`      number of link   tags likewise: removed
`ENDED`        number of link   nothing
=============  ===============  ==================================================================

The group is `GROUP`, which is not a queue's: queues have numbers from 1. All live data are in memory, so a
record is never read again: cleaning appends live data of an old file from memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.storage.disk import Scratch
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import Record


class RecordLog(Protocol):
    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]: ...

    def read(self, file: int, offset: int) -> bytes: ...

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]: ...

    def add_live(self, file: int, length: int) -> None: ...

    def add_dead(self, file: int, length: int) -> None: ...


class Commits(Protocol):
    """The node's journal, with the committer that writes and syncs it."""

    journal: Journal

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        """Call a function when a ticket is durable. It is never called if storage fails."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call a function once when there is no shortage of room."""

    def write_early(self) -> int:
        """Write appended records now as far as possible; return the ticket up to which they are written.
        `write_soon` must be called too, or they stay unsynced until the next request. Raises `StorageError`.
        """

    def write_soon(self) -> None:
        """Request a sync soon, for records that no client waits for."""

    def forget(self, group: int) -> None: ...

    def abandoned(self, group: int) -> None:
        """Leave a failed queue's records to the next start. Until then no file is cleaned."""

    def progress(self, *, busy: bool, waits: bool) -> QueueProgress: ...


EXTENT_BYTES_MAX: Final = 256 * 1024
DILUTION_MAX: Final = 8
"""Records are not joined to an extent if reading it would read more than so many times a record's bytes."""

_FIRST: Final = attrgetter("first")


class Extent:
    """Records of messages with consecutive positions. `length`: bytes to the end of the last one, with others
    between. `weight`: the part of these bytes that counts for its messages. `size`: bytes of their contents.
    `gone`: removed messages, as bits.
    """

    __slots__ = ("count", "file", "first", "gone", "gone_count", "length", "offset", "size", "weight")

    def __init__(self, first: int, count: int, file: int, offset: int, length: int, size: int) -> None:
        self.first = first
        self.count = count
        self.file = file
        self.offset = offset
        self.length = length
        self.weight = length
        self.size = size
        self.gone = 0
        self.gone_count = 0

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def gone_bytes(self) -> int:
        """The bytes that are not needed any more, as if all messages were of one size."""
        return self.weight * self.gone_count // self.count

    def cut(self, at: int) -> Extent:
        before = at - self.first
        rest = Extent(at, self.count - before, self.file, self.offset, self.length, 0)
        rest.weight = self.weight * rest.count // self.count
        rest.size = self.size * rest.count // self.count
        rest.gone = self.gone >> before
        rest.gone_count = rest.gone.bit_count()
        self.weight -= rest.weight
        self.size -= rest.size
        self.count = before
        self.gone &= (1 << before) - 1
        self.gone_count -= rest.gone_count
        return rest

    def live_runs(self) -> Iterator[range]:
        if not self.gone_count:
            yield range(self.first, self.stop)
            return
        live = ((1 << self.count) - 1) & ~self.gone
        at = self.first
        while live:
            skip = (live & -live).bit_length() - 1
            live >>= skip
            at += skip
            # Of a run of ones, the lowest zero is its end.
            length = (~live & (live + 1)).bit_length() - 1
            yield range(at, at + length)
            live >>= length
            at += length


class Extents:
    """The extents of one level, and their files' counters."""

    __slots__ = ("_extents", "_journal", "_start", "files")

    def __init__(self, journal: RecordLog) -> None:
        self._journal = journal
        self._extents: list[Extent] = []
        self._start = 0  # extents before this one are completely removed
        self.files: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.files)

    def __iter__(self) -> Iterator[Extent]:
        return (each for each in self._extents[self._start :] if each.gone_count < each.count)

    def add(self, first: int, count: int, file: int, offset: int, length: int, size: int) -> None:
        extents = self._extents
        last = extents[-1] if extents else None
        stop = -1 if last is None else last.stop
        self._journal.add_live(file, length)
        if first < stop:
            at = self._make_place(first, first + count)
            extents.insert(at, Extent(first, count, file, offset, length, size))
        elif (
            last is not None
            and stop == first
            and last.file == file
            and offset + length - last.offset <= min(EXTENT_BYTES_MAX, DILUTION_MAX * (last.weight + length))
            and not last.gone_count
        ):
            last.count += count
            last.length = offset + length - last.offset
            last.weight += length
            last.size += size
            return
        else:
            extents.append(Extent(first, count, file, offset, length, size))
        self.files[file] = self.files.get(file, 0) + 1

    def _make_place(self, start: int, stop: int) -> int:
        # Return where an extent with these positions belongs.
        extents = self._extents
        low = bisect_right(extents, start, lo=self._start, key=_FIRST)
        if low > self._start and extents[low - 1].stop > start:
            if extents[low - 1].first < start:
                self._cut(low - 1, start)
            else:
                low -= 1
        high = low
        while high < len(extents) and extents[high].first < stop:
            if extents[high].stop > stop:
                self._cut(high, stop)
            extent = extents[high]
            if extent.gone_count < extent.count:
                self._remove_of(extent, extent.first, extent.stop)
            high += 1
        del extents[low:high]
        return low

    def _cut(self, index: int, at: int) -> None:
        extent = self._extents[index]
        bytes_before = extent.gone_bytes
        was_live = extent.gone_count < extent.count
        rest = extent.cut(at)
        self._extents.insert(index + 1, rest)
        # Rounding must not change the needed bytes of the file, which may be removed if no message is left.
        rounded = extent.gone_bytes + rest.gone_bytes - bytes_before
        if rounded:
            self._journal.add_dead(extent.file, rounded)
        parts = sum(each.gone_count < each.count for each in (extent, rest))
        if was_live:
            self.files[extent.file] += parts - 1

    def remove(self, start: int, stop: int) -> int:
        """Remove messages from `start` up to, and not including, `stop`; return how many were present."""
        extents = self._extents
        found = 0
        at = max(self._start, bisect_right(extents, start, lo=self._start, key=_FIRST) - 1)
        while at < len(extents):
            extent = extents[at]
            if extent.first >= stop:
                break
            low, high = max(start, extent.first), min(stop, extent.stop)
            if low < high:
                found += self._remove_of(extent, low, high)
            at += 1
        self._trim()
        return found

    def _remove_of(self, extent: Extent, low: int, high: int) -> int:
        before = extent.gone_count
        if high - low == extent.count and not before:
            newly = extent.count
            extent.gone = (1 << newly) - 1
        else:
            mask = ((1 << (high - low)) - 1) << (low - extent.first)
            newly = (mask & ~extent.gone).bit_count()
            if not newly:
                return 0
            extent.gone |= mask
        bytes_before = extent.gone_bytes
        extent.gone_count = before + newly
        self._journal.add_dead(extent.file, extent.gone_bytes - bytes_before)
        if extent.gone_count == extent.count:
            self._release(extent.file)
        return newly

    def _release(self, file: int) -> None:
        left = self.files[file] - 1
        if left:
            self.files[file] = left
        else:
            del self.files[file]

    def _trim(self) -> None:
        extents = self._extents
        start = self._start
        while start < len(extents) and extents[start].gone_count == extents[start].count:
            start += 1
        self._start = start
        if start > 64 and 2 * start > len(extents):
            del extents[:start]
            self._start = 0

    def covers(self, first: int, count: int) -> bool:
        at = first
        for extent in self.overlapping(first, first + count):
            if extent.first > at or extent.gone_count:
                return False
            at = extent.stop
        return at >= first + count

    def overlapping(self, start: int, stop: int) -> Iterator[Extent]:
        extents = self._extents
        at = max(self._start, bisect_right(extents, start, lo=self._start, key=_FIRST) - 1)
        while at < len(extents) and extents[at].first < stop:
            if extents[at].stop > start and extents[at].gone_count < extents[at].count:
                yield extents[at]
            at += 1

    def of_file(self, file: int) -> list[Extent]:
        return [each for each in self if each.file == file] if file in self.files else []

    def clear(self) -> None:
        for extent in self:
            self._journal.add_dead(extent.file, extent.weight - extent.gone_bytes)
        self._extents.clear()
        self._start = 0
        self.files.clear()


def grows(positions: Sequence[int]) -> bool:
    """Return whether positions, whose ends are that far apart, are consecutive."""
    return isinstance(positions, range) or positions == list(range(positions[0], positions[-1] + 1))


def ranges_of(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """Return sorted indexes as ranges (first, last + 1)."""
    ranges: list[tuple[int, int]] = []
    start = stop = -1
    for index in indexes:
        if index != stop:
            if stop > start:
                ranges.append((start, stop))
            start = index
        stop = index + 1
    if stop > start:
        ranges.append((start, stop))
    return ranges


FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class Place(NamedTuple):
    file: int
    offset: int
    length: int


Page = bytes | Place


class Spool:
    """The pages of all queues of a broker. `open_scratch`: None: all are in memory."""

    def __init__(self, open_scratch: Callable[[], Scratch] | None = None) -> None:
        self._open = open_scratch
        self._files: dict[int, Scratch] = {}
        self._pages: dict[int, int] = {}
        self._number = 0
        self._filled = 0
        self.bytes_used = 0

    def keep(self, pieces: Sequence[bytes]) -> Page:
        if self._open is not None:
            # Without room the disk alarm is on or will be, and only memory is left.
            with suppress(OSError):
                return self._write(self._open, pieces)
        return b"".join(pieces)

    def _write(self, open_scratch: Callable[[], Scratch], pieces: Sequence[bytes]) -> Place:
        if not self._number or self._filled >= FILE_BYTES_MAX:
            # This call may fail, so it comes first: then it is tried again with the next page.
            self._files[self._number + 1] = open_scratch()
            self._number += 1
            self._filled = 0
            self._pages[self._number] = 0
            self._close_if_empty(self._number - 1)
        length = sum(map(len, pieces))
        offset = self._files[self._number].write(pieces)
        self._filled = offset + length
        self._pages[self._number] += 1
        self.bytes_used += length
        return Place(self._number, offset, length)

    def read(self, page: Page) -> bytes:
        return page if isinstance(page, bytes) else self.read_at(page, 0, page.length)

    def read_at(self, page: Page, at: int, length: int) -> bytes:
        if isinstance(page, bytes):
            return page[at : at + length]
        return self._files[page.file].read(page.offset + at, length)

    def drop(self, page: Page) -> None:
        if isinstance(page, bytes):
            return
        self._pages[page.file] -= 1
        self.bytes_used -= page.length
        if page.file != self._number:
            self._close_if_empty(page.file)

    def _close_if_empty(self, number: int) -> None:
        if self._pages.get(number) == 0:
            del self._pages[number]
            self._files.pop(number).close()

    def close(self) -> None:
        for scratch in self._files.values():
            scratch.close()
        self._files.clear()
        self._pages.clear()


GROUP: Final = 0
LINK: Final = 1
TAKEN: Final = 2
SETTLED: Final = 3
ENDED: Final = 4


@dataclass(slots=True, eq=False)
class _Record:
    """A record, needed until the last of its entries is not."""

    file: int
    length: int
    entries: int


@dataclass(slots=True, eq=False)
class _DurableLink:
    document: bytes | None = None
    record: _Record | None = None
    tags: dict[bytes, _Record] = field(default_factory=dict)


class ResumableLinksInJournal:
    def __init__(self, log: RecordLog, write_soon: Callable[[], None]) -> None:
        self.group = GROUP
        self._log = log
        self._write_soon = write_soon
        self._links: dict[int, _DurableLink] = {}

    def put(self, number: int, document: bytes) -> None:
        self._put(number, document, self._append(LINK, number, document, 1))
        self._write_soon()

    def take(self, number: int, tags: Sequence[bytes]) -> None:
        """Record deliveries of a link that queues have accepted; it must be called within the group of their
        records. `tags`: of up to 255 octets; present ones are replaced.
        """
        if tags:
            self._take(number, tags, self._append(TAKEN, number, _packed(tags), len(tags)))

    def settle(self, number: int, tags: Iterable[bytes]) -> None:
        link = self._links.get(number)
        there = [] if link is None else [tag for tag in tags if tag in link.tags]
        if there:
            self._log.append(GROUP, SETTLED, number, [_packed(there)])
            self._settle(number, there)
            self._write_soon()

    def end(self, number: int) -> None:
        if number in self._links:
            self._log.append(GROUP, ENDED, number, ())
            self._end(number)
            self._write_soon()

    def found(self) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        """Iterate over number, document and tags of each link."""
        for number, link in list(self._links.items()):
            if link.document is None:
                self.end(number)  # otherwise the next link of this number would have its deliveries
            else:
                yield number, link.document, list(link.tags)

    def _append(self, kind: int, number: int, payload: bytes, entries: int) -> _Record:
        _, file, _ = self._log.append(GROUP, kind, number, [payload])
        return _Record(file, len(payload), entries)

    def _put(self, number: int, document: bytes, record: _Record) -> None:
        link = self._links.setdefault(number, _DurableLink())
        before, link.document, link.record = link.record, document, record
        self._log.add_live(record.file, record.length)
        if before is not None:
            self._drop(before)

    def _take(self, number: int, tags: Sequence[bytes], record: _Record) -> None:
        link = self._links.setdefault(number, _DurableLink())
        self._log.add_live(record.file, record.length)
        for tag in tags:
            before = link.tags.pop(tag, None)
            if before is not None:
                self._drop(before)
            link.tags[tag] = record

    def _settle(self, number: int, tags: Iterable[bytes]) -> None:
        link = self._links.get(number)
        if link is None:
            return
        for tag in tags:
            record = link.tags.pop(tag, None)
            if record is not None:
                self._drop(record)

    def _end(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            for record in link.tags.values():
                self._drop(record)
            if link.record is not None:
                self._drop(link.record)

    def _drop(self, record: _Record) -> None:
        record.entries -= 1
        if not record.entries:
            self._log.add_dead(record.file, record.length)

    def restore(self, records: Sequence[Record]) -> None:
        for record in records:
            number, payload = record.index, bytes(record.payload)
            if record.kind == LINK:
                self._put(number, payload, _Record(record.file, len(payload), 1))
            elif record.kind == TAKEN:
                tags = _unpacked(payload)
                self._take(number, tags, _Record(record.file, len(payload), len(tags)))
            elif record.kind == SETTLED:
                self._settle(number, _unpacked(payload))
            elif record.kind == ENDED:
                self._end(number)
            else:
                raise DamagedFile(
                    f"file {record.file} of the journal at offset {record.offset}",
                    f"this version does not know kind {record.kind} of a record of links that are kept",
                    "start the version that wrote it, or restore the data folder from a copy",
                )

    def relocate(self, file: int) -> Iterator[None]:
        for number in list(self._links):
            link = self._links.get(number)
            if link is None:
                continue
            if link.record is not None and link.document is not None and link.record.file <= file:
                self.put(number, link.document)
                yield
            tags = [tag for tag, record in link.tags.items() if record.file <= file]
            if tags and self._links.get(number) is link:
                # The order matters: newer records in other files follow them again.
                self.take(number, tags)
                yield


def _packed(tags: Sequence[bytes]) -> bytes:
    return b"".join(bytes((len(tag),)) + tag for tag in tags)


def _unpacked(payload: bytes) -> list[bytes]:
    tags, at = [], 0
    while at < len(payload):
        end = at + 1 + payload[at]
        tags.append(payload[at + 1 : end])
        at = end
    return tags
