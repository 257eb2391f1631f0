"""A journal in memory, with files that are full after a few records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

RECORD_BYTES: Final = 29


class FakeRecord(NamedTuple):
    group: int
    kind: int
    index: int  # type: ignore[assignment]
    payload: bytes
    file: int
    offset: int
    length: int
    term: int = 0


class FakeLog:
    """As `storage.journal.Journal`, as far as stores use it: records, and bytes in use, by file number."""

    def __init__(self, records_max: int = 8) -> None:
        self.files: dict[int, list[FakeRecord]] = {1: []}
        self.live: dict[int, int] = {1: 0}
        self._records_max = records_max
        self._ticket = 0

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        number = max(self.files)
        if len(self.files[number]) >= self._records_max:
            number += 1
            self.files[number] = []
            self.live[number] = 0
        records = self.files[number]
        offset = records[-1].offset + records[-1].length if records else 32
        data = b"".join(payload)
        length = RECORD_BYTES + len(data)
        records.append(FakeRecord(group, kind, index, data, number, offset, length, term))
        self._ticket += 1
        return self._ticket, number, offset

    def read(self, file: int, offset: int) -> bytes:
        (record,) = [each for each in self.files[file] if each.offset == offset]
        return record.payload

    def read_run(self, file: int, offset: int, length: int) -> Sequence[FakeRecord]:
        found = [each for each in self.files[file] if offset <= each.offset < offset + length]
        assert found[0].offset == offset
        assert sum(each.length for each in found) == length
        return found

    def add_live(self, file: int, length: int) -> None:
        self.live[file] += length

    def add_dead(self, file: int, length: int) -> None:
        self.live[file] -= length
        assert self.live[file] >= 0

    def drop_oldest(self) -> None:
        oldest = min(self.files)
        assert self.live[oldest] == 0, "something in it lives"
        del self.files[oldest], self.live[oldest]

    def records(self) -> Iterator[FakeRecord]:
        for number in sorted(self.files):
            yield from self.files[number]

    def reopened(self) -> FakeLog:
        again = FakeLog(self._records_max)
        again.files = {number: list(records) for number, records in self.files.items()}
        again.live = dict.fromkeys(again.files, 0)
        again._ticket = self._ticket
        return again


class MemoryScratch:
    def __init__(self) -> None:
        self._data = bytearray()
        self.closed = False

    def write(self, pieces: Sequence[bytes]) -> int:
        offset = len(self._data)
        self._data += b"".join(pieces)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        assert not self.closed
        return bytes(self._data[offset : offset + length])

    def close(self) -> None:
        self.closed = True
