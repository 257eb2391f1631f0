"""The interface of a stream's log. `storage.stream_log` implements it, on disk or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Place = tuple[int, int]
"""The place of a chunk: first offset of its segment, and bytes from the segment's start."""


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
        """Time of writing, never less than that of the chunk before."""

    @property
    def filter(self) -> bytes:
        """Encoded filter values of its messages (`message.filters`)."""

    @property
    def data(self) -> bytes: ...


class StreamLog(Protocol):
    """A stream's chunks, in segments of which the oldest may be removed.

    Offsets from `first_offset` up to, and not including, `committed` may be read; those up to `next_offset`
    are appended. All three are at the beginning of a chunk.
    """

    segment_bytes: int

    @property
    def first_offset(self) -> int:
        """Offset of the oldest message; `next_offset` if there is none."""

    @property
    def next_offset(self) -> int: ...

    @property
    def committed(self) -> int:
        """The offset below which messages are durable and may be read."""

    @property
    def segments(self) -> int:
        """Number of segments that exist."""

    @property
    def size_bytes(self) -> int:
        """Size of all segments in bytes."""

    def make_room(self) -> None:
        """Prepare for `append`; called when everything is committed. Raises `DiskFull` if nothing has
        changed, and the call can be repeated.
        """

    def append(
        self, count: int, timestamp_ms: int, filter_bytes: bytes, data: Sequence[bytes], number: int = 0
    ) -> int:
        """Append a chunk, which is not committed. `number`: number of the commit that the chunk is, if it is
        one. Returns the chunk's `timestamp_ms`: later than the wall clock if that has gone back.
        """

    def find(self, offset: int) -> Place:
        """Return the place of the chunk with this offset, or of the first or next one outside the range."""

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset of the first committed chunk that is not older; `committed` if all are."""

    def last_chunk(self) -> int:
        """Return the first offset of the last committed chunk; `committed` if there is none."""

    def read(self, place: Place) -> tuple[Sequence[Chunk], Place]:
        """Read committed chunks from a place on, some hundred kilobytes, and return the place of the next
        one.

        Empty at the end. Starts at the oldest chunk if the place has been removed.
        """

    def retain(self, now_ms: int, bytes_max: int | None, age_ms: int | None) -> None:
        """Remove the oldest segments beyond the limits, but not the last one, which is written to."""

    def next_expiry(self, age_ms: int) -> int | None:
        """Return when the oldest removable segment is too old; None without one."""
