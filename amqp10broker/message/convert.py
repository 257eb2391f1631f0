"""Conversion of messages between the encodings of AMQP 0-9-1 and AMQP 1.0.

Converting never raises for an accepted message: a value without a counterpart is left out, or stored in an
annotation or header where there is a custom for it. Results are cached by head, because the head
determines everything but the body. `docs/conversion.md` has the tables. Values without an exact
counterpart:

- a reply-to of AMQP 0-9-1 is the name of a queue, one of AMQP 1.0 an address: ``q`` becomes ``/queues/q``
  and back; anything else stays as it is.
- a content-type or content-encoding that is not ASCII cannot be a symbol, and is left out.
- an expiration above 2**32 - 1 ms (49 days) becomes that, the largest ttl.
- a message-id or correlation-id of AMQP 0-9-1 that is not UTF-8 becomes binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes
from uuid import UUID

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    X_CC,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
    has_own_deaths,
    with_deaths_placed,
)
from amqp10broker.message.bare import body_start, data_of, data_section, is_encoded_body, read_properties
from amqp10broker.message.death_history import (
    X_DEATH,
    from_annotation,
    from_header,
    times_of,
    to_annotation,
    with_times,
)
from amqp10broker.message.message import Message
from amqp10broker.message.values import (
    DROPPED,
    NAME_BYTES_MAX,
    milliseconds,
    name_of,
    seconds,
    simple_to_amqp091,
    simple_to_amqp10,
    urn_of,
    uuid_of,
    value_to_amqp091,
    value_to_amqp10,
)
from amqp10broker.protocols.amqp091.codec import decode_shortstr
from amqp10broker.protocols.amqp091.properties import (
    PERSISTENT,
    BasicProperties,
    decode_properties,
    encode_properties,
)
from amqp10broker.protocols.amqp091.types import ByteArray
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Array, Described, Symbol, ULong

ENCODED_BODY: Final = "amqp-1.0"
"""The type of an AMQP 0-9-1 message with the encoded body of an AMQP 1.0 message as its body."""

X_BASIC_TYPE: Final = Symbol("x-basic-type")
X_STREAM_OFFSET: Final = Symbol("x-stream-offset")
X_MESSAGE_ID: Final = "x-message-id"
X_CORRELATION_ID: Final = "x-correlation-id"
CC: Final = "CC"

_APPLICATION_PROPERTIES: Final = ULong(0x74)
_TTL_MAX: Final = 2**32 - 1
_QUEUES: Final = "/queues/"

_HEAD: Final = itemgetter(0)
# Larger heads are converted each time: 4096 of them would take too much memory.
_CACHED_BYTES_MAX: Final = 1024
_CACHE_ENTRIES: Final = 4096

# The size of a stream's offset at the end of a delivery's head (`offsets`).
OFFSET_BYTES: Final = 8
_OFFSET_END: Final = b"\xa3\x0fx-stream-offset\x81"
_OFFSET_AT: Final = -(len(_OFFSET_END) + OFFSET_BYTES)
_ONES: Final = b"\x01" * OFFSET_BYTES
_TWOS: Final = b"\x02" * OFFSET_BYTES


def all_to_amqp10(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages in AMQP 1.0's encoding: the same sequence if all are in it."""
    # Messages share heads: checking the different ones costs half of checking each message's.
    if all(head[0] != amqp091.MARK for head in set(map(_HEAD, messages))):
        return messages
    return [to_amqp10(message) for message in messages]


def all_to_amqp091(messages: Sequence[Message]) -> Sequence[Message]:
    if all(head[0] == amqp091.MARK for head in set(map(_HEAD, messages))):
        return messages
    return [to_amqp091(message) for message in messages]


def to_amqp10(message: Message) -> Message:
    head, body = message
    if head[0] != amqp091.MARK:
        return message
    converted = _cached_to_amqp10 if len(head) <= _CACHED_BYTES_MAX else _head_to_amqp10
    head10, prefix, encoded = converted(head)
    if not encoded:
        return head10, prefix + data_section(body)
    if is_encoded_body(body):
        return head10, prefix + body
    # The type claims an encoded body wrongly. It stays as an annotation, so that it comes back.
    head10, prefix, _ = converted(head, False)
    return head10, prefix + data_section(body)


