"""Composite types: their encoders and decoders, compiled from the fields of a class (part 1, section 1.4).

A class of `performatives` has, in its decorator, a type for each field: a row of `FIELD_TYPES`, or a role,
which is a set of composites (`define_role`). Its functions are compiled at their first use, so they do not
slow down a start, and a frame is read without a loop over fields.

A type has a reader for each constructor byte, so that its check takes no extra time. Numbers are plain int. A
reader that exceeds the end of the enclosing list is detected when the whole list has been read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, dataclass_transform, get_args
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10 import encoder
from amqp10broker.protocols.amqp10.codec import READERS, Reader, decode, open8, open32, skip, type_name
from amqp10broker.protocols.amqp10.encoder import (
    NULL,
    TRUE,
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
from amqp10broker.protocols.amqp10.types import Array, Byte, Int, Long, Map, Short, Symbol, ULong


class WrongType(Exception):
    """A field has a constructor of another type."""

    def __init__(self, pos: int) -> None:
        super().__init__(pos)
        self.pos = pos


def _wrong_type(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raise WrongType(pos - 1)


def _constant(value: Any) -> Reader:
    return lambda data, pos, end, depth: (value, pos)


def table(readers: Mapping[int, Reader]) -> list[Reader]:
    full: list[Reader] = [_wrong_type] * 256
    for code, reader in {0x40: _constant(None), **readers}.items():
        full[code] = reader
    return full


def _one_byte(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int]:
    return data[pos], pos + 1


def _integer(layout: str) -> Reader:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        return unpack(data, pos)[0], pos + width

    return read


def _read_map(reader: Reader) -> Reader:
    # The keys are symbols or binaries, which a dict can hold.
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
    """Encode a field with multiple="true" (section 1.4)."""
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
    """Part 3, section 3.2.11-14. Signed integers retain their type, so that ids are returned as they came."""
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
    "boolean": FieldType(
        table({0x41: _constant(True), 0x42: _constant(False), 0x56: READERS[0x56]}),
        encoder.write_boolean,
        "boolean",
    ),
    "ubyte": FieldType(table({0x50: _one_byte}), encoder.write_ubyte, "ubyte"),
    "ushort": FieldType(table({0x60: _integer(">H")}), encoder.write_ushort, "ushort"),
    "uint": FieldType(
        table({0x43: _constant(0), 0x52: _one_byte, 0x70: _integer(">I")}), encoder.write_uint, "uint"
    ),
    "ulong": FieldType(
        table({0x44: _constant(0), 0x53: _one_byte, 0x80: _integer(">Q")}), write_ulong, "ulong"
    ),
    "timestamp": FieldType(table({0x83: _integer(">q")}), encoder.write_timestamp, "timestamp"),
    "binary": _field_type((0xA0, 0xB0), write_binary, "binary"),
    "string": _field_type((0xA1, 0xB1), write_string, "string"),
    "symbol": _field_type((0xA3, 0xB3), write_symbol, "symbol"),
    "symbols": FieldType(_SYMBOLS, _write_symbols, "symbol or array of symbol"),
    "map": FieldType(_MAP, encoder.write_map, "map"),
    "fields": FieldType(_MAP, _write_fields, "map"),
    # Part 3, section 3.2.4 has no signed integers, but programs in Go write a long, and RabbitMQ accepts it.
    "message-id": _field_type(
        (*_MESSAGE_ID_CODES, *_SIGNED_CODES), _write_message_id, "ulong, uuid, binary or string"
    ),
    "address": FieldType(READERS, write_any, "address"),
    "global-tx-id": FieldType(READERS, write_any, "global-tx-id"),
    "any": FieldType(READERS, write_any, "any value"),
}


C = TypeVar("C")
T = TypeVar("T", bound="Composite")
Decoder = Callable[[bytes, int, int, int], tuple[C, int]]
"""Reads the list of a composite: buffer, position of its constructor, end, nesting depth."""


class Composite:
    """A described list of fields. `TYPES`: the types of the fields, separated by spaces."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Any]]
    DESCRIPTOR: ClassVar[int]
    NAME: ClassVar[str]
    TYPES: ClassVar[str]

    def encode(self) -> bytes:
        """Return the encoding, without trailing fields that are absent or have their default."""
        cls = type(self)
        cls.encode = _compile_encoder(cls)  # type: ignore[method-assign, assignment]  # compiled
        return self.encode()


COMPOSITES: Final[list[type[Composite]]] = []


