"""Conversion of messages between the encodings of AMQP 0-9-1 and AMQP 1.0, and to plain values.

Converting never raises for an accepted message. A value without a counterpart (`DROPPED`) is left out, or
stored in an annotation or header where there is a convention for it. Results are cached by head.
`docs/conversion.md` has the tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest
from amqp10broker.message import amqp091
from amqp10broker.message.amqp091 import split_head
from amqp10broker.message.amqp10 import (
    X_CC,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
    has_own_deaths,
    locate,
    with_deaths_placed,
)
from amqp10broker.message.death_history import (
    X_DEATH,
    from_annotation,
    from_header,
    times_of,
    to_annotation,
    with_times,
)
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp091.codec import ByteArray, decode_shortstr, plain
from amqp10broker.protocols.amqp091.properties import (
    PERSISTENT,
    BasicProperties,
    decode_properties,
    encode_properties,
    read_headers,
)
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import decode, encode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    DATA,
    FOOTER,
    PROPERTIES,
    SECTION_CODES,
    Header,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Array, Described, Map, Symbol, ULong
from amqp10broker.protocols.serial import EncodeError

DROPPED: Final = object()
"""The marker of a value without a counterpart."""

TEXT_BYTES_MAX: Final = 4096
"""A longer text of AMQP 0-9-1 becomes binary, because its long strings are as often data as text."""

NAME_BYTES_MAX: Final = 255
"""The limit of a short string: names in tables, and most properties."""

# Only this spelling converts back unchanged: a requester compares its correlation-id with that of the reply.
_URN_UUID: Final = re.compile("urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_INT64_MAX: Final = 2**63 - 1


# --- values --------------------------------------------------------------------------------------


def simple_to_amqp10(value: Any) -> Any:
    convert = _SIMPLE_TO_10.get(type(value))
    return DROPPED if convert is None else convert(value)


def value_to_amqp10(value: Any) -> Any:
    if type(value) is dict:
        return {
            t10.Symbol(key) if key.isascii() else key: found
            for key, item in value.items()
            if (found := value_to_amqp10(item)) is not DROPPED
        }
    if type(value) is list:
        return [found for item in value if (found := value_to_amqp10(item)) is not DROPPED]
    return simple_to_amqp10(value)


def _same(value: Any) -> Any:
    return value


def _text_or_binary(value: str) -> str | bytes:
    # A character takes up to four bytes.
    if len(value) * 4 <= TEXT_BYTES_MAX:
        return value
    content = value.encode()
    return content if len(content) > TEXT_BYTES_MAX else value


def milliseconds(seconds: int) -> Any:
    return t10.Timestamp(seconds * 1000) if seconds * 1000 <= _INT64_MAX else DROPPED


def _decimal64(value: Decimal) -> t10.Decimal64:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    return t10.Decimal64((sign << 63 | (exponent + 398) << 53 | coefficient).to_bytes(8, "big"))


_SIMPLE_TO_10: Final[dict[type, Callable[[Any], Any]]] = {
    str: _text_or_binary,
    bytes: _same,
    t091.ByteArray: bytes,
    bool: _same,
    t091.Int8: t10.Byte,
    t091.UInt8: t10.UByte,
    t091.Int16: t10.Short,
    t091.UInt16: t10.UShort,
    t091.Int32: t10.Int,
    t091.UInt32: t10.UInt,
    t091.Int64: t10.Long,
    t091.Float32: t10.Float,
    float: _same,
    Decimal: _decimal64,
    t091.Timestamp: milliseconds,
    type(None): _same,
}


def simple_to_amqp091(value: Any) -> Any:
    convert = _SIMPLE_TO_091.get(type(value))
    return DROPPED if convert is None else convert(value)


def value_to_amqp091(value: Any, depth: int = 1) -> Any:
    kind = type(value)
    if kind in (dict, t10.Map):
        return table_of(value.items(), depth) if depth < t091.DEPTH_MAX else DROPPED
    if kind in (list, t10.Array):
        if depth >= t091.DEPTH_MAX or (kind is t10.Array and value.descriptors):
            return DROPPED
        return [found for item in value if (found := value_to_amqp091(item, depth + 1)) is not DROPPED]
    return simple_to_amqp091(value)


def table_of(pairs: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
    return {
        name: found
        for key, item in pairs
        if (name := name_of(key)) is not None and (found := value_to_amqp091(item, depth + 1)) is not DROPPED
    }


def name_of(key: Any) -> str | None:
    """Return the name in a table for a key of a map; None if it cannot be one."""
    if not isinstance(key, str):
        return None
    return str(key) if len(key.encode()) <= NAME_BYTES_MAX else None


def _int64(value: int) -> Any:
    return t091.Int64(value) if value <= _INT64_MAX else DROPPED


def seconds(milliseconds: int) -> Any:
    return t091.Timestamp(milliseconds // 1000) if milliseconds >= 0 else DROPPED


def _decimal(bits: int, width: int, exponent_bits: int, bias: int) -> Any:
    sign = bits >> (width - 1)
    coefficient_bits = width - 1 - exponent_bits
    if bits >> (width - 3) & 3 == 3:
        # This is the long form: the exponent is two bits lower, and the coefficient begins with 100.
        if bits >> (width - 5) & 3 == 3:
            return DROPPED
        coefficient_bits -= 2
        coefficient = 4 << coefficient_bits | bits & ((1 << coefficient_bits) - 1)
    else:
        coefficient = bits & ((1 << coefficient_bits) - 1)
    exponent = (bits >> coefficient_bits & ((1 << exponent_bits) - 1)) - bias
    if exponent > 0 and coefficient:
        if exponent > 10:
            return DROPPED
        coefficient *= 10**exponent
    while exponent < -255 and coefficient % 10 == 0 and coefficient:
        coefficient //= 10
        exponent += 1
    if coefficient == 0:
        sign, exponent = 0, max(exponent, -255)
    if coefficient >= 2**31 + sign or exponent < -255:
        return DROPPED
    return Decimal((sign, tuple(map(int, str(coefficient))), min(exponent, 0)))


_SIMPLE_TO_091: Final[dict[type, Callable[[Any], Any]]] = {
    str: _same,
    t10.Symbol: str,
    t10.Char: str,
    bytes: t091.ByteArray,
    bool: _same,
    t10.Byte: t091.Int8,
    t10.UByte: t091.UInt8,
    t10.Short: t091.Int16,
    t10.UShort: t091.UInt16,
    t10.Int: t091.Int32,
    t10.UInt: t091.UInt32,
    t10.Long: t091.Int64,
    t10.ULong: _int64,
    t10.Float: t091.Float32,
    float: _same,
    t10.Decimal32: lambda value: _decimal(int.from_bytes(value.raw, "big"), 32, 8, 101),
    t10.Decimal64: lambda value: _decimal(int.from_bytes(value.raw, "big"), 64, 10, 398),
    t10.Decimal128: lambda value: _decimal(int.from_bytes(value.raw, "big"), 128, 14, 6176),
    t10.Timestamp: seconds,
    UUID: lambda value: f"urn:uuid:{value}",
    type(None): _same,
}


# --- the bare message of AMQP 1.0 ----------------------------------------------------------------

_SMALL_DESCRIPTOR: Final = b"\x00\x53"
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


def _section(bare: bytes, pos: int) -> tuple[int, int]:
    if bare.startswith(_SMALL_DESCRIPTOR, pos):
        return bare[pos + 2], pos + 3
    code, pos = decode(bare, pos + 1)
    return SECTION_CODES[code] if isinstance(code, str) else int(code), pos


def body_start(bare: bytes) -> int:
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


def routing_headers(message: Message) -> dict[str, object]:
    """Return the headers of AMQP 0-9-1, or the application-properties and annotations of AMQP 1.0, of which
    the latter take precedence. Values are plain Python ones: timestamps int in seconds, binaries bytes.
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


