"""Values, composites and performatives of AMQP 1.0, against the bytes of the specification."""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.codec import array_of, decode, encode, skip
from amqp10broker.protocols.amqp10.encoder import write_ubyte, write_uint, write_ulong, write_ushort
from amqp10broker.protocols.amqp10.errors import Condition, DecodeError, EncodeError
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

ROOT = Path(__file__).parents[3]
SPEC = ROOT / "spec" / "amqp-1.0" / "types.xml"

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
    assert encode(value).hex() == text.replace(" ", "")


@pytest.mark.rabbitmq(
    "binary_parser_SUITE", "peek_described_section_total_sizes", "peek_total_size_matches_parse"
)
@pytest.mark.rabbitmq("binary_parser_SUITE", "array_element_widths", "binary", "list", "map", "value")
@pytest.mark.parametrize(("text", "value"), SHORTEST + LONGER, ids=ids(SHORTEST + LONGER))
def test_an_encoding_is_decoded_to_a_value_of_its_type(text: str, value: Any) -> None:
    """Decoding gives value and type of the table and stops after the encoding, where `skip` stops too."""
    data = bytes.fromhex(text)
    found, stop = decode(b"\x99" + data + b"\x99", 1)
    assert typed(found) == typed(value)
    assert type(found) is type(value)
    assert stop == skip(b"\x99" + data + b"\x99", 1) == len(data) + 1


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
    """An array of exactly the limit is read and written; one more item is refused."""
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
    with pytest.raises(EncodeError):
        encode(value)


@pytest.mark.parametrize("write", [write_ubyte, write_ushort, write_uint, write_ulong])
@pytest.mark.parametrize("value", [-1, 2**64, "1", None], ids=repr)
def test_a_field_without_a_sign_takes_no_other_number(write: Callable[[Any], bytes], value: Any) -> None:
    """EncodeError replaces the error that `struct` raises."""
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
    """Two NaN keys are both kept, as in Python, whether or not the other keys are hashable."""
    pairs = bytes.fromhex("82 7ff8000000000000 41 82 7ff8000000000000 42" + more)
    data = bytes((0xC1, len(pairs) + 1, 6 if more else 4)) + pairs
    found = decode(data)[0]
    assert len(found) == (3 if more else 2)
    assert encode(found) == data


RANGES = [
    (UByte, 0, 255),
    (UShort, 0, 65535),
    (UInt, 0, 4294967295),
    (ULong, 0, 18446744073709551615),
    (Byte, -128, 127),
    (Short, -32768, 32767),
    (Int, -2147483648, 2147483647),
    (Long, -9223372036854775808, 9223372036854775807),
    (Timestamp, -9223372036854775808, 9223372036854775807),
]


@pytest.mark.parametrize(("kind", "low", "high"), RANGES)
def test_an_integer_type_holds_its_range_and_no_more(kind: type[Any], low: int, high: int) -> None:
    assert kind(low) == low
    assert kind(high) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(EncodeError, match=str(outside)):
            kind(outside)


@pytest.mark.parametrize("text", ["", "ab", chr(0xD800), chr(0xDFFF)])
def test_a_char_is_one_scalar_value(text: str) -> None:
    """An empty text, two characters and a surrogate are refused."""
    with pytest.raises(EncodeError):
        Char(text)


@pytest.mark.parametrize(("kind", "width"), [(Decimal32, 4), (Decimal64, 8), (Decimal128, 16)])
def test_a_decimal_has_the_width_of_its_type(kind: type[Any], width: int) -> None:
    assert kind(bytes(width)).raw == bytes(width)
    for wrong in (width - 1, width + 1):
        with pytest.raises(EncodeError):
            kind(bytes(wrong))


def test_a_map_finds_a_key_by_type_and_value() -> None:
    """Keys that are equal in Python are told apart."""
    found = Map(((UInt(1), "uint"), (ULong(1), "ulong"), (True, "true")))
    assert [found.get(key) for key in (UInt(1), ULong(1), True)] == ["uint", "ulong", "true"]
    assert found.get(1, "none") == "none"
    assert len(found) == 3


