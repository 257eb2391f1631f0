"""The columns of a source: what Spark is told, what it may say, and what becomes of another schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from amqp10broker.spark.datasource import Amqp10DataSource
from amqp10broker.spark.errors import ColumnError
from amqp10broker.spark.row_layouts import DDL
from tests.support.spark_schema import TYPES

TEXT = StringType()
GIVEN = {"url": "amqp://127.0.0.1", "stream": "s"}


def of(types: dict[str, DataType], *, not_null: str = "") -> StructType:
    return StructType([StructField(name, kind, name != not_null) for name, kind in types.items()])


def test_the_time_does_not_depend_on_the_session() -> None:
    """With spark.sql.timestampType=TIMESTAMP_NTZ the word timestamp would be a type without zone."""
    assert "enqueuedTime timestamp_ltz" in DDL


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (of({"offset": LongType(), "body": BinaryType()}), "has the columns offset, body instead of stream,"),
        (of(dict(reversed(TYPES.items()))), "has the columns applicationProperties, body, subject"),
        (of({**TYPES, "more": TEXT}), "body, applicationProperties, more instead of stream"),
        (of({**TYPES, "body": TEXT}), "has column body as string instead of binary"),
        (of({**TYPES, "enqueuedTime": TimestampNTZType()}), "as timestamp_ntz instead of timestamp"),
        (of(TYPES, not_null="body"), "does not let column body hold nulls"),
        (
            of({**TYPES, "applicationProperties": MapType(TEXT, TEXT, False)}),
            "let column applicationProperties hold nulls",
        ),
    ],
)
def test_another_schema_is_refused_before_a_job_starts(schema: StructType, message: str) -> None:
    """Spark would fail in a task, with two schemas and no advice."""
    source = Amqp10DataSource(GIVEN)
    for reader in (source.reader, source.streamReader):
        with pytest.raises(ColumnError) as raised:
            reader(schema)
        assert message in str(raised.value)
        assert "leave .schema() out" in str(raised.value)
