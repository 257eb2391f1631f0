"""Strings, field tables (sections 4.2.5.3 to 4.2.5.5) and methods of AMQP 0-9-1 as bytes.

The letters of field types are RabbitMQ's, which are not all those of the specification's grammar:

| Python | letter | Python | letter |
|---|---|---|---|
| bool | t | `Int8` | b |
| str, or bytes if it is not UTF-8 | S | `UInt8` | B |
| `ByteArray` | x | `Int16` | s |
| float | d | `UInt16` | u |
| `Float32` | f | `Int32` | I |
| `decimal.Decimal` | D | `UInt32` | i |
| `Timestamp` | T | `Int64` | l (L is read as well) |
| None | V | list, dict | A, F |

The numbers and byte arrays are subclasses of int, float and bytes: they compare and hash by value alone
(``Int8(1) == Int64(1) == 1``). A plain int is encoded as I if it fits, otherwise as l.

Readers return the value with the position behind it. A field that runs over the end of the buffer is found at
the end of its table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from decimal import Decimal
from itertools import groupby
from struct import Struct
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.serial import Binary32, EncodeError, Integer

DEPTH_MAX: Final = 32
"""How many tables and arrays may enclose a value: hostile messages must not exhaust the stack of the readers.
It is half that of AMQP 1.0, so that every table can be converted.
"""

Table: TypeAlias = dict[str, Any]


class Int8(Integer, bits=8, signed=True):
    __slots__ = ()


class UInt8(Integer, bits=8):
    __slots__ = ()


class Int16(Integer, bits=16, signed=True):
    __slots__ = ()


class UInt16(Integer, bits=16):
    __slots__ = ()


class Int32(Integer, bits=32, signed=True):
    __slots__ = ()


class UInt32(Integer, bits=32):
    __slots__ = ()


class Int64(Integer, bits=64, signed=True):
    __slots__ = ()


class Timestamp(Integer, bits=64):
    """Seconds since 1970-01-01T00:00:00Z, unsigned 64 bits, letter T."""

    __slots__ = ()


class Float32(Binary32):
    __slots__ = ()


class ByteArray(bytes):
    """Letter x; plain bytes are encoded as a long string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ByteArray({bytes.__repr__(self)})"

    __str__ = __repr__


_U32: Final = struct.Struct(">I").unpack_from
_I32: Final = struct.Struct(">i").unpack_from
_SCALED: Final = struct.Struct(">Bi").unpack_from
_new_int: Final = int.__new__

# The exceptions for reading after the end, or for text that is not UTF-8.
_FAULTS: Final = (IndexError, struct.error, UnicodeDecodeError)


# Strings


def encode_shortstr(text: str) -> bytes:
    """Raises `EncodeError` above 255 bytes."""
    content = text.encode("utf-8", "surrogateescape")
    if len(content) > 255:
        raise EncodeError(f"a short string has at most 255 bytes, not {len(content)}")
    return bytes((len(content),)) + content


def decode_shortstr(data: bytes, pos: int) -> tuple[str, int]:
    if pos >= len(data):
        raise DecodeError(f"short string cut off at byte {pos}")
    stop = pos + 1 + data[pos]
    if stop > len(data):
        raise DecodeError(f"short string of {data[pos]} bytes cut off at byte {pos}")
    try:
        return data[pos + 1 : stop].decode(), stop
    except UnicodeDecodeError:
        raise DecodeError(f"short string at byte {pos} is not UTF-8") from None


