"""Values, tables, properties and methods of AMQP 0-9-1, against pamqp and the definitions."""

from __future__ import annotations

import dataclasses
import datetime
import math
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import fields
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from amqp10broker.protocols.amqp091 import codec, methods
from amqp10broker.protocols.amqp091.content import method_frame
from amqp10broker.protocols.amqp091.errors import AmqpHardError, DecodeError, ReplyCode, cut_reply_text
from amqp10broker.protocols.amqp091.methods import decode_method
from amqp10broker.protocols.amqp091.properties import (
    BasicProperties,
    decode_properties,
    encode_properties,
    is_persistent,
)
from amqp10broker.protocols.serial import EncodeError

VALUES: list[tuple[Any, bytes]] = [
    (True, b"t\x01"),
    (False, b"t\x00"),
    (codec.Int8(-2), b"b\xfe"),
    (codec.UInt8(254), b"B\xfe"),
    (codec.Int16(-2), b"s\xff\xfe"),
    (codec.UInt16(65534), b"u\xff\xfe"),
    (codec.Int32(-2), b"I\xff\xff\xff\xfe"),
    (codec.UInt32(4294967294), b"i\xff\xff\xff\xfe"),
    (codec.Int64(-2), b"l\xff\xff\xff\xff\xff\xff\xff\xfe"),
    (codec.Float32(1.5), b"f\x3f\xc0\x00\x00"),
    (1.5, b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    (Decimal("-1.25"), b"D\x02\xff\xff\xff\x83"),
    ("é", b"S\x00\x00\x00\x02\xc3\xa9"),
    (b"\xff", b"S\x00\x00\x00\x01\xff"),
    (codec.ByteArray(b"a"), b"x\x00\x00\x00\x01a"),
    (codec.Timestamp(2**64 - 1), b"T" + b"\xff" * 8),
    (None, b"V"),
    ([codec.Int8(1), "a"], b"A\x00\x00\x00\x08b\x01S\x00\x00\x00\x01a"),
    ({"k": None}, b"F\x00\x00\x00\x03\x01kV"),
]


def table_bytes(value: bytes) -> bytes:
    return (len(value) + 2).to_bytes(4, "big") + b"\x01k" + value


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "table_codec")
@pytest.mark.parametrize(("value", "encoded"), VALUES, ids=lambda item: repr(item)[:30])
def test_a_value_has_its_letter_and_bytes(value: Any, encoded: bytes) -> None:
    """Each field type is written and read with the letter that RabbitMQ uses, and keeps its class."""
    assert codec.encode_table({"k": value}) == table_bytes(encoded)
    table, end = codec.decode_table(b"??" + table_bytes(encoded), 2)
    assert table == {"k": value}
    assert type(table["k"]) is type(value)
    assert end == 2 + len(table_bytes(encoded))


@pytest.mark.parametrize(
    ("value", "letter"), [(2**31 - 1, b"I"), (-(2**31), b"I"), (2**31, b"l"), (-(2**31) - 1, b"l")]
)
def test_a_plain_int_travels_in_32_bits_if_it_fits(value: int, letter: bytes) -> None:
    """A plain int is written as I, or as l if it needs more than 32 bits."""
    assert codec.encode_table({"k": value})[6:7] == letter


@pytest.mark.parametrize(
    "value",
    [2**63, range(1), Decimal("1e300"), Decimal("NaN"), Decimal(2**31), "\ud800", {"n" * 256: 1}, {1, 2}],
    ids=repr,
)
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    """A value that no field type can hold raises EncodeError, and nothing else."""
    with pytest.raises(EncodeError):
        codec.encode_table({"k": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (codec.Int8, 128),
        (codec.UInt8, -1),
        (codec.Int16, 2**15),
        (codec.UInt16, 2**16),
        (codec.Int32, 2**31),
        (codec.UInt32, -1),
        (codec.Int64, 2**63),
    ],
)
def test_an_integer_outside_its_width_cannot_be_made(kind: type, value: int) -> None:
    """The classes of fixed width refuse values that they could not write."""
    with pytest.raises(EncodeError, match="holds"):
        kind(value)


