"""Values of the AMQP 1.0 type system on the wire (part 1, section 1.6): `decode`, `skip`, and `encode`.

Anything that is not exactly an encoding of the specification raises `DecodeError`, and no allocation depends
on an unchecked count. A reader takes the buffer, the position after the constructor, the end of the enclosing
value and the nesting depth; it returns the value and the position after it. A skipper returns the position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from amqp10broker.protocols.amqp10.encoder import array_of as array_of
from amqp10broker.protocols.amqp10.encoder import encode as encode
from amqp10broker.protocols.amqp10.errors import DecodeError
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

Reader = Callable[[bytes, int, int, int], tuple[Any, int]]
Extent = Callable[[bytes, int, int, str], tuple[int, int]]
Opener = Callable[[bytes, int, int, str], tuple[int, int, int]]

_UINT32: Final = struct.Struct(">I").unpack_from
_SIZE_COUNT32: Final = struct.Struct(">II").unpack_from


def decode(data: bytes, pos: int = 0, end: int | None = None) -> tuple[Any, int]:
    """Return one value, as described in `types`, and the position after it. `end`: of the enclosing frame or
    value.
    """
    if end is None:
        end = len(data)
    if not pos < end <= len(data):
        raise truncated("value", pos)
    return READERS[data[pos]](data, pos + 1, end, 0)


def type_name(data: bytes, pos: int, end: int) -> str:
    """Return the name of the type of the value at `pos`, for an error."""
    if pos >= end:
        return "nothing"
    code = data[pos]
    if code:
        return TYPE_NAMES.get(code, f"unknown constructor 0x{code:02x}")
    try:
        descriptor = decode(data, pos + 1, end)[0]
    except DecodeError:
        return "described value"
    return f"described value {hex(descriptor) if type(descriptor) is ULong else descriptor}"


def truncated(what: str, pos: int) -> DecodeError:
    return DecodeError(f"truncated {what} at offset {pos}")


def _read_unknown(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raise DecodeError(f"unknown constructor 0x{data[pos - 1]:02x} at offset {pos - 1}")


# Fixed widths


def _decode_constant(value: Any) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        return value, pos

    return read


def _number(kind: type[int | float], layout: str, name: str = "") -> Reader:
    fields = struct.Struct(layout)
    unpack, width, name = fields.unpack_from, fields.size, name or kind.__name__.lower()
    new: Any = int.__new__ if issubclass(kind, int) else float.__new__

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        stop = pos + width
        if stop > end:
            raise truncated(name, pos)
        return new(kind, unpack(data, pos)[0]), stop

    return read


def _one_byte(kind: type[int], *, signed: bool) -> Reader:
    name = kind.__name__.lower()
    values = tuple(kind(n - 256 if signed and n > 127 else n) for n in range(256))

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        if pos >= end:
            raise truncated(name, pos)
        return values[data[pos]], pos + 1

    return read


def _bytes_of(kind: Callable[[bytes], Any], name: str, width: int) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        stop = pos + width
        if stop > end:
            raise truncated(name, pos)
        return kind(data[pos:stop]), stop

    return read


def _read_boolean(data: bytes, pos: int, end: int, depth: int) -> tuple[bool, int]:
    if pos >= end:
        raise truncated("boolean", pos)
    octet = data[pos]
    if octet > 1:
        raise DecodeError(f"boolean byte 0x{octet:02x} at offset {pos} is neither 0x00 nor 0x01")
    return octet == 1, pos + 1


def _read_char(data: bytes, pos: int, end: int, depth: int) -> tuple[Char, int]:
    if pos + 4 > end:
        raise truncated("char", pos)
    point: int = _UINT32(data, pos)[0]
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise DecodeError(f"char 0x{point:x} at offset {pos} is not a Unicode scalar value")
    return str.__new__(Char, chr(point)), pos + 4


# Variable widths


def extent8(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Return start and stop of the content behind a one-byte size."""
    if pos >= end:
        raise truncated(what, pos)
    stop = pos + 1 + data[pos]
    if stop > end:
        raise DecodeError(f"{what} of {data[pos]} bytes at offset {pos} has only {end - pos - 1}")
    return pos + 1, stop


