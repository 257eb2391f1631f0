"""Where a stream's reading begins, and how a range of it is cut into pieces for tasks. Decided on the driver.

A batch of a streaming query is cut when it is planned, and cut again when Spark asks for its partitions,
which may be after a restart on another machine: by then only what is in its offsets may count
(`offsets`), and what retention has taken in between.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from amqp10broker.spark.errors import OptionError, QueueUnusable
from amqp10broker.spark.option_values import StartKind
from amqp10broker.spark.options import StreamOptions
from amqp10broker.spark.stream.bounds import Bounds, Questions
from amqp10broker.spark.stream.offsets import Cut, StreamOffset
from amqp10broker.spark.stream.range import StreamRange, report_loss, split

ROWS_WORTH_A_TASK: Final = 10_000
"""Unless `minPartitions` says otherwise: a task costs some 50 ms, which is 10 000 rows and more."""


def first_offset(options: StreamOptions, bounds: Bounds, questions: Questions) -> int:
    """The offset that the options mean by their start.

    Raises:
        OptionError: it is an offset behind the stream's end.
        SparkSourceError: the broker cannot be reached.
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
    """The error for a checkpoint of a stream that is no more, though there is another of its name."""
    return QueueUnusable(
        f"stream '{options.stream}' was deleted and declared again since the checkpoint was written: it was "
        f"read up to {position}, and the new stream's offsets mean other messages; begin with a new "
        "checkpointLocation, or set failOnDataLoss to false to go on with the beginning of the new stream"
    )


def plan(options: StreamOptions, start: int, end: int, bounds: Bounds) -> list[StreamRange]:
    """Ranges for tasks; what retention has taken away is reported here, before any task runs.

    Raises:
        DataLost: if it is to fail.
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
    """Into how many pieces a range should be cut, by the options and this machine."""
    if options.min_partitions is not None:
        return options.min_partitions
    return min(os.cpu_count() or 1, -(-(end - start) // ROWS_WORTH_A_TASK))


def recut(options: StreamOptions, cut: Cut, end: int, bounds: Bounds) -> list[StreamRange]:
    """The pieces of a batch as they were when it was planned, each without what is gone by now.

    A piece that is gone stays as an empty one, so that the others keep their numbers. What is left of a
    piece of which a part is gone gets a number that no piece had: its rows are counted from another one on,
    and under the old number they would be taken for the rows that stood there before.

    Args:
        options: of the source.
        cut: as it was planned.
        end: of the batch.
        bounds: of the stream as it is now.

    Raises:
        DataLost: something is gone, and it is to fail.
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
    """A batch whose stream is no more: as many pieces as it was cut into, and nothing in them."""
    cut = end.cut
    if cut is None:
        return []  # an offset that says which stream it is of, and no cut, ends an empty batch
    report_loss(
        options, cut.lost + end.next - cut.start, "it was deleted and declared again since they were planned"
    )
    pieces = split(cut.start, end.next, cut.pieces, dense=True)
    return [replace(piece, end=piece.start) for piece in pieces]
