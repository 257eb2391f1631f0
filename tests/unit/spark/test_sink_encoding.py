"""Rows as messages: what the encoder writes is what a decoder reads."""

from __future__ import annotations

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
)

from amqp10broker.client.message import Message, decode_message
from amqp10broker.spark.errors import NotDelivered
from amqp10broker.spark.options import parse_sink
from amqp10broker.spark.sink import Encoder, plan

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
    """Also where the number gets another digit, which changes the learned head."""
    encoder = an_encoder({"body": BYTES})
    first = decoded(encoder, body=[b"x"] * 95)
    second = decoded(encoder, body=[b"y"] * 1000)
    ids = [message.properties.message_id for message in first + second if message.properties]
    assert ids == [f"q-0-1-{row}" for row in range(1095)]
    assert encoder.rows == 1095


@pytest.mark.parametrize("durable", [True, False])
def test_the_header_says_durable_or_not(durable: bool) -> None:
    (message,) = decoded(an_encoder({"body": BYTES}, durable=str(durable)), body=[b"x"])
    assert message.header is not None
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
    assert full is not None
    assert empty is not None
    values = (full.subject, full.reply_to, full.correlation_id, full.content_type, full.content_encoding)
    assert (*values, full.group_id) == names
    assert (empty.subject, empty.content_type, empty.group_id, empty.to) == (None, None, None, None)


def test_a_content_type_that_is_no_symbol_is_refused() -> None:
    encoder = an_encoder({"body": BYTES, "contentType": TEXT})
    decoded(encoder, body=[b"x"] * 3, contentType=["text/plain", None, ""])
    with pytest.raises(NotDelivered, match="row 5 of this .* 'grün' in column contentType, .* ASCII only"):
        decoded(encoder, body=[b"x"] * 3, contentType=["a", None, "grün"])


def no_utf8(*values: bytes | None) -> pa.Array:
    """Texts as Spark makes them by a cast of bytes: nobody has looked at them."""
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
    """Spark hands over slices of bigger batches."""
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
    """Null takes the option's exchange or key."""
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