def encode_longstr(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return len(content).to_bytes(4, "big") + content


def decode_longstr(data: bytes, pos: int) -> tuple[bytes, int]:
    start = pos + 4
    stop = start + int.from_bytes(data[pos:start], "big")
    if stop > len(data) or start > len(data):
        raise DecodeError(f"long string cut off at byte {pos}")
    return data[start:stop], stop


# Tables to values


def decode_table(data: bytes, pos: int) -> tuple[Table, int]:
    try:
        return _read_table(data, pos, 0)
    except _FAULTS:
        raise DecodeError(f"malformed field table at byte {pos}") from None


def _read_table(data: bytes, pos: int, depth: int) -> tuple[Table, int]:
    start = pos + 4
    end = start + _U32(data, pos)[0]
    _check_room(data, pos, end, depth)
    pos = start
    table: Table = {}
    while pos < end:
        start = pos + 1
        pos = start + data[pos]
        key = data[start:pos].decode()
        kind = data[pos]
        pos += 1
        # The commonest kinds are inline, without the call of a reader.
        if kind == 0x53:  # S
            start = pos + 4
            pos = start + _U32(data, pos)[0]
            content = data[start:pos]
            try:
                table[key] = content.decode()
            except UnicodeDecodeError:
                table[key] = content
        elif kind == 0x49:  # I
            table[key] = _new_int(Int32, _I32(data, pos)[0])
            pos += 4
        else:
            table[key], pos = _READERS[kind](data, pos, depth)
    if pos != end:
        raise DecodeError(f"field table was to end at byte {end} and its last value ends at {pos}")
    return table, end


def _read_array(data: bytes, pos: int, depth: int) -> tuple[list[Any], int]:
    start = pos + 4
    end = start + _U32(data, pos)[0]
    _check_room(data, pos, end, depth)
    pos = start
    items: list[Any] = []
    while pos < end:
        item, pos = _READERS[data[pos]](data, pos + 1, depth)
        items.append(item)
    if pos != end:
        raise DecodeError(f"field array was to end at byte {end} and its last value ends at {pos}")
    return items, end


def _check_room(data: bytes, pos: int, end: int, depth: int) -> None:
    if end > len(data):
        raise DecodeError(f"field table or array at byte {pos} ends {end - len(data)} bytes behind the data")
    if depth >= DEPTH_MAX:
        raise DecodeError(f"field table or array at byte {pos} is nested more than {DEPTH_MAX} deep")


Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""(data, position after the letter, number of enclosing tables and arrays) -> value, position after it."""


def _number(kind: type[int | float], layout: str) -> Reader:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    new: Any = int.__new__ if issubclass(kind, int) else float.__new__

    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        return new(kind, unpack(data, pos)[0]), pos + width

    return read


def _read_longstr(data: bytes, pos: int, depth: int) -> tuple[str | bytes, int]:
    start = pos + 4
    stop = start + _U32(data, pos)[0]
    content = data[start:stop]
    try:
        return content.decode(), stop
    except UnicodeDecodeError:
        return content, stop


def _read_byte_array(data: bytes, pos: int, depth: int) -> tuple[ByteArray, int]:
    stop = pos + 4 + _U32(data, pos)[0]
    return ByteArray(data[pos + 4 : stop]), stop


def _read_decimal(data: bytes, pos: int, depth: int) -> tuple[Decimal, int]:
    scale, value = _SCALED(data, pos)
    digits = tuple(map(int, str(abs(value))))
    return Decimal((int(value < 0), digits, -scale)), pos + 5


def _read_unknown(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    raise DecodeError(f"unknown field type 0x{data[pos - 1]:02x} at byte {pos - 1}")


_NUMBERS: Final[Mapping[str, tuple[type[int | float], str]]] = {
    "b": (Int8, ">b"),
    "B": (UInt8, ">B"),
    "s": (Int16, ">h"),
    "u": (UInt16, ">H"),
    "I": (Int32, ">i"),
    "i": (UInt32, ">I"),
    "l": (Int64, ">q"),
    "f": (Float32, ">f"),
    "d": (float, ">d"),
    "T": (Timestamp, ">Q"),
}
_BY_LETTER: Final[dict[str, Reader]] = {
    **{letter: _number(kind, layout) for letter, (kind, layout) in _NUMBERS.items()},
    "t": lambda data, pos, depth: (data[pos] != 0, pos + 1),
    "L": _number(Int64, ">q"),
    "D": _read_decimal,
    "S": _read_longstr,
    "x": _read_byte_array,
    "V": lambda data, pos, depth: (None, pos),
    "A": lambda data, pos, depth: _read_array(data, pos, depth + 1),
    "F": lambda data, pos, depth: _read_table(data, pos, depth + 1),
}
_READERS: Final[list[Reader]] = [_BY_LETTER.get(chr(code), _read_unknown) for code in range(256)]


# Values to tables


def encode_table(table: Mapping[str, Any]) -> bytes:
    return _write_table(table, 0)


def _write_table(table: Mapping[str, Any], depth: int) -> bytes:
    _check_depth(depth)
    parts: list[bytes] = []
    for key, value in table.items():
        parts.append(encode_shortstr(key))
        parts.append(_write(value, depth))
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def _write(value: Any, depth: int) -> bytes:
    writer = _WRITERS.get(type(value))
    if writer is None:
        writer = _writer_for(value)
    try:
        return writer(value, depth)
    except (struct.error, OverflowError, UnicodeEncodeError):
        raise EncodeError(f"{value!r} does not fit its field type") from None


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"tables and arrays nested more than {DEPTH_MAX} deep")


Writer = Callable[[Any, int], bytes]


def _writer_for(value: Any) -> Writer:
    # This is for a subclass: an IntEnum, a named tuple.
    for base in type(value).__mro__:
        writer = _WRITERS.get(base)
        if writer is not None:
            return writer
    raise EncodeError(f"{type(value).__name__} has no field type in AMQP 0-9-1")


def _packed(letter: str) -> Writer:
    code, pack = letter.encode(), struct.Struct(f">c{_NUMBERS[letter][1][1:]}").pack
    return lambda value, depth: pack(code, value)


_write_int32: Final = _packed("I")
_write_int64: Final = _packed("l")


def _write_byte_array(value: bytes, depth: int) -> bytes:
    return b"x" + encode_longstr(value)


def _write_decimal(value: Decimal, depth: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent > 10:
        raise OverflowError
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return b"D" + struct.pack(">Bi", max(-exponent, 0), -number if sign else number)


def _write_array(items: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    _check_depth(depth + 1)
    body = b"".join([_write(item, depth + 1) for item in items])
    return b"A" + len(body).to_bytes(4, "big") + body


_WRITERS: Final[dict[type, Writer]] = {
    **{kind: _packed(letter) for letter, (kind, _) in _NUMBERS.items()},
    bool: lambda value, depth: b"t\x01" if value else b"t\x00",
    str: lambda value, depth: b"S" + encode_longstr(value),
    bytes: lambda value, depth: b"S" + encode_longstr(value),
    ByteArray: _write_byte_array,
    bytearray: _write_byte_array,
    int: lambda value, depth: (_write_int32 if -(2**31) <= value < 2**31 else _write_int64)(value, depth),
    Decimal: _write_decimal,
    type(None): lambda value, depth: b"V",
    list: _write_array,
    tuple: _write_array,
    dict: lambda value, depth: b"F" + _write_table(value, depth + 1),
}


def plain(value: Any) -> Any:
    """Convert a value to plain int, float, bytes, list and dict, nested ones too."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    return value


# --- methods -------------------------------------------------------------------------------------
#
# The functions of a class of `methods` are compiled from its decorator at their first use.

M = TypeVar("M", bound="Method")
Decoder = Callable[[bytes, int], tuple["Method", int]]

_INTEGERS: Final = {
    "octet": Struct(">B"),
    "short": Struct(">H"),
    "long": Struct(">I"),
    "longlong": Struct(">Q"),
}
_TEXTS: Final = ("shortstr", "longstr", "table")
_NAMES: Final[dict[str, Any]] = {
    **{f"pack_{name}": struct.pack for name, struct in _INTEGERS.items()},
    **{f"unpack_{name}": struct.unpack_from for name, struct in _INTEGERS.items()},
    **{f"encode_{name}": globals()[f"encode_{name}"] for name in _TEXTS},
    **{f"decode_{name}": globals()[f"decode_{name}"] for name in _TEXTS},
}
_EMPTY: Final = {"short": b"\x00\x00", "bit": b"\x00", "shortstr": b"\x00", "longstr": b"\x00\x00\x00\x00"}
"""The encodings of reserved fields; no definition has a reserved field of another type."""


class Method:
    """A method. `TYPES`: the types of the arguments, separated by spaces, with "-" before reserved ones,
    which are not fields.
    """

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Any]]
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    NAME: ClassVar[str]
    TYPES: ClassVar[str]
    HAS_CONTENT: ClassVar[bool]

    def encode(self) -> bytes:
        cls = type(self)
        cls.encode = _compile_encoder(cls)  # type: ignore[method-assign, assignment]  # compiled
        return self.encode()


