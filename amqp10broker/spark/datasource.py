"""The data source for Spark: chooses reader or writer by the options.

Spark makes an object of this class in a short-lived process for each request and pickles its reader or
writer, so nothing is connected here; options are checked as early as possible. Sources and sink are imported
when a query needs them.
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
from amqp10broker.spark.rows import DDL, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Amqp10DataSource(DataSource):
    """The data source of ``spark.read.format("amqp10")``, and of readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        # The columns of a source; those of a sink are the DataFrame's. Called by `load`.
        check_at_load(self.options)
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        options = parse_source(self.options, streaming=False)
        if isinstance(options, StreamOptions):
            from amqp10broker.spark.stream_source import PushdownReader, StreamReader

            return PushdownReader(options) if options.pushdown else StreamReader(options)
        from amqp10broker.spark.queue_source import QueueReader

        return QueueReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_schema(schema)
        options = parse_source(self.options, streaming=True)
        if isinstance(options, StreamOptions):
            from amqp10broker.spark.stream_source import StreamStreamReader

            return StreamStreamReader(options)
        from amqp10broker.spark.queue_source import QueueStreamReader

        return QueueStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from amqp10broker.spark.sink import SinkWriter

        return SinkWriter(parse_sink(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from amqp10broker.spark.sink import SinkStreamWriter

        return SinkStreamWriter(parse_sink(self.options, streaming=True), schema, overwrite)