FRAMES: list[tuple[str, amqp10.Composite]] = [
    ("005310 c0 04 01 a1 01 63", amqp10.Open(container_id="c")),
    (
        "005310 c0 11 08 a1 01 63 40 70 00010000 40 40 40 40 a3 01 78",
        amqp10.Open(container_id="c", max_frame_size=65536, offered_capabilities=(Symbol("x"),)),
    ),
    (
        "005310 c0 12 08 a1 01 63 40 40 40 40 40 40 e0 06 02 a3 01 78 01 79",
        amqp10.Open(container_id="c", offered_capabilities=(Symbol("x"), Symbol("y"))),
    ),
    (
        "005311 c0 07 04 40 43 52 01 52 02",
        amqp10.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=2),
    ),
    ("005312 c0 06 03 a1 01 6c 43 41", amqp10.Attach(name="l", handle=0, role=amqp10.Role.RECEIVER)),
    (
        "005312 c0 15 07 a1 01 6c 43 42 40 40 00 53 28 c0 04 01 a1 01 73 00 53 29 45",
        amqp10.Attach(
            name="l",
            handle=0,
            role=amqp10.Role.SENDER,
            source=amqp10.Source(address="s"),
            target=amqp10.Target(),
        ),
    ),
    (
        "005313 c0 0e 09 52 01 52 02 43 52 03 43 40 52 0a 40 41",
        amqp10.Flow(
            next_incoming_id=1,
            incoming_window=2,
            next_outgoing_id=0,
            outgoing_window=3,
            handle=0,
            link_credit=10,
            drain=True,
        ),
    ),
    (
        "005314 c0 0a 06 52 01 43 a0 01 74 43 42 41",
        amqp10.Transfer(
            handle=1, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False, more=True
        ),
    ),
    (
        "005315 c0 0a 05 41 43 52 05 41 00 53 24 45",
        amqp10.Disposition(role=amqp10.Role.RECEIVER, first=0, last=5, settled=True, state=amqp10.Accepted()),
    ),
    ("005316 c0 03 02 43 41", amqp10.Detach(handle=0, closed=True)),
    ("005317 45", amqp10.End()),
    (
        "005318 c0 0d 01 00 53 1d c0 07 02 a3 01 63 a1 01 64",
        amqp10.Close(error=amqp10.Error(condition=Symbol("c"), description="d")),
    ),
    ("005323 c0 05 02 52 01 53 02", amqp10.Received(section_number=1, section_offset=2)),
    (
        "005325 c0 0a 01 00 53 1d c0 04 01 a3 01 63",
        amqp10.Rejected(error=amqp10.Error(condition=Symbol("c"))),
    ),
    ("005326 45", amqp10.Released()),
    ("005327 c0 03 02 42 41", amqp10.Modified(delivery_failed=False, undeliverable_here=True)),
    ("005330 c0 04 01 a3 01 74", amqp10.Coordinator(capabilities=(Symbol("t"),))),
    ("005331 45", amqp10.Declare()),
    ("005332 c0 05 02 a0 01 74 42", amqp10.Discharge(txn_id=b"t", fail=False)),
    ("005333 c0 04 01 a0 01 74", amqp10.Declared(txn_id=b"t")),
    (
        "005334 c0 08 02 a0 01 74 00 53 24 45",
        amqp10.TransactionalState(txn_id=b"t", outcome=amqp10.Accepted()),
    ),
    ("00532b 45", amqp10.DeleteOnClose()),
    ("005340 c0 04 01 a3 01 50", amqp10.SaslMechanisms(sasl_server_mechanisms=(Symbol("P"),))),
    ("005340 c0 05 01 e0 02 00 a3", amqp10.SaslMechanisms(sasl_server_mechanisms=())),
    ("005341 c0 07 02 a3 01 50 a0 01 00", amqp10.SaslInit(mechanism=Symbol("P"), initial_response=b"\0")),
    ("005344 c0 03 01 50 01", amqp10.SaslOutcome(code=amqp10.SaslCode.AUTH)),
    (
        "005370 c0 0b 05 41 50 04 70 00000100 40 43",
        amqp10.Header(durable=True, priority=4, ttl=256, delivery_count=0),
    ),
    ("005373 c0 04 01 a1 01 69", amqp10.Properties(message_id="i")),
    ("005373 c0 03 01 53 07", amqp10.Properties(message_id=ULong(7))),
    ("005373 c0 04 01 a0 01 69", amqp10.Properties(message_id=b"i")),
    ("005373 c0 12 01 98" + "00" * 16, amqp10.Properties(message_id=UUID(int=0))),
    (
        "005373 c0 12 09 40 40 40 40 40 40 40 40 83 0000000000000005",
        amqp10.Properties(absolute_expiry_time=5),
    ),
]


