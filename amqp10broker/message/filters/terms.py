"""The names that errors give to the types of field values of AMQP 0-9-1."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.protocols.amqp091 import types as t091

_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    str: "longstr",
    bytes: "longstr",  # one that is not UTF-8
    t091.ByteArray: "binary",
    t091.Int8: "byte",
    t091.UInt8: "unsignedbyte",
    t091.Int16: "short",
    t091.UInt16: "unsignedshort",
    t091.Int32: "signedint",
    t091.UInt32: "unsignedint",
    t091.Int64: "long",
    int: "long",
    t091.Float32: "float",
    float: "double",
    t091.Timestamp: "timestamp",
    list: "array",
    dict: "table",
    type(None): "void",
}


def type_name(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__.lower())
