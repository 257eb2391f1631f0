"""A stream as a source of Spark, in batch and streaming queries.

Offsets are the checkpoint. The driver decides on ranges of offsets, a task reads each (`read_range`), and one
that is read again gives the same rows. Spark pickles a reader for its tasks, and uses the same object of a
streaming query from beginning to end; a connection is therefore opened where it is used, and never pickled.

Without a filter every offset of a range must arrive (except with RabbitMQ, which uses some offsets for
itself). With a filter the broker has examined the whole range when it returns credit on a drain, because it
has reached the range's end; one that does not support `END_OFFSET` continues to the stream's end.

Retention may remove messages before they are read. Without a filter that is a gap. With one, the stream's
first offset is checked after each batch: as long as it is not above the position up to which the range was
known to be complete, nothing in between was lost.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from amqp10broker.client.blocking import BulkReceiver, Client, Management, bulk_receiver
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError
from amqp10broker.client.options import queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.types import Described, Symbol, Timestamp, ULong
from amqp10broker.spark.connection import OFFSET_SPEC, dial, pause_or_raise, with_retries
from amqp10broker.spark.errors import (
    DataLost,
    FilterRefused,
    OptionError,
    QueueUnusable,
    ReadStalled,
    RetryBudget,
)
from amqp10broker.spark.options import Cut, StartKind, StreamOffset, StreamOptions, read_offset
from amqp10broker.spark.rows import COLUMNS, RowDecoder, read_row

# A filter of this broker: the first offset that is not wanted. Others omit it from their reply.
END_OFFSET: Final = "amqp10broker:stream-end-offset"
SQL_FILTER: Final = "sql-filter"
# A desired capability: messages carry the time at which they were written. Other brokers ignore it.
ENQUEUED_TIME: Final = "amqp10broker:enqueued-time"
_SQL_DESCRIPTOR: Final = "amqp:sql-filter"
_PROBE_CREDIT: Final = 1000
# The management may be busy while a stream is not.
_ANSWER_TIMEOUT_MIN_S: Final = 2.0
# A connection stays open if the previous request was this recent.
_KEEP_S: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The offsets of a stream. `next`: of the message that will be published next; `first` if the stream is
    empty. `declaration_id`: another one if the stream was deleted and declared again; None if the broker does
    not provide it, as RabbitMQ.
    """

    first: int
    next: int
    dense: bool
    declaration_id: str | None = None


class StreamEnds:
    """Finds where a stream begins and ends now: from the broker's management, or by probing.

    This broker returns both offsets for ``GET /queues/:queue``. RabbitMQ 4 returns neither, but any broker
    with streams can send the first message and the last chunk: each message carries its offset, and a drain
    shows that none follows. Methods raise `ClientError` if the connection, its session or link has ended.
    """

    def __init__(
        self, client: Client, stream: str, timeout_s: float, management: Management | None = None
    ) -> None:
        self._client = client
        self._stream = stream
        self._timeout_s = timeout_s
        self._management = management

    def bounds(self) -> StreamBounds:
        if self._management is not None:
            answer = queue_entry(self._management, self._stream)
            first, following = int(answer["first_offset"]), int(answer["next_offset"])
            return StreamBounds(first, following, dense=True, declaration_id=answer.get("declaration_id"))
        first_or_none = self.offset_at("first")
        if first_or_none is None:
            return StreamBounds(0, 0, dense=False)
        receiver = attach(self._client, self._stream, "last")
        last = first_or_none
        while not receiver.exhausted:
            self._fetch(receiver, _PROBE_CREDIT)
            for payload in receiver.take()[-1:]:
                last = offset_of(payload)
        receiver.detach()
        return StreamBounds(first_or_none, last + 1, dense=False)

    def offset_at(self, spec: str | Timestamp) -> int | None:
        """Return the offset of the first message for an offset specification, None if none arrives."""
        receiver = attach(self._client, self._stream, spec)
        self._fetch(receiver, 1)
        receiver.detach()
        payloads = receiver.take()
        return offset_of(payloads[0]) if payloads else None

    def _fetch(self, receiver: BulkReceiver, credit: int) -> None:
        receiver.grant(credit, drain=True)
        what = f"answer to a drain on stream '{self._stream}'"
        receiver.wait_for(what, self._timeout_s, lambda: receiver.end.drained)


