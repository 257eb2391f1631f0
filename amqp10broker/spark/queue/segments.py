"""Segments of a spool as Arrow: written by the driver, read by tasks.

A segment is an Arrow IPC file of record batches of `arrowBatchSize` rows. A task reads one, or some batches
of one; the driver needs only the names of the files to plan that.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile, check


class SegmentPart(InputPartition):
    """The input of one task.

    Attributes:
        first, stop: numbers of record batches; `stop` None for all that follow.
    """

    def __init__(self, path: str, crc: int, first: int = 0, stop: int | None = None) -> None:
        super().__init__((path, first, stop))
        self.path = path
        self.crc = crc
        self.first = first
        self.stop = stop


def segment_bytes(rows: pa.RecordBatch, batch_rows: int) -> list[bytes]:
    """Encode at least one row as the bytes of a segment, with `batch_rows` rows in a record batch."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, rows.schema) as writer:
        for start in range(0, rows.num_rows, batch_rows):
            writer.write_batch(rows.slice(start, batch_rows))
    return [stream.getvalue().to_pybytes()]


def parts(spool: QueueSpool, segments: Sequence[SpoolFile], min_partitions: int | None) -> list[SegmentPart]:
    """Plan the tasks: a segment each, or part of one if more tasks are wanted and it has several batches.
    `min_partitions`: tasks wanted; None for one per segment.
    """
    total = sum(segment.count for segment in segments)
    found: list[SegmentPart] = []
    for segment in segments:
        path = spool.file_path(segment)
        share = 1 if min_partitions is None else math.ceil(min_partitions * segment.count / total)
        if share <= 1:
            found.append(SegmentPart(path, segment.crc))
            continue
        batches = pa.ipc.open_file(pa.py_buffer(spool.read(segment))).num_record_batches
        share = min(share, batches)
        cuts = [batches * number // share for number in range(share + 1)]
        found += [SegmentPart(path, segment.crc, *pair) for pair in pairwise(cuts)]
    return found


def read_part(part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part; in a task, on any machine of the cluster."""
    try:
        with open(part.path, "rb") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise SpoolError(
            f"{part.path} is not on {platform.node()}: spoolLocation must be a folder that the driver "
            "and all workers see under the same path, such as a mounted share"
        ) from error
    except OSError as error:
        raise SpoolError(
            f"cannot read {part.path} on {platform.node()}: {error.strerror or error}; workers must run "
            "as the user who runs the driver"
        ) from error
    check(part.path, data, part.crc)
    reader = pa.ipc.open_file(pa.py_buffer(data))
    stop = reader.num_record_batches if part.stop is None else part.stop
    for number in range(part.first, stop):
        yield reader.get_batch(number)


def message_ids(spool: QueueSpool, segment: SpoolFile) -> list[str | None]:
    """Return the message-ids of a segment, by row."""
    reader = pa.ipc.open_file(pa.py_buffer(spool.read(segment)))
    found: list[str | None] = []
    for number in range(reader.num_record_batches):
        found += reader.get_batch(number).column("messageId").to_pylist()
    return found
