"""The row of the source, for Spark and for Arrow: defined once, in this order.

No import of pyspark or pyarrow when this module is loaded, so that options can be checked without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.spark.errors import ColumnError

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final[Mapping[str, str]] = {
    "stream": "string",
    "offset": "bigint",
    "enqueuedTime": "timestamp",
    "messageId": "string",
    "subject": "string",
    "body": "binary",
    "applicationProperties": "map<string,string>",
}
"""As Spark's types call themselves."""

COLUMNS: Final = tuple(_TYPES)
"""Names of the columns. For a queue, `stream` is its name and `offset` is null."""

DDL: Final = ", ".join(
    # What the word timestamp means in a text is for the session to say: spark.sql.timestampType.
    f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}"
    for name, kind in _TYPES.items()
)
"""What `DataSource.schema` answers."""


def check_schema(schema: Any) -> None:
    """Spark reads by whatever schema a user gives, and fails in a task if the rows are others.

    Args:
        schema: a `StructType`, as Spark hands it to a data source for reading.

    Raises:
        ColumnError: it is not the one of a source.
    """
    names = tuple(column.name for column in schema.fields)
    if names != COLUMNS:
        raise _not_ours(f"has the columns {', '.join(names)} instead of {', '.join(COLUMNS)}")
    for column in schema.fields:
        kind = column.dataType.simpleString()
        # A string with a collation is one all the same.
        if kind.partition(" collate ")[0] != _TYPES[column.name]:
            raise _not_ours(f"has column {column.name} as {kind} instead of {_TYPES[column.name]}")
        if not column.nullable or not getattr(column.dataType, "valueContainsNull", True):
            raise _not_ours(f"does not let column {column.name} hold nulls")


def _not_ours(problem: str) -> ColumnError:
    return ColumnError(
        f"what was given by schema() {problem}; leave .schema() out, for a source has its own, and use "
        "select and cast on what it reads"
    )


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
