"""Property filters (AMQP Filter Expressions, section 4): reference values for fields of the message.

A filter is a map from a field's name to a value, of one section, with 1 to 16 entries; a message passes if
every field matches. Reference values match as follows:

=======================  ==================================================================================
null                     in properties, anything; in application-properties, any value, if the key is there
a string ``&p:abc``      a text that begins with ``abc``
a string ``&s:abc``      a text that ends with ``abc``
a string ``&&abc``       the text ``&abc``; any other string that begins with ``&`` is an error
a string or a symbol     the same text, string or symbol
a number                 the same number: integer 10 matches 10.0
anything else            the same value of the same type
=======================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.fields import ABSENT, MessageField, Section
from amqp10broker.message.filters.kinds import KINDS, TEXT
from amqp10broker.message.filters.required import text_bytes
from amqp10broker.protocols.amqp10.types import (
    Array,
    Byte,
    Described,
    Int,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)

ENTRIES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class FieldTest:
    """A condition on one field."""

    passes: Callable[[Any], bool]
    """Takes the value in the message, or `ABSENT`."""
    required: bytes = b""
    """Bytes that the encoding of every passing value contains; empty if none are known."""


_MESSAGE_ID: Final = (ULong, Byte, Short, Int, Long, UUID, bytes, str)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "message-id": _MESSAGE_ID,
    "user-id": (bytes,),
    "to": (str,),
    "subject": (str,),
    "reply-to": (str,),
    "correlation-id": _MESSAGE_ID,
    "content-type": (Symbol,),
    "content-encoding": (Symbol,),
    "absolute-expiry-time": (Timestamp,),
    "creation-time": (Timestamp,),
    "group-id": (str,),
    "group-sequence": (UInt,),
    "reply-to-group-id": (str,),
}
_COMPOUND: Final = (list, dict, Map, Array, Described)
_kind = KINDS.get


def parse_properties(value: Any) -> dict[MessageField, FieldTest]:
    """Read the value of a filter ``amqp:properties-filter``."""
    tests: dict[MessageField, FieldTest] = {}
    for key, reference in _entries(value).items():
        if type(key) is not Symbol or key not in _TYPES:
            raise FilterError(f"{_shown(key)} is no field of properties; give its name as a symbol")
        allowed = _TYPES[key]
        if reference is not None and type(reference) not in allowed:
            names = " or ".join(kind.__name__ for kind in allowed)
            raise FilterError(f"{key} is of type {names}, not {type(reference).__name__}")
        tests[MessageField(Section.PROPERTIES, str(key))] = (
            _ANYTHING if reference is None else _test(reference)
        )
    return tests


def parse_application_properties(value: Any) -> dict[MessageField, FieldTest]:
    """Read the value of a filter ``amqp:application-properties-filter``."""
    tests: dict[MessageField, FieldTest] = {}
    for key, reference in _entries(value).items():
        if type(key) is not str:
            raise FilterError(f"keys of application-properties are strings, not {_shown(key)}")
        if isinstance(reference, _COMPOUND):
            raise FilterError(f"a {type(reference).__name__} cannot be compared with")
        test = _PRESENT if reference is None else _test(reference)
        tests[MessageField(Section.APPLICATION_PROPERTIES, key)] = test
    return tests


def _entries(value: Any) -> dict[Any, Any]:
    # Keys that a dict cannot distinguish are not all strings, nor all symbols.
    if not isinstance(value, dict):
        raise FilterError(f"the value must be a map from names to values, not {_shown(value)}")
    if not 1 <= len(value) <= ENTRIES_MAX:
        raise FilterError(f"the map has {len(value)} entries; 1 to {ENTRIES_MAX} are allowed")
    return value


_ANYTHING: Final = FieldTest(lambda value: True)
_PRESENT: Final = FieldTest(lambda value: value is not ABSENT)


def _test(reference: Any) -> FieldTest:
    if type(reference) is str and reference.startswith("&"):
        part = reference[3:]
        required = text_bytes(part)
        if reference.startswith("&p:"):
            return FieldTest(lambda value: _kind(type(value)) == TEXT and value.startswith(part), required)
        if reference.startswith("&s:"):
            return FieldTest(lambda value: _kind(type(value)) == TEXT and value.endswith(part), required)
        if not reference.startswith("&&"):
            raise FilterError(f"{_shown(reference)} begins with neither '&p:', '&s:' nor '&&'")
        reference = reference[1:]
    kind = _kind(type(reference))
    if kind is None:
        exact = type(reference)
        return FieldTest(lambda value: type(value) is exact and bool(value == reference))
    required = text_bytes(reference) if isinstance(reference, str | bytes) else b""
    return FieldTest(lambda value: _kind(type(value)) == kind and bool(value == reference), required)


def _shown(value: Any) -> str:
    return repr(value)[:100]
