"""Decides on the driver where reading of a stream begins, and how a range is cut into pieces for tasks.

A batch of a streaming query is cut when it is planned, and again when Spark requests its partitions, which
may be after a restart on another machine: then only its offsets (`offsets`) and the removals by retention
since may count.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from amqp10broker.spark.errors import OptionError, QueueUnusable
from amqp10broker.spark.option_values import Cut, StartKind, StreamOffset
from amqp10broker.spark.options import StreamOptions
from amqp10broker.spark.stream.bounds import Questions, StreamBounds
from amqp10broker.spark.stream.range import StreamRange, report_loss, split

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
