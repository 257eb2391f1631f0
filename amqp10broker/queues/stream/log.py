"""What a stream asks of the log that holds it. `storage.stream_log` is one, on disk or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Place = tuple[int, int]
"""Where a chunk lies: first offset of its segment, and bytes from the beginning of that."""


class Chunk(Protocol):
    """Messages that were written together."""

    @property
    def first(self) -> int:
        """Offset of its first message."""

    @property
    def end(self) -> int:
        """Offset behind its last message."""

    @property
    def timestamp_ms(self) -> int:
        """When it was written; never less than that of the chunk before."""

    @property
    def filter(self) -> bytes:
        """Which filter values its messages have (`message.filters`)."""

    @property
    def data(self) -> bytes:
        """Its messages (`message.batch`)."""


class StreamLog(Protocol):
    """A stream's chunks, in segments of which the oldest may go.

    Offsets from `first_offset` up to, and not including, `committed` may be read; those up to
    `next_offset` are appended. All three are where a chunk begins.

    Attributes:
        segment_bytes: a segment of so many bytes or more gets no more chunks.
    """

    segment_bytes: int

    @property
    def first_offset(self) -> int:
        """Of the oldest message that is kept; equal to `next_offset` if there is none."""

    @property
    def next_offset(self) -> int:
        """That the next message gets."""

    @property
    def committed(self) -> int:
        """Below it, messages are kept for good, and may be read."""

    @property
    def segments(self) -> int:
        """How many there are."""

    @property
    def size_bytes(self) -> int:
        """Of all segments."""

    def make_room(self) -> None:
        """Get ready for `append`; called when everything is committed.

        Raises:
            DiskFull: nothing has changed, and it can be tried again.
        """

    def append(
        self, count: int, timestamp_ms: int, filter_bytes: bytes, data: Sequence[bytes], number: int = 0
    ) -> int:
        """Put a chunk at the end. It is not committed.

        Args:
            count: messages in it.
            timestamp_ms: wall clock.
            filter_bytes: see `Chunk.filter`.
            data: see `Chunk.data`, in pieces.
            number: of the commit that it is, if it is one.

        Returns:
            The chunk's `timestamp_ms`: later than the wall clock if that has gone back.
        """

    def find(self, offset: int) -> Place:
        """Where the chunk with this offset lies, the first or the next one if the offset is outside."""

    def offset_at(self, timestamp_ms: int) -> int:
        """First offset of the first committed chunk that is not older; `committed` if all are."""

    def last_chunk(self) -> int:
        """First offset of the last committed chunk; `committed` if there is none."""

    def read(self, place: Place) -> tuple[Sequence[Chunk], Place]:
        """Committed chunks from a place on, some hundred kilobytes of them, and where the next one lies.

        None at the end. From the oldest on, if what was there has gone.
        """

    def retain(self, now_ms: int, bytes_max: int | None, age_ms: int | None) -> None:
        """Let the oldest segments go that are too much or too old. The one that is written to stays."""

    def next_expiry(self, age_ms: int) -> int | None:
        """When the oldest segment that may go is too old; None without one that may."""