def extent32(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    start = pos + 4
    if start > end:
        raise truncated(what, pos)
    size: int = _UINT32(data, pos)[0]
    if size > end - start:
        raise DecodeError(f"{what} of {size} bytes at offset {pos} has only {end - start}")
    return start, start + size


def _binary(extent: Extent) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[bytes, int]:
        start, stop = extent(data, pos, end, "binary")
        return data[start:stop], stop

    return read


def _not_utf8(pos: int, error: UnicodeDecodeError) -> DecodeError:
    return DecodeError(f"string at offset {pos} is not UTF-8 at its byte {error.start}")


def _read_string8(data: bytes, pos: int, end: int, depth: int) -> tuple[str, int]:
    # The bounds are checked inline: strings are the most frequent values.
    if pos >= end:
        raise truncated("string", pos)
    start = pos + 1
    stop = start + data[pos]
    if stop > end:
        raise DecodeError(f"string of {data[pos]} bytes at offset {pos} has only {end - start}")
    try:
        return data[start:stop].decode(), stop
    except UnicodeDecodeError as error:
        raise _not_utf8(pos, error) from None


def _read_string32(data: bytes, pos: int, end: int, depth: int) -> tuple[str, int]:
    start, stop = extent32(data, pos, end, "string")
    try:
        return data[start:stop].decode(), stop
    except UnicodeDecodeError as error:
        raise _not_utf8(pos, error) from None


# Symbols belong to small sets (capabilities, annotation keys, outcomes).
@lru_cache(maxsize=1024)
def _symbol(content: bytes) -> Symbol:
    return str.__new__(Symbol, content, "ascii")


def _read_symbol8(data: bytes, pos: int, end: int, depth: int) -> tuple[Symbol, int]:
    if pos >= end:
        raise truncated("symbol", pos)
    start = pos + 1
    stop = start + data[pos]
    if stop > end:
        raise DecodeError(f"symbol of {data[pos]} bytes at offset {pos} has only {end - start}")
    try:
        return _symbol(data[start:stop]), stop
    except UnicodeDecodeError:
        raise DecodeError(f"symbol at offset {pos} is not ASCII") from None


def _read_symbol32(data: bytes, pos: int, end: int, depth: int) -> tuple[Symbol, int]:
    start, stop = extent32(data, pos, end, "symbol")
    try:
        return str.__new__(Symbol, data[start:stop], "ascii"), stop
    except UnicodeDecodeError:
        raise DecodeError(f"symbol at offset {pos} is not ASCII") from None


# Compounds


def open8(data: bytes, pos: int, end: int, what: str) -> tuple[int, int, int]:
    """Return start and stop of the items behind a one-byte size and count, and the count."""
    if pos + 2 > end:
        raise truncated(what, pos)
    stop = pos + 1 + data[pos]
    if stop > end or stop < pos + 2:
        raise DecodeError(f"{what} of {data[pos]} bytes at offset {pos} in {end - pos - 1}")
    return pos + 2, stop, data[pos + 1]


def open32(data: bytes, pos: int, end: int, what: str) -> tuple[int, int, int]:
    start = pos + 8
    if start > end:
        raise truncated(what, pos)
    size, count = _SIZE_COUNT32(data, pos)
    stop = pos + 4 + size
    if stop > end or stop < start:
        raise DecodeError(f"{what} of {size} bytes at offset {pos} in {end - pos - 4}")
    return start, stop, count


def check_room(what: str, pos: int, stop: int, count: int, depth: int) -> None:
    """Refuse a compound that is too short for its items, or nested too deeply."""
    if count > stop - pos:
        raise DecodeError(f"{what} of {count} items at offset {pos} has only {stop - pos} bytes")
    if depth >= DEPTH_MAX:
        raise DecodeError(f"{what} at offset {pos} is nested more than {DEPTH_MAX} deep")


def check_used_up(what: str, pos: int, stop: int) -> None:
    if pos != stop:
        raise DecodeError(f"{what} whose items end at offset {pos} was to end at {stop}")


def _compound(opened: Opener, what: str, build: Callable[[bytes, int, int, int, int], Any]) -> Reader:
    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        pos, stop, count = opened(data, pos, end, what)
        return build(data, pos, stop, count, depth), stop

    return read


def _items(data: bytes, pos: int, stop: int, count: int, depth: int, what: str = "list") -> list[Any]:
    check_room(what, pos, stop, count, depth)
    depth += 1
    readers = READERS
    items = []
    for _ in range(count):
        if pos >= stop:
            raise truncated(what, pos)
        item, pos = readers[data[pos]](data, pos + 1, stop, depth)
        items.append(item)
    check_used_up(what, pos, stop)
    return items


def _pairs(data: bytes, pos: int, stop: int, count: int, depth: int) -> dict[Any, Any] | Map:
    if count & 1:
        raise DecodeError(f"map at offset {pos} has an odd count of {count}")
    items = _items(data, pos, stop, count, depth, "map")
    keys, values = items[::2], items[1::2]
    if distinct(keys, pos):
        return dict(zip(keys, values, strict=True))
    return Map(tuple(zip(keys, values, strict=True)))


def distinct(keys: list[Any], pos: int) -> bool:
    """Return whether a dict can distinguish the keys. Refuses keys that are equal in AMQP."""
    try:
        if len(set(keys)) == len(keys):
            return True
    except TypeError:  # unhashable
        pass
    # Not-a-number differs from everything, also in a dict.
    encodings = [encode(key) for key in keys if key == key]
    if len(set(encodings)) != len(encodings):
        raise DecodeError(f"map at offset {pos} has the same key twice")
    return False


def _read_described(data: bytes, pos: int, end: int, depth: int) -> tuple[Described, int]:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"described value at offset {pos} is nested more than {DEPTH_MAX} deep")
    if pos >= end:
        raise truncated("descriptor", pos)
    descriptor, pos = READERS[data[pos]](data, pos + 1, end, depth + 1)
    if pos >= end:
        raise truncated("described value", pos)
    value, pos = READERS[data[pos]](data, pos + 1, end, depth + 1)
    return Described(descriptor, value), pos


