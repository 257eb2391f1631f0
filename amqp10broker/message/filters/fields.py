"""The fields of a message that filters may name, and the error of a filter that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.types import Byte, Int, Long, Short, Symbol, Timestamp, UInt, ULong


class FilterError(ValueError):
    """A filter cannot be used. Functions do not list it in their docstrings: reading a filter raises nothing
    else. `reason`: a clause: "is 4097 characters long; 4096 are allowed". `position`: in the text of an SQL
    filter, from 0.
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
"""Fields of the header for selectors, by their names in JMS."""

_MESSAGE_ID: Final = (ULong, Byte, Short, Int, Long, UUID, bytes, str)
PROPERTY_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
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
"""The fields of the properties section, in their order, and their types (part 3, section 3.2.4)."""

PROPERTIES: Final = tuple(PROPERTY_TYPES)


class Section(Enum):
    HEADER = "header"
    PROPERTIES = "properties"
    APPLICATION_PROPERTIES = "application-properties"


@dataclass(frozen=True, slots=True)
class MessageField:
    section: Section
    name: str
    """One of those above of the header, one of `PROPERTIES`, or any key of application-properties."""
