"""Messages published with AMQP 0-9-1: making and reading heads.

Exchange and routing key are stored as basic.deliver writes them, and the properties as a content header does,
so that a delivery copies both parts and decodes nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from amqp10broker.errors import PreconditionFailed
from amqp10broker.protocols.amqp091.codec import decode_table, encode_shortstr, encode_table
from amqp10broker.protocols.amqp091.content import DEAD_LETTERED, HIDDEN_KEYS, REDELIVERED, properties_end
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.amqp091.properties import (
    APP_ID,
    CLUSTER_ID,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    TIMESTAMP,
    TYPE,
    USER_ID,
    misfit,
    read_flags,
)

MARK: Final = 0x91

EXPIRATION_MS_MAX: Final = 315_360_000_000
"""Ten years of 365 days, RabbitMQ's limit."""

_NAMES_AT: Final = 6
_FRESH: Final = bytes((MARK, 0, 0, 0, 0, 0))
_TIMES_BYTES: Final = 16
_COUNT_BYTES: Final = 2
_LENGTH_BYTES: Final = 4
_CACHE_ENTRIES: Final = 4096
_INTEGER: Final = re.compile("[+-]?[0-9]+")
_NO_KEYS: Final[tuple[str, ...]] = ()
_BCC: Final = "BCC"


@lru_cache(maxsize=_CACHE_ENTRIES)
def _prefix(exchange: str, routing_key: str) -> bytes:
    return _FRESH + encode_shortstr(exchange) + encode_shortstr(routing_key)


def make_head(
    exchange: str,
    routing_key: str,
    properties: bytes,
    *,
    redelivered: bool = False,
    delivery_count: int = 0,
    death_times: bytes = b"",
) -> bytes:
    return join_head(
        _prefix(exchange, routing_key)[_NAMES_AT:],
        properties,
        redelivered=redelivered,
        delivery_count=delivery_count,
        death_times=death_times,
    )


def join_head(
    names: bytes,
    properties: bytes,
    *,
    redelivered: bool = False,
    delivery_count: int = 0,
    hidden_keys: bytes = b"",
    death_times: bytes = b"",
) -> bytes:
    flags = (
        (REDELIVERED if redelivered else 0)
        | (HIDDEN_KEYS if hidden_keys else 0)
        | (DEAD_LETTERED if death_times else 0)
    )
    parts = [bytes((MARK, flags)), delivery_count.to_bytes(4, "big"), names, properties]
    if hidden_keys:
        parts += hidden_keys, len(hidden_keys).to_bytes(_LENGTH_BYTES, "big")
    if death_times:
        count = len(death_times) // _TIMES_BYTES
        parts += death_times, count.to_bytes(_COUNT_BYTES, "big")
    return b"".join(parts)


def split_head(head: bytes) -> tuple[bytes, bytes, bool]:
    """Return exchange and routing key as two short strings, the properties, and whether it is redelivered."""
    end = 7 + head[6]
    end += 1 + head[end]
    return head[6:end], head[end : properties_end(head)], bool(head[1] & REDELIVERED)


def death_times(head: bytes) -> bytes:
    """Return first and last time in ms, 8 bytes each, of each record in x-death; empty for a client's."""
    if not head[1] & DEAD_LETTERED:
        return b""
    count = int.from_bytes(head[-_COUNT_BYTES:], "big")
    return head[-_COUNT_BYTES - count * _TIMES_BYTES : -_COUNT_BYTES]


def hidden_keys_of(head: bytes) -> bytes:
    if not head[1] & HIDDEN_KEYS:
        return b""
    start = properties_end(head)
    end = len(head)
    if head[1] & DEAD_LETTERED:
        end -= _COUNT_BYTES + len(death_times(head))
    return head[start : end - _LENGTH_BYTES]


def decode_hidden_keys(encoded: bytes) -> tuple[str, ...]:
    return tuple(decode_table(encoded, 0)[0][_BCC]) if encoded else _NO_KEYS


def delivery_count(head: bytes) -> int:
    return int.from_bytes(head[2:6], "big")


def redelivered(head: bytes) -> bool:
    return bool(head[1] & REDELIVERED)


