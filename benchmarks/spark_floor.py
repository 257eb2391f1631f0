"""The floor under the stream source: the same rows, made in the reader, without a broker.

What Spark takes for such rows no source can take away. Imported by Spark's workers, and by the benchmark
when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from amqp10broker.spark.rows import DDL, arrow_schema

FORMAT = "amqp10-floor"


@dataclass(frozen=True)
class Numbers(InputPartition):
    """Rows from `start` to below `end`."""

    start: int
    end: int


class FloorSource(DataSource):
    """Options: ``count`` rows, ``size`` bytes of a body, ``minPartitions``, ``arrowBatchSize``."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format``."""
        return FORMAT

    def schema(self) -> str:
        """That of the real source."""
        return DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """The reader."""
        names = ("count", "size", "minPartitions", "arrowBatchSize")
        return FloorReader(*(int(self.options[name]) for name in names))


class FloorReader(DataSourceStreamReader):
    """All rows in one batch."""

    def __init__(self, count: int, size: int, pieces: int, batch_rows: int) -> None:
        self._count = count
        self._size = size
        self._pieces = pieces
        self._batch_rows = batch_rows

    def initialOffset(self) -> dict[str, int]:
        """0."""
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """The end."""
        return {"rows": self._count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Pieces of one size."""
        low, count = start["rows"], end["rows"] - start["rows"]
        marks = [low + count * number // self._pieces for number in range(self._pieces + 1)]
        return [Numbers(marks[number], marks[number + 1]) for number in range(self._pieces)] if count else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches that differ in their offsets."""
        assert isinstance(partition, Numbers)
        schema = arrow_schema()
        row: dict[str, Any] = dict.fromkeys(schema.names)
        row |= {"stream": "bench", "body": bytes(self._size)}
        model = pa.RecordBatch.from_pylist([row] * self._batch_rows, schema=schema)
        place = schema.names.index("offset")
        for start in range(partition.start, partition.end, self._batch_rows):
            numbers = np.arange(start, min(start + self._batch_rows, partition.end))
            batch = model.slice(0, len(numbers))
            yield batch.set_column(place, schema.field(place), pa.array(numbers))
