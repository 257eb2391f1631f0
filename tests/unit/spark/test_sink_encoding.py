"""Rows and messages, both ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from amqp10broker.client.message import Message, data_message, decode_message
from amqp10broker.spark import rows
from amqp10broker.spark.datasource import Amqp10DataSource
from amqp10broker.spark.errors import ColumnError, NotDelivered, OptionError, SparkSourceError
from amqp10broker.spark.options import SinkOptions, parse_sink
from amqp10broker.spark.rows import DDL, MS_MAX, MS_MIN, RowDecoder, microseconds
from amqp10broker.spark.sink import Encoder, plan
from tests.support.spark_schema import TYPES

TEXT, BYTES = StringType(), BinaryType()


def an_encoder(columns: dict[str, DataType], prefix: str = "q-0-1-", **given: str) -> Encoder:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    if "exchange" not in columns and "exchange" not in given:
        given.setdefault("address", "/queues/orders")
    return Encoder(plan(schema, parse_sink({"url": "amqp://127.0.0.1", **given}, streaming=False)), prefix)


def decoded(encoder: Encoder, **columns: Any) -> list[Message]:
    arrays = [value if isinstance(value, pa.Array) else pa.array(value) for value in columns.values()]
    return [
        decode_message(each) for each in encoder.encode(pa.RecordBatch.from_arrays(arrays, list(columns)))
    ]


def test_message_ids_number_the_rows_of_a_partition_across_batches() -> None:
    """This covers numbers that get another digit, which changes the learned head."""
    encoder = an_encoder({"body": BYTES})
    first = decoded(encoder, body=[b"x"] * 95)
    second = decoded(encoder, body=[b"y"] * 1000)
    ids = [message.properties.message_id for message in first + second if message.properties]
    assert ids == [f"q-0-1-{row}" for row in range(1095)]
    assert encoder.rows == 1095


@pytest.mark.parametrize("durable", [True, False])
def test_the_header_says_durable_or_not(durable: bool) -> None:
    (message,) = decoded(an_encoder({"body": BYTES}, durable=str(durable)), body=[b"x"])
    assert message.header.durable is durable


def test_a_text_body_is_utf8_and_null_is_empty() -> None:
    for kind in (pa.string(), pa.large_string()):
        found = decoded(an_encoder({"body": TEXT}), body=pa.array(["grün", None], kind))
        assert [message.body for message in found] == ["grün".encode(), b""]


def test_a_given_message_id_is_kept_and_null_made_up() -> None:
    encoder = an_encoder({"body": BYTES, "messageId": TEXT})
    found = decoded(encoder, body=[b"x", b"y"], messageId=["mine", None])
    assert [message.properties.message_id for message in found if message.properties] == ["mine", "q-0-1-1"]


def test_every_property() -> None:
    names = ("subject", "replyTo", "correlationId", "contentType", "contentEncoding", "groupId")
    encoder = an_encoder({"body": BYTES, **dict.fromkeys(names, TEXT)})
    found = decoded(encoder, body=[b"x", b"y"], **{name: [name, None] for name in names})
    full, empty = (message.properties for message in found)
    values = (full.subject, full.reply_to, full.correlation_id, full.content_type, full.content_encoding)
    assert (*values, full.group_id) == names
    assert (empty.subject, empty.content_type, empty.group_id, empty.to) == (None, None, None, None)


def test_a_content_type_that_is_no_symbol_is_refused() -> None:
    encoder = an_encoder({"body": BYTES, "contentType": TEXT})
    decoded(encoder, body=[b"x"] * 3, contentType=["text/plain", None, ""])
    with pytest.raises(NotDelivered, match="row 5 of this .* 'grün' in column contentType, .* ASCII only"):
        decoded(encoder, body=[b"x"] * 3, contentType=["a", None, "grün"])


def no_utf8(*values: bytes | None) -> pa.Array:
    """Return texts as Spark makes them by a cast of bytes, without a check."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    "column",
    [
        *("messageId", "exchange", "routingKey", "subject", "replyTo", "correlationId"),
        *("contentType", "contentEncoding", "groupId"),
    ],
)
def test_a_text_that_is_no_utf8_is_refused_with_its_row(column: str) -> None:
    """Spark's cast of a binary to a string checks nothing, and AMQP's string is UTF-8."""
    encoder = an_encoder({"body": BYTES, "exchange": TEXT, column: TEXT})
    decoded(encoder, **{"body": [b"x"] * 2, "exchange": ["e", "e"], column: ["a", "b"]})
    given = {"body": [b"x"] * 3, "exchange": ["e"] * 3, column: no_utf8(b"fine", None, b"a\xff")}
    with pytest.raises(NotDelivered) as raised:
        decoded(encoder, **given)
    assert f"row 4 of this partition has no text in column {column}: byte 1 is 0xff" in str(raised.value)


@pytest.mark.parametrize(("key", "value"), [(b"k\xff", b"v"), (b"k", b"v\xff")])
def test_a_map_with_a_text_that_is_no_utf8(key: bytes, value: bytes) -> None:
    """The row is found in a slice and behind rows whose maps are empty or null."""
    keys, values = no_utf8(b"a", b"b", key, b"d"), no_utf8(b"A", b"B", value, b"D")
    offsets = pa.array([0, 1, 2, None, 2, 3, 4], pa.int32())
    maps = pa.MapArray.from_arrays(offsets, keys, values)
    encoder = an_encoder({"body": BYTES, "applicationProperties": MapType(TEXT, TEXT)})
    decoded(encoder, body=[b"x"], applicationProperties=maps.slice(0, 1))
    what = "a key" if key.endswith(b"\xff") else "a value"
    with pytest.raises(NotDelivered, match=f"row 4 of this .* no text in {what} of column applicationProp"):
        decoded(encoder, body=[b"x"] * 5, applicationProperties=maps.slice(1))


