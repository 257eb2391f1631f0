"""What a streaming query asks of a queue source, answered from spool and queue. Knows nothing of Spark.

An offset is the spool's id and the number of a segment: the last one that was read. With it stands into how
many parts the batch that ends there should be cut, as the option said when it was planned: a batch that is
repeated is cut as it was the first time, because the sink makes message-ids of the numbers of partitions and
of rows in them. Order of things, any of which may be the last before a crash:

1. `latest`: receive, write, sync, rename, sync the folder, settle.
2. Spark writes the offset down, runs the batch, and writes down that it is done.
3. `latest` again, then `commit` of the offset before: segments up to it are removed.

After a crash between 1 and 2 the spool has a segment that Spark does not know: it is the next batch. The
segments of a batch that is written down are kept until `commit` says that a later one is, and that the batch
is done; for the last batch it is never said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue.deduplication import SeenIds
from amqp10broker.spark.queue.filler import SegmentFiller
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile

WAIT_S: Final = 0.2
"""How long an empty queue is waited for before a streaming query is told that there is nothing."""

Offset = dict[str, Any]


class QueueOffsets:
    """A spool and its queue, by offsets.

    Attributes:
        spool: open.
    """

    def __init__(
        self,
        spool: QueueSpool,
        filler: SegmentFiller,
        seen: SeenIds | None,
        segment_rows: int,
        parts: int | None,
    ) -> None:
        """Take both over.

        Args:
            spool: open.
            filler: puts messages into it.
            seen: the message-ids that `filler` remembers; None if it does not.
            segment_rows: of a segment, when no limit is asked for.
            parts: into so many a batch should be cut; None for one of each segment.
        """
        self.spool = spool
        self._filler = filler
        self._seen = seen
        self._segment_rows = segment_rows
        self._parts = parts
        self._available_now = False
        self._left: int | None = None

    def initial(self) -> Offset:
        """Before the oldest segment: a new checkpoint on an old spool reads all that it still holds."""
        return {"spool": self.spool.id, "segment": self.spool.oldest - 1}

    def stop_at_what_is_there(self) -> None:
        """Take no more than what the queue holds when it is next asked."""
        self._available_now = True
        self._left = None

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> Offset:
        """Take messages into the spool, unless it has some that Spark does not know yet.

        Args:
            start: where the last batch ended.
            rows_max: of this batch; None for all there is. A segment that the spool has already is not
                divided, even if it has more.

        Returns:
            Where this batch ends; `start` if there is nothing.

        Raises:
            SparkSourceError: the broker, or the spool. What is not in the spool is still in the queue.
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
        """The segments of a range; the same for the same range, however often it is asked.

        Raises:
            SpoolError: some are gone.
        """
        return self.spool.between(self._number(start), self._number(end))

    def parts(self, end: Mapping[str, Any]) -> int | None:
        """Into how many parts the batch that ends there should be cut; None for one of each segment."""
        parts = end.get("parts", self._parts)  # an earlier version did not write it down
        return None if parts is None else int(parts)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing up to `end` will be asked for again: remove it.

        Raises:
            SpoolError: the disk failed.
        """
        seen = self._seen
        ids_of = None if seen is None else lambda segment: seen.of(segment.number)
        self.spool.remove_through(self._number(end), ids_of)

    def close(self) -> None:
        """Close the connection and let go of the spool."""
        self._filler.close()
        self.spool.close()

    def _offset(self, number: int) -> Offset:
        # One part in all is one of each segment, since no part spans two.
        return {"spool": self.spool.id, "segment": number, "parts": self._parts or 1}

    def _number(self, offset: Mapping[str, Any]) -> int:
        """The segment that an offset names."""
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