@pytest.mark.parametrize("cut", range(5, len(codec.encode_table({"k": [{"a": 1.5}, "text"]}))))
def test_a_table_cut_off_is_refused(cut: int) -> None:
    """The reader raises DecodeError at whatever byte the table ends too early."""
    with pytest.raises(DecodeError):
        codec.decode_table(codec.encode_table({"k": [{"a": 1.5}, "text"]})[:cut], 0)


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
        codec.decode_table(data, 0)


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth - 1):
        table = {"k": table}
    return table


def test_tables_nest_to_the_limit_and_no_deeper() -> None:
    """Reader and writer agree on how deep tables may nest; the reader never recurses further."""
    deepest = codec.encode_table(nested(codec.DEPTH_MAX))
    assert codec.decode_table(deepest, 0)[0] == nested(codec.DEPTH_MAX)
    with pytest.raises(EncodeError):
        codec.encode_table(nested(codec.DEPTH_MAX + 1))
    with pytest.raises(DecodeError, match="nested"):
        codec.decode_table(table_bytes(b"F" + deepest), 0)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
        st.binary(max_size=20).map(codec.ByteArray),
        st.integers(0, 255).map(codec.UInt8),
        st.integers(-128, 127).map(codec.Int8),
        st.integers(0, 65535).map(codec.UInt16),
        st.integers(0, 2**32 - 1).map(codec.UInt32),
        st.integers(0, 2**64 - 1).map(codec.Timestamp),
        st.floats(width=32, allow_nan=False).map(codec.Float32),
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
    """The values are read back, and a second write gives the same classes."""
    data = codec.encode_table(table)
    back, end = codec.decode_table(data, 0)
    assert back == table
    assert end == len(data)
    assert codec.encode_table(back) == data


@given(st.binary(max_size=60))
def test_garbage_is_a_decode_error_or_a_table(data: bytes) -> None:
    """No bytes make the reader raise anything but DecodeError, or read over their end."""
    try:
        _, end = codec.decode_table(data, 0)
    except DecodeError:
        return
    assert end <= len(data)


def test_pamqp_reads_our_tables() -> None:
    """An independent codec finds the same values in the letters that it knows."""
    table = {
        "t": True,
        "b": codec.Int8(-3),
        "s": codec.Int16(-300),
        "u": codec.UInt16(60_000),
        "I": codec.Int32(-70_000),
        "i": codec.UInt32(4_000_000_000),
        "l": codec.Int64(-(2**40)),
        "d": math.pi,
        "S": "text",
        "V": None,
        "A": [codec.Int32(1), "two", {"three": codec.Int32(3)}],
        "F": {"a": codec.Int32(1)},
        "D": Decimal("1.25"),
        "x": codec.ByteArray(b"\x00\xff"),
    }
    data = codec.encode_table(table)
    consumed, theirs = pamqp.decode.field_table(data)
    assert consumed == len(data)
    assert theirs == table
    del table["d"], table["x"]  # pamqp writes floats as f, and wants a bytearray
    assert codec.decode_table(pamqp.encode.field_table(codec.plain(table)), 0)[0] == table
    assert struct.unpack(">I", data[:4])[0] == len(data) - 4


ALL = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": "b"},
    delivery_mode=2,
    priority=9,
    correlation_id="corr",
    reply_to="replies",
    expiration="60000",
    message_id="id",
    timestamp=1_700_000_000,
    type="order",
    user_id="guest",
    app_id="app",
    cluster_id="cluster",
)


@pytest.mark.parametrize("cut", range(len(encode_properties(ALL))))
def test_properties_cut_off_are_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode_properties(encode_properties(ALL)[:cut])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00", "take 2 bytes, not the 3"),
        (b"\x00\x02", "unknown flag"),
        (b"\x00\x01\x80\x00", "unknown flags 0x8000 in word 2"),
        (b"\x00\x01", "cut off"),
        (b"\x20\x00\x00\x00\x00\x03\x01kz", "unknown field type"),
    ],
)
def test_malformed_properties_are_refused(data: bytes, text: str) -> None:
    """Bytes left over, undefined flags, and headers that are not a table are refused."""
    with pytest.raises(DecodeError, match=text):
        decode_properties(data)


def test_a_second_flags_word_without_flags_is_read_over() -> None:
    """Bit 0 announces another word of flags, which may only be empty."""
    assert decode_properties(b"\x10\x01\x00\x01\x00\x00\x02") == BasicProperties(delivery_mode=2)


