"""What a sink says of a DataFrame's columns and of where messages go, before any job."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from amqp10broker.spark.errors import ColumnError, OptionError
from amqp10broker.spark.options import SinkOptions, parse_sink
from amqp10broker.spark.sink import plan

TEXT, BYTES = StringType(), BinaryType()


def a_schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def options(**given: str) -> SinkOptions:
    return parse_sink({"url": "amqp://127.0.0.1", **given}, streaming=False)


def test_columns_are_found_by_name_in_any_case_and_order() -> None:
    schema = a_schema(MESSAGEID=TEXT, contenttype=TEXT, Body=VarcharType(10), subject=TEXT)
    found = plan(schema, options(address="/queues/orders"))
    assert (found.body, found.message_id, found.fields) == (2, 0, ((3, 3), (6, 1)))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (a_schema(subject=TEXT), "there is no column body"),
        (
            a_schema(value=BYTES),
            "column value is no part of a message; a message is made of: body, messageId",
        ),
        (a_schema(body=BYTES, messageIds=TEXT), "column messageIds .*did you mean messageId?"),
        (a_schema(body=BYTES, offset=LongType()), "column offset is what a source adds .*df.drop"),
        (a_schema(body=LongType()), "column body is bigint; it must be binary or string: cast it"),
        (a_schema(body=BYTES, subject=BYTES), "column subject is binary; it must be string"),
        (a_schema(body=BYTES, Body=BYTES), "column body is there twice"),
        (a_schema(body=BYTES, applicationProperties=TEXT), "must be a map<string, ...>"),
        (a_schema(body=BYTES, applicationProperties=MapType(IntegerType(), TEXT)), "must be a map<string"),
        (a_schema(body=BYTES, applicationProperties=MapType(TEXT, MapType(TEXT, TEXT))), "must be a map<s"),
    ],
)
def test_columns_that_are_wrong_are_refused(schema: StructType, words: str) -> None:
    with pytest.raises(ColumnError, match=words):
        plan(schema, options(address="/queues/orders"))


def test_a_routing_key_alone_needs_an_exchange() -> None:
    schema = a_schema(body=BYTES, routingKey=TEXT)
    with pytest.raises(OptionError, match="option exchange is missing; the column routingKey belongs to an"):
        plan(schema, options(address="/queues/orders"))
    found = plan(schema, options(exchange="events"))
    assert (found.address, found.exchange_default, found.to_default) == (None, "events", "/exchanges/events")


def test_it_must_be_said_where_messages_go() -> None:
    with pytest.raises(OptionError, match="option address is missing; say where messages go"):
        plan(a_schema(body=BYTES), options())
    with pytest.raises(OptionError, match="option address is missing"):
        plan(a_schema(body=BYTES), options(exchange=""))
