"""A stream's log: consecutive chunks in segments, of which the oldest may be removed.

A chunk is a record (`record`) of kind `CHUNK`: its index is the offset of the first message, its payload a
header of 13 bytes, the chunk's filter, and the encoded messages::

    timestamp ms u64 | messages u32 | filter length u8 | filter | messages

A segment is named after its first offset. One of `segment_bytes` or more gets no more chunks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message, decode_batch
from amqp10broker.storage.record import RECORD_BYTES, Record
from amqp10broker.storage.stream_files import CHUNK, FileShelf

INDEX_BYTES: Final = 64 * 1024
"""The distance of index entries. A chunk is found by reading from the entry before it."""


class SegmentIndex:
    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.next = first
        self.size = size
        self.start = size
        self.first_ms: int | None = None
        self.last_ms = 0
        self.last_chunk = first
        self._offsets = array("Q")
        self._times = array("Q")
        self._positions = array("Q")

    def add(self, position: int, length: int, first: int, count: int, timestamp_ms: int) -> None:
        if not self._positions or position - self._positions[-1] >= INDEX_BYTES:
            self._offsets.append(first)
            self._times.append(timestamp_ms)
            self._positions.append(position)
        if self.first_ms is None:
            self.first_ms = timestamp_ms
            self.start = position
        self.last_ms = timestamp_ms
        self.last_chunk = first
        self.next = first + count
        self.size = position + length

    def before_offset(self, offset: int) -> int:
        """Return the position of a chunk that is not after the one with this offset."""
        at = bisect_right(self._offsets, offset)
        return self._positions[at - 1] if at else self.start

    def before_time(self, timestamp_ms: int) -> int:
        """Return the position of a chunk that is not after the first one of at least this time."""
        # Several chunks may have the same time. The first of them may be before the entry with this time.
        at = bisect_left(self._times, timestamp_ms)
        return self._positions[at - 1] if at else self.start


READ_BYTES: Final = 256 * 1024

SEGMENT_BYTES: Final = 500_000_000

_START: Final = Struct(">QIB")
_OFFSET: Final = attrgetter("offset")

Place = tuple[int, int]
"""The first offset of a segment, and a position in it."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Messages that were written together, decoded on first use. `timestamp_ms`: never less than that of the
    chunk before.
    """

    first: int
    end: int
    timestamp_ms: int
    filter: bytes
    _content: bytes | list[Message]
    size_bytes: int

    @property
    def messages(self) -> list[Message]:
        if isinstance(self._content, bytes):
            self._content = decode_batch(self._content)
        return self._content


class StreamLog:
    """The log of one stream. Offsets from `first_offset` up to, and not including, `committed` may be read;
    those up to `next_offset` are appended. `number`: the stream has the commits over several queues up to
    this one.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.segment_bytes = SEGMENT_BYTES
        self.number = 0
        self.shelf = shelf
        self.segments: list[SegmentIndex] = []
        self._firsts: list[int] = []
        self.committed = 0
        self.next_offset = 0
        self._last_ms = 0
        self._older_bytes = 0
        # True when a segment was begun, until its first message has been appended.
        self._rolling = False

    def recover(self) -> Iterator[int]:
        """Read the existing chunks in steps; yields bytes read."""
        for first, size, entries in self.shelf.recover():
            if not self._firsts or self._firsts[-1] != first:
                self._add_segment(first, size)
            segment = self.segments[-1]
            for entry in entries:
                timestamp_ms, count, _ = _START.unpack_from(entry.payload)
                segment.add(entry.offset, entry.length, entry.index, count, timestamp_ms)
                self._last_ms = timestamp_ms
                self.number = entry.term
            segment.size = size
            self.next_offset = segment.next
            yield sum(entry.length for entry in entries)
        self.committed = self.next_offset

    @property
    def first_offset(self) -> int:
        return self._firsts[0] if self._firsts else self.next_offset

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self.segments[-1].size if self.segments else 0

    def prepare_room(self) -> Sequence[int]:
        """Begin a new segment if the newest is full; everything before must be committed. Returns descriptors
        to sync and `commit` before the next call; none if there is room. Raises `DiskFull` if the call can be
        repeated.
        """
        assert self.committed == self.next_offset, "a segment is only left when all of it is durable"
        self._rolling = self._rolling or not self.segments or self._full(self.segments[-1])
        return self.shelf.prepare(self.next_offset) if self._rolling else ()

    def make_room(self) -> None:
        """Prepare for `append`; everything must be committed. Raises `DiskFull` as `prepare_room`."""
        waits = self.prepare_room()
        assert not waits, "sync what is prepared first"
        if self._rolling:
            self._add_segment(self.next_offset, self.shelf.roll(self.next_offset))
            self._rolling = False

    def append(
        self, count: int, timestamp_ms: int, filter_bytes: bytes, data: Sequence[bytes], number: int = 0
    ) -> int:
        """Append a chunk, which is not committed. `number`: that of the commit whose messages it has. Returns
        the chunk's `timestamp_ms`, which is later than the wall clock if that was set back.
        """
        first = self.next_offset
        self.number = max(self.number, number)
        # Chunks are found by time, so times must not go back when the clock is set back.
        timestamp_ms = self._last_ms = max(timestamp_ms, self._last_ms)
        start = _START.pack(timestamp_ms, count, len(filter_bytes)) + filter_bytes
        position, length = self.shelf.append(first, [start, *data], self.number)
        self.segments[-1].add(position, length, first, count, timestamp_ms)
        self.next_offset = first + count
        return timestamp_ms

    def _full(self, segment: SegmentIndex) -> bool:
        return segment.size >= self.segment_bytes and segment.first_ms is not None

    def _add_segment(self, first: int, size: int) -> None:
        self._older_bytes = self.size_bytes
        self.segments.append(SegmentIndex(first, size))
        self._firsts.append(first)

    def write(self) -> int:
        """Write appended chunks; return the offset that a sync makes durable. Raises `DiskFull`."""
        self.shelf.write()
        return self.next_offset

    def commit(self, offset: int) -> None:
        self.shelf.synced()
        self.committed = max(self.committed, offset)

    def find(self, offset: int) -> Place:
        """Return the place of the chunk with this offset, or of the first or next one outside the range."""
        if not self.segments:
            return self.next_offset, 0
        offset = min(max(offset, self.first_offset), self.committed)
        segment = self.segments[bisect_right(self._firsts, offset) - 1]
        position = segment.before_offset(offset)
        while position < segment.size and (entries := self.shelf.read(segment.first, position, READ_BYTES)):
            for entry in entries:
                _, count, _ = _START.unpack_from(entry.payload)
                if entry.index + count > offset or entry.index >= self.committed:
                    return segment.first, entry.offset
                position = entry.offset + entry.length
        return segment.first, position

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset of the first committed chunk that is not older; `committed` if all are."""
        found = self.committed
        for segment in reversed(self.segments):
            if segment.first_ms is None or segment.first >= self.committed:
                continue
            if segment.last_ms < timestamp_ms:
                break
            found = segment.first
            if segment.first_ms < timestamp_ms:
                found = self._chunk_at(segment, timestamp_ms)
                break
        return found

    def _chunk_at(self, segment: SegmentIndex, timestamp_ms: int) -> int:
        place: Place = (segment.first, segment.before_time(timestamp_ms))
        while place[0] == segment.first:
            chunks, place = self.read(place)
            if not chunks:
                break
            for chunk in chunks:
                if chunk.timestamp_ms >= timestamp_ms:
                    return chunk.first
        return min(segment.next, self.committed)

    def last_chunk(self) -> int:
        """Return the first offset of the last committed chunk; `committed` if there is none."""
        for segment in reversed(self.segments):
            if segment.first_ms is None or segment.first >= self.committed:
                continue
            if segment.next <= self.committed:
                return segment.last_chunk
            # A chunk is being written, so the one before it is found by reading.
            found = segment.first
            place: Place = (segment.first, segment.before_offset(self.committed - 1))
            while True:
                chunks, place = self.read(place)
                if not chunks:
                    return found
                found = chunks[-1].first
        return self.committed

    def read(self, place: Place) -> tuple[Sequence[Chunk], Place]:
        """Read some hundred kilobytes of committed chunks from a place on; return them and the place of the
        next one. Returns no chunks at the end. Begins at the oldest chunk if the place has been removed.
        """
        first, position = place
        at = bisect_right(self._firsts, first) - 1
        if at < 0 or self._firsts[at] != first:
            if at + 1 >= len(self._firsts):
                return [], place
            # The segment of the place has been removed; the next one begins after it.
            at += 1
            first, position = self._firsts[at], self.segments[at].start
        while True:
            if first >= self.committed:
                return [], (first, position)
            if position < self.segments[at].size:
                entries = self.shelf.read(first, position, READ_BYTES)
                if entries:
                    return self._committed_of(entries, first, position)
            # A segment may end in a record that is not a chunk, after a torn end.
            if at + 1 == len(self.segments):
                return [], (first, position)
            at += 1
            first, position = self._firsts[at], self.segments[at].start

    def _committed_of(
        self, entries: Sequence[Record], first: int, position: int
    ) -> tuple[Sequence[Chunk], Place]:
        chunks: list[Chunk] = []
        for entry in entries:
            if entry.index >= self.committed:
                break
            chunks.append(_chunk(entry))
            position = entry.offset + entry.length
        return chunks, (first, position)

    def retain(self, now_ms: int, bytes_max: int | None, age_ms: int | None) -> None:
        """Remove the oldest segments beyond the limits, but not the last one."""
        segments = self.segments
        while len(segments) > 1:
            oldest = segments[0]
            too_much = bytes_max is not None and self.size_bytes > bytes_max
            too_old = age_ms is not None and oldest.last_ms < now_ms - age_ms
            # Publishers wait for chunks that are not committed.
            if not (too_much or too_old) or segments[1].first > self.committed:
                break
            self.shelf.drop(oldest.first)
            self._older_bytes -= oldest.size
            del segments[0], self._firsts[0]

    def next_expiry(self, age_ms: int) -> int | None:
        """Return when the oldest removable segment is too old."""
        if len(self.segments) < 2:
            return None
        return self.segments[0].last_ms + age_ms + 1

    def delete(self) -> None:
        self.segments.clear()
        self._firsts.clear()
        self._older_bytes = 0
        self.committed = self.next_offset
        self.shelf.delete()


def _chunk(entry: Record) -> Chunk:
    payload = entry.payload
    timestamp_ms, count, filter_bytes = _START.unpack_from(payload)
    start = _START.size + filter_bytes
    end, data = entry.index + count, payload[start:]
    return Chunk(entry.index, end, timestamp_ms, payload[_START.size : start], data, len(data))


class MemoryShelf:
    """The segments of one stream, as `FileShelf`: durable as soon as they are written."""

    def __init__(self) -> None:
        self.segments: dict[int, list[Record]] = {}
        self._newest: list[Record] = []
        self._end = 0

    def recover(self) -> Iterator[tuple[int, int, Sequence[Record]]]:
        return iter(())

    def prepare(self, first: int) -> Sequence[int]:
        return ()

    def roll(self, first: int) -> int:
        self._newest = self.segments[first] = []
        self._end = 0
        return 0

    def append(self, first: int, payload: Sequence[bytes], number: int) -> tuple[int, int]:
        position = self._end
        data = b"".join(payload)
        length = RECORD_BYTES + len(data)
        self._newest.append(Record(0, CHUNK, number, first, data, 0, position, length))
        self._end = position + length
        return position, length

    def mark(self) -> None:
        pass

    def write(self) -> None:
        pass

    def read(self, segment: int, position: int, size: int) -> Sequence[Record]:
        entries = self.segments[segment]
        start = bisect_left(entries, position, key=_OFFSET)
        stop = start + 1
        while stop < len(entries) and entries[stop].offset + entries[stop].length <= position + size:
            stop += 1
        return entries[start:stop]

    def drop(self, segment: int) -> None:
        del self.segments[segment]

    def fds_to_sync(self) -> list[int]:
        return []

    def synced(self) -> None:
        pass

    def close(self) -> None:
        pass

    def delete(self) -> None:
        self.segments.clear()
        self._newest = []


Shelf = FileShelf | MemoryShelf
