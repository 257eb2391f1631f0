"""The data source as Spark sees it: chooses reader or writer by the options.

Spark makes an object of this class in short-lived Python processes on the driver, one for each question it
has, and asks it for a reader or writer, which it pickles. So nothing is connected here; options are
checked at the first chance, so that what is wrong is said before a job starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from amqp10broker.spark.options import FORMAT, StreamOptions, parse_sink, parse_source
from amqp10broker.spark.schema import DDL

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Amqp10DataSource(DataSource):
    """``spark.read.format("amqp10")``, and readStream, write, writeStream."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format``."""
        return FORMAT

    def schema(self) -> str:
        """The columns of a source; those of a sink are the DataFrame's."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query.

        Raises:
            OptionError: see `options`.
        """
        options = parse_source(self.options, streaming=False)
        if isinstance(options, StreamOptions):
            return _part("stream_source", "batch_reader")(options)
        return _part("queue_source", "QueueReader")(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query.

        Raises:
            OptionError: see `options`.
        """
        options = parse_source(self.options, streaming=True)
        if isinstance(options, StreamOptions):
            return _part("stream_source", "StreamStreamReader")(options)
        return _part("queue_source", "QueueStreamReader")(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query.

        Raises:
            OptionError: see `options`.
        """
        return _part("sink", "SinkWriter")(parse_sink(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a streaming query.

        Raises:
            OptionError: see `options`.
        """
        return _part("sink", "SinkStreamWriter")(parse_sink(self.options, streaming=True), schema, overwrite)


def _part(module: str, name: str) -> Any:
    """Out of a sibling module, loaded when a query needs it: sources and sink know nothing of each other."""
    return getattr(import_module(f"amqp10broker.spark.{module}"), name)


__all__ = ["Amqp10DataSource"]
