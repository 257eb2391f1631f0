"""Encoder and decoder of methods, compiled from the fields of a class (section 4.2.4 and 4.2.5).

A class of `methods` has its fields and, in its decorator, a type for each; "-" marks a reserved field, which
the class does not have. Both functions of a class are compiled when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, fields
from itertools import groupby
from struct import Struct
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091 import codec

M = TypeVar("M", bound="Method")
Decoder = Callable[[bytes, int], tuple["Method", int]]
"""Reads the arguments of a method: buffer and position; returns the method and the position after it."""

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
    **{f"encode_{name}": getattr(codec, f"encode_{name}") for name in _TEXTS},
    **{f"decode_{name}": getattr(codec, f"decode_{name}") for name in _TEXTS},
}
_EMPTY: Final = {"short": b"\x00\x00", "bit": b"\x00", "shortstr": b"\x00", "longstr": b"\x00\x00\x00\x00"}
"""What is written for reserved fields; no definition reserves another type."""


class Method:
    """A method. `TYPES`: of the arguments, separated by spaces, with "-" in front of reserved ones."""

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
    """Make a class a dataclass, and a method with this name (``queue.declare``) and these numbers."""

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
    """Return the name of a method, as ``queue.declare``; None if the numbers are unknown."""
    cls = METHODS.get(class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big"))
    return None if cls is None else cls.NAME


def _index(cls: type[Method]) -> bytes:
    return cls.CLASS_ID.to_bytes(2, "big") + cls.METHOD_ID.to_bytes(2, "big")


def _arguments(cls: type[Method]) -> Iterator[tuple[str, list[str | None]]]:
    """Give the arguments in order: a type, and the names that share it; None for a reserved one.

    Neighbouring bits, up to eight, share an octet (section 4.2.5.2); no method has more.
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
