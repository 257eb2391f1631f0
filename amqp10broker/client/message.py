"""Messages of a client, to and from bytes (part 3, section 3.2).

Senders take encoded messages, because many programs send the same shape again and can encode faster than a
general class. `Message` is that class, `data_message` the fast way for plain bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.errors import EncodeError as EncodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SECTION_CODES,
    decode_composite,
)
from amqp10broker.protocols.amqp10.performatives import Header as Header
from amqp10broker.protocols.amqp10.performatives import Properties as Properties
from amqp10broker.protocols.amqp10.types import Described, Map, ULong
from amqp10broker.protocols.amqp10.types import Symbol as Symbol

_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_LATER: Final = "a message begins with the descriptor of a section"


class BodyKind(Enum):
    """The forms of a body (3.2.6 to 3.2.8), and none, which some clients send."""

    NONE = 0
    DATA = DATA
    SEQUENCE = AMQP_SEQUENCE
    VALUE = AMQP_VALUE


@dataclass(slots=True)
class Message:
    """A decoded message. A section that is absent is None."""

    body: Any = b""
    """bytes for data, a list for amqp-sequence (sections joined), None for none, else any value."""
    properties: Properties | None = None
    application_properties: Mapping[str, Any] | None = None
    header: Header | None = None
    delivery_annotations: Mapping[Any, Any] | None = None
    message_annotations: Mapping[Any, Any] | None = None
    footer: Mapping[Any, Any] | None = None
    kind: BodyKind | None = None
    """None encodes bytes as data and any other value as amqp-value."""

    def encode(self) -> bytes:
        parts: list[bytes] = []
        if self.header is not None:
            parts.append(self.header.encode())
        if self.delivery_annotations is not None:
            parts.append(_section(DELIVERY_ANNOTATIONS, dict(self.delivery_annotations)))
        if self.message_annotations is not None:
            parts.append(_section(MESSAGE_ANNOTATIONS, dict(self.message_annotations)))
        if self.properties is not None:
            parts.append(self.properties.encode())
        if self.application_properties is not None:
            parts.append(_section(APPLICATION_PROPERTIES, dict(self.application_properties)))
        kind = self.kind or (BodyKind.DATA if isinstance(self.body, _BYTES) else BodyKind.VALUE)
        if kind is BodyKind.NONE:
            if self.body is not None:
                raise EncodeError("a message of kind NONE has no body: leave kind out, or set body to None")
        elif self.kind is not None and kind is not BodyKind.VALUE:
            wanted = _LISTS if kind is BodyKind.SEQUENCE else _BYTES
            if not isinstance(self.body, wanted):
                raise EncodeError(
                    f"a body of kind {kind.name} is made of {wanted[0].__name__}, not of "
                    f"{type(self.body).__name__}: leave kind out, or take BodyKind.VALUE"
                )
        if kind is not BodyKind.NONE:
            parts.append(_section(kind.value, self.body))
        if self.footer is not None:
            parts.append(_section(FOOTER, dict(self.footer)))
        return b"".join(parts)


def data_message(body: bytes) -> bytes:
    size = len(body)
    if size < 256:
        return b"%b%c%b" % (_DATA8, size, body)
    return _DATA32 + size.to_bytes(4, "big") + body


def decode_message(payload: bytes) -> Message:
    message = Message(None, kind=BodyKind.NONE)
    data: list[bytes] = []
    pos = 0
    end = len(payload)
    while pos < end:
        code, start = section_at(payload, pos, end)
        if code in _COMPOSITES:
            section, pos = decode_composite(payload, pos, end)
            setattr(message, _COMPOSITES[code], section)
            continue
        value, pos = decode(payload, start, end)
        if code in _VALUE_TYPES and not isinstance(value, _VALUE_TYPES[code]):
            raise DecodeError(f"section 0x{code:02x} holds a {type(value).__name__}")
        if code == DATA:
            message.kind = BodyKind.DATA
            data.append(value)
        elif code == AMQP_SEQUENCE:
            message.body = [*message.body, *value] if message.kind is BodyKind.SEQUENCE else value
            message.kind = BodyKind.SEQUENCE
        elif code == AMQP_VALUE:
            message.kind = BodyKind.VALUE
            message.body = value
        else:
            setattr(message, _MAPS[code], value)
    if message.kind is BodyKind.DATA:
        message.body = data[0] if len(data) == 1 else b"".join(data)
    return message


_COMPOSITES: Final = {Header.DESCRIPTOR: "header", Properties.DESCRIPTOR: "properties"}
_MAPS: Final[Mapping[int, str]] = {
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    MESSAGE_ANNOTATIONS: "message_annotations",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}
_BYTES: Final = (bytes, bytearray, memoryview)
_LISTS: Final = (list, tuple)
_KNOWN: Final = frozenset(SECTION_CODES.values())
_VALUE_TYPES: Final[Mapping[int, type | tuple[type, ...]]] = {
    DATA: bytes,
    AMQP_SEQUENCE: list,
    **dict.fromkeys(_MAPS, (dict, Map)),
}


def _section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def section_at(payload: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the descriptor of the section that begins at `pos`, and the position of its value."""
    if payload[pos] != 0:
        raise DecodeError(f"no section begins at byte {pos}: {_LATER}")
    descriptor, start = decode(payload, pos + 1, end)
    code = SECTION_CODES.get(descriptor) if isinstance(descriptor, Symbol) else descriptor
    if not isinstance(code, int) or code not in _KNOWN:  # a list or map cannot be looked up in a set
        raise DecodeError(f"unknown section {descriptor!r} at byte {pos}")
    return int(code), start