# Arrays


def _array(data: bytes, pos: int, stop: int, count: int, depth: int) -> Array:
    descriptors, code, pos = array_head(data, pos, stop, count, depth)
    reader = READERS[code]
    items = []
    for _ in range(count):
        item, pos = reader(data, pos, stop, depth + 1)
        items.append(item)
    check_used_up("array", pos, stop)
    return Array(code, tuple(items), descriptors)


def array_head(data: bytes, pos: int, stop: int, count: int, depth: int) -> tuple[tuple[Any, ...], int, int]:
    check_room("array", pos, stop, 0, depth)
    descriptors = []
    while pos < stop and data[pos] == 0:
        if pos + 1 >= stop:
            raise truncated("descriptor", pos + 1)
        descriptor, pos = READERS[data[pos + 1]](data, pos + 2, stop, depth + 1)
        descriptors.append(descriptor)
    if pos >= stop:
        raise truncated("constructor of an array", pos)
    code = data[pos]
    pos += 1
    width = WIDTHS_MIN[code]
    if width < 0:
        _read_unknown(data, pos, stop, depth)
    if width == 0:
        if count > ZERO_WIDTH_ITEMS_MAX:
            raise DecodeError(f"array of {count} items of width 0 at offset {pos}")
    elif count > (stop - pos) // width:
        raise DecodeError(f"array of {count} items at offset {pos} has only {stop - pos} bytes")
    return tuple(descriptors), code, pos


