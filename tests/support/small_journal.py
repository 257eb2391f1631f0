"""A journal in a list, with small files, for tests of what queues keep in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SmallRecord:
    """As `storage.record.Record`, as far as stores look at it."""

    group: int
    kind: int
    index: int
    payload: bytes
    file: int
    offset: int
    term: int = 0

    @property
    def length(self) -> int:
        return len(self.payload) + 29


class SmallJournal:
    """Appends and accounts; what is appended is durable at once.

    Attributes:
        files: records by file, the oldest first.
        live: bytes that are needed, by file.
    """

    def __init__(self, file_bytes: int = 2000) -> None:
        self.files: dict[int, list[SmallRecord]] = {1: []}
        self.live: dict[int, int] = {1: 0}
        self.ticket = 0
        self._file_bytes = file_bytes
        self._end = 0

    @property
    def records(self) -> list[SmallRecord]:
        return [record for records in self.files.values() for record in records]

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        file = max(self.files)
        if self._end >= self._file_bytes:
            file += 1
            self.files[file] = []
            self.live[file] = 0
            self._end = 0
        data = b"".join(payload)
        offset = self._end
        self.files[file].append(SmallRecord(group, kind, index, data, file, offset, term))
        self._end += len(data) + 29
        self.ticket += 1
        return self.ticket, file, offset

    def read(self, file: int, offset: int) -> bytes:
        (record,) = [each for each in self.files[file] if each.offset == offset]
        return record.payload

    def read_run(self, file: int, offset: int, length: int) -> Sequence[SmallRecord]:
        return [each for each in self.files[file] if offset <= each.offset < offset + length]

    def add_live(self, file: int, length: int) -> None:
        self.live[file] += length

    def add_dead(self, file: int, length: int) -> None:
        self.live[file] -= length
        assert self.live[file] >= 0, "more bytes are dead than were alive"

    def drop_oldest(self) -> None:
        """Remove the oldest file, in which nothing may live any more."""
        file = min(self.files)
        assert self.live.pop(file) == 0
        del self.files[file]

    def again(self) -> SmallJournal:
        """The same files, as another life of the node finds them: nothing counts as live."""
        other = SmallJournal(self._file_bytes)
        other.files = {file: list(records) for file, records in self.files.items()}
        other.live = dict.fromkeys(self.files, 0)
        other._end = self._end
        return other
