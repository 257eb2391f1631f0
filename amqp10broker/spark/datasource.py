"""The data source as Spark sees it: chooses reader or writer by the options.

Spark makes an object of this class in short-lived Python processes on the driver, one for each question it
has, and asks it for a reader or writer, which it pickles. So nothing is connected here; options are
checked at the first chance, so that what is wrong is said before a job starts. The parts are imported when
a query needs them: sources and sink know nothing of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from amqp10broker.spark.options import FORMAT, StreamOptions, check_at_load, parse_sink, parse_source
from amqp10broker.spark.schema import DDL, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Amqp10DataSource(DataSource):
    """``spark.read.format("amqp10")``, and readStream, write, writeStream."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format``."""
        return FORMAT

    def schema(self) -> str:
        """The columns of a source; those of a sink are the DataFrame's. Asked by `load`.

        Raises:
            OptionError: the options would be refused later, whatever is done with them.
        """
        check_at_load(self.options)
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query.

        Raises:
            ColumnError: the user has given another schema than ours.
            OptionError: see `options`.
        """
        check_schema(schema)
        options = parse_source(self.options, streaming=False)
        if isinstance(options, StreamOptions):
            from amqp10broker.spark.stream.source import batch_reader

            return batch_reader(options)
        from amqp10broker.spark.queue.source import QueueReader

        return QueueReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query.

        Raises:
            ColumnError: the user has given another schema than ours.
            OptionError: see `options`.
        """
        check_schema(schema)
        options = parse_source(self.options, streaming=True)
        if isinstance(options, StreamOptions):
            from amqp10broker.spark.stream.source import StreamStreamReader

            return StreamStreamReader(options)
        from amqp10broker.spark.queue.source import QueueStreamReader

        return QueueStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query.

        Raises:
            OptionError: see `options`.
        """
        from amqp10broker.spark.sink.writer import SinkWriter

        return SinkWriter(parse_sink(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a streaming query.

        Raises:
            OptionError: see `options`.
        """
        from amqp10broker.spark.sink.writer import SinkStreamWriter

        return SinkStreamWriter(parse_sink(self.options, streaming=True), schema, overwrite)
