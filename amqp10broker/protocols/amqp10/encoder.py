"""The writing half of the AMQP 1.0 codec (part 1, section 1.6).

Every writer returns the whole encoding, constructor first, in the fewest bytes that the type allows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from amqp10broker.protocols.amqp10.errors import EncodeError
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

Writer = Callable[[Any, int], bytes]
"""(value, number of values that enclose it) -> encoding."""

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"

_SIZE32: Final = struct.Struct(">BI").pack
_SIZE_COUNT32: Final = struct.Struct(">BII").pack

_UBYTE: Final = struct.Struct(">BB").pack
_UINT: Final = struct.Struct(">BI").pack
_ULONG: Final = struct.Struct(">BQ").pack
_BYTE: Final = struct.Struct(">Bb").pack

# Most ids, windows and credits are small.
_SMALL_UINTS: Final = (b"\x43", *(bytes((0x52, n)) for n in range(1, 256)))
_SMALL_ULONGS: Final = (b"\x44", *(bytes((0x53, n)) for n in range(1, 256)))

# The exceptions for a value of a wrong type or range.
_BAD: Final = (struct.error, TypeError, OverflowError)


def misfit(value: object, name: str) -> EncodeError:
    return EncodeError(f"{value!r} is no {name}")


def encode(value: Any) -> bytes:
    """Encode a value of `types`, or a composite. A plain int is a long, a tuple a list, an instance of a
    subclass is encoded as its nearest base. Raises `EncodeError`.
    """
    return write_any(value, 0)


def write_any(value: Any, depth: int = 0) -> bytes:
    writer = _WRITERS.get(type(value))
    if writer is None:
        writer = _writer_for(value)
    return writer(value, depth)


def _writer_for(value: Any) -> Writer:
    # This is for a subclass (an IntEnum, a named tuple) or a composite.
    for base in type(value).__mro__:
        writer = _WRITERS.get(base)
        if writer is not None:
            return writer
    if isinstance(getattr(value, "DESCRIPTOR", None), int):
        return lambda value, depth: value.encode()
    raise EncodeError(f"{type(value).__name__} has no AMQP 1.0 encoding")


def write_boolean(value: bool, depth: int = 0) -> bytes:
    if value is True:
        return TRUE
    if value is False:
        return FALSE
    raise misfit(value, "boolean")


def write_uint(value: int, depth: int = 0) -> bytes:
    try:
        return _SMALL_UINTS[value] if 0 <= value <= 255 else _UINT(0x70, value)
    except _BAD:
        raise misfit(value, "uint") from None


def write_ulong(value: int, depth: int = 0) -> bytes:
    try:
        return _SMALL_ULONGS[value] if 0 <= value <= 255 else _ULONG(0x80, value)
    except (*_BAD, ValueError):  # PyPy's struct raises ValueError below 0, for 64 bits only
        raise misfit(value, "ulong") from None


def _packing(name: str, code: int, layout: str) -> Callable[..., bytes]:
    pack = struct.Struct(layout).pack

    def write(value: Any, depth: int = 0) -> bytes:
        try:
            return pack(code, value)
        except _BAD:
            raise misfit(value, name) from None

    return write


def _signed(name: str, narrow: int, wide: int, layout: str) -> Writer:
    pack_wide = struct.Struct(layout).pack

    def write(value: int, depth: int = 0) -> bytes:
        try:
            return _BYTE(narrow, value) if -128 <= value <= 127 else pack_wide(wide, value)
        except _BAD:
            raise misfit(value, name) from None

    return write


write_ubyte: Final = _packing("ubyte", 0x50, ">BB")
write_ushort: Final = _packing("ushort", 0x60, ">BH")
write_timestamp: Final = _packing("timestamp", 0x83, ">Bq")
_write_long: Final = _signed("long", 0x55, 0x81, ">Bq")


def _raw(code: int) -> Writer:
    head = bytes((code,))
    return lambda value, depth: head + value.raw


def _write_char(value: str, depth: int = 0) -> bytes:
    return _UINT(0x73, ord(value))


def write_uuid(value: UUID, depth: int = 0) -> bytes:
    return b"\x98" + value.bytes


def write_binary(value: bytes | bytearray | memoryview, depth: int = 0) -> bytes:
    if type(value) is not bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise misfit(value, "binary")
        value = bytes(value)
    size = len(value)
    return (_UBYTE(0xA0, size) if size <= 255 else _SIZE32(0xB0, size)) + value


def write_string(value: str, depth: int = 0) -> bytes:
    try:
        content = value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise misfit(value, "string") from None
    size = len(content)
    return (_UBYTE(0xA1, size) if size <= 255 else _SIZE32(0xB1, size)) + content


def write_symbol(value: str, depth: int = 0) -> bytes:
    try:
        content = value.encode("ascii")
    except (AttributeError, UnicodeEncodeError):
        raise misfit(value, "symbol") from None
    size = len(content)
    return (_UBYTE(0xA3, size) if size <= 255 else _SIZE32(0xB3, size)) + content


def check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"values nested more than {DEPTH_MAX} deep")


def write_compound(code8: int, code32: int, count: int, body: bytes) -> bytes:
    size = len(body) + 1
    if size <= 255 and count <= 255:
        return bytes((code8, size, count)) + body
    return _SIZE_COUNT32(code32, size + 3, count) + body


def write_list(value: list[Any] | tuple[Any, ...], depth: int = 0) -> bytes:
    if not value:
        return b"\x45"
    check_depth(depth)
    return write_compound(0xC0, 0xD0, len(value), b"".join([write_any(item, depth + 1) for item in value]))


def write_map(value: Mapping[Any, Any] | Map, depth: int = 0) -> bytes:
    check_depth(depth)
    if not isinstance(value, (dict, Map, Mapping)):
        raise misfit(value, "map")
    parts = []
    for key, item in value.items():
        parts.append(write_any(key, depth + 1))
        parts.append(write_any(item, depth + 1))
    if isinstance(value, Map):
        keys = [part for part, (key, _) in zip(parts[::2], value.pairs, strict=True) if key == key]
        if len(set(keys)) != len(keys):  # not-a-number, left out above, differs from every value
            raise EncodeError("a map with the same key twice")
    return write_compound(0xC1, 0xD1, len(parts), b"".join(parts))


def _write_described(value: Described, depth: int = 0) -> bytes:
    check_depth(depth)
    return b"\x00" + write_any(value.descriptor, depth + 1) + write_any(value.value, depth + 1)


# Arrays have one constructor, so the items are written without theirs.


def write_array(value: Array, depth: int = 0) -> bytes:
    return write_compound(0xE0, 0xF0, len(value.items), _array_body(value, depth))


def _array_body(value: Array, depth: int) -> bytes:
    # Constructor and items, that is everything after size and count.
    check_depth(depth)
    write_item = _ITEM_WRITERS.get(value.constructor)
    if write_item is None:
        raise EncodeError(f"an array of unknown constructor {value.constructor!r}")
    parts = [b"\x00" + write_any(descriptor, depth + 1) for descriptor in value.descriptors]
    parts.append(bytes((value.constructor,)))
    head = len(parts)
    try:
        parts.extend([write_item(item, depth + 1) for item in value.items])
    except (*_BAD, AttributeError, UnicodeEncodeError):
        raise EncodeError(f"an item does not fit the array's constructor 0x{value.constructor:02x}") from None
    if len(parts) - head > ZERO_WIDTH_ITEMS_MAX and not parts[-1]:
        raise EncodeError(f"an array of more than {ZERO_WIDTH_ITEMS_MAX} items of width 0")
    return b"".join(parts)


def array_of(items: Iterable[Any]) -> Array:
    """Make an array of values of one AMQP type and descriptor, at least one, with the narrowest constructor
    that holds all. Raises `EncodeError`.
    """
    values = tuple(items)
    descriptors: list[Any] = []
    while values and all(isinstance(value, Described) for value in values):
        if len({encode(value.descriptor) for value in values}) > 1:
            raise EncodeError("an array has one descriptor for all its items")
        descriptors.append(values[0].descriptor)
        values = tuple(value.value for value in values)
    codes = {encode(value)[0] for value in values}
    for family in _FAMILIES:
        if codes and codes <= set(family):
            widest = max(family.index(code) for code in codes)
            # A constructor of width 0 has one value only.
            while family[widest] in _CONSTANTS and family[-1] not in _CONSTANTS:
                widest += 1
            return Array(family[widest], values, tuple(descriptors))
    raise EncodeError("the items of an array are of one AMQP type, and at least one")


# The constructors of each type, narrow to wide: each holds all values of those before it.
_FAMILIES: Final = (
    (0x40,),
    (0x41, 0x42, 0x56),
    (0x43, 0x52, 0x70),
    (0x44, 0x53, 0x80),
    (0x54, 0x71),
    (0x55, 0x81),
    (0x45, 0xC0, 0xD0),
    (0xA0, 0xB0),
    (0xA1, 0xB1),
    (0xA3, 0xB3),
    (0xC1, 0xD1),
    (0xE0, 0xF0),
    *((code,) for code in (0x50, 0x60, 0x51, 0x61, 0x72, 0x82, 0x73, 0x83, 0x98, 0x74, 0x84, 0x94)),
)

# Constructors of width 0 with the value of each.
_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}


def _constant(expected: Any) -> Writer:
    def write(value: Any, depth: int) -> bytes:
        if value != expected:
            raise TypeError
        return b""

    return write


def _packed(layout: str) -> Writer:
    pack = struct.Struct(layout).pack
    return lambda value, depth: pack(value)


def _item(writer: Writer, code: int, kinds: type | tuple[type, ...] = object) -> Writer:
    """Write values without their constructor, which has to fit `code`."""

    def write(value: Any, depth: int) -> bytes:
        if not isinstance(value, kinds):
            raise TypeError
        encoded = writer(value, depth)
        if encoded[0] == 0x45:  # an empty list, which has a constructor of its own
            return b"\x01\x00" if code == 0xC0 else b"\x00\x00\x00\x04\x00\x00\x00\x00"
        if encoded[0] == code:
            return encoded[1:]
        if code not in (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0):
            raise TypeError
        # Sizes and counts have four bytes in arrays.
        if code < 0xC0:
            return (len(encoded) - 2).to_bytes(4, "big") + encoded[2:]
        return struct.pack(">II", len(encoded) + 1, encoded[2]) + encoded[3:]

    return write


def _boolean_item(value: Any, depth: int) -> bytes:
    if not isinstance(value, bool):
        raise TypeError
    return b"\x01" if value else b"\x00"


_ITEM_WRITERS: Final[dict[int, Writer]] = {
    **{code: _constant(value) for code, value in _CONSTANTS.items()},
    0x56: _boolean_item,
    0x50: _packed(">B"),
    0x60: _packed(">H"),
    0x70: _packed(">I"),
    0x52: _packed(">B"),
    0x80: lambda item, depth: item.to_bytes(8, "big"),
    0x53: _packed(">B"),
    0x51: _packed(">b"),
    0x61: _packed(">h"),
    0x71: _packed(">i"),
    0x54: _packed(">b"),
    0x81: _packed(">q"),
    0x55: _packed(">b"),
    0x72: _packed(">f"),
    0x82: _packed(">d"),
    0x74: _item(_raw(0x74), 0x74, Decimal32),
    0x84: _item(_raw(0x84), 0x84, Decimal64),
    0x94: _item(_raw(0x94), 0x94, Decimal128),
    0x73: _item(_write_char, 0x73, Char),
    0x83: _packed(">q"),
    0x98: _item(write_uuid, 0x98, UUID),
    0xA0: _item(write_binary, 0xA0),
    0xB0: _item(write_binary, 0xB0),
    0xA1: _item(write_string, 0xA1),
    0xB1: _item(write_string, 0xB1),
    0xA3: _item(write_symbol, 0xA3),
    0xB3: _item(write_symbol, 0xB3),
    0xC0: _item(write_list, 0xC0, (list, tuple)),
    0xD0: _item(write_list, 0xD0, (list, tuple)),
    0xC1: _item(write_map, 0xC1),
    0xD1: _item(write_map, 0xD1),
    0xE0: _item(write_array, 0xE0, Array),
    0xF0: _item(write_array, 0xF0, Array),
}

_WRITERS: Final[dict[type, Writer]] = {
    type(None): lambda value, depth: NULL,
    bool: write_boolean,
    UByte: write_ubyte,
    UShort: write_ushort,
    UInt: write_uint,
    ULong: write_ulong,
    Byte: _packing("byte", 0x51, ">Bb"),
    Short: _packing("short", 0x61, ">Bh"),
    Int: _signed("int", 0x54, 0x71, ">Bi"),
    Long: _write_long,
    int: _write_long,
    Timestamp: write_timestamp,
    Float: _packing("float", 0x72, ">Bf"),
    float: _packing("double", 0x82, ">Bd"),
    Decimal32: _raw(0x74),
    Decimal64: _raw(0x84),
    Decimal128: _raw(0x94),
    Char: _write_char,
    UUID: write_uuid,
    bytes: write_binary,
    bytearray: write_binary,
    memoryview: write_binary,
    str: write_string,
    Symbol: write_symbol,
    list: write_list,
    tuple: write_list,
    dict: write_map,
    Map: write_map,
    Array: write_array,
    Described: _write_described,
}
