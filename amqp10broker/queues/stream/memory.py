"""Segments of a stream in memory, for a broker without a data folder."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from amqp10broker.storage.record import RECORD_BYTES
from amqp10broker.storage.stream_files import SegmentRecord


class MemoryShelf:
    """The segments of one stream, as `FileShelf`: durable as soon as they are written."""

    def __init__(self) -> None:
        self._segments: dict[int, list[SegmentRecord]] = {}
        self._newest: list[SegmentRecord] = []
        self._end = 0

    def recover(self) -> Iterator[tuple[int, int, Sequence[SegmentRecord]]]:
        return iter(())

    def prepare(self, first: int) -> Sequence[int]:
        return ()

    def roll(self, first: int) -> int:
        self._newest = self._segments[first] = []
        self._end = 0
        return 0

    def append(self, first: int, payload: Sequence[bytes], number: int) -> tuple[int, int]:
        position = self._end
        data = b"".join(payload)
        length = RECORD_BYTES + len(data)
        self._newest.append(SegmentRecord(position, length, first, data))
        self._end = position + length
        return position, length

    def mark(self) -> None:
        pass

    def write(self) -> None:
        pass

    def read(self, segment: int, position: int, size: int) -> Sequence[SegmentRecord]:
        entries = self._segments[segment]
        start = bisect_left(entries, (position,))
        stop = start + 1
        while stop < len(entries) and entries[stop].position + entries[stop].length <= position + size:
            stop += 1
        return entries[start:stop]

    def drop(self, segment: int) -> None:
        del self._segments[segment]

    def fds_to_sync(self) -> list[int]:
        return []

    def synced(self) -> None:
        pass

    def close(self) -> None:
        pass

    def delete(self) -> None:
        self._segments.clear()
        self._newest = []