# --- messages ------------------------------------------------------------------------------------

ENCODED_BODY: Final = "amqp-1.0"
"""The type of an AMQP 0-9-1 message that contains the encoded body of an AMQP 1.0 message."""

X_BASIC_TYPE: Final = Symbol("x-basic-type")
X_STREAM_OFFSET: Final = Symbol("x-stream-offset")
X_MESSAGE_ID: Final = "x-message-id"
X_CORRELATION_ID: Final = "x-correlation-id"
CC: Final = "CC"

_APPLICATION_PROPERTIES: Final = ULong(0x74)
_TTL_MAX: Final = 2**32 - 1
_QUEUES: Final = "/queues/"

_HEAD: Final = itemgetter(0)
_CACHED_BYTES_MAX: Final = 1024
_CACHE_ENTRIES: Final = 4096

# The size of a stream's offset at the end of a delivery's head (`offsets`).
OFFSET_BYTES: Final = 8
_OFFSET_END: Final = b"\xa3\x0fx-stream-offset\x81"
_OFFSET_AT: Final = -(len(_OFFSET_END) + OFFSET_BYTES)
_ONES: Final = b"\x01" * OFFSET_BYTES
_TWOS: Final = b"\x02" * OFFSET_BYTES


def all_to_amqp10(messages: Sequence[Message]) -> Sequence[Message]:
    # Messages share heads: checking the different ones takes half as long as checking each message's.
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
    with suppress(DecodeError):
        if body and locate(body).bare == 0 and DATA <= _section(body, 0)[0] < FOOTER:
            return head10, prefix + body
    # The type declares an encoded body wrongly, and stays as an annotation.
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
        # Left out, which means false: dead-lettered and not acquired since (`dead_letter_heads`).
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
    """Replace surrogates, which stand for bytes that are not UTF-8."""
    return text if text.isascii() else _bytes(text).decode("utf-8", "replace")


def _symbol(text: str | None) -> Symbol | None:
    return Symbol(text) if text is not None and text.isascii() else None


def _id_to_amqp10(text: str | None) -> UUID | bytes | str | None:
    if text is None:
        return None
    if _URN_UUID.fullmatch(text):
        return UUID(text[9:])
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
    # Return the parts of the head before and after a stream's offset, where two conversions differ.
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
        return f"urn:uuid:{value}"
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


# --- for APIs without AMQP -----------------------------------------------------------------------

NAMES: Final = tuple(field.name for field in fields(BasicProperties))


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message with decoded properties."""

    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    redelivered: bool
    body: bytes


def plain_message(message: Message) -> PlainMessage:
    head, body = to_amqp091(message)
    names, given, redelivered = split_head(head)
    exchange, pos = decode_shortstr(names, 0)
    routing_key, _ = decode_shortstr(names, pos)
    properties = decode_properties(given)
    shown = {name: _shown(value) for name in NAMES if (value := getattr(properties, name)) is not None}
    return PlainMessage(valid_text(exchange), valid_text(routing_key), shown, redelivered, body)


def encoded_properties(given: Mapping[str, Any]) -> bytes:
    """Encode properties as a content header has them. Raises `BadRequest`."""
    try:
        return encode_properties(BasicProperties(**{name: given[name] for name in NAMES if name in given}))
    except EncodeError as error:
        raise BadRequest("message", f"a property cannot be encoded: {error}") from error


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {valid_text(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Decimal):
        return str(value)
    return bytes(value).decode("utf-8", "replace")
