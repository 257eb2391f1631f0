"""Reads a range of a stream's offsets, the same rows each time: the work of one Spark task.

Without a filter every offset of the range must arrive (except with RabbitMQ, which uses some offsets for
itself). With a filter the broker has examined the whole range when it returns credit on a drain, because it
has reached the range's end; one that does not support `bounds.END_OFFSET` continues to the stream's end.

Retention may remove messages before they are read. Without a filter that is a gap. With one, the stream's
first offset is checked after each batch: as long as it is not above the position up to which the range was
known to be complete, nothing in between was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from amqp10broker.client.blocking import Client
from amqp10broker.client.bulk import BulkReceiver
from amqp10broker.client.errors import ClientError
from amqp10broker.dataclass import dataclass
from amqp10broker.spark.connection import dial, pause_or_raise
from amqp10broker.spark.errors import DataLost, ReadStalled, RetryBudget
from amqp10broker.spark.options import StreamOptions
from amqp10broker.spark.row_layouts import RowDecoder
from amqp10broker.spark.schema import COLUMNS
from amqp10broker.spark.stream.bounds import StreamBounds, StreamEnds, attach, ends_of, ends_there, offset_of

# An Arrow batch ends at this size even below `arrowBatchSize` rows, so that large messages fit.
BATCH_BYTES_MAX: Final = 32_000_000
# Silence after which a drain finds out whether the broker has more to send.
STALL_S: Final = 2.0
# A broker may examine a filtered message this long before its silence counts.
FILTERED_MESSAGE_S: Final = 50e-6
_OFFSET: Final = COLUMNS.index("offset")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """Offsets from `start` to below `end`. If `dense`, each of them is a message (`bounds.Bounds`)."""

    start: int
    end: int
    dense: bool


def split(start: int, end: int, pieces: int, *, dense: bool) -> list[StreamRange]:
    """Cut a range into `pieces` ranges of nearly equal size, or fewer if it has fewer offsets."""
    count = max(0, end - start)
    pieces = min(pieces, count)
    marks = [start + count * number // pieces for number in range(pieces + 1)] if pieces else []
    return [StreamRange(low, high, dense) for low, high in pairwise(marks)]


def read_range(options: StreamOptions, piece: StreamRange, sql: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as Arrow batches. Raises `DataLost` if messages of the range no longer exist,
    and `failOnDataLoss` is true, and `ReadStalled` if messages are missing and none arrives.
    """
    reading = _Reading(options, piece, sql)
    patience = RetryBudget(options.connection.retry_timeout_s)
    while True:
        before = reading.position
        try:
            yield from reading.rows()
            return
        except ClientError as error:
            if reading.position > before:
                patience.progress()
            pause_or_raise(error, options.connection, patience, queue=options.stream)


