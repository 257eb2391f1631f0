"""Encoder and decoder of composite types, compiled from the fields of a class (part 1, section 1.4).

A class of `performatives` has its fields and, in its decorator, a type for each: a row of `FIELD_TYPES`, or a
role, which is a set of composites (`define_role`). Both functions of a class are compiled when they are first
used: a table of fields costs a start nothing, and a frame is read without a loop over fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform, get_args

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.decoder import decode, open8, open32, type_name
from amqp10broker.protocols.amqp10.encoder import NULL, TRUE, write_compound
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.fields import FAULTS, FIELD_TYPES, FieldType, WrongType, table
from amqp10broker.protocols.amqp10.skipper import skip
from amqp10broker.protocols.amqp10.types import Symbol, ULong

C = TypeVar("C")
T = TypeVar("T", bound="Composite")
Decoder = Callable[[bytes, int, int, int], tuple[C, int]]
"""Reads the list of a composite: buffer, position of its constructor, end, nesting depth."""


class Composite:
    """A composite: a list of fields, whose types are in `TYPES`, separated by spaces, with a descriptor."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Any]]
    DESCRIPTOR: ClassVar[int]
    NAME: ClassVar[str]
    TYPES: ClassVar[str]

    def encode(self) -> bytes:
        """Return the described list, without trailing fields that are absent or have their default."""
        cls = type(self)
        cls.encode = _compile_encoder(cls)  # type: ignore[method-assign, assignment]  # compiled
        return self.encode()


COMPOSITES: Final[list[type[Composite]]] = []
"""The classes of all composites."""


@dataclass_transform(kw_only_default=True)
def composite(name: str, descriptor: int, types: str = "") -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass, and a composite with this descriptor, as name and as code."""

    def make(cls: type[T]) -> type[T]:
        cls.NAME, cls.DESCRIPTOR, cls.TYPES = name, descriptor, types
        made = dataclass(slots=True, kw_only=True)(cls)
        COMPOSITES.append(made)
        return made

    return make


def define_role(name: str, composites: Any) -> None:
    """Add the type of fields that take one of these composites: a class, or a union of classes."""
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
    """The decoders of some composites by descriptor, as code and as name; the first use compiles one."""

    def __init__(self, classes: Sequence[type[Composite]]) -> None:
        self._classes = {key: cls for cls in classes for key in (cls.DESCRIPTOR, cls.NAME)}

    def __missing__(self, descriptor: int | str) -> Decoder[C]:
        decoder: Decoder[C] = _compile_decoder(self._classes[descriptor])
        self[descriptor] = decoder
        return decoder


def read_descriptor(data: bytes, pos: int, end: int) -> tuple[int | str, int]:
    """Return the descriptor at `pos` as code or name, and the position after it."""
    if pos + 1 < end and data[pos] == 0x53:
        return data[pos + 1], pos + 2
    descriptor, after = decode(data, pos, end)
    if type(descriptor) is not ULong and type(descriptor) is not Symbol:
        actual = type_name(data, pos, end)
        raise DecodeError(f"descriptor at offset {pos} must be ulong or symbol, not {actual}")
    return descriptor, after


def write_composite(value: Any) -> bytes:
    """Encode a composite in a field; refuse all else, above all a str, which has its own `encode`."""
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
    """Find the offending field by walking from `start`, where the first field is."""
    if not isinstance(error, WrongType) or error.pos >= stop:
        return DecodeError(f"the fields of {name} at offset {start} end too early")
    index, pos = 0, start
    while pos < error.pos:
        pos = skip(data, pos, stop)
        index += 1
    field, expected = spec[index]
    return DecodeError(f"field {field!r} of {name} must be {expected}, not {type_name(data, pos, stop)}")
