"""AMQP 0-9-1 frames as readable lines, with the specification's names and without secrets.

Secrets are responses, challenges and new secrets.
"""

from __future__ import annotations

from dataclasses import fields, replace
from struct import Struct
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
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
from amqp10broker.protocols.amqp091.properties import decode_properties

_HEADER: Final = Struct(">BHI")
_PROPERTIES_AT: Final = 12
SECRETS: Final = {
    (ConnectionStartOk, "response"),
    (ConnectionSecure, "challenge"),
    (ConnectionSecureOk, "response"),
    (ConnectionUpdateSecret, "new_secret"),
}
# Methods with secrets.
SECRET: Final = frozenset(kind for kind, _ in SECRETS)


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame in a buffer. `method`: None if there is none, or none that can be read. `content`: where the
    content of a body frame begins; None for other frames.
    """

    channel: int
    end: int
    method: Method | None = None
    content: int | None = None
    said: str | None = None
    readable: bool = True


def next_frame(buf: bytes, pos: int) -> FoundFrame | None:
    """Return the frame that begins here; None if it is incomplete. Raises `ValueError` if the bytes are not a
    frame.
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
            return FoundFrame(channel, end + 1, decode_method(buf[start:end]))
        except AmqpHardError as error:
            # The reason may repeat the bytes, and before login they may be a password.
            why = error.text if channel else f"a method of {size} bytes"
            return FoundFrame(channel, end + 1, said=f"ch {channel} undecodable: {why}", readable=False)
    if kind == FRAME_HEARTBEAT:
        return FoundFrame(channel, end + 1, said="heartbeat")
    if kind == FRAME_BODY:
        return FoundFrame(channel, end + 1, content=start)
    try:
        body_size = int.from_bytes(buf[start + 4 : start + _PROPERTIES_AT], "big")
        properties = _fields(decode_properties(buf[start + _PROPERTIES_AT : end]))
    except AmqpHardError as error:
        return FoundFrame(channel, end + 1, said=f"ch {channel} undecodable: {error.text}", readable=False)
    said = f"ch {channel} header body-size={body_size} {' '.join(properties)}".rstrip()
    return FoundFrame(channel, end + 1, said=said)


def describe(method: Method) -> str:
    """Return a method with the fields that are set, by the specification's names."""
    return f"{method.NAME} {' '.join(_fields(method))}".rstrip()


def without_secrets(method: Method) -> Method:
    given: dict[str, Any] = {name: b"" for kind, name in SECRETS if kind is type(method)}
    return replace(method, **given)


def _fields(record: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(record):
        content = getattr(record, field.name)
        if content is None or content is False or content in ({}, "", b""):
            continue
        name = field.name.rstrip("_").replace("_", "-")
        text = "(hidden)" if (type(record), field.name) in SECRETS else _show(content)
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