def test_a_text_that_is_not_utf8_travels_on_unchanged() -> None:
    """Clients put raw bytes in correlation-id; they come out as they went in."""
    data = b"\x04\x00\x03\xff\x00a"
    assert encode_properties(decode_properties(data)) == data


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(priority=256),
        BasicProperties(delivery_mode=-1),
        BasicProperties(timestamp=-1),
        BasicProperties(message_id="x" * 256),
        BasicProperties(headers={"a": range(1)}),
    ],
    ids=repr,
)
def test_properties_that_cannot_travel_are_refused(properties: BasicProperties) -> None:
    """Numbers out of range, long texts and headers without an encoding raise EncodeError."""
    with pytest.raises(EncodeError):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (BasicProperties(), False),
        (BasicProperties(delivery_mode=1), False),
        (BasicProperties(delivery_mode=2), True),
        (ALL, True),
        (BasicProperties(content_type="a", content_encoding="b", headers={"k": 1}), False),
        (BasicProperties(headers={"k": 1}, delivery_mode=2), True),
    ],
)
def test_persistence_is_read_without_decoding(properties: BasicProperties, expected: bool) -> None:
    """The delivery mode is found behind content type, encoding and headers."""
    assert is_persistent(encode_properties(properties)) is expected


short = st.text(max_size=60)


@given(
    st.builds(
        BasicProperties,
        content_type=st.none() | short,
        delivery_mode=st.none() | st.integers(0, 255),
        priority=st.none() | st.integers(0, 255),
        correlation_id=st.none() | short,
        reply_to=st.none() | short,
        message_id=st.none() | short,
        timestamp=st.none() | st.integers(0, 2**64 - 1),
        type=st.none() | short,
        user_id=st.none() | short,
        app_id=st.none() | short,
    )
)
def test_any_properties_come_back(properties: BasicProperties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.binary(max_size=60))
def test_garbage_is_a_decode_error_or_properties(data: bytes) -> None:
    """No bytes make the reader raise anything but DecodeError."""
    try:
        decode_properties(data)
    except DecodeError:
        return
    assert len(data) >= 2


def test_pamqp_agrees() -> None:
    """An independent codec writes the same bytes, and reads ours."""
    ours = dataclasses.replace(ALL, cluster_id=None)
    given = {name: value for name, value in dataclasses.asdict(ours).items() if value is not None}
    given["message_type"] = given.pop("type")
    given["timestamp"] = datetime.datetime.fromtimestamp(given["timestamp"], tz=datetime.UTC)
    theirs = Basic.Properties(**given)
    assert encode_properties(ours) == theirs.marshal()
    assert decode_properties(theirs.marshal()) == ours


CLASSES: list[type[Any]] = list(codec.METHODS.values())
IN_PAMQP = [method for method in CLASSES if method.CLASS_ID != 30]

SHORTSTR = st.text(st.characters(codec="utf-8"), max_size=60)
TABLE = st.dictionaries(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20),
    st.booleans() | st.text(max_size=20),
    max_size=4,
)
IN_OURS = {"nowait": "no_wait", "exchange_type": "type"}
"""Names of fields that pamqp has otherwise."""
WIDTHS = (8, 16, 32, 63)
"""Bits of the integer types; pamqp reads the widest as signed, hence 63."""


@cache
def bits_of(method: type[Any], name: str) -> int:
    """Return the widest integer that a field takes, in bits."""
    fitting = 0
    for bits in WIDTHS:
        try:
            method(**{name: 2**bits - 1}).encode()
        except (ValueError, struct.error):
            break
        fitting = bits
    return fitting