def names(rows: list[tuple[str, Any]]) -> list[str]:
    return [type(row[1]).__name__ for row in rows]


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_composite_has_exactly_these_bytes(text: str, composite: amqp10.Composite) -> None:
    """Encoding leaves trailing absent and default fields out and keeps mandatory ones."""
    assert composite.encode().hex() == text.replace(" ", "")


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_composite_reads_back(text: str, composite: amqp10.Composite) -> None:
    data = bytes.fromhex(text)
    found, stop = amqp10.decode_composite(b"\x99" + data + b"\x99", 1, len(data) + 1)
    assert found == composite
    assert type(found) is type(composite)
    assert stop == len(data) + 1


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_every_truncation_of_a_composite_is_a_decode_error(text: str, composite: amqp10.Composite) -> None:
    """A composite cut anywhere is refused, whatever follows the cut."""
    data = bytes.fromhex(text)
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            amqp10.decode_composite(data[:cut])
        with pytest.raises(DecodeError):
            amqp10.decode_composite(data + b"\x40" * 8, 0, cut)


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_descriptor_may_be_a_name_or_a_long_number(text: str, composite: amqp10.Composite) -> None:
    """Symbolic descriptors and ulongs of eight bytes mean the same as the short one."""
    fields = bytes.fromhex(text)[3:]
    for descriptor in (encode(Symbol(composite.NAME)), b"\x80" + composite.DESCRIPTOR.to_bytes(8, "big")):
        assert amqp10.decode_composite(b"\x00" + descriptor + fields)[0] == composite


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_fields_end_exactly_where_their_list_does(text: str, composite: amqp10.Composite) -> None:
    """A list one byte shorter or longer than its fields is refused, also when the bytes are there."""
    data = bytearray.fromhex(text.replace(" ", "") + "40")
    if data[3] == 0x45:
        return
    for size in (data[4] - 1, data[4] + 1):
        wrong = bytes(data[:4]) + bytes((size,)) + bytes(data[5:])
        with pytest.raises(DecodeError):
            amqp10.decode_composite(wrong)


def fields(descriptor: int, *values: Any) -> bytes:
    return encode(Described(ULong(descriptor), list(values)))


