"""Messages of AMQP 1.0 in the operation scripts: built from an operation's arguments, and written down."""

from __future__ import annotations

from typing import Any, Final

from proton import Message, symbol

from tests.differential.language import mask, show, show_fields

_PRIVATE: Final = frozenset({"leader", "replicas", "node"})
"""What a queue map says about the broker's own cluster."""


def make_message(
    body: Any,
    *,
    to: str | None = None,
    ttl_ms: int | None = None,
    application: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    creation_ms: int | None = None,
    **fields: Any,
) -> Message:
    """Build a message: bytes are one data section, everything else a value."""
    message: Any = Message(body=body, inferred=isinstance(body, bytes), address=to, **fields)
    if ttl_ms is not None:
        message.ttl = ttl_ms / 1000
    if creation_ms is not None:
        message.creation_time = creation_ms / 1000
    if application is not None:
        message.properties = application
    if annotations is not None:
        message.annotations = {symbol(key): value for key, value in annotations.items()}
    return message


def show_message(message: Any, *, settled: bool) -> list[str]:
    """Write a delivery, section by section; header fields that have their default are left out."""
    header = show_fields(
        durable=message.durable or None,
        priority=message.priority if message.priority != 4 else None,
        ttl_ms=int(message.ttl * 1000) or None,
        first_acquirer=message.first_acquirer,
        delivery_count=message.delivery_count or None,
    )
    kind = "data" if message.inferred else "value"
    lines = [f"message {kind}={show(message.body)} settled={settled} {header}".rstrip()]
    properties = show_fields(
        id=message.id,
        user_id=bytes(message.user_id) or None,
        to=message.address,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
        content_type=_text(message.content_type),
        content_encoding=_text(message.content_encoding),
        creation_ms=int(message.creation_time * 1000) or None,
        group_id=message.group_id,
        group_sequence=message.group_sequence or None,
        reply_to_group_id=message.reply_to_group_id,
    )
    if properties:
        lines.append(f"  {properties}")
    if message.properties:
        lines.append(f"  application {show(message.properties)}")
    if message.annotations:
        lines.append(f"  annotations {show(message.annotations)}")
    return lines


def _text(value: Any) -> str | None:
    """Return None for a missing symbol, of which proton makes symbol('None')."""
    return None if value is None or str(value) == "None" else str(value)


def show_body(body: Any) -> str:
    if isinstance(body, list):
        return "[" + ", ".join(sorted(show_body(each) for each in body)) + "]"
    if isinstance(body, dict):
        return show({key: value for key, value in body.items() if key not in _PRIVATE})
    return mask(show(body))
