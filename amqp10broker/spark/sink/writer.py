"""The sink: rows of a DataFrame become messages, at least once, each with its own message-id.

The message-id identifies the row: ``QUERY-BATCH-PARTITION-ROW`` of a streaming query, ``JOB-PARTITION-ROW``
of a batch query, so that duplicates can be recognized as long as the rows of a partition arrive in the same
order. The driver makes a writer and pickles it into the tasks, each of which has one connection.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from amqp10broker.client.blocking import Client, Sender
from amqp10broker.client.driving import WaitFor
from amqp10broker.client.errors import ClientError, LinkError, MessageTooLargeError, TimedOutError, place_of
from amqp10broker.client.outcomes import Accepted, Outcome, Rejected, Released
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.spark.connection import may_pass, open_client, translated
from amqp10broker.spark.errors import (
    BrokerUnreachable,
    NotDelivered,
    OptionError,
    QueueUnusable,
    RetryBudget,
    SparkSourceError,
)
from amqp10broker.spark.options import SinkOptions
from amqp10broker.spark.sink.encoding import Encoder, SinkPlan, plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


# Messages passed to the link at once; their outcomes are awaited and examined together.
PART_MAX: Final = 1000


@dataclass(slots=True)
class _RowBatch:
    first_row: int
    payloads: Sequence[bytes]
    keys: range


class Sending:
    """The sending side of one task, a context manager. Nothing is connected before the first message.

    Methods raise NotDelivered if the broker did not accept a message, and SparkSourceError if it is away or
    refuses. `address`: of the link; None if each message has its own. `released`: number of messages that no
    queue took, where the option mandatory is false.
    """

    def __init__(self, options: SinkOptions, address: str | None) -> None:
        self.sent = 0
        self.released = 0
        self._options = options
        self._address = address
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._under_way: deque[_RowBatch] = deque()
        self._rows = 0
        self._patience = RetryBudget(options.connection.retry_timeout_s)

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._client is not None:
            if kind is None:
                self._client.close()
            else:  # messages not sent so far must not be sent while closing
                self._client.abort()

    def connect(self) -> None:
        """Open connection and link now, to detect failures early."""
        self._retrying(lambda sender: None)

    def send(self, payloads: Sequence[bytes]) -> None:
        """Send encoded messages in order, and wait until there is room for more."""
        limit = self._options.max_in_flight
        size = min(PART_MAX, max(1, limit // 2))
        for start in range(0, len(payloads), size):
            part = payloads[start : start + size]
            self._settle_down_to(limit - len(part))
            self._under_way.append(_RowBatch(self._rows, part, range(0)))
            self._rows += len(part)
            self._retrying(self._hand_over_last)

    def finish(self) -> None:
        """Wait until all messages have their outcome."""
        self._settle_down_to(0)

    # --- parts ------------------------------------------------------------------------------------

    def _settle_down_to(self, count: int) -> None:
        while self._in_flight() > max(count, 0):
            self._retrying(self._take_first)

    def _in_flight(self) -> int:
        return sum(len(part.payloads) for part in self._under_way)

    def _hand_over_last(self, sender: Sender) -> None:
        part = self._under_way[-1]
        if not part.keys:  # already sent on a new connection
            self._hand_over(part, sender)

    def _hand_over(self, part: _RowBatch, sender: Sender) -> None:
        try:
            part.keys = sender.end.send(part.payloads)
        except MessageTooLargeError as error:
            sizes = [len(payload) for payload in part.payloads]
            row = part.first_row + sizes.index(max(sizes))
            raise NotDelivered(f"row {row} of this partition: {error}") from error
        assert self._client is not None
        self._client.write_soon()

    def _take_first(self, sender: Sender) -> None:
        assert self._client is not None
        part, end = self._under_way[0], sender.end
        missing = None
        while end.waiting(part.keys):
            before, missing = missing, end.in_flight
            if missing == before:
                raise NotDelivered(
                    f"no outcome for {self._in_flight()} messages, and none came for "
                    f"{self._options.idle_timeout_s:g} s: the broker withholds credit because the queue is "
                    "overloaded or an alarm is on (`amqp10broker status` says which), or does not answer; "
                    "allow more with the option idleTimeout"
                )
            try:
                self._client.wait(
                    WaitFor(
                        lambda: not end.waiting(part.keys),
                        lambda: end.failure,
                        self._options.idle_timeout_s,
                        "outcomes",
                    )
                )
            except TimedOutError:
                pass  # as long as some arrive, others are awaited
        self._take(part, sender)

    def _take(self, part: _RowBatch, sender: Sender) -> None:
        outcomes = sender.end.take_outcomes(part.keys)
        self._under_way.popleft()
        self._patience.progress()
        accepted = sum(type(outcome) is Accepted for outcome in outcomes)
        self.sent += accepted
        if accepted < len(outcomes):
            self._look_at(part.first_row, outcomes)

    def _look_at(self, first_row: int, outcomes: Sequence[Outcome | None]) -> None:
        for row, outcome in enumerate(outcomes, first_row):
            match outcome:
                case Accepted():
                    continue
                case Released() if not self._options.mandatory:
                    self.released += 1
                case _:
                    raise NotDelivered(_not_delivered(row, outcome, self._address))

    def _retrying(self, work: _Work) -> None:
        while True:
            try:
                work(self._open())
                return
            except ClientError as error:
                self._lost(error)

    def _open(self) -> Sender:
        if self._sender is not None:
            return self._sender
        if self._client is not None:
            self._client.abort()
        self._client = open_client(self._options.connection, purpose="sink", patience=self._patience)
        sender = self._client.sender(self._address)
        for part in self._under_way:
            part.keys = range(0)
        for part in self._under_way:
            self._hand_over(part, sender)
        self._sender = sender
        return sender

    def _lost(self, error: ClientError) -> None:
        if self._sender is not None:
            # Outcomes that arrived before the loss: their messages are not sent again.
            while (
                self._under_way and (keys := self._under_way[0].keys) and not self._sender.end.waiting(keys)
            ):
                self._take(self._under_way[0], self._sender)
        self._sender = None
        if not may_pass(error):
            raise self._permanent(error) from error
        if not self._patience.failed():
            raise BrokerUnreachable(str(translated(error, self._options.connection))) from error

    def _permanent(self, error: ClientError) -> SparkSourceError:
        connection = self._options.connection
        if isinstance(error, LinkError) and error.condition == Condition.NOT_FOUND:
            # The broker's own text: an address may name an exchange as well as a queue.
            return QueueUnusable(f"{place_of(connection.host, connection.port)}: {error}")
        return translated(error, connection, queue=self._address or "")


_Work = Callable[[Sender], None]


def _not_delivered(row: int, outcome: Outcome | None, address: str | None) -> str:
    where = "" if address is None else f" for {address}"
    match outcome:
        case Rejected(error=error) if error is not None:
            words = f": {error.description}" if error.description else ""
            return (
                f"the broker rejected row {row} of this partition{where} with {error.condition}{words}; mend "
                "the row or the queue, and start again"
            )
        case Rejected():
            return (
                f"the broker rejected row {row} of this partition{where} and gave no reason; a queue that is "
                "full with overflow reject-publish does that"
            )
        case Released():
            return (
                f"the broker released row {row} of this partition{where}: no queue takes it. Bind one, "
                "correct exchange and routing key, or let such rows go with the option mandatory=false"
            )
        case _:
            gave = type(outcome).__name__
            return f"the broker gave row {row} of this partition{where} back ({gave}); try again later"


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
