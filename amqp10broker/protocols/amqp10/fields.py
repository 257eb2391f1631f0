"""Typed fields of composites: readers and writers for `composite` (part 1, section 1.4).

A field has a table with a reader per constructor byte, which accepts one AMQP type and null, so that the type
check has no extra cost. Numbers are returned as plain int. Readers of fields trust the list around them: one
that runs over its end is found when the whole list has been read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from amqp10broker.protocols.amqp10 import encoder
from amqp10broker.protocols.amqp10.decoder import READERS, Reader
from amqp10broker.protocols.amqp10.encoder import (
    check_depth,
    misfit,
    write_any,
    write_array,
    write_binary,
    write_compound,
    write_string,
    write_symbol,
    write_ulong,
    write_uuid,
)
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.types import Array, Byte, Int, Long, Map, Short


class WrongType(Exception):
    """A field has a constructor of another type. The composite adds the field's name."""

    def __init__(self, pos: int) -> None:
        super().__init__(pos)
        self.pos = pos


def _wrong_type(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raise WrongType(pos - 1)


def _null(data: bytes, pos: int, end: int, depth: int) -> tuple[None, int]:
    return None, pos


def table(readers: Mapping[int, Reader]) -> list[Reader]:
    full: list[Reader] = [_wrong_type] * 256
    full[0x40] = _null
    for code, reader in readers.items():
        full[code] = reader
    return full


def _zero(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int]:
    return 0, pos


def _one_byte(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int]:
    return data[pos], pos + 1


def _integer(layout: str) -> Reader:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        return unpack(data, pos)[0], pos + width

    return read


def _read_map(reader: Reader) -> Reader:
    # As dict: the keys are symbols or binaries, which a dict can hold.
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        value, stop = reader(data, pos, end, depth)
        if type(value) is Map:
            raise DecodeError(f"map at offset {pos} has keys of mixed types")
        return value, stop

    return read


def _read_one_symbol(reader: Reader) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        value, stop = reader(data, pos, end, depth)
        return (value,), stop

    return read


def _read_symbols(reader: Reader) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        value, stop = reader(data, pos, end, depth)
        if value.constructor not in (0xA3, 0xB3) or value.descriptors:
            raise WrongType(pos - 1)
        return value.items, stop

    return read


FAULTS: Final = (WrongType, IndexError, struct.error)
"""The exceptions of readers of fields, besides `DecodeError`."""


def _write_symbols(value: Iterable[str], depth: int = 0) -> bytes:
    """Encode a field with multiple="true" (section 1.4): one symbol as itself, otherwise an array."""
    if isinstance(value, str):
        return write_symbol(value)
    symbols = tuple(value)
    if len(symbols) == 1:
        return write_symbol(symbols[0])
    wide = any(len(symbol) > 255 for symbol in symbols)
    return write_array(Array(0xB3 if wide else 0xA3, symbols), depth)


def _write_fields(value: Mapping[Any, Any], depth: int = 0) -> bytes:
    check_depth(depth)
    if not isinstance(value, (dict, Mapping)):
        raise misfit(value, "map")
    parts = []
    for key, item in value.items():
        parts.append(write_symbol(key) if isinstance(key, str) else write_any(key, depth + 1))
        parts.append(write_any(item, depth + 1))
    return write_compound(0xC1, 0xD1, len(parts), b"".join(parts))


def _write_message_id(value: Any) -> bytes:
    """Part 3, section 3.2.11-14. Signed integers keep their type, so that ids are returned as they came."""
    if isinstance(value, str):
        return write_string(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return write_binary(value)
    if isinstance(value, UUID):
        return write_uuid(value)
    if isinstance(value, (Byte, Short, Int, Long)):
        return write_any(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return write_ulong(value)
    raise EncodeError(f"{value!r} is no message id: ulong, uuid, binary or string")


class FieldType(NamedTuple):
    readers: list[Reader]
    write: Callable[[Any], bytes]
    words: str
    """What an error calls the type."""


def _field_type(codes: Iterable[int], write: Callable[[Any], bytes], words: str) -> FieldType:
    return FieldType(table({code: READERS[code] for code in codes}), write, words)


_MESSAGE_ID_CODES: Final = (0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1)
_SIGNED_CODES: Final = (0x51, 0x54, 0x55, 0x61, 0x71, 0x81)
_MAP: Final = table({code: _read_map(READERS[code]) for code in (0xC1, 0xD1)})
_SYMBOLS: Final = table(
    {code: _read_one_symbol(READERS[code]) for code in (0xA3, 0xB3)}
    | {code: _read_symbols(READERS[code]) for code in (0xE0, 0xF0)}
)

FIELD_TYPES: Final = {
    "boolean": _field_type((0x41, 0x42, 0x56), encoder.write_boolean, "boolean"),
    "ubyte": FieldType(table({0x50: _one_byte}), encoder.write_ubyte, "ubyte"),
    "ushort": FieldType(table({0x60: _integer(">H")}), encoder.write_ushort, "ushort"),
    "uint": FieldType(
        table({0x43: _zero, 0x52: _one_byte, 0x70: _integer(">I")}), encoder.write_uint, "uint"
    ),
    "ulong": FieldType(table({0x44: _zero, 0x53: _one_byte, 0x80: _integer(">Q")}), write_ulong, "ulong"),
    "timestamp": FieldType(table({0x83: _integer(">q")}), encoder.write_timestamp, "timestamp"),
    "binary": _field_type((0xA0, 0xB0), write_binary, "binary"),
    "string": _field_type((0xA1, 0xB1), write_string, "string"),
    "symbol": _field_type((0xA3, 0xB3), write_symbol, "symbol"),
    "symbols": FieldType(_SYMBOLS, _write_symbols, "symbol or array of symbol"),
    "map": FieldType(_MAP, encoder.write_map, "map"),
    "fields": FieldType(_MAP, _write_fields, "map"),
    # Part 3, section 3.2.4 has no signed integers, but programs in Go write an int, which is a long, and
    # RabbitMQ takes them.
    "message-id": _field_type(
        (*_MESSAGE_ID_CODES, *_SIGNED_CODES), _write_message_id, "ulong, uuid, binary or string"
    ),
    "address": FieldType(READERS, write_any, "address"),
    "global-tx-id": FieldType(READERS, write_any, "global-tx-id"),
    "any": FieldType(READERS, write_any, "any value"),
}
