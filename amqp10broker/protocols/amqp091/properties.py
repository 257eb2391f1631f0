"""The properties of a basic content, which follow the body size in a content header (section 4.2.6.1).

A word of flags states which of the fourteen properties are present. Their values follow in order.
"""

from __future__ import annotations

import struct
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.codec import Table, decode_table, encode_shortstr, encode_table
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.serial import EncodeError

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
UNKNOWN: Final = 0x0002
MORE_FLAGS: Final = 0x0001

PERSISTENT: Final = 2
"""The delivery mode of a message that survives a restart; 1, or none, is transient."""

_FLAGS: Final = struct.Struct(">H").pack
_TIME: Final = struct.Struct(">Q")

# The exceptions for data that is cut off.
_FAULTS: Final = (IndexError, struct.error)


@dataclass(slots=True)
class BasicProperties:
    """The properties of a message. An absent property is None.

    Texts that are not UTF-8 have the invalid bytes as lone surrogates (PEP 383), so that they are passed on
    unchanged.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """Seconds since 1970-01-01T00:00:00Z."""
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def decode_properties(data: bytes) -> BasicProperties:
    properties = BasicProperties()
    end = len(data)
    try:
        flags, pos = read_flags(data)
        if flags & CONTENT_TYPE:
            stop = pos + 1 + data[pos]
            properties.content_type = data[pos + 1 : stop].decode("utf-8", "surrogateescape")
            pos = stop
        if flags & CONTENT_ENCODING:
            properties.content_encoding, pos = _text(data, pos)
        if flags & HEADERS:
            properties.headers, pos = decode_table(data, pos)
        if flags & DELIVERY_MODE:
            properties.delivery_mode = data[pos]
            pos += 1
        if flags & PRIORITY:
            properties.priority = data[pos]
            pos += 1
        if flags & 0x07FC:  # anything after priority
            if flags & CORRELATION_ID:
                properties.correlation_id, pos = _text(data, pos)
            if flags & REPLY_TO:
                properties.reply_to, pos = _text(data, pos)
            if flags & EXPIRATION:
                properties.expiration, pos = _text(data, pos)
            if flags & MESSAGE_ID:
                properties.message_id, pos = _text(data, pos)
            if flags & TIMESTAMP:
                properties.timestamp = _TIME.unpack_from(data, pos)[0]
                pos += 8
            if flags & TYPE:
                properties.type, pos = _text(data, pos)
            if flags & USER_ID:
                properties.user_id, pos = _text(data, pos)
            if flags & APP_ID:
                properties.app_id, pos = _text(data, pos)
            if flags & CLUSTER_ID:
                properties.cluster_id, pos = _text(data, pos)
    except _FAULTS:
        raise DecodeError("content properties are cut off") from None
    if pos != end:
        raise misfit(pos, end)
    return properties


def read_flags(data: bytes) -> tuple[int, int]:
    """Return the flags, and where the values begin. Raises `DecodeError`, or `IndexError` if cut off."""
    flags = data[0] << 8 | data[1]
    if not flags & (MORE_FLAGS | UNKNOWN):
        return flags, 2
    if flags & UNKNOWN:
        raise DecodeError(f"content properties have the unknown flag 0x{flags & UNKNOWN:04x}")
    # "If more than 15 properties are transmitted, bit 0 is set and a further word follows" (4.2.6.1): this
    # class has 14, so a further word must be empty.
    pos = 2
    while True:
        more = data[pos] << 8 | data[pos + 1]
        pos += 2
        if more & ~MORE_FLAGS:
            raise DecodeError(f"content properties have the unknown flags 0x{more:04x} in word {pos // 2}")
        if not more:
            return flags ^ MORE_FLAGS, pos


def misfit(pos: int, end: int) -> DecodeError:
    return DecodeError(f"content properties take {pos} bytes, not the {end} of the content header")


def _text(data: bytes, pos: int) -> tuple[str, int]:
    stop = pos + 1 + data[pos]
    return data[pos + 1 : stop].decode("utf-8", "surrogateescape"), stop


def encode_properties(properties: BasicProperties) -> bytes:
    """Encode property flags and values. Raises `EncodeError`."""
    flags = 0
    parts = [b""]
    try:
        if properties.content_type is not None:
            flags |= CONTENT_TYPE
            parts.append(encode_shortstr(properties.content_type))
        if properties.content_encoding is not None:
            flags |= CONTENT_ENCODING
            parts.append(encode_shortstr(properties.content_encoding))
        if properties.headers is not None:
            flags |= HEADERS
            parts.append(encode_table(properties.headers))
        if properties.delivery_mode is not None:
            flags |= DELIVERY_MODE
            parts.append(properties.delivery_mode.to_bytes(1, "big"))
        if properties.priority is not None:
            flags |= PRIORITY
            parts.append(properties.priority.to_bytes(1, "big"))
        if properties.correlation_id is not None:
            flags |= CORRELATION_ID
            parts.append(encode_shortstr(properties.correlation_id))
        if properties.reply_to is not None:
            flags |= REPLY_TO
            parts.append(encode_shortstr(properties.reply_to))
        if properties.expiration is not None:
            flags |= EXPIRATION
            parts.append(encode_shortstr(properties.expiration))
        if properties.message_id is not None:
            flags |= MESSAGE_ID
            parts.append(encode_shortstr(properties.message_id))
        if properties.timestamp is not None:
            flags |= TIMESTAMP
            parts.append(properties.timestamp.to_bytes(8, "big"))  # struct of PyPy raises ValueError below 0
        if properties.type is not None:
            flags |= TYPE
            parts.append(encode_shortstr(properties.type))
        if properties.user_id is not None:
            flags |= USER_ID
            parts.append(encode_shortstr(properties.user_id))
        if properties.app_id is not None:
            flags |= APP_ID
            parts.append(encode_shortstr(properties.app_id))
        if properties.cluster_id is not None:
            flags |= CLUSTER_ID
            parts.append(encode_shortstr(properties.cluster_id))
    except (OverflowError, struct.error):
        raise EncodeError("delivery mode and priority are 0 to 255, the timestamp 0 to 2**64 - 1") from None
    parts[0] = _FLAGS(flags)
    return b"".join(parts)


def is_persistent(data: bytes) -> bool:
    """Return whether the delivery mode of accepted properties is 2, without decoding anything."""
    flags, pos = read_flags(data)
    if not flags & DELIVERY_MODE:
        return False
    pos = _headers_at(data, flags, pos)
    if flags & HEADERS:
        pos += 4 + int.from_bytes(data[pos : pos + 4], "big")
    return data[pos] == PERSISTENT


def read_headers(data: bytes) -> Table:
    """Return only the headers of accepted properties, or an empty table."""
    flags, pos = read_flags(data)
    if not flags & HEADERS:
        return {}
    return decode_table(data, _headers_at(data, flags, pos))[0]


def locate(data: bytes) -> tuple[int, int, slice, slice]:
    """Return where headers and expiration are, to replace them and copy the rest. Returns the flags, where
    the values begin, and the slices of headers and expiration with their lengths; empty slices at their
    places if they are absent.
    """
    flags, values = read_flags(data)
    pos = headers = _headers_at(data, flags, values)
    if flags & HEADERS:
        pos += 4 + int.from_bytes(data[pos : pos + 4], "big")
    headers_at = slice(headers, pos)
    pos += bool(flags & DELIVERY_MODE) + bool(flags & PRIORITY)
    if flags & CORRELATION_ID:
        pos += 1 + data[pos]
    if flags & REPLY_TO:
        pos += 1 + data[pos]
    stop = pos + 1 + data[pos] if flags & EXPIRATION else pos
    return flags, values, headers_at, slice(pos, stop)


def _headers_at(data: bytes, flags: int, pos: int) -> int:
    if flags & CONTENT_TYPE:
        pos += 1 + data[pos]
    if flags & CONTENT_ENCODING:
        pos += 1 + data[pos]
    return pos
