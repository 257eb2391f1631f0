"""The sections of the bare message of AMQP 1.0, of an accepted message, and headers for routing."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import X_EXCHANGE, X_ROUTING_KEY, decode_head
from amqp10broker.message.message import Message
from amqp10broker.message.values import DROPPED, name_of, simple_to_amqp091, value_to_amqp091
from amqp10broker.protocols.amqp091.codec import plain
from amqp10broker.protocols.amqp091.properties import read_headers
from amqp10broker.protocols.amqp10.codec import decode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    DATA,
    FOOTER,
    PROPERTIES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.sections import SECTION_CODES, locate
from amqp10broker.protocols.amqp10.types import Map

_SMALL_DESCRIPTOR: Final = b"\x00\x53"
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


def _section(bare: bytes, pos: int) -> tuple[int, int]:
    if bare.startswith(_SMALL_DESCRIPTOR, pos):
        return bare[pos + 2], pos + 3
    code, pos = decode(bare, pos + 1)
    return SECTION_CODES[code] if isinstance(code, str) else int(code), pos


def body_start(bare: bytes) -> int:
    """Where the body begins, or would: behind properties and application-properties."""
    if bare.startswith((_DATA8, _DATA32)):
        return 0
    pos = 0
    while pos < len(bare):
        code, value = _section(bare, pos)
        if code >= DATA:
            break
        pos = skip(bare, value)
    return pos


def read_properties(prefix: bytes) -> tuple[Properties | None, dict[Any, Any] | Map]:
    properties: Properties | None = None
    application: dict[Any, Any] | Map = {}
    pos = 0
    while pos < len(prefix):
        code, value = _section(prefix, pos)
        if code == PROPERTIES:
            decoded, pos = decode_composite(prefix, pos)
            assert isinstance(decoded, Properties)
            properties = decoded
        else:
            application, pos = decode(prefix, value)
    return properties, application


def data_of(bare: bytes, pos: int) -> bytes | None:
    """The joined data sections of a message; empty without a body; None if its body is of another kind."""
    # The commonest shape is one data section and no footer.
    code = bare[pos : pos + 4]
    if code == _DATA8 and pos + 5 + bare[pos + 4] == len(bare):
        return bare[pos + 5 :]
    if code == _DATA32 and pos + 8 + int.from_bytes(bare[pos + 4 : pos + 8], "big") == len(bare):
        return bare[pos + 8 :]
    parts: list[bytes] = []
    while pos < len(bare):
        section, value = _section(bare, pos)
        if section == FOOTER:
            break
        if section != DATA:
            return None
        content, pos = decode(bare, value)
        parts.append(content)
    return b"".join(parts)


def data_section(content: bytes) -> bytes:
    size = len(content)
    if size <= 255:
        return b"%b%c%b" % (_DATA8, size, content)
    return b"%b%b%b" % (_DATA32, size.to_bytes(4, "big"), content)


def is_encoded_body(content: bytes) -> bool:
    try:
        sections = locate(content)
        return bool(content) and sections.bare == 0 and DATA <= _section(content, 0)[0] < FOOTER
    except DecodeError:
        return False


def routing_headers(message: Message) -> dict[str, object]:
    """Return an AMQP 0-9-1 message's headers, or an AMQP 1.0 message's application-properties and x-
    annotations.

    Values are plain Python ones: numbers int or float whatever their width, timestamps int in seconds,
    texts str, binaries bytes. An annotation takes precedence over an application-property of the same
    name.
    """
    head, bare = message
    if head[0] == amqp091.MARK:
        headers: dict[str, object] = plain(read_headers(amqp091.split_head(head)[1]))
        return headers
    headers = {}
    start = body_start(bare)
    if start:
        for key, value in read_properties(bare[:start])[1].items():
            name, converted = name_of(key), simple_to_amqp091(value)
            if name is not None and converted is not DROPPED:
                headers[name] = plain(converted)
    for key, value in decode_head(head)[1].items():
        converted = value_to_amqp091(value)
        if key not in (X_EXCHANGE, X_ROUTING_KEY) and converted is not DROPPED:
            headers[str(key)] = plain(converted)
    return headers