METHODS: Final[dict[bytes, type[Method]]] = {}
"""The classes of methods, by class and method number as four bytes."""


@dataclass_transform(field_specifiers=(field,))
def method(
    name: str, class_id: int, method_id: int, types: str = "", *, content: bool = False
) -> Callable[[type[M]], type[M]]:

    def make(cls: type[M]) -> type[M]:
        cls.NAME, cls.CLASS_ID, cls.METHOD_ID = name, class_id, method_id
        cls.TYPES, cls.HAS_CONTENT = types, content
        made = dataclass(slots=True)(cls)
        METHODS[_index(made)] = made
        return made

    return make


class _Decoders(dict[bytes, Decoder]):
    def __missing__(self, index: bytes) -> Decoder:
        decoder = self[index] = _compile_decoder(METHODS[index])
        return decoder


DECODERS: Final = _Decoders()


def method_name(class_id: int, method_id: int) -> str | None:
    """Return a name such as ``queue.declare``, or None."""
    cls = METHODS.get(class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big"))
    return None if cls is None else cls.NAME


def _index(cls: type[Method]) -> bytes:
    return cls.CLASS_ID.to_bytes(2, "big") + cls.METHOD_ID.to_bytes(2, "big")


def _arguments(cls: type[Method]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield a type, and the names that share it; None for a reserved one. Neighbouring bits share an octet
    (section 4.2.5.2).
    """
    names = iter(fields(cls))
    named = [
        (kind.removeprefix("-"), None if kind[0] == "-" else next(names).name) for kind in cls.TYPES.split()
    ]
    for kind, group in groupby(named, key=lambda one: one[0]):
        shared = [name for _, name in group]
        yield from [(kind, shared)] if kind == "bit" else [(kind, [name]) for name in shared]


def _compile_encoder(cls: type[Method]) -> Callable[[Method], bytes]:
    parts = [repr(_index(cls))]
    for kind, names in _arguments(cls):
        if names[0] is None:
            parts.append(repr(_EMPTY[kind]))
        elif kind == "bit":
            bits = " | ".join(f"({1 << at} if self.{name} else 0)" for at, name in enumerate(names))
            parts.append(f"pack_octet({bits})")
        else:
            parts.append(f"{'encode' if kind in _TEXTS else 'pack'}_{kind}(self.{names[0]})")
    return _define("encode(self)", [f"return b''.join(({', '.join(parts)},))"], cls)


def _compile_decoder(cls: type[Method]) -> Decoder:
    lines, arguments = [], []
    for kind, names in _arguments(cls):
        name = names[0] or "_"
        if kind == "bit":
            lines += ["bits = data[pos]", "pos += 1"]
            arguments += [f"{one}=bits & {1 << at} != 0" for at, one in enumerate(names) if one is not None]
            continue
        if kind in _TEXTS:
            lines.append(f"{name}, pos = decode_{kind}(data, pos)")
        else:
            lines += [f"{name} = unpack_{kind}(data, pos)[0]", f"pos += {_INTEGERS[kind].size}"]
        if names[0] is not None:
            arguments.append(f"{name}={name}")
    return _define("decode(data, pos)", [*lines, f"return cls({', '.join(arguments)}), pos"], cls)


def _define(signature: str, body: list[str], cls: type) -> Callable[..., Any]:
    names = {**_NAMES, "cls": cls}
    source = f"def {signature}:\n" + "\n".join(f" {line}" for line in body)
    exec(compile(source, f"<{cls.__name__}>", "exec"), names)  # the source is made of field names alone
    function: Callable[..., Any] = names[signature.partition("(")[0]]
    return function
