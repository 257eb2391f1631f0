"""The fields of a message for traces: its W3C Trace Context, in application-properties or headers, the
address to which it was published, and its identifiers.
"""

from __future__ import annotations

import re
from typing import Final

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import X_EXCHANGE, X_ROUTING_KEY, decode_head
from amqp10broker.message.convert import body_start, read_properties, routing_headers
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091.properties import decode_properties

NAMES: Final = ("traceparent", "tracestate")
LOOKED_THROUGH_BYTES: Final = 4096
"""The bytes of an AMQP 1.0 message that are searched for application-properties."""

_MARK: Final = b"traceparent"
# Between name and value are the value's type and length: two bytes in AMQP 1.0, five in AMQP 0-9-1.
_FLAGS: Final = re.compile(
    rb"traceparent.{2,5}?[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f])", re.DOTALL
)
_SAMPLED: Final = 1


def is_amqp091(message: Message) -> bool:
    return message[0][0] == amqp091.MARK


def trace_fields(message: Message) -> dict[str, str] | None:
    """Return the fields by name. None: the trace is not sampled, which is checked before they are read."""
    head, content = message
    where = head if is_amqp091(message) else content
    at = where.find(_MARK, 0, len(head) if where is head else LOOKED_THROUGH_BYTES)
    if at < 0:
        return {}
    flags = _FLAGS.match(where, at)
    if flags is not None and not int(flags[1], 16) & _SAMPLED:
        return None
    found = routing_headers(message)
    fields = {name: text for name in NAMES if isinstance(text := found.get(name), str)}
    return fields if NAMES[0] in fields else {}


def destination(message: Message) -> tuple[str, str]:
    if is_amqp091(message):
        names, _, _ = amqp091.split_head(message[0])
        size = names[0]
        return names[1 : 1 + size].decode(errors="replace"), names[2 + size :].decode(errors="replace")
    annotations = decode_head(message[0])[1]
    return str(annotations.get(X_EXCHANGE, "")), str(annotations.get(X_ROUTING_KEY, ""))


def ids(message: Message) -> tuple[str | None, str | None]:
    if is_amqp091(message):
        properties = decode_properties(amqp091.split_head(message[0])[1])
        return properties.message_id, properties.correlation_id
    start = body_start(message[1])
    found = read_properties(message[1][:start])[0] if start else None
    if found is None:
        return None, None
    return _text(found.message_id), _text(found.correlation_id)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value)