def queue_entry(management: Management, queue: str) -> dict[Any, Any]:
    """Return the management's entry of a stream, empty if this user may not read it. Raises `QueueUnusable`
    if the queue does not exist, or is not a stream.
    """
    status, body = management.ask("GET", queue_address(queue))
    if status == 404:
        raise QueueUnusable(f"there is no stream '{queue}': declare it first, or correct the option stream")
    if status in (401, 403):
        return {}  # refused to this user, who may read the stream all the same
    if status != 200 or not isinstance(body, dict):
        raise QueueUnusable(f"the broker's management says {status} of stream '{queue}': {body}")
    if body.get("type") != "stream":
        raise not_a_stream(queue, str(body.get("type")))
    return body


def not_a_stream(queue: str, kind: str) -> QueueUnusable:
    return QueueUnusable(
        f"'{queue}' is a {kind} queue and no stream: read it with the option queue (and spoolLocation), or "
        "name a stream"
    )


def ends_of(client: Client, stream: str, timeout_s: float) -> StreamEnds:
    """Return the way to find the bounds that this broker supports."""
    try:
        management = Management(client, timeout_s=max(timeout_s, _ANSWER_TIMEOUT_MIN_S))
        entry = queue_entry(management, stream)
    except (LinkError, SessionEndedError):
        return StreamEnds(client, stream, timeout_s)  # no management here, or not for this user
    return StreamEnds(client, stream, timeout_s, management if "next_offset" in entry else None)


def attach(
    client: Client,
    stream: str,
    spec: str | int | Timestamp,
    sql: str | None = None,
    *,
    end: int | None = None,
) -> BulkReceiver:
    """Attach a receiver without credit to a stream. `end`: the first offset that is not wanted; `ends_there`
    returns whether the broker applies it. Raises `QueueUnusable` if it is not a stream, and `FilterRefused`
    if the broker does not apply the filter.
    """
    value = ULong(spec) if type(spec) is int else spec
    filters: dict[str, Any] = {OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), value)}
    if end is not None:
        filters[END_OFFSET] = Described(Symbol(END_OFFSET), ULong(end))
    if sql is not None:
        filters[SQL_FILTER] = Described(Symbol(_SQL_DESCRIPTOR), sql)
    receiver = bulk_receiver(
        client, queue_address(stream), filters=filters, desired_capabilities=(ENQUEUED_TIME,)
    )
    in_place = receiver.end.filters_in_place
    if OFFSET_SPEC not in in_place:
        raise not_a_stream(stream, "classic or quorum")
    if sql is not None and SQL_FILTER not in in_place:
        raise FilterRefused(
            f"the broker does not apply the filter {sql!r} to stream '{stream}': look for a mistake in "
            "it (the broker's log says which; the syntax is that of AMQP SQL filters), or filter in Spark"
        )
    return receiver


def ends_there(receiver: BulkReceiver) -> bool:
    """Return whether the broker neither sends nor examines messages from the `end` of `attach` on."""
    return END_OFFSET in receiver.end.filters_in_place


def offset_of(payload: bytes) -> int:
    """Return the offset that an encoded message of a stream carries."""
    offset = read_row(payload).offset
    if offset is None:
        raise ReadStalled("a message came without the annotation x-stream-offset: is this a stream?")
    return offset


