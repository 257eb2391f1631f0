"""A journal in a list, with small files, for tests of what queues keep in it; a scratch file in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from amqp10broker.storage.record import RECORD_BYTES, Record


class MemoryJournal:
    """As `storage.journal.Journal`, as far as stores use it; what is appended is durable at once.

    Attributes:
        files: records by file, the oldest first; one is full after so many bytes, or records if given.
        live: bytes that are needed, by file.
    """

    def __init__(self, file_bytes: int = 2000, *, records_max: int | None = None) -> None:
        self.files: dict[int, list[Record]] = {1: []}
        self.live: dict[int, int] = {1: 0}
        self.ticket = 0
        self._file_bytes = file_bytes
        self._records_max = records_max
        self._end = 0

    @property
    def records(self) -> list[Record]:
        return [record for records in self.files.values() for record in records]

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        file = max(self.files)
        records_max = self._records_max
        count = len(self.files[file])
        if self._end >= self._file_bytes if records_max is None else count >= records_max:
            file += 1
            self.files[file] = []
            self.live[file] = 0
            self._end = 0
        data = b"".join(payload)
        offset, length = self._end, RECORD_BYTES + len(data)
        self.files[file].append(Record(group, kind, term, index, data, file, offset, length))
        self._end += length
        self.ticket += 1
        return self.ticket, file, offset

    def read(self, file: int, offset: int) -> bytes:
        (record,) = [each for each in self.files[file] if each.offset == offset]
        return record.payload

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        found = [each for each in self.files[file] if offset <= each.offset < offset + length]
        assert found[0].offset == offset
        assert sum(each.length for each in found) == length
        return found

    def add_live(self, file: int, length: int) -> None:
        self.live[file] += length

    def add_dead(self, file: int, length: int) -> None:
        self.live[file] -= length
        assert self.live[file] >= 0, "more bytes are dead than were alive"

    def drop_oldest(self) -> None:
        """Remove the oldest file, which must have no live record."""
        file = min(self.files)
        assert self.live.pop(file) == 0
        del self.files[file]

    def clean_oldest(self, relocate: Callable[[int], Iterable[object]]) -> None:
        """Clean the oldest file unless it is the last; `relocate` is the only store's."""
        oldest = min(self.files)
        if oldest < max(self.files):
            for _ in relocate(oldest):
                pass
            self.drop_oldest()

    def again(self) -> MemoryJournal:
        """Return the same files as the node finds them after a restart: no record counts as live."""
        other = MemoryJournal(self._file_bytes, records_max=self._records_max)
        other.files = {file: list(records) for file, records in self.files.items()}
        other.live = dict.fromkeys(self.files, 0)
        other._end = self._end
        return other


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
