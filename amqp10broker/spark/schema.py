"""The row of the source, for Spark and for Arrow: defined once, in this order.

No import of pyspark or pyarrow when this module is loaded, so that options can be checked without either.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = (
    "stream",
    "offset",
    "enqueuedTime",
    "messageId",
    "subject",
    "body",
    "applicationProperties",
)
"""Names of the columns. For a queue, `stream` is its name and `offset` is null."""

DDL: Final = (
    "stream string, offset bigint, enqueuedTime timestamp, messageId string, subject string, "
    "body binary, applicationProperties map<string,string>"
)
"""What `DataSource.schema` answers."""


@cache
def arrow_schema() -> pa.Schema:
    """The same for Arrow batches; times are microseconds in UTC, as Spark keeps them."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("stream", pa.string()),
            pa.field("offset", pa.int64()),
            pa.field("enqueuedTime", pa.timestamp("us", tz="UTC")),
            pa.field("messageId", pa.string()),
            pa.field("subject", pa.string()),
            pa.field("body", pa.binary()),
            pa.field("applicationProperties", pa.map_(pa.string(), pa.string())),
        ]
    )


__all__ = ["COLUMNS", "DDL", "arrow_schema"]