class Questions:
    """Requests the bounds of one stream from the driver.

    Spark may request the latest offset a hundred times a second, or once an hour, without notice; the
    connection stays open while requests are frequent.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._ends: StreamEnds | None = None
        self._asked_at = float("-inf")

    def bounds(self) -> StreamBounds:
        """Return the current bounds of the stream. Raises `SparkSourceError` if the broker cannot be reached,
        or does not have such a stream.
        """
        return self._ask(StreamEnds.bounds)

    def offset_at(self, time_ms: int) -> int | None:
        """Return the first offset for a time, to the precision of chunks; None if all messages are older."""
        return self._ask(lambda ends: ends.offset_at(Timestamp(time_ms)))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = self._ends = None

    def _ask(self, question: Callable[[StreamEnds], T]) -> T:
        now = time.monotonic()
        frequent = now - self._asked_at < _KEEP_S
        self._asked_at = now
        if not frequent:
            self.close()  # the broker may have closed it because it was silent

        def attempt() -> T:
            options = self._options
            try:
                if self._client is None:
                    self._client = dial(options.connection, purpose="driver")
                if self._ends is None:
                    self._ends = ends_of(self._client, options.stream, options.idle_timeout_s)
                return question(self._ends)
            except ClientError:
                if self._client is not None:
                    self._client.abort()
                self._client = self._ends = None
                raise

        try:
            return with_retries(self._options.connection, attempt, queue=self._options.stream)
        finally:
            if not frequent:
                self.close()


# An Arrow batch ends at this size even below `arrowBatchSize` rows, so that large messages fit.
BATCH_BYTES_MAX: Final = 32_000_000
# Silence after which a drain finds out whether the broker has more to send.
STALL_S: Final = 2.0
# A broker may examine a filtered message this long before its silence counts.
FILTERED_MESSAGE_S: Final = 50e-6
_OFFSET: Final = COLUMNS.index("offset")

_LOG: Final = logging.getLogger("amqp10broker.spark")


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
                receiver.grant(min(credit_max, missing), drain=True)
                self._await_messages_or_drain(receiver, self._options.idle_timeout_s)
                self._take(receiver)
                if receiver.exhausted:
                    yield from self._batches(rest=True)
                    if self.position < end:
                        self._lost(end - self.position, f"the stream ends at {self._bounds().next}")
                        self.position = end
                    return
                continue
            self._take(receiver)
            if first and self._waiting:
                first = False
                # It is above the position if retention removed the ones before.
                offset = offset_of(self._waiting[0])
                upto = min(offset, end)
                if upto > self.position:
                    self._lost(
                        upto - self.position, f"{offset} came first, and {self.position} was asked for"
                    )
                    self.position = upto
            yield from self._batches(rest=missing <= 0 or len(self._waiting) >= end - self.position)

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
    _LOG.warning("%s; going on, because failOnDataLoss is false", words)


# --- on the driver -------------------------------------------------------------------------------

_SQL_CHARS_MAX: Final = 4096
# Brokers refuse filters above this, of which the option `filter` may have taken most.
_SQL_TOKENS_MAX: Final = 200
_ULONG: Final = re.compile("0|[1-9][0-9]*")
# A number with more digits may not be an integer literal to a broker.
_ULONG_DIGITS_MAX: Final = 18
_HEX: Final = re.compile("0x(?:[0-9a-f]{2})*")
# Matches at least as often as there are tokens.
_WORDS: Final = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")
_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True)
class Pushed:
    """The conditions that the source evaluates. `high`: the first offset not wanted, None for no limit."""

    low: int = 0
    high: int | None = None
    conditions: tuple[str, ...] = ()

    def sql(self, given: str | None) -> str | None:
        """Return the option `filter` joined with as many conditions as there is room for."""
        bare = None if given is None else f"({given})"
        sql = bare
        for condition in self.conditions:
            longer = condition if sql is None else f"{sql} AND {condition}"
            if len(longer) <= _SQL_CHARS_MAX and len(_WORDS.findall(longer)) <= _SQL_TOKENS_MAX:
                sql = longer
        return given if sql == bare else sql


def push(filters: Iterable[Filter], pushed: Pushed) -> Iterator[Filter]:
    """Add to `pushed` the conditions that the source can evaluate, and yield those that Spark has to check,
    too.
    """
    for each in filters:
        if not _push_offset(each, pushed):
            _push_text(each, pushed)
            yield each


def _push_offset(each: Any, pushed: Pushed) -> bool:
    if getattr(each, "attribute", None) != ("offset",):
        return False
    value = getattr(each, "value", None)
    if type(value) is not int:
        return False
    match each:
        case GreaterThan():
            low, high = value + 1, None
        case GreaterThanOrEqual():
            low, high = value, None
        case LessThan():
            low, high = 0, value
        case LessThanOrEqual():
            low, high = 0, value + 1
        case EqualTo():
            low, high = value, value + 1
        case _:
            return False
    pushed.low = max(pushed.low, low)
    if high is not None:
        pushed.high = max(0, high if pushed.high is None else min(pushed.high, high))
    return True


def _push_text(each: Any, pushed: Pushed) -> None:
    if not isinstance(each, EqualTo) or not isinstance(each.value, str):
        return
    condition = None
    if each.attribute == ("subject",):
        condition = f"p.subject = {_quoted(each.value)}"
    elif each.attribute == ("messageId",):
        condition = _message_id(each.value)
    if condition is not None and each.value.isprintable():
        pushed.conditions += (condition,)


def _message_id(text: str) -> str | None:
    # A condition for all message-ids that the column shows as this text, or None if there is none.
    as_string = f"p.message_id = {_quoted(text)}"
    if _UUID.fullmatch(text) or text == "0x" or (_ULONG.fullmatch(text) and len(text) > _ULONG_DIGITS_MAX):
        return None
    if _ULONG.fullmatch(text):
        return f"({as_string} OR p.message_id = {text})"
    if _HEX.fullmatch(text):
        # A binary literal has digits 0-9A-F, for this broker and for RabbitMQ; the column has 0-9a-f.
        return f"({as_string} OR p.message_id = 0x{text[2:].upper()})"
    return as_string


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# The default of `minPartitions`: a task costs about 50 ms, which is the cost of 10 000 rows or more.
ROWS_WORTH_A_TASK: Final = 10_000


def first_offset(options: StreamOptions, bounds: StreamBounds, questions: Questions) -> int:
    """Return the offset of the options' start. Raises `OptionError` if it is an offset after the stream's
    end.
    """
    match options.start.kind:
        case StartKind.EARLIEST:
            return bounds.first
        case StartKind.LATEST:
            return bounds.next
        case StartKind.OFFSET:
            if options.start.value > bounds.next:
                raise OptionError(
                    "startingOffsets",
                    f"is {options.start.value}, and stream '{options.stream}' ends at {bounds.next}",
                    f"must be earliest, latest, or at most {bounds.next} for now",
                )
            return options.start.value
        case StartKind.TIMESTAMP:
            found = questions.offset_at(options.start.value)
            return bounds.next if found is None else found


def declared_again(options: StreamOptions, position: int) -> QueueUnusable:
    """Return the error for a checkpoint of a stream that was deleted and declared again."""
    return QueueUnusable(
        f"stream '{options.stream}' was deleted and declared again since the checkpoint was written: it was "
        f"read up to {position}, and the new stream's offsets mean other messages; begin with a new "
        "checkpointLocation, or set failOnDataLoss to false to go on with the beginning of the new stream"
    )


def plan(options: StreamOptions, start: int, end: int, bounds: StreamBounds) -> list[StreamRange]:
    """Return ranges for tasks; messages removed by retention are reported here, before any task runs. Raises
    `DataLost` if messages were removed and `failOnDataLoss` is true.
    """
    if start < min(end, bounds.first):
        report_loss(
            options,
            min(end, bounds.first) - start,
            f"offset {start} is asked for, and the stream begins at {bounds.first}",
        )
        start = min(end, bounds.first)
    return split(start, end, pieces_wanted(options, start, end), dense=bounds.dense)


def pieces_wanted(options: StreamOptions, start: int, end: int) -> int:
    """Return how many pieces a range should be cut into, by the options and this machine."""
    if options.min_partitions is not None:
        return options.min_partitions
    return min(os.cpu_count() or 1, -(-(end - start) // ROWS_WORTH_A_TASK))


def recut(options: StreamOptions, cut: Cut, end: int, bounds: StreamBounds) -> list[StreamRange]:
    """Return the pieces of a batch as they were planned, without the offsets that retention has removed.

    A piece that was removed stays as an empty one, so that the others keep their numbers. The rest of a piece
    that was removed in part gets a number that no piece had: its rows are counted from a different one on,
    and under the old number they would be taken for the earlier rows.
    """
    pieces = split(cut.start, end, cut.pieces, dense=bounds.dense)
    gone = min(end, bounds.first)
    if cut.start >= gone:
        return pieces
    report_loss(
        options, gone - cut.start, f"offset {cut.start} is asked for, and the stream begins at {bounds.first}"
    )
    found = [piece if piece.start >= gone else replace(piece, end=piece.start) for piece in pieces]
    for number, piece in enumerate(pieces):
        if piece.start < gone < piece.end:
            found += [replace(piece, end=piece.start)] * number
            found.append(replace(piece, start=gone))
    return found


def all_gone(options: StreamOptions, end: StreamOffset) -> list[StreamRange]:
    """Return the partitions of a batch of a deleted stream: as many as planned, all empty."""
    cut = end.cut
    if cut is None:
        return []  # an offset with the id of a stream and without a cut ends an empty batch
    report_loss(
        options, cut.lost + end.next - cut.start, "it was deleted and declared again since they were planned"
    )
    pieces = split(cut.start, end.next, cut.pieces, dense=True)
    return [replace(piece, end=piece.start) for piece in pieces]


class StreamReader(DataSourceReader):
    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        questions = Questions(self._options)
        try:
            bounds = questions.bounds()
            start = first_offset(self._options, bounds, questions)
        finally:
            questions.close()
        end = bounds.next if self._options.end_offset is None else self._options.end_offset
        if end > bounds.next:
            raise OptionError(
                "endingOffsets",
                f"is {end}, and stream '{self._options.stream}' ends at {bounds.next}",
                f"must be latest, or at most {bounds.next} for now",
            )
        low = max(start, self._pushed.low)
        high = end if self._pushed.high is None else min(end, self._pushed.high)
        return plan(self._options, low, high, bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamRange):  # Spark passes None if there are no ranges
            yield from read_range(self._options, partition, self._pushed.sql(self._options.filter))


class PushdownReader(StreamReader):
    """A `StreamReader` that evaluates part of the query's conditions, if the option `pushdown` is set. Spark
    refuses a reader that supports filters unless its own setting allows it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(push(filters, self._pushed))


class StreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream continuously; `offsets` defines what an offset is."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._target: int | None = None
        self._latest: int | None = None
        self._questions = Questions(options)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy without the driver's connection.
        return {**self.__dict__, "_questions": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._questions = Questions(self._options)

    # --- planning ---------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._bounds()
        first = first_offset(self._options, bounds, self._questions)
        found = StreamOffset(first, initial=True, declaration_id=bounds.declaration_id)
        return found.written(self._options.stream)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        # Messages published from now on belong to the next run.
        self._target = self._bounds().next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Returns `start` itself if there is nothing: Spark compares the two.
        options = self._options
        at = read_offset(options.stream, start)
        bounds = self._bounds()
        declared = bounds.declaration_id or at.declaration_id
        fresh = at.initial  # not recorded so far; Spark records it even if there is nothing
        end = bounds.next if self._target is None else min(self._target, bounds.next)
        if at.is_of_another(declared):
            if options.fail_on_data_loss:
                raise declared_again(options, at.next)
            at, fresh = StreamOffset(min(bounds.first, end)), True  # `partitions` warns of it
        if bounds.next < at.next:
            raise QueueUnusable(
                f"the checkpoint says that stream '{options.stream}' was read up to {at.next}, but it ends "
                f"at {bounds.next}: it was deleted and declared again, or lost its data; begin with a new "
                "checkpointLocation"
            )
        if isinstance(limit, ReadMaxRows):
            # Lost messages must not use up the limit: the batch would be empty again and again.
            end = min(end, max(at.next, bounds.first) + limit.max_rows)
        if end <= at.next:
            here = StreamOffset(at.next, declaration_id=declared)
            return here.written(options.stream) if fresh else start
        # A loss is accepted once and recorded, so that the rest is always cut the same way.
        low = at.next if options.fail_on_data_loss else min(max(at.next, bounds.first), end)
        cut = Cut(low, pieces_wanted(options, low, end), low - at.next)
        return StreamOffset(end, cut, declaration_id=declared).written(options.stream)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else StreamOffset(self._latest).written(self._options.stream)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Apart from retention, the result depends only on the two offsets.
        options = self._options
        first, last = read_offset(options.stream, start), read_offset(options.stream, end)
        if start == end:
            return []  # another source of the query has data
        bounds = self._bounds()
        if not first.initial and first.is_of_another(last.declaration_id):
            if options.fail_on_data_loss:
                raise declared_again(options, first.next)
            _LOG.warning(
                "stream '%s' was deleted and declared again: what was not read of the old one, from %d "
                "on, is lost to the reader; going on with the new one, because failOnDataLoss is false",
                options.stream,
                first.next,
            )
            first = replace(first, initial=True)  # its number means another message than the new stream's
        if last.is_of_another(bounds.declaration_id):
            if options.fail_on_data_loss:
                raise declared_again(options, first.next)
            return all_gone(options, last)
        if last.cut is None:  # written by hand
            return plan(options, first.next, last.next, bounds) if first.next < last.next else []
        cut = last.cut
        if not first.initial and first.next != cut.start - cut.lost:
            # Several batches in one: Spark can be configured not to record the end of each.
            cut = Cut(first.next, cut.pieces)
        if cut.lost:
            report_loss(
                options, cut.lost, f"the stream began at {cut.start} or later when the batch was planned"
            )
        return recut(options, cut, last.next, bounds)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamRange) and partition.start < partition.end:
            yield from read_range(self._options, partition, self._options.filter)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: reading removes nothing, and the checkpoint belongs to Spark."""

    def stop(self) -> None:
        self._questions.close()

    def _bounds(self) -> StreamBounds:
        bounds = self._questions.bounds()
        self._latest = bounds.next
        return bounds
