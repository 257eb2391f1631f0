"""Strings and field tables of AMQP 0-9-1, against the bytes of the specification and against pamqp."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pamqp.decode
import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.codec import (
    DEPTH_MAX,
    ByteArray,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    decode_table,
    encode_table,
    plain,
)
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.serial import EncodeError

VALUES: list[tuple[Any, bytes]] = [
    (True, b"t\x01"),
    (False, b"t\x00"),
    (Int8(-2), b"b\xfe"),
    (UInt8(254), b"B\xfe"),
    (Int16(-2), b"s\xff\xfe"),
    (UInt16(65534), b"u\xff\xfe"),
    (Int32(-2), b"I\xff\xff\xff\xfe"),
    (UInt32(4294967294), b"i\xff\xff\xff\xfe"),
    (Int64(-2), b"l\xff\xff\xff\xff\xff\xff\xff\xfe"),
    (Float32(1.5), b"f\x3f\xc0\x00\x00"),
    (1.5, b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    (Decimal("-1.25"), b"D\x02\xff\xff\xff\x83"),
    ("é", b"S\x00\x00\x00\x02\xc3\xa9"),
    (b"\xff", b"S\x00\x00\x00\x01\xff"),
    (ByteArray(b"a"), b"x\x00\x00\x00\x01a"),
    (Timestamp(2**64 - 1), b"T" + b"\xff" * 8),
    (None, b"V"),
    ([Int8(1), "a"], b"A\x00\x00\x00\x08b\x01S\x00\x00\x00\x01a"),
    ({"k": None}, b"F\x00\x00\x00\x03\x01kV"),
]


def table_bytes(value: bytes) -> bytes:
    return (len(value) + 2).to_bytes(4, "big") + b"\x01k" + value


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "table_codec")
@pytest.mark.parametrize(("value", "encoded"), VALUES, ids=lambda item: repr(item)[:30])
def test_a_value_has_its_letter_and_bytes(value: Any, encoded: bytes) -> None:
    """Each field type is written and read with the letter that RabbitMQ uses, and keeps its class."""
    assert encode_table({"k": value}) == table_bytes(encoded)
    table, end = decode_table(b"??" + table_bytes(encoded), 2)
    assert table == {"k": value}
    assert type(table["k"]) is type(value)
    assert end == 2 + len(table_bytes(encoded))


@pytest.mark.parametrize(
    ("value", "letter"),
    [(2**31 - 1, b"I"), (-(2**31), b"I"), (2**31, b"l"), (-(2**31) - 1, b"l")],
)
def test_a_plain_int_travels_in_32_bits_if_it_fits(value: int, letter: bytes) -> None:
    """A plain int is written as I, or as l if it needs more than 32 bits."""
    assert encode_table({"k": value})[6:7] == letter


@pytest.mark.parametrize(
    "value",
    [2**63, range(1), Decimal("1e300"), Decimal("NaN"), Decimal(2**31), "\ud800", {"n" * 256: 1}, {1, 2}],
    ids=repr,
)
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    """What no field type can hold raises EncodeError, and nothing else."""
    with pytest.raises(EncodeError):
        encode_table({"k": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Int8, 128), (UInt8, -1), (Int16, 2**15), (UInt16, 2**16), (Int32, 2**31), (UInt32, -1), (Int64, 2**63)],
)
def test_an_integer_outside_its_width_cannot_be_made(kind: type, value: int) -> None:
    """The classes of fixed width refuse values that they could not write."""
    with pytest.raises(EncodeError, match="holds"):
        kind(value)


@pytest.mark.parametrize("cut", range(5, len(encode_table({"k": [{"a": 1.5}, "text"]}))))
def test_a_table_cut_off_is_refused(cut: int) -> None:
    """Whatever byte a table ends at too early, it is a decode error."""
    with pytest.raises(DecodeError):
        decode_table(encode_table({"k": [{"a": 1.5}, "text"]})[:cut], 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (table_bytes(b"z"), "unknown field type 0x7a"),
        (b"\x00\x00\x00\x03\x01\xffV", "malformed"),
        (b"\x00\x00\x00\x02\x01kV", "was to end at byte 6"),
        (b"\x00\x00\x00\x09\x01kA\x00\x00\x00\x01b\x01", "field array was to end at byte 12"),
        (b"\x00\x00\x00\x06\x01kS\x00\x00\x00\x09abcdefghi", "was to end at byte 10"),
    ],
)
def test_a_malformed_table_is_refused(data: bytes, text: str) -> None:
    """An unknown letter, a name that is no text, or a value that runs over the table's end is an error."""
    with pytest.raises(DecodeError, match=text):
        decode_table(data, 0)


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth - 1):
        table = {"k": table}
    return table


def test_tables_nest_to_the_limit_and_no_deeper() -> None:
    """Reader and writer agree on how deep tables may nest; the reader never recurses further."""
    deepest = encode_table(nested(DEPTH_MAX))
    assert decode_table(deepest, 0)[0] == nested(DEPTH_MAX)
    with pytest.raises(EncodeError):
        encode_table(nested(DEPTH_MAX + 1))
    with pytest.raises(DecodeError, match="nested"):
        decode_table(table_bytes(b"F" + deepest), 0)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
        st.binary(max_size=20).map(ByteArray),
        st.integers(0, 255).map(UInt8),
        st.integers(-128, 127).map(Int8),
        st.integers(0, 65535).map(UInt16),
        st.integers(0, 2**32 - 1).map(UInt32),
        st.integers(0, 2**64 - 1).map(Timestamp),
        st.floats(width=32, allow_nan=False).map(Float32),
        st.builds(
            lambda number, scale: Decimal(number).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 9)
        ),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(st.text(max_size=20), values, max_size=6)


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "table_codec")
@given(tables)
def test_every_table_comes_back(table: dict[str, Any]) -> None:
    """What is written is read back, value and, written again, class."""
    data = encode_table(table)
    back, end = decode_table(data, 0)
    assert back == table
    assert end == len(data)
    assert encode_table(back) == data


@given(st.binary(max_size=60))
def test_garbage_is_a_decode_error_or_a_table(data: bytes) -> None:
    """No bytes make the reader raise anything but DecodeError, or read over their end."""
    try:
        _, end = decode_table(data, 0)
    except DecodeError:
        return
    assert end <= len(data)


def test_pamqp_reads_our_tables() -> None:
    """An independent codec finds the same values in the letters that it knows."""
    table = {
        "t": True,
        "b": Int8(-3),
        "s": Int16(-300),
        "u": UInt16(60_000),
        "I": Int32(-70_000),
        "i": UInt32(4_000_000_000),
        "l": Int64(-(2**40)),
        "d": math.pi,
        "S": "text",
        "V": None,
        "A": [Int32(1), "two", {"three": Int32(3)}],
        "F": {"a": Int32(1)},
        "D": Decimal("1.25"),
        "x": ByteArray(b"\x00\xff"),
    }
    data = encode_table(table)
    consumed, theirs = pamqp.decode.field_table(data)
    assert consumed == len(data)
    assert theirs == table
    del table["d"], table["x"]  # pamqp writes floats as f, and wants a bytearray
    assert decode_table(pamqp.encode.field_table(plain(table)), 0)[0] == table
    assert struct.unpack(">I", data[:4])[0] == len(data) - 4
