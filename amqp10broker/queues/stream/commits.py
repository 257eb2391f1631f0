"""Commits over several queues into one stream: records of the journal, as long as the stream's files lack
them.

A stream has files of its own, but a commit must be whole or absent. So its messages are written to the
journal first, with a number that grows from commit to commit. When they are durable they are written to the
stream as one chunk, and each chunk records which commits are in the stream up to it. A start writes the
commits that the journal has beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from amqp10broker.errors import DamagedFile
from amqp10broker.message.batch import decode_batch, encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.journal import RecordLog
from amqp10broker.storage.record import Record

PART: Final = 1
"""Kind of a record with the messages of a commit; the record's index is its number."""

WRITTEN: Final = 2
"""The stream has all commits up to the record's index. Chunks with this information may go by age or size."""


class _Place(NamedTuple):
    file: int
    offset: int
    length: int


class StreamCommits:
    def __init__(self, group: int, log: RecordLog) -> None:
        self.group = group
        self.bytes = 0
        self._log = log
        self._places: dict[int, _Place] = {}
        self._last = 0

    def append(self, messages: Sequence[Message]) -> int:
        self._last += 1
        self._append(self._last, encode_batch(messages))
        return self._last

    def _append(self, number: int, payload: Sequence[bytes]) -> None:
        _, file, offset = self._log.append(self.group, PART, number, payload)
        self._keep(number, _Place(file, offset, sum(map(len, payload))))

    def _keep(self, number: int, place: _Place) -> None:
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
        """Iterate over numbers and messages of commits that the stream lacks, when all records were read."""
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
                self._keep(number, _Place(record.file, record.offset, len(record.payload)))
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


# A stream requests the sync of its one file, and the committer takes some waiting ones into each commit. So
# declarations, which are in every commit, are durable before a message of a stream is confirmed.

FILES_MAX: Final = 8
"""Files of streams in one commit. The others have their turn in the next, so that no commit takes long."""

_Wait = tuple[Sequence[int], Callable[[], None]]


class StreamSyncs:
    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[_Wait] = []
        self._under_way: list[_Wait] = []

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        """Have a function called when what was written to files is durable; never, if storage fails."""
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