REFUSED_COMPOSITE: list[tuple[bytes, str]] = [
    (b"", "a composite was to start at offset 0"),
    (b"\x45", "a composite was to start at offset 0"),
    (fields(0x99), "unknown descriptor 0x99 at offset 0"),
    (encode(Described(Symbol("amqp:nothing:list"), [])), "unknown descriptor amqp:nothing:list"),
    (encode(Described(UInt(0x10), ["c"])), "descriptor at offset 1 must be ulong or symbol, not uint"),
    (encode(Described("amqp:open:list", ["c"])), "must be ulong or symbol, not string"),
    (encode(Described([], ["c"])), "must be ulong or symbol, not list"),
    (encode(Described(ULong(0x10), {})), "open at offset 3 must be a list, not map"),
    (fields(0x17, None, None), "end at offset 3 has 2 fields, 1 are defined"),
    (fields(0x24, None), "accepted at offset 3 has 1 fields, 0 are defined"),
    (fields(0x16), "mandatory field 'handle' of detach is missing"),
    (fields(0x16, None), "mandatory field 'handle' of detach is missing"),
    (fields(0x12, "l", UInt(0)), "mandatory field 'role' of attach is missing"),
    (fields(0x40, None), "mandatory field 'sasl-server-mechanisms' of sasl-mechanisms is missing"),
    (
        fields(0x13, None, UInt(1), UInt(1), UInt(1), UInt(0), UInt(0), "ten"),
        "field 'link-credit' of flow must be uint, not string",
    ),
    (fields(0x16, ULong(1)), "field 'handle' of detach must be uint, not ulong"),
    (fields(0x16, 1), "field 'handle' of detach must be uint, not long"),
    (fields(0x16, UInt(1), UInt(1)), "field 'closed' of detach must be boolean, not uint"),
    (fields(0x10, Symbol("c")), "field 'container-id' of open must be string, not symbol"),
    (
        fields(0x10, "c", None, None, None, None, None, None, Array(0xA1, ("a",))),
        "field 'offered-capabilities' of open must be symbol or array of symbol, not array",
    ),
    (
        fields(0x10, "c", None, None, None, None, None, None, Array(0xA3, (), (Symbol("d"),))),
        "must be symbol or array of symbol, not array",
    ),
    (
        fields(0x15, True, UInt(0), None, None, Described(ULong(0x28), [])),
        "field 'state' of disposition must be delivery-state, not described value 0x28",
    ),
    (
        fields(0x15, True, UInt(0), None, None, Described(Symbol("x:y"), [])),
        "field 'state' of disposition must be delivery-state, not described value x:y",
    ),
    (
        fields(0x12, "l", UInt(0), True, None, None, Described(ULong(0x29), [])),
        "field 'source' of attach must be source, not described value 0x29",
    ),
    (
        fields(0x12, "l", UInt(0), True, None, None, "address"),
        "field 'source' of attach must be source, not string",
    ),
    (
        fields(0x34, b"t", Described(ULong(0x34), [b"t"])),
        "field 'outcome' of transactional-state must be outcome, not described value 0x34",
    ),
    (fields(0x33, "t"), "field 'txn-id' of declared must be binary, not string"),
    (
        fields(0x73, Symbol("i")),
        "field 'message-id' of properties must be ulong, uuid, binary or string, not symbol",
    ),
    (fields(0x25, Described(ULong(0x1D), [])), "mandatory field 'condition' of error is missing"),
    (fields(0x25, [Symbol("c")]), "field 'error' of rejected must be error, not list"),
    (
        bytes.fromhex("005316c003023f40"),
        "field 'handle' of detach must be uint, not unknown constructor 0x3f",
    ),
    (bytes.fromhex("005316c003014341"), "fields of detach end at offset 7 and were to end at 8"),
    (bytes.fromhex("005316c0020243"), "end too early"),
    (bytes.fromhex("005316c0020170"), "end too early"),
    (bytes.fromhex("005316c00202434199"), "were to end at 7"),
]


@pytest.mark.parametrize(
    ("data", "message"), REFUSED_COMPOSITE, ids=[row[1][:60] for row in REFUSED_COMPOSITE]
)
def test_a_composite_that_breaks_its_definition_is_refused_with_the_field(data: bytes, message: str) -> None:
    """The message names the composite, the field, and what was expected and found."""
    with pytest.raises(DecodeError) as caught:
        amqp10.decode_composite(data)
    assert message in caught.value.description


def test_absent_and_null_fields_have_their_defaults() -> None:
    """Whether a field is left out or null, the default of the definition comes out."""
    for extra in ([], [None] * 9):
        found = amqp10.decode_composite(fields(0x10, "c", *extra))[0]
        assert isinstance(found, amqp10.Open)
        assert (found.max_frame_size, found.channel_max, found.idle_time_out) == (4294967295, 65535, None)
    for extra in ([], [None] * 11):
        attach = amqp10.decode_composite(fields(0x12, "l", UInt(0), True, *extra))[0]
        assert isinstance(attach, amqp10.Attach)
        assert attach.snd_settle_mode == amqp10.SenderSettleMode.MIXED
        assert attach.rcv_settle_mode == amqp10.ReceiverSettleMode.FIRST
        assert attach.incomplete_unsettled is False
    source = amqp10.decode_composite(fields(0x28))[0]
    assert isinstance(source, amqp10.Source)
    assert source.durable == amqp10.TerminusDurability.NONE
    assert source.expiry_policy == amqp10.TerminusExpiryPolicy.SESSION_END


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Symbol("a"), (Symbol("a"),)),
        (Array(0xA3, (Symbol("a"), Symbol("b"))), (Symbol("a"), Symbol("b"))),
        (Array(0xB3, (Symbol("a"),)), (Symbol("a"),)),
        (Array(0xA3), ()),
        (None, None),
    ],
)
def test_a_multiple_field_is_a_tuple_of_symbols(value: Any, expected: Any) -> None:
    """One symbol, an array of either width and an empty array come out alike."""
    found = amqp10.decode_composite(fields(0x30, value))[0]
    assert isinstance(found, amqp10.Coordinator)
    assert found.capabilities == expected


