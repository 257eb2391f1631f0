"""The codec against arbitrary values and arbitrary bytes, and against another implementation."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import decode, encode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import as_composite, decode_composite
from tests.support.examples import tried
from tests.support.strategies import typed, values


@pytest.mark.rabbitmq("binary_parser_SUITE", "roundtrip")
@settings(max_examples=tried(150), deadline=None)
@given(values)
def test_a_value_reads_back_as_it_was_written(value: Any) -> None:
    """Decoding an encoding gives the value, types included, and both readers stop at its end."""
    data = encode(value)
    found, stop = decode(data)
    assert typed(found) == typed(value)
    assert stop == skip(data) == len(data)


@settings(max_examples=tried(50), deadline=None)
@given(values, st.binary(max_size=8), st.binary(max_size=8))
def test_a_value_is_read_alike_wherever_it_stands(value: Any, before: bytes, after: bytes) -> None:
    """Bytes around a value do not change what is read."""
    data = encode(value)
    found, stop = decode(before + data + after, len(before), len(before) + len(data))
    assert typed(found) == typed(value)
    assert stop == len(before) + len(data)


@settings(max_examples=tried(50), deadline=None)
@given(values)
def test_every_truncation_of_a_value_is_refused(value: Any) -> None:
    data = encode(value)
    for cut in range(len(data)):
        for read in (decode, skip):
            with pytest.raises(DecodeError):
                read(data, 0, cut)


def readers_agree(data: bytes) -> None:
    """Check that both readers accept or refuse the bytes alike, and that what was read can be written."""
    try:
        found, stop = decode(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            skip(data)
        return
    assert skip(data) == stop
    assert typed(decode(encode(found))[0]) == typed(found)


@settings(max_examples=tried(500), deadline=None)
@given(st.binary(max_size=40))
@example(b"\xc1\x05\x04\x45\x40\x45\x40")
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    """For any bytes the only exception is DecodeError."""
    readers_agree(data)


@settings(max_examples=tried(150), deadline=None)
@given(values, st.data())
def test_a_damaged_value_is_read_or_refused(value: Any, draw: st.DataObject) -> None:
    """One changed byte in a valid encoding reaches deeper than random bytes do."""
    data = bytearray(encode(value))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    readers_agree(bytes(data))


@settings(max_examples=tried(150), deadline=None)
@given(
    st.sampled_from([*range(0x10, 0x19), 0x1D, *range(0x23, 0x35), 0x40, 0x44, 0x70, 0x73]),
    st.lists(values, max_size=8),
)
def test_arbitrary_fields_are_read_or_refused(descriptor: int, fields: list[Any]) -> None:
    """A composite with any fields raises nothing but DecodeError, and one that is read can be written."""
    data = encode(t10.Described(t10.ULong(descriptor), fields))
    try:
        found, stop = decode_composite(data)
    except DecodeError:
        return
    assert stop == len(data)
    assert type(decode_composite(found.encode())[0]) is type(found)


@settings(max_examples=tried(300), deadline=None)
@given(st.sampled_from([0x10, 0x12, 0x13, 0x14, 0x15, 0x28, 0x34]), st.binary(max_size=30))
def test_arbitrary_bytes_as_a_composite_are_read_or_refused(descriptor: int, body: bytes) -> None:
    """The typed readers raise nothing but DecodeError, on bytes with a list around them and without."""
    for data in (
        bytes((0x00, 0x53, descriptor)) + body,
        bytes((0x00, 0x53, descriptor, 0xC0, len(body) + 1, len(body) % 15)) + body,
    ):
        try:
            found, stop = decode_composite(data)
        except DecodeError:
            continue
        assert stop == skip(data)
        assert isinstance(decode(data)[0], t10.Described)
        assert as_composite(decode(data)[0]).DESCRIPTOR == found.DESCRIPTOR


def put(data: Any, value: Any) -> None:
    scalars: dict[type, Any] = {
        bool: data.put_bool,
        t10.UByte: data.put_ubyte,
        t10.UShort: data.put_ushort,
        t10.UInt: data.put_uint,
        t10.ULong: data.put_ulong,
        t10.Byte: data.put_byte,
        t10.Short: data.put_short,
        t10.Int: data.put_int,
        t10.Timestamp: data.put_timestamp,
        float: data.put_double,
        bytes: data.put_binary,
        str: data.put_string,
        t10.Symbol: lambda symbol: data.put_symbol(str(symbol)),
    }
    if value is None:
        data.put_null()
    elif isinstance(value, list):
        data.put_list()
        data.enter()
        for item in value:
            put(data, item)
        data.exit()
    elif isinstance(value, (dict, t10.Map)):
        data.put_map()
        data.enter()
        for key, item in value.items():
            put(data, key)
            put(data, item)
        data.exit()
    elif isinstance(value, t10.Described):
        data.put_described()
        data.enter()
        put(data, value.descriptor)
        put(data, value.value)
        data.exit()
    elif isinstance(value, t10.Float):
        data.put_float(float(value))
    elif isinstance(value, t10.Char):
        data.put_char(str(value))
    elif isinstance(value, t10.Decimal32):
        data.put_decimal32(struct.unpack(">I", value.raw)[0])
    elif isinstance(value, t10.Decimal64):
        data.put_decimal64(struct.unpack(">Q", value.raw)[0])
    elif isinstance(value, t10.Decimal128):
        data.put_decimal128(value.raw)
    elif type(value) in scalars:
        plain = int(value) if isinstance(value, int) and not isinstance(value, bool) else value
        scalars[type(value)](plain)
    elif isinstance(value, int):
        data.put_long(int(value))
    else:
        data.put_uuid(value)


WIDER = {0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x52: 0x70, 0x44: 0x80, 0x53: 0x80, 0x54: 0x71, 0x55: 0x81}
WIDER |= {0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0}


def widened(form: Any) -> Any:
    """Return the form of `typed` with the widest constructor in every array, as proton does."""
    if isinstance(form, list):
        return [widened(item) for item in form]
    if isinstance(form, tuple) and form[0] == "array":
        return ("array", WIDER.get(form[1], form[1]), *map(widened, form[2:]))
    return tuple(map(widened, form)) if isinstance(form, tuple) else form


def without_arrays(value: Any) -> bool:
    """Return whether the value holds no array: proton chooses the constructors of arrays itself."""
    if isinstance(value, list):
        return all(map(without_arrays, value))
    if isinstance(value, (dict, t10.Map)):
        return all(without_arrays(key) and without_arrays(item) for key, item in value.items())
    if isinstance(value, t10.Described):
        return without_arrays(value.descriptor) and without_arrays(value.value)
    return type(value).__name__ != "Array"


@settings(max_examples=tried(100), deadline=None)
@given(values.filter(without_arrays))
def test_what_proton_writes_is_read_as_meant(value: Any) -> None:
    """An independent implementation's encoding decodes to the value that it was given."""
    proton = pytest.importorskip("proton")
    data = proton.Data()
    put(data, value)
    encoded = bytes(data.encode())
    found, stop = decode(encoded)
    assert typed(found) == typed(value)
    assert stop == skip(encoded) == len(encoded)


def plainly_described(value: Any) -> bool:
    """Return whether no described value is directly in another; proton's Data miscounts such values."""
    if isinstance(value, t10.Described):
        inner = (value.descriptor, value.value)
        return all(not isinstance(item, t10.Described) and plainly_described(item) for item in inner)
    if isinstance(value, list):
        return all(map(plainly_described, value))
    if isinstance(value, (dict, t10.Map)):
        return all(plainly_described(key) and plainly_described(item) for key, item in value.items())
    return True


@settings(max_examples=tried(100), deadline=None)
@given(values.filter(plainly_described))
def test_proton_reads_what_is_written(value: Any) -> None:
    """An independent implementation reads our whole encoding and writes the same value from it."""
    proton = pytest.importorskip("proton")
    encoded = encode(value)
    data = proton.Data()
    assert data.decode(encoded) == len(encoded)
    again, _stop = decode(bytes(data.encode()))
    assert widened(typed(again)) == widened(typed(value))
