"""The sink: rows of a DataFrame become messages, at least once, each with its own message-id.

The message-id identifies the row: ``QUERY-BATCH-PARTITION-ROW`` of a streaming query, ``JOB-PARTITION-ROW``
of a batch query, so that duplicates can be recognized as long as the rows of a partition arrive in the same
order. The driver makes a writer and pickles it into the tasks, each of which has one connection.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import OptionError, SparkSourceError
from amqp10broker.spark.options import SinkOptions
from amqp10broker.spark.sink.encoding import Encoder, SinkPlan, plan
from amqp10broker.spark.sink.sending import Sending

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger("amqp10broker.spark")
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The result of one task: numbers of messages."""

    accepted: int
    released: int


class SinkWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check columns and options, and that the broker allows sending.

        Raises:
            ColumnError: the DataFrame does not have the columns of messages.
            OptionError: the mode is overwrite, or the messages have no destination.
            SparkSourceError: the broker is away, or refuses user or address.
        """
        if overwrite:
            raise OptionError("mode", "is overwrite", 'a queue can only be added to: use mode("append")')
        self._options = options
        self._plan = plan(schema, options)
        # Made once, on the driver: a repeated task sends the same message-ids.
        self._job = uuid.uuid4().hex
        with Sending(options, self._plan.address) as sending:
            sending.connect()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        partition = _context().partitionId()
        return _send(self._options, self._plan, f"{self._job}-{partition}-", iterator)

    def commit(self, messages: Sequence[Sent | None]) -> None:
        _report(messages, "the job")

    def abort(self, messages: Sequence[Sent | None]) -> None:
        _report_abort(messages, "the job")


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query, created for each batch. Output mode complete sends all rows again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        # The broker is not contacted, since each batch would have to wait for it.
        self._options = options
        self._plan = plan(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise SparkSourceError(
                f"Spark does not say which query and batch this task belongs to ({_QUERY}, {_BATCH}), and "
                "without them message-ids would not be the same when it is repeated: use pyspark 4.2 to 4.x"
            )
        return _send(self._options, self._plan, f"{query}-{batch}-{context.partitionId()}-", iterator)

    def commit(self, messages: Sequence[Sent | None], batchId: int) -> None:
        _report(messages, f"batch {batchId}")

    def abort(self, messages: Sequence[Sent | None], batchId: int) -> None:
        _report_abort(messages, f"batch {batchId}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer's write runs in a task of Spark"
    return context


def _send(options: SinkOptions, columns: SinkPlan, id_prefix: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    encoder = Encoder(columns, id_prefix)
    with Sending(options, columns.address) as sending:
        for batch in batches:
            sending.send(encoder.encode(batch))
        sending.finish()
        return Sent(sending.sent, sending.released)


def _report(messages: Sequence[Sent | None], what: str) -> None:
    done = [message for message in messages if message is not None]
    released = sum(message.released for message in done)
    if released:
        _LOG.warning(
            "%d of %d messages of %s were released: no queue took them, and they are lost (mandatory=false)",
            released,
            released + sum(message.accepted for message in done),
            what,
        )


def _report_abort(messages: Sequence[Sent | None], what: str) -> None:
    done = [message for message in messages if message is not None]
    if accepted := sum(message.accepted for message in done):
        _LOG.warning(
            "%s failed, and %d messages of tasks that were done are in their queues: when it is repeated "
            "they come again, with the same message-ids if the job is the same",
            what,
            accepted,
        )