@st.composite
def method_values(draw: st.DrawFn, classes: list[type[Any]]) -> Any:
    method = draw(st.sampled_from(classes))
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "str": SHORTSTR,
        "bytes": st.binary(max_size=50) if method.CLASS_ID != 10 else SHORTSTR.map(str.encode),
        "bool": st.booleans(),
        "dict[str, Any]": TABLE,
    }
    return method(
        **{
            field.name: draw(
                st.integers(0, 2 ** bits_of(method, field.name) - 1)
                if field.type == "int"
                else strategies[str(field.type)]
            )
            for field in fields(method)
        }
    )


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_a_method_with_its_defaults_comes_back(method: type[Any]) -> None:
    assert decode_method(method().encode()) == method()


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@given(method_values(IN_PAMQP))
def test_pamqp_reads_what_we_write(method: Any) -> None:
    """pamqp finds the same method with the same values, and reserved fields empty."""
    frame = method_frame(1, method)
    read, channel, theirs = pamqp.frame.unmarshal(frame)
    assert (read, channel) == (len(frame), 1)
    assert theirs.name.replace("-", "").replace(".", "").lower() == type(method).__name__.lower()
    for slot in theirs.__slots__:
        ours = getattr(method, IN_OURS.get(slot, slot), None)
        value = getattr(theirs, slot)
        assert value == (ours.decode() if isinstance(ours, bytes) else ours) or (ours is None and not value)


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_arguments_cut_off_anywhere_are_a_syntax_error(method: type[Any]) -> None:
    """The error is 502 with class and method, wherever the payload ends."""
    payload = method().encode()
    for end in range(4, len(payload)):
        with pytest.raises(DecodeError) as caught:
            decode_method(payload[:end])
        assert caught.value.code is ReplyCode.SYNTAX_ERROR
        assert (caught.value.class_id, caught.value.method_id) == (method.CLASS_ID, method.METHOD_ID)


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_bytes_behind_the_arguments_are_a_syntax_error(method: type[Any]) -> None:
    """The error is 502: the payload has exactly the arguments."""
    with pytest.raises(DecodeError, match="1 bytes follow the arguments"):
        decode_method(method().encode() + b"\0")


def test_access_request_is_read_although_0_9_1_has_dropped_it() -> None:
    """Old clients ask for a ticket first."""
    payload = b"\x00\x1e\x00\x0a\x05/data\x1d"
    assert decode_method(payload) == methods.AccessRequest("/data", True, False, True, True, True)
    assert methods.AccessRequestOk(1).encode() == b"\x00\x1e\x00\x0b\x00\x01"


ROOT = Path(__file__).parents[3]
DEFINITIONS = ElementTree.parse(ROOT / "spec" / "amqp-0-9-1" / "amqp0-9-1.stripped.extended.xml").getroot()


def test_methods_do_not_drift_from_their_definitions() -> None:
    """The module that is checked in is the one the generator writes."""
    command = [sys.executable, str(ROOT / ".ci" / "generate_methods.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_method_of_the_definitions_has_its_class() -> None:
    """Names, numbers, content and fields are those of the XML file, without the reserved fields."""
    found = 0
    for class_ in DEFINITIONS.iterfind("class"):
        for element in class_.iterfind("method"):
            name = f"{class_.attrib['name']}.{element.attrib['name']}"
            words = f"{class_.attrib['name']}-{element.attrib['name']}".split("-")
            method = getattr(methods, "".join(word.capitalize() for word in words))
            assert name == method.NAME
            assert (int(class_.attrib["index"]), int(element.attrib["index"])) == (
                method.CLASS_ID,
                method.METHOD_ID,
            )
            assert (element.get("content") == "1") == method.HAS_CONTENT
            fields = [f.attrib["name"] for f in element.iterfind("field") if f.get("reserved") != "1"]
            attributes = [name.replace("-", "_") for name in fields]
            expected = [{"global": "global_", "nowait": "no_wait"}.get(name, name) for name in attributes]
            assert list(method.__slots__) == expected
            found += 1
    assert found == 64


def test_every_reply_code_of_the_definitions_has_its_name() -> None:
    """The codes written by hand are complete."""
    specified = {
        element.attrib["name"].replace("-", "_").upper(): int(element.attrib["value"])
        for element in DEFINITIONS.iterfind("constant")
        if not element.attrib["name"].startswith("frame-") or "class" in element.attrib
    }
    assert {code.name: int(code) for code in ReplyCode} == specified


def test_a_reply_text_of_more_than_255_bytes_is_cut() -> None:
    """It ends with three dots then, and has 255 bytes."""
    error = AmqpHardError(ReplyCode.SYNTAX_ERROR, "x" * 300)
    assert error.reply_text == "SYNTAX_ERROR - " + "x" * 237 + "..."
    assert len(error.reply_text) == 255
    assert cut_reply_text("y" * 255) == "y" * 255


def test_a_cut_reply_text_keeps_whole_characters() -> None:
    """A character of several bytes is left out rather than halved."""
    cut = cut_reply_text("é" * 200)
    assert cut == "é" * 126 + "..."
    assert len(cut.encode()) == 255
