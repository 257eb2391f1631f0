"""Argument values of exchanges and bindings: their equality, hashes, and form in errors.

Values come from several APIs (AMQP 0-9-1 field tables, AMQP 1.0 maps, JSON), each with its own classes for
numbers. Here only kind and content count: integers of any width are integers, text is text whether it came
as `str` or as UTF-8 `bytes`; but an integer, a float and a boolean are never equal.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1

# RabbitMQ's names of field types, by class name: the classes themselves belong to protocols, which routing
# does not import.
_TYPE_NAMES: Final = {
    "Int8": "byte",
    "UInt8": "unsignedbyte",
    "Int16": "short",
    "UInt16": "unsignedshort",
    "Int32": "signedint",
    "UInt32": "unsignedint",
    "Int64": "long",
    "Timestamp": "timestamp",
    "Float32": "float",
    "ByteArray": "binary",
}


def canonical(value: object) -> object:
    """Return a hashable form that is equal for two values exactly if they count as the same.

    Text and integers are their own form, which makes the common comparisons the cheapest ones; everything
    else becomes a tuple that begins with its kind.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return ("bytes", content)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return int(value)
    if value is None:
        return ("void",)
    if isinstance(value, float):
        return ("float", float(value))
    if isinstance(value, Decimal):
        return ("decimal", value)
    if isinstance(value, Mapping):
        return ("table", canonical_table(value))
    if isinstance(value, list | tuple):
        return ("array", tuple(canonical(item) for item in value))
    # Another protocol's own kind (a UUID): identified by its class and its text.
    return (type(value).__name__, str(value))


def canonical_table(arguments: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """The canonical form of a whole table, independent of the order of keys."""
    return tuple((str(key), canonical(arguments[key])) for key in sorted(arguments))


def table_hash(arguments: Mapping[str, object], size_bytes: int) -> str:
    """Return a hash of a table in base64url without padding, the same in every process and on every machine;
    the empty text for an empty table.
    """
    if not arguments:
        return ""
    parts: list[bytes] = []
    _encode(("table", canonical_table(arguments)), parts)
    digest = hashlib.blake2b(b"".join(parts), digest_size=size_bytes).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def hash64(value: object) -> int:
    """Return a 64-bit hash of a value, the same in every process; equal values have equal hashes."""
    form = canonical(value)
    if isinstance(form, str):
        content = form.encode("utf-8", "surrogatepass")
    else:
        parts: list[bytes] = []
        _encode(form, parts)
        content = b"".join(parts)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _encode(form: object, parts: list[bytes]) -> None:
    if isinstance(form, tuple):
        parts.append(b"(" + struct.pack(">I", len(form)))
        for item in form:
            _encode(item, parts)
        return
    if isinstance(form, str):
        letter, content = b"s", form.encode("utf-8", "surrogatepass")
    elif isinstance(form, bytes):
        letter, content = b"b", form
    elif isinstance(form, bool):
        letter, content = b"t", b"\x01" if form else b"\x00"
    elif isinstance(form, float):
        # Equal values have equal encodings: -0.0 is 0.0, and below 1.00 is 1.0.
        letter, content = b"d", struct.pack(">d", form + 0.0)
    elif isinstance(form, Decimal):
        letter, content = b"i", str(form.normalize()).encode()
    else:
        letter, content = b"i", str(form).encode()
    parts.append(letter + struct.pack(">I", len(content)) + content)


def type_name(value: object) -> str:
    name = _TYPE_NAMES.get(type(value).__name__)
    if name is not None:
        return name
    match value:
        case str() | bytes():
            return "longstr"
        case bool():
            return "bool"
        case int():
            return "signedint" if _INT32_MIN <= value <= _INT32_MAX else "long"
        case float():
            return "double"
        case Decimal():
            return "decimal"
        case None:
            return "void"
        case Mapping():
            return "table"
        case list() | tuple():
            return "array"
        case _:
            return "binary"


def plain_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return "undefined" if value is None else str(value)
