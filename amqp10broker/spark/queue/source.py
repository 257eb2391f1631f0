"""The queue source: messages of a classic or quorum queue, through a spool, as batch or as stream.

A queue cannot return settled messages again, as Spark requires after a failure; the spool can. Messages are
settled when they are in it, and Spark's offset is the number of a segment. Readers are made on
the driver, which alone communicates with the broker; their copies in tasks read files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.options import QueueOptions
from amqp10broker.spark.queue.link import (
    WINDOW,
    QueueLink,
    SeenIds,
    SegmentFiller,
    SegmentPart,
    message_ids,
    parts,
    read_part,
    recall,
)
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile, SpoolOwner, open_spool
from amqp10broker.spark.row_layouts import RowDecoder

if TYPE_CHECKING:
    import pyarrow as pa


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


class QueueReader(DataSourceReader):
    """The reader of a batch query: the messages that the queue has when the query is first planned.

    The first planning stores the messages in the spool and seals it; every later one reads the same rows from
    there, whatever has arrived in the queue since. So a DataFrame can be counted, cached and written, its
    tasks can be repeated, and nothing is lost. Another batch needs another spoolLocation.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        spool = _open(self._options, "batch")
        try:
            if spool.sealed is None:
                filler = _filler(self._options, spool, _seen(self._options, spool))
                try:
                    filler.take_all_of(self._options.max_messages_per_trigger, None)
                finally:
                    filler.close()
                spool.seal()
            assert spool.sealed is not None
            return parts(spool, spool.between(0, spool.sealed), self._options.min_partitions)
        finally:
            spool.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Runs in a task. Spark calls it once without a value if there are no partitions.
        if isinstance(partition, SegmentPart):
            yield from read_part(partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. One object on the driver plans; its copies read in tasks."""

    def __init__(self, options: QueueOptions) -> None:
        # Nothing is opened: Spark also makes objects only to inspect what they support.
        self._options = options
        self._offsets: QueueOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies in tasks have neither spool nor connection.
        return {"_options": self._options, "_offsets": None}

    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().stop_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._opened().latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offsets = self._opened()
        return parts(offsets.spool, offsets.segments(start, end), int(end["parts"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SegmentPart):
            yield from read_part(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        # Spark may end the process without calling this.
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None

    def _opened(self) -> QueueOffsets:
        if self._offsets is None:
            spool = _open(self._options, "stream")
            try:
                seen = _seen(self._options, spool)
            except BaseException:
                spool.close()
                raise
            filler = _filler(self._options, spool, seen)
            self._offsets = QueueOffsets(
                spool, filler, seen, self._options.max_messages_per_trigger, self._options.min_partitions
            )
        return self._offsets


def _open(options: QueueOptions, use: str) -> QueueSpool:
    connection = options.connection
    owner = SpoolOwner(use, options.queue, f"{connection.host}:{connection.port}", connection.vhost or "")
    return open_spool(options.spool_location, owner)


def _seen(options: QueueOptions, spool: QueueSpool) -> SeenIds | None:
    if not options.deduplicate:
        return None
    return recall(spool, WINDOW, lambda segment: message_ids(spool, segment))


def _filler(options: QueueOptions, spool: QueueSpool, seen: SeenIds | None) -> SegmentFiller:
    decoder = RowDecoder(options.queue, of_stream=False)
    return SegmentFiller(QueueLink(options), spool, decoder.batch, seen, options.arrow_batch_rows)