class _Reading:
    # `position` is the first offset not yet read, or with a filter the first not known to be examined.

    def __init__(self, options: StreamOptions, piece: StreamRange, sql: str | None) -> None:
        self.position = piece.start
        self._options = options
        self._piece = piece
        self._sql = sql
        self._decoder = RowDecoder(options.stream)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._whole_to = piece.start
        self._client: Client
        self._ends: StreamEnds | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        options = self._options
        self._waiting, self._waiting_bytes, self._ends = [], 0, None
        window = max(2048, 2 * options.link_credit)
        self._client = dial(options.connection, purpose="source", incoming_window=window)
        try:
            receiver = attach(self._client, options.stream, self.position, self._sql, end=self._piece.end)
            every = self._sql is None and self._piece.dense
            yield from (self._all(receiver) if every else self._drained(receiver))
            self._client.close()
        finally:
            self._client.abort()

    # --- without a filter: each offset is a message -------------------------------------------------

    def _all(self, receiver: BulkReceiver) -> Iterator[pa.RecordBatch]:
        end = self._piece.end
        credit_max = self._options.link_credit
        first = True
        while self.position < end:
            missing = end - self.position - len(self._waiting)
            if receiver.credit <= credit_max // 2 and receiver.credit < missing:
                receiver.grant(min(credit_max, missing))
            if missing > 0 and not receiver.wait(min(STALL_S, self._options.idle_timeout_s)):
                if self._nothing_more(receiver, missing):
                    yield from self._batches(rest=True)
                    self._note_missing_tail()
                    return
                continue
            self._take(receiver)
            if first and self._waiting:
                first = False
                self._begin_at(offset_of(self._waiting[0]))
            yield from self._batches(rest=missing <= 0 or len(self._waiting) >= end - self.position)

    def _begin_at(self, offset: int) -> None:
        # The first message of a connection is above the position if retention removed the ones before.
        upto = min(offset, self._piece.end)
        if upto > self.position:
            self._lost(upto - self.position, f"{offset} came first, and {self.position} was asked for")
            self.position = upto

    def _nothing_more(self, receiver: BulkReceiver, missing: int) -> bool:
        receiver.grant(min(self._options.link_credit, missing), drain=True)
        self._await_messages_or_drain(receiver, self._options.idle_timeout_s)
        self._take(receiver)
        return receiver.exhausted

    def _note_missing_tail(self) -> None:
        if self.position >= self._piece.end:
            return
        self._lost(self._piece.end - self.position, f"the stream ends at {self._bounds().next}")
        self.position = self._piece.end

    # --- with a filter, or offsets that are not messages --------------------------------------------

    def _drained(self, receiver: BulkReceiver) -> Iterator[pa.RecordBatch]:
        # Each grant is a drain, so that the broker reports when it has examined everything.
        end = self._piece.end
        patience_s = self._options.idle_timeout_s
        if self._sql is not None:
            upto = end if ends_there(receiver) else self._bounds().next
            patience_s += max(0, upto - self.position) * FILTERED_MESSAGE_S
        while self.position < end:
            if receiver.end.drained:
                if receiver.exhausted:
                    break
                receiver.grant(self._options.link_credit, drain=True)
            self._await_messages_or_drain(receiver, patience_s)
            self._take(receiver)
            yield from self._batches(rest=receiver.end.drained)
        yield from self._batches(rest=True)
        bounds = self._check_retention()
        if bounds.next < end:
            self._lost(end - bounds.next, f"the stream ends at {bounds.next}")
        self.position = end

    def _check_retention(self) -> StreamBounds:
        bounds = self._bounds()
        if bounds.first > self._whole_to and self._whole_to < self._piece.end:
            upto = min(bounds.first, self._piece.end)
            self._lost(upto - self._whole_to, f"the stream begins at {bounds.first} by now")
        self._whole_to = max(self.position, self._whole_to)
        return bounds

    # --- common -----------------------------------------------------------------------------------

    def _take(self, receiver: BulkReceiver) -> None:
        payloads = receiver.take()
        self._waiting += payloads
        self._waiting_bytes += sum(map(len, payloads))

    def _batches(self, *, rest: bool) -> Iterator[pa.RecordBatch]:
        size = self._options.arrow_batch_rows
        while self._waiting and (
            rest or len(self._waiting) >= size or self._waiting_bytes >= BATCH_BYTES_MAX
        ):
            payloads = self._cut(size)
            batch = self._trimmed(self._decoder.batch(payloads))
            if len(batch):
                yield batch
            if self._sql is not None:
                self._check_retention()

    def _cut(self, size: int) -> list[bytes]:
        taken = self._waiting[:size]
        if self._waiting_bytes > BATCH_BYTES_MAX:
            total = 0
            for number, payload in enumerate(taken):
                total += len(payload)
                if total > BATCH_BYTES_MAX:
                    taken = taken[: number + 1]
                    break
        self._waiting = self._waiting[len(taken) :]
        self._waiting_bytes -= sum(map(len, taken))
        return taken

    def _trimmed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.column(_OFFSET)
        if column.null_count:
            raise ReadStalled(
                f"messages of '{self._options.stream}' came without the annotation x-stream-offset: is this "
                "a stream?"
            )
        offsets = column.to_numpy()
        end = self._piece.end
        first, last = int(offsets[0]), int(offsets[-1])
        if not (first == self.position and last - first == len(batch) - 1 and last < end):
            low = int(np.searchsorted(offsets, self.position))
            high = int(np.searchsorted(offsets, end))
            batch, offsets = batch.slice(low, high - low), offsets[low:high]
            if self._sql is None:
                self._check_gaps(offsets)
        # A message from beyond the range also shows that the broker has examined all of it.
        self.position = min(max(self.position, last + 1), end)
        if self._sql is None:
            self._whole_to = self.position
        return batch

    def _check_gaps(self, offsets: Any) -> None:
        before = np.concatenate([[self.position - 1], offsets[:-1]])
        gaps = np.nonzero(offsets - before > 1)[0]
        for number in gaps:
            low, high = int(before[number]) + 1, int(offsets[number])
            bounds = self._bounds()
            if self._piece.dense or bounds.first > low:
                self._lost(
                    high - low, f"{high} came after {low - 1}, and the stream begins at {bounds.first}"
                )

    def _await_messages_or_drain(self, receiver: BulkReceiver, patience_s: float) -> None:
        end = receiver.end
        if not receiver.wait(patience_s, lambda: bool(end.payloads) or end.drained):
            raise ReadStalled(
                f"nothing came from stream '{self._options.stream}' for {patience_s:.3g} s, but offsets "
                f"{self.position} to {self._piece.end - 1} are missing: look at the broker's log and status, "
                "or raise the option idleTimeout"
            )

    def _bounds(self) -> StreamBounds:
        if self._ends is None:
            self._ends = ends_of(self._client, self._options.stream, self._options.idle_timeout_s)
        return self._ends.bounds()

    def _lost(self, count: int, why: str) -> None:
        report_loss(self._options, count, f"{why} (range {self._piece.start} to {self._piece.end - 1})")


def report_loss(options: StreamOptions, count: int, why: str) -> None:
    """Raise or log that messages that should be read no longer exist.

    Raises:
        DataLost: if `fail_on_data_loss` is set.
    """
    words = f"{count} messages of stream '{options.stream}' are lost to the reader: {why}"
    if options.fail_on_data_loss:
        raise DataLost(
            f"{words}; keep messages longer (max-age, max-length-bytes), read more often, or set "
            "failOnDataLoss to false to go on without them"
        )
    _log.warning("%s; going on, because failOnDataLoss is false", words)
