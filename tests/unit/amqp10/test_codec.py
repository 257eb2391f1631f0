"""Bytes of every constructor, and everything that is refused."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.protocols.amqp10.codec import array_of, decode, encode, skip
from amqp10broker.protocols.amqp10.encoder import write_ubyte, write_uint, write_ulong, write_ushort
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.types import (
    DEPTH_MAX,
    ZERO_WIDTH_ITEMS_MAX,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.support.strategies import typed

SPEC = Path(__file__).parents[3] / "spec" / "amqp-1.0" / "types.xml"

# What encode gives and decode reads.
SHORTEST: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("50 ff", UByte(255)),
    ("60 ffff", UShort(65535)),
    ("43", UInt(0)),
    ("52 01", UInt(1)),
    ("52 ff", UInt(255)),
    ("70 00000100", UInt(256)),
    ("44", ULong(0)),
    ("53 ff", ULong(255)),
    ("80 0000000000000100", ULong(256)),
    ("51 80", Byte(-128)),
    ("61 8000", Short(-32768)),
    ("54 80", Int(-128)),
    ("54 7f", Int(127)),
    ("71 ffffff7f", Int(-129)),
    ("71 00000080", Int(128)),
    ("55 00", Long(0)),
    ("55 80", Long(-128)),
    ("81 ffffffffffffff7f", Long(-129)),
    ("81 0000000000000080", Long(128)),
    ("72 3fc00000", Float(1.5)),
    ("82 3ff8000000000000", 1.5),
    ("74 22500001", Decimal32(bytes.fromhex("22500001"))),
    ("84 2238000000000001", Decimal64(bytes.fromhex("2238000000000001"))),
    ("94 " + "0123456789abcdef" * 2, Decimal128(bytes.fromhex("0123456789abcdef" * 2))),
    ("73 0001f600", Char("😀")),
    ("83 00000171eb2ad680", Timestamp(0x171EB2AD680)),
    ("98 f81d4fae7dec11d0a76500a0c91e6bf6", UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")),
    ("a0 00", b""),
    ("a0 02 00ff", b"\x00\xff"),
    ("b0 00000100" + "61" * 256, b"a" * 256),
    ("a1 02 c3a9", "é"),
    ("b1 00000100" + "61" * 256, "a" * 256),
    ("a3 01 61", Symbol("a")),
    ("b3 00000100" + "61" * 256, Symbol("a" * 256)),
    ("45", []),
    ("c0 03 02 40 41", [None, True]),
    ("c0 ff 02 a0 fb" + "00" * 251 + "40", [b"\0" * 251, None]),
    ("d0 00000103 00000002 a0 fc" + "00" * 252 + "40", [b"\0" * 252, None]),
    ("d0 00000104 00000100" + "40" * 256, [None] * 256),
    ("c1 01 00", {}),
    ("c1 06 02 a3 01 61 52 05", {Symbol("a"): UInt(5)}),
    ("d1 00000104 00000002 40 a0 fd" + "00" * 253, {None: b"\x00" * 253}),
    ("c1 07 04 52 01 41 53 01 42", Map(((UInt(1), True), (ULong(1), False)))),
    ("c1 09 04 a1 01 61 41 a3 01 61 42", Map((("a", True), (Symbol("a"), False)))),
    ("c1 08 06 41 40 52 01 40 45 40", Map(((True, None), (UInt(1), None), ([], None)))),
    ("e0 02 00 a3", Array(0xA3)),
    ("e0 06 02 a3 01 61 01 62", Array(0xA3, (Symbol("a"), Symbol("b")))),
    ("e0 06 02 61 0001 fffe", Array(0x61, (Short(1), Short(-2)))),
    ("e0 04 02 56 01 00", Array(0x56, (True, False))),
    ("e0 07 01 00 a3 01 78 52 05", Array(0x52, (UInt(5),), (Symbol("x"),))),
    ("e0 0a 01 00 a3 01 78 00 53 02 52 05", Array(0x52, (UInt(5),), (Symbol("x"), ULong(2)))),
    ("e0 0a 02 e0 03 01 52 01 03 01 52 02", Array(0xE0, (Array(0x52, (UInt(1),)), Array(0x52, (UInt(2),))))),
    ("e0 02 00 42", Array(0x42)),
    ("f0 00000105 00000100 50" + "07" * 256, Array(0x50, (UByte(7),) * 256)),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("00 a3 01 61 00 a3 01 62 40", Described(Symbol("a"), Described(Symbol("b"), None))),
]

# What decode reads as well.
LONGER: list[tuple[str, Any]] = [
    ("56 01", True),
    ("56 00", False),
    ("52 00", UInt(0)),
    ("70 00000001", UInt(1)),
    ("53 00", ULong(0)),
    ("80 0000000000000001", ULong(1)),
    ("71 ffffffff", Int(-1)),
    ("81 ffffffffffffffff", Long(-1)),
    ("b0 00000001 61", b"a"),
    ("b1 00000001 61", "a"),
    ("b3 00000001 61", Symbol("a")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000005 00000001 40", [None]),
    ("d1 00000004 00000000", {}),
    ("f0 00000006 00000001 50 07", Array(0x50, (UByte(7),))),
]

REFUSED: list[tuple[str, str]] = [
    ("", "truncated value at offset 0"),
    ("3f", "unknown constructor 0x3f at offset 0"),
    ("c0 02 01 3f", "unknown constructor 0x3f at offset 3"),
    ("56 02", "boolean byte 0x02 at offset 1"),
    ("73 0000d800", "char 0xd800 at offset 1"),
    ("73 0000dfff", "char 0xdfff"),
    ("73 00110000", "char 0x110000"),
    ("a1 01 80", "not UTF-8"),
    ("a1 03 eda080", "not UTF-8"),
    ("a1 02 c080", "not UTF-8"),
    ("b1 00000001 ff", "not UTF-8"),
    ("a3 01 80", "not ASCII"),
    ("b3 00000001 80", "not ASCII"),
    ("a0 02 00", "binary of 2 bytes at offset 1 has only 1"),
    ("b0 ffffffff 00", "binary of 4294967295 bytes"),
    ("c0 00 00", "list of 0 bytes"),
    ("c0 05 01 40", "list of 5 bytes"),
    ("c0 02 02 40", "list of 2 items"),
    ("c0 03 01 40 40", "end at offset 4 was to end at 5"),
    ("c0 03 01 a0 01 00", "only 0"),
    ("d0 00000003 00000000", "list of 3 bytes"),
    ("d0 00000004 ffffffff", "list of 4294967295 items"),
    ("c1 02 01 40", "odd count"),
    ("c1 05 04 40 41 40 42", "same key twice"),
    ("c1 06 04 43 41 52 00 42", "same key twice"),
    ("c1 05 04 45 41 45 42", "same key twice"),
    ("e0 01 00", "truncated constructor of an array"),
    ("e0 02 00 3f", "unknown constructor 0x3f"),
    ("e0 02 01 50", "array of 1 items"),
    ("e0 03 00 50 01", "was to end"),
    ("f0 00000005 ffffffff 40", "array of 4294967295 items of width 0"),
    ("f0 00000005 ffffffff 45", "array of 4294967295 items of width 0"),
    ("f0 00000005 ffffffff a0", "array of 4294967295 items"),
    ("e0 02 00 00", "truncated descriptor"),
    ("00", "truncated"),
    ("00 53 24", "truncated"),
]


def ids(rows: list[tuple[str, Any]]) -> list[str]:
    return [row[0][:24] or "nothing" for row in rows]


@pytest.mark.rabbitmq(
    "binary_generator_SUITE",
    "booleans",
    "char",
    "described",
    "list",
    "map",
    "null",
    "numerals",
    "symbol",
    "timestamp",
    "utf8",
)
@pytest.mark.parametrize(("text", "value"), SHORTEST, ids=ids(SHORTEST))
def test_a_value_is_encoded_in_the_fewest_bytes(text: str, value: Any) -> None:
    """Encoding gives exactly the bytes of the table."""
    assert encode(value).hex() == text.replace(" ", "")


@pytest.mark.rabbitmq("binary_parser_SUITE", "array_element_widths", "binary", "list", "map", "value")
@pytest.mark.parametrize(("text", "value"), SHORTEST + LONGER, ids=ids(SHORTEST + LONGER))
def test_an_encoding_is_decoded_to_a_value_of_its_type(text: str, value: Any) -> None:
    """Decoding gives value and type of the table and stops after the encoding."""
    data = bytes.fromhex(text)
    found, stop = decode(b"\x99" + data + b"\x99", 1)
    assert typed(found) == typed(value)
    assert type(found) is type(value)
    assert stop == len(data) + 1


@pytest.mark.rabbitmq(
    "binary_parser_SUITE", "peek_described_section_total_sizes", "peek_total_size_matches_parse"
)
@pytest.mark.parametrize(("text", "value"), SHORTEST + LONGER, ids=ids(SHORTEST + LONGER))
def test_skip_stops_where_decode_does(text: str, value: Any) -> None:
    """Walking over a value ends at the byte after it."""
    data = bytes.fromhex(text)
    assert skip(b"\x99" + data + b"\x99", 1) == len(data) + 1


@pytest.mark.parametrize(("text", "value"), SHORTEST + LONGER, ids=ids(SHORTEST + LONGER))
def test_every_truncation_is_a_decode_error(text: str, value: Any) -> None:
    """A value cut anywhere is refused, whether the buffer ends there or only the enclosing frame does."""
    data = bytes.fromhex(text)
    for cut in range(len(data)):
        for read in (decode, skip):
            with pytest.raises(DecodeError):
                read(data[:cut])
            with pytest.raises(DecodeError):
                read(data, 0, cut)


def test_every_constructor_of_the_specification_is_in_the_tables() -> None:
    """The tables above leave no constructor of types.xml out, and name none that is not there."""
    root = ElementTree.parse(SPEC).getroot()
    specified = {
        int(element.attrib["code"], 16) for element in root.iter() if element.tag.endswith("}encoding")
    }
    assert {bytes.fromhex(text)[0] for text, _value in SHORTEST + LONGER} == specified | {0x00}


@pytest.mark.rabbitmq(
    "binary_parser_SUITE", "array32_count_exceeds_data", "array_with_extra_input", "unsupported_type"
)
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=ids(REFUSED))
def test_what_is_no_encoding_is_refused_with_what_and_where(text: str, message: str) -> None:
    """Decode and skip refuse the same bytes, and decode says why."""
    with pytest.raises(DecodeError, match=message):
        decode(bytes.fromhex(text))
    with pytest.raises(DecodeError):
        skip(bytes.fromhex(text))


@pytest.mark.parametrize("code", range(256))
def test_a_lone_constructor_is_read_or_refused(code: int) -> None:
    """No constructor byte raises anything but DecodeError."""
    for data in (bytes((code,)), bytes((code,)) + b"\x00" * 20, bytes((code,)) + b"\xff" * 20):
        try:
            expected = decode(data)[1]
        except DecodeError:
            with pytest.raises(DecodeError):
                skip(data)
        else:
            assert skip(data) == expected


@pytest.mark.parametrize(
    ("opening", "closing"),
    [(b"\x00\x40", b""), (b"\x00", b"\x40\x40")],
    ids=["described value", "described descriptor"],
)
def test_described_values_nest_as_deep_as_the_limit(opening: bytes, closing: bytes) -> None:
    """Sixty-four enclosing values are read, sixty-five and ten thousand are refused."""
    for read in (decode, skip):
        read(opening * DEPTH_MAX + (closing or b"\x40") + b"\x40" * DEPTH_MAX)
        for depth in (DEPTH_MAX + 1, 10_000):
            with pytest.raises(DecodeError, match="nested"):
                read(opening * depth + b"\x40" * depth * 2)


@pytest.mark.rabbitmq("binary_parser_SUITE", "array32_count_exceeds_data")
def test_a_huge_count_costs_no_time() -> None:
    """Counts that the bytes do not bear out are refused before anything is built for them.

    Building 4 294 967 295 items takes minutes, if there is memory for them.
    """
    # Processor time of this thread: what a machine does meanwhile that has no time for us does not count.
    started = time.thread_time()
    for code in range(256):
        for read in (decode, skip):
            with pytest.raises(DecodeError):
                read(b"\xf0\x00\x00\x00\x0d\xff\xff\xff\xff" + bytes((code,)) + b"\x00" * 8)
    assert time.thread_time() - started < 20.0


@pytest.mark.rabbitmq(
    "binary_parser_SUITE", "array_of_described_zero_width_elements_unsupported", differs="read, up to a limit"
)
@pytest.mark.rabbitmq("binary_parser_SUITE", "array_of_zero_width_elements")
def test_an_array_of_items_without_width_has_a_limit_both_ways() -> None:
    """As many as the limit are read and written, one more is refused."""
    allowed = Array(0x41, (True,) * ZERO_WIDTH_ITEMS_MAX)
    assert decode(encode(allowed))[0] == allowed
    for read in (decode, skip):
        with pytest.raises(DecodeError, match="width 0"):
            read(bytes((0xE0, 2, ZERO_WIDTH_ITEMS_MAX + 1, 0x41)))
    with pytest.raises(EncodeError, match="width 0"):
        encode(Array(0x41, (True,) * (ZERO_WIDTH_ITEMS_MAX + 1)))


class Colour(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "as_if"),
    [
        (5, Long(5)),
        (Colour.RED, Long(3)),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        ((1, 2), [1, 2]),
    ],
)
def test_a_python_value_travels_as_the_nearest_type(value: Any, as_if: Any) -> None:
    """Values of plain and derived Python types are encoded as documented."""
    assert encode(value) == encode(as_if)


@pytest.mark.parametrize(
    "value",
    [
        range(1),
        2**63,
        -(2**63) - 1,
        "\ud800",
        {1, 2},
        [range(1)],
        Array(0x3F, ()),
        Array(0x50, (256,)),
        Array(0x50, ("a",)),
        Array(0x41, (False,)),
        Array(0x56, (1,)),
        Array(0x74, (Decimal64(bytes(8)),)),
        Array(0x73, ("\ud800",)),
        Array(0xA1, (b"a",)),
        Array(0xA1, ("a" * 256,)),
        Array(0xA3, ("é",)),
        Array(0xB1, (b"a",)),
        Array(0xC0, ({},)),
        Array(0xE0, ([],)),
        *(Array(code, (-1,)) for code in (0x50, 0x60, 0x70, 0x52, 0x80, 0x53)),
        Map(((UInt(1), 1), (UInt(1), 2))),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_does_not_fit_is_an_encode_error(value: Any) -> None:
    """A value without encoding raises EncodeError and nothing else."""
    with pytest.raises(EncodeError):
        encode(value)


@pytest.mark.parametrize("write", [write_ubyte, write_ushort, write_uint, write_ulong])
@pytest.mark.parametrize("value", [-1, 2**64, "1", None], ids=repr)
def test_a_field_without_a_sign_takes_no_other_number(write: Callable[[Any], bytes], value: Any) -> None:
    """Whatever the `struct` of this Python raises for it."""
    with pytest.raises(EncodeError, match="is no u"):
        write(value)


@pytest.mark.rabbitmq("binary_generator_SUITE", "array")
@pytest.mark.parametrize(
    ("items", "constructor"),
    [
        ([True, True], 0x56),
        ([UInt(0)], 0x52),
        ([UInt(0), UInt(256)], 0x70),
        ([ULong(1), ULong(2**40)], 0x80),
        ([Int(1), Int(1000)], 0x71),
        ([1, 2], 0x55),
        (["a", "b" * 256], 0xB1),
        ([[], [1]], 0xC0),
        ([[], [b"a" * 300]], 0xD0),
        ([{}], 0xC1),
        ([None], 0x40),
    ],
)
def test_array_of_takes_the_narrowest_constructor_that_fits_all(items: list[Any], constructor: int) -> None:
    """The constructor holds every item, and the array reads back."""
    array = array_of(items)
    assert array.constructor == constructor
    assert typed(decode(encode(array))[0]) == typed(array)


def test_a_map_decodes_to_a_dict_in_the_order_of_the_wire() -> None:
    """Order is kept, and keys of different Python values need no Map."""
    found = decode(encode({"z": 1, "a": 2, Symbol("m"): 3}))[0]
    assert type(found) is dict
    assert list(found) == ["z", "a", "m"]


@pytest.mark.parametrize("more", ["", "45 40"], ids=["dict", "Map"])
def test_not_a_number_is_never_the_same_key(more: str) -> None:
    """Two NaN keys are kept, as Python has it, whether the other keys can be hashed or not."""
    pairs = bytes.fromhex("82 7ff8000000000000 41 82 7ff8000000000000 42" + more)
    data = bytes((0xC1, len(pairs) + 1, 6 if more else 4)) + pairs
    found = decode(data)[0]
    assert len(found) == (3 if more else 2)
    assert encode(found) == data