# Type name, least width of the content in bytes, reader.
_TABLE: Final[dict[int, tuple[str, int, Reader]]] = {
    0x00: ("described value", -1, _read_described),
    0x40: ("null", 0, _decode_constant(None)),
    0x41: ("boolean", 0, _decode_constant(True)),
    0x42: ("boolean", 0, _decode_constant(False)),
    0x43: ("uint", 0, _decode_constant(UInt(0))),
    0x44: ("ulong", 0, _decode_constant(ULong(0))),
    0x45: ("list", 0, lambda data, pos, end, depth: ([], pos)),
    0x50: ("ubyte", 1, _one_byte(UByte, signed=False)),
    0x51: ("byte", 1, _one_byte(Byte, signed=True)),
    0x52: ("uint", 1, _one_byte(UInt, signed=False)),
    0x53: ("ulong", 1, _one_byte(ULong, signed=False)),
    0x54: ("int", 1, _one_byte(Int, signed=True)),
    0x55: ("long", 1, _one_byte(Long, signed=True)),
    0x56: ("boolean", 1, _read_boolean),
    0x60: ("ushort", 2, _number(UShort, ">H")),
    0x61: ("short", 2, _number(Short, ">h")),
    0x70: ("uint", 4, _number(UInt, ">I")),
    0x71: ("int", 4, _number(Int, ">i")),
    0x72: ("float", 4, _number(Float, ">f")),
    0x73: ("char", 4, _read_char),
    0x74: ("decimal32", 4, _bytes_of(Decimal32, "decimal32", 4)),
    0x80: ("ulong", 8, _number(ULong, ">Q")),
    0x81: ("long", 8, _number(Long, ">q")),
    0x82: ("double", 8, _number(float, ">d", "double")),
    0x83: ("timestamp", 8, _number(Timestamp, ">q")),
    0x84: ("decimal64", 8, _bytes_of(Decimal64, "decimal64", 8)),
    0x94: ("decimal128", 16, _bytes_of(Decimal128, "decimal128", 16)),
    0x98: ("uuid", 16, _bytes_of(lambda raw: UUID(bytes=raw), "uuid", 16)),
    0xA0: ("binary", 1, _binary(extent8)),
    0xA1: ("string", 1, _read_string8),
    0xA3: ("symbol", 1, _read_symbol8),
    0xB0: ("binary", 4, _binary(extent32)),
    0xB1: ("string", 4, _read_string32),
    0xB3: ("symbol", 4, _read_symbol32),
    0xC0: ("list", 2, _compound(open8, "list", _items)),
    0xC1: ("map", 2, _compound(open8, "map", _pairs)),
    0xD0: ("list", 8, _compound(open32, "list", _items)),
    0xD1: ("map", 8, _compound(open32, "map", _pairs)),
    0xE0: ("array", 3, _compound(open8, "array", _array)),
    0xF0: ("array", 9, _compound(open32, "array", _array)),
}

READERS: Final[list[Reader]] = [_TABLE[code][2] if code in _TABLE else _read_unknown for code in range(256)]
"""A reader for every constructor byte; it takes the position after that byte."""

TYPE_NAMES: Final = {code: row[0] for code, row in _TABLE.items()}
WIDTHS_MIN: Final = [_TABLE[code][1] if code in _TABLE else -1 for code in range(256)]


# --- skipping ------------------------------------------------------------------------------------

Skipper = Callable[[bytes, int, int, int], int]


def skip(data: bytes, pos: int = 0, end: int | None = None) -> int:
    """Return the position after a value. Accepts the same bytes as `decode`, texts and map keys included."""
    if end is None:
        end = len(data)
    elif end > len(data):
        raise truncated("value", pos)
    return _skip(data, pos, end, 0)


def _skip(data: bytes, pos: int, end: int, depth: int) -> int:
    if pos >= end:
        raise truncated("value", pos)
    code = data[pos]
    width = _OPAQUE_WIDTHS[code]
    if width < 0:
        return _SKIPPERS[code](data, pos + 1, end, depth)
    pos += 1 + width
    if pos > end:
        raise truncated(TYPE_NAMES[code], pos - width)
    return pos


