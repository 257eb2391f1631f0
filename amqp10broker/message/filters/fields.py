"""Fields of a message that filters use, and the reader of their values.

A filter reads few values of very many messages. So the reader walks over the encoded sections and builds only
the values that are needed. A message that is encoded in an unusual way is decoded as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import header_of
from amqp10broker.message.convert import body_start, read_properties, to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import READERS, WIDTHS_MIN, skip
from amqp10broker.protocols.amqp10.performatives import Header, Properties


class FilterError(ValueError):
    """A filter cannot be used. Functions do not list it: reading a filter raises nothing else. `reason`: a
    clause: "is 4097 characters long; 4096 are allowed". `position`: in the text of an SQL filter, from 0.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"{reason} (at character {position + 1})")
        self.reason = reason
        self.position = position


def shown(value: Any) -> str:
    return repr(value)[:100]


PRIORITY: Final = "priority"
DELIVERY_MODE: Final = "delivery-mode"
REDELIVERED: Final = "redelivered"
PRIORITY_DEFAULT: Final = 4
"""The priority of a message without one (part 3, section 3.2.1)."""

HEADER: Final[Mapping[str, Callable[[Header], Any]]] = {
    PRIORITY: lambda header: PRIORITY_DEFAULT if header.priority is None else header.priority,
    DELIVERY_MODE: lambda header: "PERSISTENT" if header.durable else "NON_PERSISTENT",
    REDELIVERED: lambda header: False,  # streams do not redeliver messages
}
"""Fields of the header for selectors, by their names in JMS."""

PROPERTIES: Final = tuple(field.name.replace("_", "-") for field in fields(Properties))
"""The fields of the properties section in their order (part 3, section 3.2.4)."""


class Section(Enum):
    HEADER = "header"
    PROPERTIES = "properties"
    APPLICATION_PROPERTIES = "application-properties"


@dataclass(frozen=True, slots=True)
class MessageField:
    section: Section
    name: str
    """One of `HEADER`, one of `PROPERTIES`, or any key of application-properties."""


ABSENT: Final = object()
"""Stands for an absent value, where that differs from null."""

_PROPERTIES_SECTION: Final = b"\x00\x53\x73"
_APPLICATION_SECTION: Final = b"\x00\x53\x74"
_BODY_SECTION: Final = b"\x00\x53"
_BODY_CODES: Final = frozenset((0x75, 0x76, 0x77))
_STRING8: Final = 0xA1
_STRING32: Final = 0xB1
_UUID: Final = 0x98

# How to walk over a value: the width of its content, or that of its size field below zero.
_SIZE8: Final = -1
_SIZE32: Final = -4
_DESCRIBED: Final = -9
_STEPS: Final = [
    _DESCRIBED
    if code == 0 or width < 0
    else width
    if code < 0xA0
    else _SIZE8
    if code & 0x10 == 0
    else _SIZE32
    for code, width in enumerate(WIDTHS_MIN)
]

_number = int.from_bytes


_READERS_UUID_AS_BINARY: Final = [
    *READERS[:_UUID],
    lambda data, pos, end, depth: (data[pos : pos + 16], pos + 16),
    *READERS[_UUID + 1 :],
]