def to_amqp091(message: Message) -> Message:
    head, bare = message
    if head[0] == amqp091.MARK:
        return message
    start = body_start(bare)
    prefix = bare[:start]
    body = data_of(bare, start)
    small = len(head) + start <= _CACHED_BYTES_MAX
    if small and head[_OFFSET_AT:-OFFSET_BYTES] == _OFFSET_END:
        # No two deliveries of a stream have the same head: all but the offset is converted once.
        before, after = _around_offset(head[:-OFFSET_BYTES], prefix, body is None)
        return before + head[-OFFSET_BYTES:] + after, bare[start:] if body is None else body
    converted = _cached_to_amqp091 if small else _head_to_amqp091
    if body is None:
        return converted(head, prefix, True), bare[start:]
    return converted(head, prefix, False), body


# AMQP 0-9-1 to AMQP 1.0


def _head_to_amqp10(head: bytes, trust_type: bool = True) -> tuple[bytes, bytes, bool]:
    # Return the head, the bytes before the body, and whether the type declares the body as encoded.
    names, given, redelivered = amqp091.split_head(head)
    exchange, pos = decode_shortstr(names, 0)
    routing_key, _ = decode_shortstr(names, pos)
    properties = decode_properties(given)
    encoded = trust_type and properties.type == ENCODED_BODY

    annotations: dict[Any, Any] = {}
    application: dict[str, Any] = {}
    times = amqp091.death_times(head)
    if properties.headers:
        _headers_to_amqp10(properties.headers, times, annotations, application)
    if properties.type is not None and not encoded:
        annotations[X_BASIC_TYPE] = valid_text(properties.type)
    annotations[X_EXCHANGE] = exchange
    annotations[X_ROUTING_KEY] = routing_key
    if X_OPT_DEATHS in annotations:
        annotations = with_deaths_placed(annotations, ours=bool(times))

    count = amqp091.delivery_count(head)
    header = Header(
        durable=properties.delivery_mode == PERSISTENT,
        priority=properties.priority,
        ttl=None if properties.expiration is None else min(int(properties.expiration), _TTL_MAX),
        # Left out, which means false: dead-lettered and not acquired since (`dead_lettering`).
        first_acquirer=None if times and not redelivered else not (redelivered or count),
        delivery_count=count,
    )
    prefix = _properties_to_amqp10(properties)
    if application:
        prefix += encode(Described(_APPLICATION_PROPERTIES, application))
    return encode_head(header, annotations), prefix, encoded


_cached_to_amqp10 = lru_cache(maxsize=_CACHE_ENTRIES)(_head_to_amqp10)


def _headers_to_amqp10(
    headers: dict[str, Any], times: bytes, annotations: dict[Any, Any], application: dict[str, Any]
) -> None:
    deaths = with_times(from_header(headers.get(X_DEATH)), times)
    cc: list[str] | None = None  # takes precedence over a header called x-cc
    for name, value in headers.items():
        if name.startswith("x-") and name.isascii():
            annotation = DROPPED if name == X_DEATH and deaths else value_to_amqp10(value)
            if annotation is not DROPPED:
                annotations[Symbol(name)] = annotation
        elif name == CC and type(value) is list and all(type(key) is str for key in value):
            cc = value
        else:
            simple = simple_to_amqp10(value)
            if simple is not DROPPED:
                application[name] = simple
    if cc is not None:
        annotations[X_CC] = cc
    if deaths:  # takes precedence over a header called x-opt-deaths, which only a client writes
        annotations[X_OPT_DEATHS] = to_annotation(deaths)


def _properties_to_amqp10(given: BasicProperties) -> bytes:
    properties = Properties(
        message_id=_id_to_amqp10(given.message_id),
        user_id=None if given.user_id is None else _bytes(given.user_id),
        reply_to=None if given.reply_to is None else _address(valid_text(given.reply_to)),
        correlation_id=_id_to_amqp10(given.correlation_id),
        content_type=_symbol(given.content_type),
        content_encoding=_symbol(given.content_encoding),
        group_id=None if given.app_id is None else valid_text(given.app_id),
    )
    if given.timestamp is not None:
        time = milliseconds(given.timestamp)
        properties.creation_time = None if time is DROPPED else time
    return b"" if properties == _NO_PROPERTIES else properties.encode()


_NO_PROPERTIES: Final = Properties()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def valid_text(text: str) -> str:
    """Replace the surrogates that stand for bytes which are not UTF-8."""
    return text if text.isascii() else _bytes(text).decode("utf-8", "replace")


def _symbol(text: str | None) -> Symbol | None:
    return Symbol(text) if text is not None and text.isascii() else None


def _id_to_amqp10(text: str | None) -> UUID | bytes | str | None:
    if text is None:
        return None
    uuid = uuid_of(text)
    if uuid is not None:
        return uuid
    try:
        text.encode()
    except UnicodeEncodeError:
        return _bytes(text)
    return text