def _by_reading(reader: Reader) -> Skipper:
    return lambda data, pos, end, depth: reader(data, pos, end, depth)[1]


def _skip_binary(extent: Extent) -> Skipper:
    return lambda data, pos, end, depth: extent(data, pos, end, "binary")[1]


def _text8(what: str, reader: Reader) -> Skipper:
    # ASCII is valid without decoding; the reader checks any other text.
    def skip(data: bytes, pos: int, end: int, depth: int) -> int:
        start, stop = extent8(data, pos, end, what)
        if not data[start:stop].isascii():
            reader(data, pos, end, depth)
        return stop

    return skip


def _skip_compound(opened: Opener, what: str, walk: Callable[[bytes, int, int, int, int], int]) -> Skipper:
    def skip(data: bytes, pos: int, end: int, depth: int) -> int:
        pos, stop, count = opened(data, pos, end, what)
        return walk(data, pos, stop, count, depth)

    return skip


def _skip_items(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    check_room("list", pos, stop, count, depth)
    depth += 1
    widths = _OPAQUE_WIDTHS
    for _ in range(count):
        if pos >= stop:
            raise truncated("list", pos)
        # This is `_skip`, inline. An item of fixed width that exceeds the end is found below.
        code = data[pos]
        pos += 1
        pos = pos + widths[code] if widths[code] >= 0 else _SKIPPERS[code](data, pos, stop, depth)
    check_used_up("list", pos, stop)
    return stop


def _skip_pairs(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    # Keys are built, because they must differ.
    if count & 1:
        raise DecodeError(f"map at offset {pos} has an odd count of {count}")
    check_room("map", pos, stop, count, depth)
    start = pos
    keys = []
    for _ in range(count >> 1):
        if pos >= stop:
            raise truncated("map", pos)
        key, pos = READERS[data[pos]](data, pos + 1, stop, depth + 1)
        keys.append(key)
        pos = _skip(data, pos, stop, depth + 1)
    check_used_up("map", pos, stop)
    distinct(keys, start)
    return stop


def _skip_described(data: bytes, pos: int, end: int, depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"described value at offset {pos} is nested more than {DEPTH_MAX} deep")
    return _skip(data, _skip(data, pos, end, depth + 1), end, depth + 1)


def _skip_array(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    _descriptors, code, pos = array_head(data, pos, stop, count, depth)
    width = _OPAQUE_WIDTHS[code]
    if width >= 0:
        pos += width * count
    else:
        skipper = _SKIPPERS[code]
        for _ in range(count):
            pos = skipper(data, pos, stop, depth + 1)
    check_used_up("array", pos, stop)
    return stop


_SKIPPERS: Final[list[Skipper]] = [_by_reading(reader) for reader in READERS]
_SKIPPERS[0x00] = _skip_described
_SKIPPERS[0xA0] = _skip_binary(extent8)
_SKIPPERS[0xA1] = _text8("string", READERS[0xA1])
_SKIPPERS[0xA3] = _text8("symbol", READERS[0xA3])
_SKIPPERS[0xB0] = _skip_binary(extent32)
_SKIPPERS[0xC0] = _skip_compound(open8, "list", _skip_items)
_SKIPPERS[0xC1] = _skip_compound(open8, "map", _skip_pairs)
_SKIPPERS[0xD0] = _skip_compound(open32, "list", _skip_items)
_SKIPPERS[0xD1] = _skip_compound(open32, "map", _skip_pairs)
_SKIPPERS[0xE0] = _skip_compound(open8, "array", _skip_array)
_SKIPPERS[0xF0] = _skip_compound(open32, "array", _skip_array)

# The width of content without invalid values; -1: a skipper must check it.
_OPAQUE_WIDTHS: Final = [
    width if width >= 0 and code < 0xA0 and TYPE_NAMES[code] != "char" and code != 0x56 else -1
    for code, width in enumerate(WIDTHS_MIN)
]
