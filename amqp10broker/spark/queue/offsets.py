"""The offsets of a streaming query on a queue, from spool and queue, independent of Spark.

An offset has the spool's id, the number of the last segment that was read, and the number of parts into which
the batch that ends there is cut: a repeated batch is cut as it was the first time, because the sink makes
message-ids of the numbers of partition and row. The order of steps, with a crash possible after each:

1. `latest`: receive, write, sync, rename, sync the folder, settle.
2. Spark records the offset, runs the batch, and records that it is done.
3. `latest` again, then `commit` of the offset before: segments up to it are removed.

After a crash between 1 and 2 the spool has a segment that Spark has not recorded: it is the next batch. The
segments of the last batch stay, because `commit` is never called for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue.deduplication import SeenIds
from amqp10broker.spark.queue.filler import SegmentFiller
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile

# How long to wait on an empty queue before a streaming query gets no data.
WAIT_S: Final = 0.2
Offset = dict[str, Any]


class QueueOffsets:
    """Maps a queue and its spool to offsets. `parts`: how many a batch is cut into; None for one
    per segment.
    """

    def __init__(
        self,
        spool: QueueSpool,
        filler: SegmentFiller,
        seen: SeenIds | None,
        segment_rows: int,
        parts: int | None,
    ) -> None:
        self.spool = spool
        self._filler = filler
        self._seen = seen
        self._segment_rows = segment_rows
        self._parts = parts
        self._available_now = False
        self._left: int | None = None

    def initial(self) -> Offset:
        """Return the offset before the oldest segment: a new checkpoint on an old spool reads all that it
        holds.
        """
        return self._offset(self.spool.oldest - 1)

    def stop_at_what_is_there(self) -> None:
        """Take no more messages than the queue has at the next call of `latest`."""
        self._available_now = True
        self._left = None

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> Offset:
        """Store messages in the spool, unless it has some that Spark has not recorded.

        Args:
            rows_max: of this batch; None for no limit. A segment already in the spool is not divided, even if
                it has more.

        Returns:
            The end of this batch; `start` if there is nothing.

        Raises:
            SparkSourceError: the broker or the spool failed. Messages not in the spool are still in the
                queue.
        """
        number = self._number(start)
        known = self.spool.between(number, self.spool.newest)
        if known and rows_max is not None:
            end, rows = known[0].number, known[0].count
            for segment in known[1:]:
                rows += segment.count
                if rows > rows_max:
                    break
                end = segment.number
            return self._offset(end)
        if rows_max is None:
            left = self._left if self._available_now else None
            self._filler.take_all_of(self._segment_rows, left)
            self._left = 0
        elif not self._available_now:
            self._filler.take(rows_max, WAIT_S)
        elif self._left is None or self._left > 0:
            self._left = self._filler.take_of(rows_max, self._left)
        newest = self.spool.newest
        return self._offset(newest) if newest > number else dict(start)

    def segments(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SpoolFile]:
        """Return the segments of a range; the result for a range never changes."""
        return self.spool.between(self._number(start), self._number(end))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Remove the segments up to `end`, which Spark will not request again."""
        seen = self._seen
        ids_of = None if seen is None else lambda segment: seen.of(segment.number)
        self.spool.remove_through(self._number(end), ids_of)

    def close(self) -> None:
        self._filler.close()
        self.spool.close()

    def _offset(self, number: int) -> Offset:
        # One part in all is one per segment, since no part spans two.
        return {"spool": self.spool.id, "segment": number, "parts": self._parts or 1}

    def _number(self, offset: Mapping[str, Any]) -> int:
        spool = self.spool
        if offset["spool"] != spool.id:
            raise SpoolError(
                f"the checkpoint belongs to another spool than {spool.path} (it says {offset['spool']}, this "
                f"is {spool.id}): give the spoolLocation that was used with this checkpointLocation, or, if "
                "that spool is gone for good, begin anew with another checkpointLocation"
            )
        number = int(offset["segment"])
        if number > spool.newest:
            raise SpoolError(
                f"{spool.path}: the checkpoint has read up to segment {number}, and the newest here is "
                f"{spool.newest}: files are gone from the spool. Restore them from a copy, or begin anew "
                "with another checkpointLocation and another spoolLocation"
            )
        return number