def test_a_text_body_of_any_bytes_is_sent_as_it_is() -> None:
    found = decoded(an_encoder({"body": TEXT}), body=no_utf8(b"\xff"))
    assert [message.body for message in found] == [b"\xff"]


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (TEXT, pa.string(), ["a", "", "ü" * 200, None]),
        (BYTES, pa.binary(), [b"a", b"b" * 300, None]),
        (BooleanType(), pa.bool_(), [True, False, None]),
        (ByteType(), pa.int8(), [-128, 127, None]),
        (ShortType(), pa.int16(), [-5, 300, None]),
        (IntegerType(), pa.int32(), [-1, 2**31 - 1, None]),
        (LongType(), pa.int64(), [-(2**63), 7, None]),
        (FloatType(), pa.float32(), [0.5, None]),
        (DoubleType(), pa.float64(), [0.1, None]),
    ],
)
def test_application_properties_of_every_type(kind: DataType, arrow: pa.DataType, values: list[Any]) -> None:
    encoder = an_encoder({"body": BYTES, "applicationProperties": MapType(TEXT, kind)})
    rows = [[("one", value)] for value in values] + [[("a", values[0]), ("b", values[1])], [], None]
    found = decoded(
        encoder, body=[b"x"] * len(rows), applicationProperties=pa.array(rows, pa.map_(pa.string(), arrow))
    )
    expected = [None if not row else dict(row) for row in rows]
    assert [message.application_properties for message in found] == expected


def test_maps_of_a_slice() -> None:
    encoder = an_encoder({"body": BYTES, "applicationProperties": MapType(TEXT, TEXT)})
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % number for number in range(5)]),
            pa.array(
                [[("n", str(number))] * (number > 0) for number in range(5)],
                pa.map_(pa.string(), pa.string()),
            ),
        ],
        ["body", "applicationProperties"],
    )
    found = [decode_message(each) for each in encoder.encode(whole.slice(2, 2))]
    assert [(message.body, message.application_properties) for message in found] == [
        (b"2", {"n": "2"}),
        (b"3", {"n": "3"}),
    ]


def test_each_row_says_where_it_goes() -> None:
    encoder = an_encoder(
        {"body": BYTES, "exchange": TEXT, "routingKey": TEXT}, exchange="events", routingKey="all"
    )
    found = decoded(
        encoder,
        body=[b"x"] * 5,
        exchange=["e", "e", None, None, ""],
        routingKey=["k/1", None, "k", None, "orders"],
    )
    assert [message.properties.to for message in found if message.properties] == [
        "/exchanges/e/k%2F1",
        "/exchanges/e/all",
        "/exchanges/events/k",
        "/exchanges/events/all",
        "/queues/orders",
    ]


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


@pytest.mark.parametrize("count", [3, 30])
def test_more_bytes_than_an_arrow_batch_has_room_for(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error explains it: beyond 2 GiB the columns' offsets would be wrong."""
    payloads = [data_message(bytes(100))] * count
    monkeypatch.setattr(rows, "_BATCH_BYTES_MAX", sum(map(len, payloads)) - 1)
    with pytest.raises(SparkSourceError, match=f"{count} messages are together larger than the 2 GiB"):
        RowDecoder("q").batch(payloads)
    assert RowDecoder("q").batch(payloads[1:]).num_rows == count - 1


def test_a_table_that_arrow_leaves_in_pieces() -> None:
    """Arrow does so when text is longer than the encoded message that it was."""
    piece = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    with pytest.raises(SparkSourceError, match="4 messages are together larger"):
        rows._whole(pa.Table.from_batches([piece, piece]))
    assert rows._whole(pa.Table.from_batches([piece])) == piece


@pytest.fixture(params=["UTC", "Pacific/Kiritimati", "Asia/Manila", "America/Juneau", "Etc/GMT+12"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the process's time zone; some differ most from UTC, now or long ago."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("time_zone")
def test_what_a_row_has_can_be_collected() -> None:
    """Spark makes `datetime`s in the process's zone, and a single failure loses all rows."""
    for ms, year in ((MS_MIN, 1), (MS_MAX, 9999), (0, 1970)):
        us = microseconds(ms)
        assert TimestampType().fromInternal(us).year in (year, year - 1)
    assert microseconds(MS_MIN - 1) is None
    assert microseconds(MS_MAX + 1) is None


TEXT_SCHEMA = StringType()
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
        (of({**TYPES, "more": TEXT_SCHEMA}), "body, applicationProperties, more instead of stream"),
        (of({**TYPES, "body": TEXT_SCHEMA}), "has column body as string instead of binary"),
        (of({**TYPES, "enqueuedTime": TimestampNTZType()}), "as timestamp_ntz instead of timestamp"),
        (of(TYPES, not_null="body"), "does not let column body hold nulls"),
        (
            of({**TYPES, "applicationProperties": MapType(TEXT_SCHEMA, TEXT_SCHEMA, False)}),
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
