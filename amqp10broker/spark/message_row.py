"""Defines the row of a message, and decodes any message by that definition.

==========================  ==============================================================================
`offset`                    annotation ``x-stream-offset``; null if there is none, and of queues
`enqueuedTime`              annotation ``x-opt-enqueued-time`` if it is an integer or a time, else property
                            creation-time, else null; null outside the years 1 to 9999 (`MS_MIN`)
`messageId`, `subject`      properties, as text (below); null if absent
`body`                      data: the bytes, several sections joined. amqp-value: a string or symbol as UTF-8,
                            a binary as it is, null as null; any other value in the AMQP 1.0 encoding
                            in which it came. amqp-sequence: that encoding, several sections one after the
                            other. No body section: null
`applicationProperties`     keys and values as text; null if the section is absent
==========================  ==============================================================================

As text: strings and symbols as they are; integers in decimal; booleans ``true`` and ``false``; floating point
numbers as Python prints them; timestamps as ``2026-01-31T12:00:00.000Z``; UUIDs with hyphens; binaries as
``0x`` and hexadecimal digits; null as null; anything else as ``0x`` and its AMQP 1.0 encoding.

`row_layouts` does the same for thousands of messages at a time and must agree with this module, which reads
the messages that it cannot.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from amqp10broker.client.message import section_at
from amqp10broker.protocols.amqp10.codec import decode, encode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Map, Timestamp

X_STREAM_OFFSET: Final = "x-stream-offset"
X_ENQUEUED: Final = "x-opt-enqueued-time"
OFFSET_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Spark could store 292 000 years, but one row with a time outside Python's range makes `collect` fail for all
# rows. Python's years are 1 to 9999, in the zone of the process, and its `fromtimestamp` also computes the
# day before: so the first two days and the last one are excluded, wherever the process runs.
MS_MIN: Final = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1) - 1


class MessageRow(NamedTuple):
    """A row without the stream's name; `enqueued_us` is microseconds since 1970."""

    offset: int | None
    enqueued_us: int | None
    message_id: str | None
    subject: str | None
    body: bytes | None
    application_properties: dict[str, str | None] | None


def read_row(payload: bytes, *, of_stream: bool = True) -> MessageRow:
    """Decode an encoded message.

    Args:
        of_stream: whether it came from a stream. A message of a queue has no offset; if it carries the
            annotation, it was copied from a stream, and the value was not checked.

    Raises:
        DecodeError: the bytes are not a message.
    """
    offset: int | None = None
    annotated_ms: int | None = None
    properties = Properties()
    application: dict[str, str | None] | None = None
    body: bytes | None = None
    body_code = 0
    pos = 0
    end = len(payload)
    while pos < end:
        code, start = section_at(payload, pos, end)
        if code == PROPERTIES:
            decoded, pos = decode_composite(payload, pos, end)
            assert isinstance(decoded, Properties)
            properties = decoded
        elif code == MESSAGE_ANNOTATIONS:
            annotations, pos = _map(payload, start, end)
            for key, value in annotations.items():
                if key == X_STREAM_OFFSET:
                    offset = _offset(value) if of_stream else None
                elif key == X_ENQUEUED:
                    # In queues and at other brokers the publisher sets it, and it was not checked.
                    annotated_ms = int(value) if isinstance(value, int) and type(value) is not bool else None
        elif code == APPLICATION_PROPERTIES:
            pairs, pos = _map(payload, start, end)
            application = {text_of(key) or "": text_of(value) for key, value in pairs.items()}
        elif code in (DATA, AMQP_VALUE, AMQP_SEQUENCE):
            if body_code and (code != body_code or code == AMQP_VALUE):
                raise DecodeError(f"a second body section, 0x{code:02x} after 0x{body_code:02x}")
            piece, pos = _body(code, payload, start, end)
            body = piece if not body_code or piece is None else (body or b"") + piece
            body_code = code
        else:
            pos = skip(payload, start, end)
    created_ms = properties.creation_time
    return MessageRow(
        offset,
        microseconds(created_ms if annotated_ms is None else annotated_ms),
        text_of(properties.message_id),
        properties.subject,
        body,
        application,
    )


def microseconds(ms: int | None) -> int | None:
    """Convert milliseconds to Spark's times; None outside `MS_MIN` to `MS_MAX`."""
    return None if ms is None or not MS_MIN <= ms <= MS_MAX else ms * 1000


def text_of(value: Any) -> str | None:
    """Return a value as text, by the rules in this module's docstring."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Timestamp():
            try:
                moment = _EPOCH + timedelta(milliseconds=value)
            except OverflowError:
                return int.__repr__(value)  # beyond the year 9999
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case int():
            return int.__repr__(value)
        case float():
            return float.__repr__(value)
        case str():
            return str(value)
        case bytes():
            return "0x" + value.hex()
        case UUID():
            return str(value)
        case _:
            return "0x" + encode(value).hex()


def _body(code: int, payload: bytes, start: int, end: int) -> tuple[bytes | None, int]:
    value, pos = decode(payload, start, end)
    if code == DATA:
        if not isinstance(value, bytes):
            raise DecodeError(f"a data section holds a {type(value).__name__.lower()}")
        return value, pos
    if code == AMQP_SEQUENCE:
        if not isinstance(value, list):
            raise DecodeError(f"an amqp-sequence section holds a {type(value).__name__.lower()}")
        return payload[start:pos], pos
    if value is None:
        return None, pos
    if isinstance(value, bytes):
        return value, pos
    if isinstance(value, str) and payload[start] in _TEXT_CODES:
        return value.encode(), pos
    return payload[start:pos], pos


# Constructors of strings and symbols; a char is also a str in Python, and is not among them.
_TEXT_CODES: Final = frozenset({0xA1, 0xB1, 0xA3, 0xB3})


def _map(payload: bytes, start: int, end: int) -> tuple[dict[Any, Any] | Map, int]:
    value, pos = decode(payload, start, end)
    if not isinstance(value, dict | Map):
        raise DecodeError(f"a section that must be a map holds a {type(value).__name__.lower()}")
    return value, pos


def _offset(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise DecodeError(f"annotation {X_STREAM_OFFSET} holds {value!r}, which is no offset")
    return int(value)
