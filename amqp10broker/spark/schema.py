"""The columns of the source, for Spark and for Arrow, in this order.

pyspark and pyarrow are not imported with this module, so that options can be checked without either.
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
COLUMNS: Final = tuple(_TYPES)
"""Names of the columns. For a queue, `stream` is its name and `offset` is null."""

DDL: Final = ", ".join(
    # The session decides what the word timestamp means in a text: spark.sql.timestampType.
    f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}"
    for name, kind in _TYPES.items()
)


def check_schema(schema: Any) -> None:
    """Check the schema that a user gave: Spark uses any, and fails in a task if the rows differ. Raises
    `ColumnError` if it is not the schema of a source.
    """
    names = tuple(column.name for column in schema.fields)
    if names != COLUMNS:
        raise _not_ours(f"has the columns {', '.join(names)} instead of {', '.join(COLUMNS)}")
    for column in schema.fields:
        kind = column.dataType.simpleString()
        # A string with a collation is still a string.
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
    """Return the schema of Arrow batches; times are microseconds in UTC, as in Spark."""
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