@dataclass_transform(kw_only_default=True)
def composite(name: str, descriptor: int, types: str = "") -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass and a composite with this descriptor, as name and as code."""

    def make(cls: type[T]) -> type[T]:
        cls.NAME, cls.DESCRIPTOR, cls.TYPES = name, descriptor, types
        made = dataclass(slots=True, kw_only=True)(cls)
        COMPOSITES.append(made)
        return made

    return make


def define_role(name: str, composites: Any) -> None:
    """Add a field type for a composite, or a union of composites."""
    decoders: Decoders[Any] = Decoders(get_args(composites) or (composites,))

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        descriptor, start = read_descriptor(data, pos, end)
        try:
            decoder = decoders[descriptor]
        except KeyError:
            raise WrongType(pos - 1) from None
        return decoder(data, start, end, depth + 2)

    FIELD_TYPES[name] = FieldType(table({0x00: read}), write_composite, name)


class Decoders(dict[int | str, Decoder[C]], Generic[C]):
    """Decoders by descriptor, as code and as name; the first use compiles one."""

    def __init__(self, classes: Sequence[type[Composite]]) -> None:
        self._classes = {key: cls for cls in classes for key in (cls.DESCRIPTOR, cls.NAME)}

    def __missing__(self, descriptor: int | str) -> Decoder[C]:
        decoder: Decoder[C] = _compile_decoder(self._classes[descriptor])
        self[descriptor] = decoder
        return decoder


def read_descriptor(data: bytes, pos: int, end: int) -> tuple[int | str, int]:
    if pos + 1 < end and data[pos] == 0x53:
        return data[pos + 1], pos + 2
    descriptor, after = decode(data, pos, end)
    if type(descriptor) is not ULong and type(descriptor) is not Symbol:
        actual = type_name(data, pos, end)
        raise DecodeError(f"descriptor at offset {pos} must be ulong or symbol, not {actual}")
    return descriptor, after


def write_composite(value: Any) -> bytes:
    """Encode a composite in a field; refuse all else, such as a str, which has its own `encode`."""
    if not isinstance(value, Composite):
        raise EncodeError(f"{value!r} is not a composite")
    return value.encode()


def _compile_encoder(cls: type[Composite]) -> Callable[[Composite], bytes]:
    prefix = b"\x00\x53" + bytes((cls.DESCRIPTOR,))
    names: dict[str, Any] = {"NULL": NULL, "TRUE": TRUE, "compose": _compose, "prefix": prefix}
    parts = []
    for number, (field, kind) in enumerate(_typed_fields(cls)):
        value, written = f"self.{field.name}", f"write{number}(self.{field.name})"
        names |= {f"write{number}": kind.write, f"default{number}": field.default}
        if field.default is MISSING:
            parts.append(written)
        elif field.default is False:
            parts.append(f"TRUE if {value} else NULL")
        elif field.default is None:
            parts.append(f"NULL if {value} is None else {written}")
        else:
            parts.append(f"NULL if {value} == default{number} else {written}")
    return _define("encode(self)", [f"return compose(prefix, [{', '.join(parts)}])"], cls, names)


def _compose(prefix: bytes, parts: list[bytes]) -> bytes:
    while parts and parts[-1] == NULL:
        parts.pop()
    if not parts:
        return prefix + b"\x45"
    return prefix + write_compound(0xC0, 0xD0, len(parts), b"".join(parts))


def _compile_decoder(cls: type[Composite]) -> Decoder[Any]:
    name = cls.NAME.removeprefix("amqp:").removesuffix(":list")
    typed = _typed_fields(cls)
    spec = [(field.name.replace("_", "-"), kind.words) for field, kind in typed]
    names: dict[str, Any] = {"new": object.__new__, "cls": cls, "open_fields": _open_fields, "FAULTS": FAULTS}
    names |= {"fault": _fault, "DecodeError": DecodeError, "name": name, "spec": spec}
    lines = [
        f"pos, stop, count = open_fields(data, pos, end, name, {len(typed)})",
        "start = pos",
        "self = new(cls)",
        "try:",
    ]
    for number, (field, kind) in enumerate(typed):
        names |= {f"readers{number}": kind.readers, f"default{number}": field.default}
        lines += [
            f" if count > {number}:",
            f"  value, pos = readers{number}[data[pos]](data, pos + 1, stop, depth)",
        ]
        target = f"self.{field.name}"
        default = repr(field.default) if type(field.default) in (bool, int) else f"default{number}"
        if field.default is MISSING:
            problem = f"mandatory field {spec[number][0]!r} of {name} is missing"
            refusal = f"raise DecodeError({problem!r})"
            lines += ["  if value is None:", f"   {refusal}", f"  {target} = value", " else:", f"  {refusal}"]
        elif field.default is None:
            lines += [f"  {target} = value", " else:", f"  {target} = None"]
        else:
            lines += [
                f"  {target} = {default} if value is None else value",
                " else:",
                f"  {target} = {default}",
            ]
    lines += [
        " pass",
        "except FAULTS as error:",
        " raise fault(error, data, start, stop, name, spec) from None",
        "if pos != stop:",
        f" raise DecodeError(f'the fields of {name} end at offset {{pos}} and were to end at {{stop}}')",
        "return self, stop",
    ]
    return _define("decode(data, pos, end, depth)", lines, cls, names)


def _typed_fields(cls: type[Composite]) -> list[tuple[Any, FieldType]]:
    types = [FIELD_TYPES[name] for name in cls.TYPES.split()]
    return list(zip(fields(cls), types, strict=True))


def _define(signature: str, body: list[str], cls: type, names: dict[str, Any]) -> Callable[..., Any]:
    source = f"def {signature}:\n" + "\n".join(f" {line}" for line in body)
    exec(compile(source, f"<{cls.__name__}>", "exec"), names)  # the source is made of field names alone
    function: Callable[..., Any] = names[signature.partition("(")[0]]
    return function


def _open_fields(data: bytes, pos: int, end: int, name: str, limit: int) -> tuple[int, int, int]:
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


def _fault(
    error: Exception, data: bytes, start: int, stop: int, name: str, spec: list[tuple[str, str]]
) -> DecodeError:
    if not isinstance(error, WrongType) or error.pos >= stop:
        return DecodeError(f"the fields of {name} at offset {start} end too early")
    index, pos = 0, start
    while pos < error.pos:
        pos = skip(data, pos, stop)
        index += 1
    field, expected = spec[index]
    return DecodeError(f"field {field!r} of {name} must be {expected}, not {type_name(data, pos, stop)}")
