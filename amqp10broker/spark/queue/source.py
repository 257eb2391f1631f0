"""The queue source: messages of a classic or quorum queue, through a spool, as batch or as stream.

A queue cannot return settled messages again, as Spark requires after a failure; the spool can. Messages are
settled when they are in it, and Spark's offset is the number of a segment (`offsets`). Readers are made on
the driver, which alone communicates with the broker; their copies in tasks read files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amqp10broker.spark.options import QueueOptions
from amqp10broker.spark.queue.deduplication import WINDOW, SeenIds
from amqp10broker.spark.queue.filler import SegmentFiller, recall
from amqp10broker.spark.queue.link import QueueLink
from amqp10broker.spark.queue.offsets import QueueOffsets
from amqp10broker.spark.queue.segments import SegmentPart, message_ids, parts, read_part
from amqp10broker.spark.queue.spool import QueueSpool, SpoolOwner, open_spool
from amqp10broker.spark.row_layouts import RowDecoder

if TYPE_CHECKING:
    import pyarrow as pa


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