def test_described_values_in_maps_stay_described() -> None:
    """Filters and lifetime policies in maps are not read as composites, but can be."""
    policy = Described(ULong(0x2B), [])
    source = amqp10.Source(
        dynamic=True,
        dynamic_node_properties={"lifetime-policy": amqp10.DeleteOnClose()},
        filter={"f": Described(Symbol("apache.org:selector-filter:string"), "a = 1")},
    )
    found = amqp10.decode_composite(source.encode())[0]
    assert isinstance(found, amqp10.Source)
    assert found.dynamic_node_properties == {Symbol("lifetime-policy"): policy}
    assert found.filter == {"f": Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    assert amqp10.as_composite(policy) == amqp10.DeleteOnClose()


def test_fields_with_colliding_keys_are_refused() -> None:
    """A dict could not hold symbol and string of the same text apart."""
    data = (
        bytes.fromhex("005310 c0 14 0a a1 01 63")
        + b"\x40" * 8
        + bytes.fromhex("c1 09 04 a1 01 61 41 a3 01 61 42")
    )
    data = data[:4] + bytes((len(data) - 5,)) + data[5:]
    with pytest.raises(DecodeError, match="mixed types"):
        amqp10.decode_composite(data)


@pytest.mark.parametrize(
    "composite",
    [
        amqp10.Detach(handle=-1),
        amqp10.Detach(handle=2**32),
        amqp10.Disposition(role=None, first=0),  # type: ignore[arg-type]
        amqp10.Detach(handle="0"),  # type: ignore[arg-type]
        amqp10.Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=0, remote_channel=65536),
        amqp10.Open(container_id=b"c"),  # type: ignore[arg-type]
        amqp10.Attach(name="l", handle=0, role=True, source="s"),  # type: ignore[arg-type]
        amqp10.Error(condition=Symbol("c"), info=[]),  # type: ignore[arg-type]
        amqp10.Properties(message_id=True),  # type: ignore[arg-type]
        amqp10.Coordinator(capabilities=("é",)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_field_that_does_not_fit_is_an_encode_error(composite: amqp10.Composite) -> None:
    """A broker's own mistake raises EncodeError and writes no malformed bytes."""
    with pytest.raises(EncodeError):
        composite.encode()


NAMESPACE = {"a": "https://www.amqp.org/schema/amqp.xsd"}


def test_performatives_do_not_drift_from_their_definitions() -> None:
    """The module that is checked in is the one the generator writes."""
    command = [sys.executable, str(ROOT / ".ci" / "generate_performatives.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_composite_of_the_definitions_has_its_class() -> None:
    """Names, descriptors and fields are those of the XML files."""
    found = 0
    for path in (ROOT / "spec" / "amqp-1.0").glob("*.xml"):
        for element in (
            ElementTree.parse(path).getroot().iterfind("a:section/a:type[@class='composite']", NAMESPACE)
        ):
            descriptor = element.find("a:descriptor", NAMESPACE)
            assert descriptor is not None
            name = "".join(part.capitalize() for part in element.attrib["name"].split("-"))
            composite = getattr(amqp10, name)
            assert descriptor.attrib["name"] == composite.NAME
            assert int(descriptor.attrib["code"].replace(":0x", ""), 16) == composite.DESCRIPTOR
            fields = [f.attrib["name"].replace("-", "_") for f in element.iterfind("a:field", NAMESPACE)]
            assert list(composite.__slots__) == fields
            found += 1
    assert found == 33


def test_every_error_condition_of_the_transport_has_its_constant() -> None:
    """The conditions written by hand are complete and spelled as in the XML."""
    root = ElementTree.parse(ROOT / "spec" / "amqp-1.0" / "transport.xml").getroot()
    specified = {
        choice.attrib["value"]
        for element in root.iterfind("a:section/a:type[@provides='error-condition']", NAMESPACE)
        for choice in element.iterfind("a:choice", NAMESPACE)
    }
    assert specified
    assert {value for name, value in vars(Condition).items() if name.isupper()} >= specified