def acquired_head(head: bytes, failed: bool) -> bytes:
    count = head[2:6] if not failed else (int.from_bytes(head[2:6], "big") + 1).to_bytes(4, "big")
    return bytes((MARK, head[1] | REDELIVERED)) + count + head[_NAMES_AT:]


def read_content(
    exchange: str, routing_key: str, properties: bytes, *, user: str, impersonator: bool
) -> tuple[bytes, tuple[str, ...]]:
    """Check the properties of a published content. Returns the head of its message, without BCC, and the
    routing keys that the headers CC and BCC add. `user`: a user-id must equal it. Raises `DecodeError`
    (closes the connection) and `PreconditionFailed` (closes the channel).
    """
    keys = _NO_KEYS
    hidden = b""
    expiration: bytes | None = None
    user_id: bytes | None = None
    # This passes over the values once, and skips those that need no check.
    try:
        flags, pos = read_flags(properties)
        kept = properties
        if flags & CONTENT_TYPE:
            pos += 1 + properties[pos]
        if flags & CONTENT_ENCODING:
            pos += 1 + properties[pos]
        if flags & HEADERS:
            start = pos
            headers, pos = decode_table(properties, pos)
            if "CC" in headers:
                keys = _routing_keys("CC", headers["CC"])
            if _BCC in headers:
                bcc = _routing_keys(_BCC, headers.pop(_BCC))
                kept = properties[:start] + encode_table(headers) + properties[pos:]
                if bcc:
                    keys += bcc
                    hidden = encode_table({_BCC: list(bcc)})
        if flags & DELIVERY_MODE:
            pos += 1
        if flags & PRIORITY:
            pos += 1
        if flags & (CORRELATION_ID | REPLY_TO | EXPIRATION):
            if flags & CORRELATION_ID:
                pos += 1 + properties[pos]
            if flags & REPLY_TO:
                pos += 1 + properties[pos]
            if flags & EXPIRATION:
                start = pos + 1
                pos = start + properties[pos]
                expiration = properties[start:pos]
        if flags & MESSAGE_ID:
            pos += 1 + properties[pos]
        if flags & (TIMESTAMP | TYPE | USER_ID | APP_ID | CLUSTER_ID):
            if flags & TIMESTAMP:
                pos += 8
            if flags & TYPE:
                pos += 1 + properties[pos]
            if flags & USER_ID:
                start = pos + 1
                pos = start + properties[pos]
                user_id = properties[start:pos]
            if flags & APP_ID:
                pos += 1 + properties[pos]
            if flags & CLUSTER_ID:
                pos += 1 + properties[pos]
    except IndexError:
        raise DecodeError("content properties are cut off") from None
    if pos != len(properties):
        raise misfit(pos, len(properties))
    if expiration is not None:
        _check_expiration(expiration)
    if user_id is not None and not impersonator and user_id != user.encode():
        raise _refused(f"user_id property set to '{_shown(user_id)}' but authenticated user was '{user}'")
    prefix = _prefix(exchange, routing_key)
    if hidden:
        # Dead letters are routed by these too, as in RabbitMQ, although consumers do not see them.
        return join_head(prefix[_NAMES_AT:], kept, hidden_keys=hidden), keys
    return prefix + kept, keys


def _routing_keys(header: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _refused(f"header '{header}' must be an array of longstr, not {_kind(value)}")
    for key in value:
        if not isinstance(key, str):
            raise _refused(f"header '{header}' must be an array of longstr, not of {_kind(key)}")
    return tuple(value)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "longstr"
    if type(value) is bytes:
        return "longstr that is not UTF-8"
    return {dict: "table", list: "array", type(None): "void"}.get(type(value), type(value).__name__.lower())


def _check_expiration(text: bytes) -> None:
    shown = _shown(text)
    if _INTEGER.fullmatch(shown) is None or not 0 <= int(shown) <= EXPIRATION_MS_MAX:
        raise _refused(
            f"invalid expiration '{shown}': must be milliseconds, an integer of 0 to {EXPIRATION_MS_MAX}"
        )


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _refused(description: str) -> PreconditionFailed:
    return PreconditionFailed("published message", description)
