"""The schema of a source as Spark hands it to the data source, which needs no JVM to be made."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TYPES: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "offset": LongType(),
    "enqueuedTime": TimestampType(),
    "messageId": StringType(),
    "subject": StringType(),
    "body": BinaryType(),
    "applicationProperties": MapType(StringType(), StringType()),
}
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in TYPES.items()])