def _address(reply_to: str) -> str:
    if not reply_to or reply_to.startswith((_QUEUES, "/exchanges/")):
        return reply_to
    return _QUEUES + quote(reply_to, safe="")


# AMQP 1.0 to AMQP 0-9-1


def _head_to_amqp091(head: bytes, prefix: bytes, encoded: bool) -> bytes:
    header, annotations = decode_head(head)
    times = times_of(from_annotation(annotations[X_OPT_DEATHS])) if has_own_deaths(annotations) else b""
    given, application = read_properties(prefix)
    exchange = _shortened(annotations.pop(X_EXCHANGE, ""))
    routing_key = _shortened(annotations.pop(X_ROUTING_KEY, ""))

    properties = BasicProperties(
        delivery_mode=PERSISTENT if header.durable else None,
        priority=header.priority,
        expiration=None if header.ttl is None else str(header.ttl),
    )
    headers: dict[str, Any] = {}
    properties.type = ENCODED_BODY if encoded else name_of(annotations.get(X_BASIC_TYPE))
    if application:
        for key, value in application.items():
            name, simple = name_of(key), simple_to_amqp091(value)
            if name is not None and simple is not DROPPED:
                headers[name] = simple
    if annotations:
        _annotations_to_headers(annotations, headers)
    if given is not None:
        _properties_to_amqp091(given, properties, headers)
    properties.headers = headers or None
    return amqp091.make_head(
        exchange,
        routing_key,
        encode_properties(properties),
        redelivered=header.first_acquirer is False,
        delivery_count=header.delivery_count or 0,
        death_times=times,
    )


_cached_to_amqp091 = lru_cache(maxsize=_CACHE_ENTRIES)(_head_to_amqp091)


@lru_cache(maxsize=_CACHE_ENTRIES)
def _around_offset(start: bytes, prefix: bytes, encoded: bool) -> tuple[bytes, bytes]:
    # Return the parts of the head for AMQP 0-9-1 before and behind the eight bytes of a stream's offset. An
    # offset is a long there, eight bytes too. Two conversions differ exactly at its position.
    ones = _head_to_amqp091(start + _ONES, prefix, encoded)
    twos = _head_to_amqp091(start + _TWOS, prefix, encoded)
    at = next(place for place, (one, two) in enumerate(zip(ones, twos, strict=True)) if one != two)
    return ones[:at], ones[at + OFFSET_BYTES :]


def _annotations_to_headers(annotations: dict[Any, Any], headers: dict[str, Any]) -> None:
    for key, value in annotations.items():
        name = name_of(key)
        if name is None or name.startswith("x-basic-") or name == X_DEATH:
            continue
        if name == X_CC and type(value) in (list, Array) and all(type(item) is str for item in value):
            headers[CC] = list(value)
            continue
        if name == X_OPT_DEATHS and (deaths := from_annotation(value)):
            headers[X_DEATH] = [death.to_table() for death in deaths]
            continue
        converted = value_to_amqp091(value)
        if converted is not DROPPED:
            headers[name] = converted


def _properties_to_amqp091(given: Properties, properties: BasicProperties, headers: dict[str, Any]) -> None:
    properties.message_id = _id_to_amqp091(given.message_id, X_MESSAGE_ID, headers)
    properties.correlation_id = _id_to_amqp091(given.correlation_id, X_CORRELATION_ID, headers)
    properties.content_type = name_of(given.content_type)
    properties.content_encoding = name_of(given.content_encoding)
    properties.app_id = name_of(given.group_id)
    if given.user_id is not None and len(given.user_id) <= NAME_BYTES_MAX:
        properties.user_id = given.user_id.decode("utf-8", "surrogateescape")
    if isinstance(given.reply_to, str):
        properties.reply_to = name_of(_queue_name(given.reply_to))
    if given.creation_time is not None:
        time = seconds(given.creation_time)
        properties.timestamp = None if time is DROPPED else time


def _shortened(text: str) -> str:
    return text.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")


def _id_to_amqp091(value: Any, header: str, headers: dict[str, Any]) -> str | None:
    if value is None:
        return None
    if isinstance(value, UUID):
        return urn_of(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        headers[header] = ByteArray(value)
        return None
    text = name_of(value)
    if text is None:
        headers[header] = str(value)
    return text


def _queue_name(address: str) -> str:
    name = address.removeprefix(_QUEUES)
    if name == address or not name or "/" in name:
        return address
    try:
        return unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return address