class FieldReader:
    """Reads certain fields of messages. `absent`: stands for an absent application property; an absent field
    of the properties section is None, as a null one is.
    """

    __slots__ = (
        "_application",
        "_blank",
        "_fields",
        "_header",
        "_properties",
        "_readers",
        "_uuid_as_binary",
        "_wanted",
        "of_application",
    )

    def __init__(
        self, fields: Sequence[MessageField], *, absent: Any = None, uuid_as_binary: bool = False
    ) -> None:
        self._fields = tuple(fields)
        self._blank: list[Any] = []
        self._header: list[tuple[int, Callable[[Header], Any]]] = []
        self._application: dict[bytes, int] = {}
        slots: dict[int, int] = {}
        for slot, field in enumerate(self._fields):
            self._blank.append(absent if field.section is Section.APPLICATION_PROPERTIES else None)
            if field.section is Section.HEADER:
                self._header.append((slot, HEADER[field.name]))
            elif field.section is Section.PROPERTIES:
                slots[PROPERTIES.index(field.name)] = slot
            else:
                self._application[field.name.encode()] = slot
        assert len(set(self._fields)) == len(self._fields)
        self._wanted = len(self._application)
        self.of_application = 0 < self._wanted == len(self._fields)
        # The slot for each field up to the last wanted one, -1 to walk over it.
        self._properties = [slots.get(index, -1) for index in range(max(slots) + 1)] if slots else []
        self._readers = _READERS_UUID_AS_BINARY if uuid_as_binary else READERS
        self._uuid_as_binary = uuid_as_binary

    def read(self, message: Message) -> list[Any]:
        """Return the values in the order of the fields; a message of AMQP 0-9-1 is converted first."""
        head, bare = message
        if head[0] == amqp091.MARK:
            head, bare = to_amqp10(message)
        values = self._blank[:]
        if self._header:
            header = header_of(head)
            for slot, value_of in self._header:
                values[slot] = value_of(header)
            if len(values) == len(self._header):
                return values
        pos = 0
        if bare.startswith(_PROPERTIES_SECTION):
            code = bare[3]
            if code == 0xC0:
                pos = 5 + bare[4]
                if self._properties:
                    self._read_properties(bare, 6, bare[5], values)
            elif code == 0xD0:
                pos = 8 + _number(bare[4:8], "big")
                if self._properties:
                    self._read_properties(bare, 12, _number(bare[8:12], "big"), values)
            else:
                pos = 4
        if bare.startswith(_APPLICATION_SECTION, pos):
            if self._wanted:
                self._read_application(bare, pos + 3, values)
        elif not (bare.startswith(_BODY_SECTION, pos) and bare[pos + 2] in _BODY_CODES):
            self._read_all(bare, values)
        return values

    def _read_properties(self, bare: bytes, pos: int, count: int, values: list[Any]) -> None:
        for slot in self._properties[:count]:
            code = bare[pos]
            if slot >= 0:
                values[slot], pos = self._readers[code](bare, pos + 1, len(bare), 1)
            elif (step := _STEPS[code]) >= 0:
                pos += 1 + step
            elif step == _SIZE8:
                pos += 2 + bare[pos + 1]
            elif step == _SIZE32:
                pos += 5 + _number(bare[pos + 1 : pos + 5], "big")
            else:
                pos = skip(bare, pos)

    def _read_application(self, bare: bytes, pos: int, values: list[Any]) -> None:
        if bare[pos] == 0xC1:
            left = bare[pos + 2] >> 1
            pos += 3
        else:
            left = _number(bare[pos + 5 : pos + 9], "big") >> 1
            pos += 9
        application = self._application
        wanted = self._wanted
        for _ in range(left):
            slot: int | None = None
            code = bare[pos]
            if code == _STRING8:
                start = pos + 2
                pos = start + bare[pos + 1]
                slot = application.get(bare[start:pos])
            elif code == _STRING32:
                start = pos + 5
                pos = start + _number(bare[pos + 1 : start], "big")
                slot = application.get(bare[start:pos])
            else:
                pos = skip(bare, pos)
            code = bare[pos]
            if slot is not None:
                values[slot], pos = self._readers[code](bare, pos + 1, len(bare), 1)
                wanted -= 1
                if not wanted:
                    return
            elif (step := _STEPS[code]) >= 0:
                pos += 1 + step
            elif step == _SIZE8:
                pos += 2 + bare[pos + 1]
            elif step == _SIZE32:
                pos += 5 + _number(bare[pos + 1 : pos + 5], "big")
            else:
                pos = skip(bare, pos)

    def _read_all(self, bare: bytes, values: list[Any]) -> None:
        properties, application = read_properties(bare[: body_start(bare)])
        found = {key: value for key, value in application.items() if type(key) is str}
        for slot, field in enumerate(self._fields):
            if field.section is Section.PROPERTIES:
                value = getattr(properties, field.name.replace("-", "_"), None)
            elif field.section is Section.APPLICATION_PROPERTIES:
                value = found.get(field.name, self._blank[slot])
            else:
                continue
            values[slot] = value.bytes if self._uuid_as_binary and isinstance(value, UUID) else value
