"""A stream as a source of Spark, in batch and streaming queries: the part on the driver.

Offsets are the checkpoint. The driver decides on ranges of offsets, tasks read them (`range`), and a range
that is read again gives the same rows. Spark pickles a reader for its tasks, and uses the same object of a
streaming query from beginning to end; a connection is therefore opened where it is used, and never pickled.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

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

from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import OptionError, QueueUnusable
from amqp10broker.spark.options import Cut, StartKind, StreamOffset, StreamOptions, read_offset
from amqp10broker.spark.stream.range import (
    Questions,
    StreamBounds,
    StreamRange,
    read_range,
    report_loss,
    split,
)

if TYPE_CHECKING:
    import pyarrow as pa


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
    """Return the offset that the options mean by their start. Raises `OptionError` if it is an offset behind
    the stream's end.
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


_log = logging.getLogger(__name__)


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
            _log.warning(
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
