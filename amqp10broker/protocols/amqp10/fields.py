"""Typed fields of composites: the runtime of the generated module `performatives` (part 1, section 1.4).

A field has a table with a reader per constructor byte, which accepts one AMQP type and null, so that the type
check has no extra cost. Numbers are returned as plain int. Readers of fields trust the list around them: one
that runs over its end is found when the whole list has been read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from amqp10broker.protocols.amqp10.decoder import READERS, Reader, decode, open8, open32, type_name
from amqp10broker.protocols.amqp10.encoder import (
    NULL,
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
from amqp10broker.protocols.amqp10.skipper import skip
from amqp10broker.protocols.amqp10.types import Array, Byte, Int, Long, Map, Short, Symbol, ULong

Decoder = Callable[[bytes, int, int, int], tuple[Any, int]]
"""Reads the list of a composite: buffer, position of its constructor, end, nesting depth."""

Spec = tuple[tuple[str, str], ...]
"""Name and type, as text, of every field of a composite."""

_USHORT: Final = struct.Struct(">H").unpack_from
_UINT: Final = struct.Struct(">I").unpack_from
_ULONG: Final = struct.Struct(">Q").unpack_from
_LONG: Final = struct.Struct(">q").unpack_from


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
    """Return a table that accepts these constructors and null."""
    full: list[Reader] = [_wrong_type] * 256
    full[0x40] = _null
    for code, reader in readers.items():
        full[code] = reader
    return full


def _zero(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int]:
    return 0, pos


def _one_byte(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int]:
    return data[pos], pos + 1


def _integer(unpack: Callable[[bytes, int], tuple[Any, ...]], width: int) -> Reader:
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


BOOLEAN: Final = table({code: READERS[code] for code in (0x41, 0x42, 0x56)})
UBYTE: Final = table({0x50: _one_byte})
USHORT: Final = table({0x60: _integer(_USHORT, 2)})
UINT: Final = table({0x43: _zero, 0x52: _one_byte, 0x70: _integer(_UINT, 4)})
ULONG: Final = table({0x44: _zero, 0x53: _one_byte, 0x80: _integer(_ULONG, 8)})
TIMESTAMP: Final = table({0x83: _integer(_LONG, 8)})
BINARY: Final = table({code: READERS[code] for code in (0xA0, 0xB0)})
STRING: Final = table({code: READERS[code] for code in (0xA1, 0xB1)})
SYMBOL: Final = table({code: READERS[code] for code in (0xA3, 0xB3)})
MAP: Final = table({code: _read_map(READERS[code]) for code in (0xC1, 0xD1)})
_MESSAGE_ID_CODES: Final = (0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1)
_SIGNED_CODES: Final = (0x51, 0x54, 0x55, 0x61, 0x71, 0x81)
# Part 3, section 3.2.4 has no signed integers, but programs in Go write an int, which is a long, and RabbitMQ
# takes them.
MESSAGE_ID: Final = table({code: READERS[code] for code in (*_MESSAGE_ID_CODES, *_SIGNED_CODES)})
SYMBOLS: Final = table(
    {code: _read_one_symbol(READERS[code]) for code in (0xA3, 0xB3)}
    | {code: _read_symbols(READERS[code]) for code in (0xE0, 0xF0)}
)
ANY: Final = READERS


def composites(decoders: Mapping[int | str, Decoder]) -> list[Reader]:
    """Return a table that accepts null and the composites with these descriptors (keys: codes and names)."""

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        descriptor, start = read_descriptor(data, pos, end)
        decoder = decoders.get(descriptor)
        if decoder is None:
            raise WrongType(pos - 1)
        return decoder(data, start, end, depth + 2)

    return table({0x00: read})


def read_descriptor(data: bytes, pos: int, end: int) -> tuple[int | str, int]:
    """Return the descriptor at `pos` as code or name, and the position after it."""
    if pos + 1 < end and data[pos] == 0x53:
        return data[pos + 1], pos + 2
    descriptor, after = decode(data, pos, end)
    if type(descriptor) is not ULong and type(descriptor) is not Symbol:
        actual = type_name(data, pos, end)
        raise DecodeError(f"descriptor at offset {pos} must be ulong or symbol, not {actual}")
    return descriptor, after


def open_fields(data: bytes, pos: int, end: int, name: str, limit: int) -> tuple[int, int, int]:
    """Return start, stop and number of the fields of a composite, at most `limit`."""
    if pos >= end:
        raise DecodeError(f"truncated {name} at offset {pos}")
    code = data[pos]
    if code == 0xC0:
        start, stop, count = open8(data, pos + 1, end, name)
    elif code == 0x45:
        return pos + 1, pos + 1, 0
    elif code == 0xD0:
        start, stop, count = open32(data, pos + 1, end, name)
    else:
        raise DecodeError(f"{name} at offset {pos} must be a list, not {type_name(data, pos, end)}")
    if count > limit:
        raise DecodeError(f"{name} at offset {pos} has {count} fields, {limit} are defined")
    return start, stop, count


def missing(field: str, name: str) -> DecodeError:
    """Return the error for a mandatory field that is null or omitted."""
    return DecodeError(f"mandatory field {field!r} of {name} is missing")


def overrun(name: str, pos: int, stop: int) -> DecodeError:
    """Return the error for a list with fields that do not end where it does."""
    return DecodeError(f"the fields of {name} end at offset {pos} and were to end at {stop}")


FAULTS: Final = (WrongType, IndexError, struct.error)
"""The exceptions of readers of fields, besides `DecodeError`; pass them to `fault`."""


def fault(error: Exception, data: bytes, start: int, stop: int, name: str, spec: Spec) -> DecodeError:
    """Return the error to raise for one of `FAULTS` in the fields of a composite. `start`: of the first
    field; the offending one is found by walking from there.
    """
    if not isinstance(error, WrongType) or error.pos >= stop:
        return DecodeError(f"the fields of {name} at offset {start} end too early")
    index, pos = 0, start
    while pos < error.pos:
        pos = skip(data, pos, stop)
        index += 1
    field, expected = spec[index]
    return DecodeError(f"field {field!r} of {name} must be {expected}, not {type_name(data, pos, stop)}")


def compose(prefix: bytes, parts: list[bytes]) -> bytes:
    """Encode a composite: `prefix` (0x00 and the descriptor), then fields without trailing nulls."""
    while parts and parts[-1] == NULL:
        parts.pop()
    if not parts:
        return prefix + b"\x45"
    return prefix + write_compound(0xC0, 0xD0, len(parts), b"".join(parts))


def write_symbols(value: Iterable[str], depth: int = 0) -> bytes:
    """Encode a field with multiple="true" (section 1.4): one symbol as itself, otherwise an array."""
    if isinstance(value, str):
        return write_symbol(value)
    symbols = tuple(value)
    if len(symbols) == 1:
        return write_symbol(symbols[0])
    wide = any(len(symbol) > 255 for symbol in symbols)
    return write_array(Array(0xB3 if wide else 0xA3, symbols), depth)


def write_fields(value: Mapping[Any, Any], depth: int = 0) -> bytes:
    """Encode a mapping as map with symbols as keys (part 2, 2.8.13)."""
    check_depth(depth)
    if not isinstance(value, (dict, Mapping)):
        raise misfit(value, "map")
    parts = []
    for key, item in value.items():
        parts.append(write_symbol(key) if isinstance(key, str) else write_any(key, depth + 1))
        parts.append(write_any(item, depth + 1))
    return write_compound(0xC1, 0xD1, len(parts), b"".join(parts))


def write_composite(value: Any) -> bytes:
    """Encode a composite in a field; refuse all else, above all a str, which has its own `encode`."""
    if not hasattr(value, "DESCRIPTOR"):
        raise EncodeError(f"{value!r} is no composite")
    encoded: bytes = value.encode()
    return encoded


def write_message_id(value: Any) -> bytes:
    """Encode a message-id or correlation-id (part 3, section 3.2.11-14).

    int as ulong, UUID, bytes as binary, str as string; signed integers with their own type, so that ids are
    returned as they came.
    """
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
