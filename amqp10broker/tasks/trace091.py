"""What `trace` shows of AMQP 0-9-1."""

from __future__ import annotations

from dataclasses import fields
from struct import Struct
from typing import Any, Final

from amqp10broker.amqp091.errors import AmqpHardError
from amqp10broker.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
    Method,
    decode_method,
)
from amqp10broker.amqp091.properties import decode_properties

BODY_SHOWN_BYTES: Final = 32

_HEADER: Final = Struct(">BHI")
_PROPERTIES_AT: Final = 12
_SECRETS: Final = {
    (ConnectionStartOk, "response"),
    (ConnectionSecure, "challenge"),
    (ConnectionSecureOk, "response"),
    (ConnectionUpdateSecret, "new_secret"),
}


def next_frame(buf: bytes, pos: int) -> tuple[str, int, Method | None, int] | None:
    """One frame as a line, its channel and method, and where the next begins; None if it is not whole yet.

    Raises:
        ValueError: these bytes are no frame.
    """
    if len(buf) - pos < _HEADER.size:
        return None
    kind, channel, size = _HEADER.unpack_from(buf, pos)
    start, end = pos + _HEADER.size, pos + _HEADER.size + size
    if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
        raise ValueError(f"no frame type {kind}")
    if len(buf) <= end:
        return None
    if buf[end] != FRAME_END:
        raise ValueError(f"frame ends with {buf[end]}")
    if kind == FRAME_METHOD:
        try:
            method = decode_method(buf[start:end])
        except AmqpHardError as error:
            # The reason may repeat what stands there, and before the client is in that may be a password.
            why = error.text if channel else f"a method of {size} bytes"
            return f"ch {channel} undecodable: {why}", channel, None, end + 1
        return f"ch {channel} {describe(method)}", channel, method, end + 1
    return _describe(kind, channel, buf[start:end]), channel, None, end + 1


def _describe(kind: int, channel: int, payload: bytes) -> str:
    if kind == FRAME_HEARTBEAT:
        return "heartbeat"
    try:
        if kind == FRAME_HEADER:
            size = int.from_bytes(payload[4:_PROPERTIES_AT], "big")
            properties = _fields(decode_properties(payload[_PROPERTIES_AT:]))
            return f"ch {channel} header body-size={size} {' '.join(properties)}".rstrip()
    except AmqpHardError as error:
        return f"ch {channel} undecodable: {error.text}"
    shown = payload[:BODY_SHOWN_BYTES].hex() + ("..." if len(payload) > BODY_SHOWN_BYTES else "")
    return f"ch {channel} body({len(payload)} bytes)={shown}"


def describe(method: Method) -> str:
    """A method with the fields that are set, by the specification's names."""
    return f"{method.NAME} {' '.join(_fields(method))}".rstrip()


def _fields(record: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(record):
        content = getattr(record, field.name)
        if content is None or content is False or content in ({}, "", b""):
            continue
        name = field.name.rstrip("_").replace("_", "-")
        text = "(hidden)" if (type(record), field.name) in _SECRETS else _show(content)
        shown.append(f"{name}={text}")
    return shown


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
    if isinstance(value, list):
        return f"[{', '.join(_show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_show(item)}" for key, item in value.items()) + "}"
    return str(value)
