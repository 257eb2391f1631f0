"""What a queue reads of a message's head: durability, priority, time to live, delay; and what traces show.
The head of a message that a classic queue delivers again is made here too.

The earliest delivery time is an annotation of AMQP 1.0 or a header of AMQP 0-9-1: `x-opt-delivery-time`, in
ms since 1970, which JMS clients write, or `x-opt-delivery-delay`, in ms from the arrival at the queue, as in
Artemis. If both are present the first one counts. The delay of a dead letter applied to its first queue.

The trace is W3C Trace Context, in application-properties or headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    X_EXCHANGE,
    X_ROUTING_KEY,
    acquired_head,
    decode_head,
    has_own_deaths,
    header_of,
    remembering,
)
from amqp10broker.message.convert import body_start, read_properties, routing_headers
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091.codec import Timestamp as Timestamp091
from amqp10broker.protocols.amqp091.content import DEAD_LETTERED
from amqp10broker.protocols.amqp091.properties import (
    EXPIRATION,
    HEADERS,
    PERSISTENT,
    PRIORITY,
    decode_properties,
    is_persistent,
    read_flags,
)
from amqp10broker.protocols.amqp10.types import Symbol

X_OPT_DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
X_OPT_DELIVERY_DELAY: Final = Symbol("x-opt-delivery-delay")

TIME_MAX_MS: Final = 2**63 - 1

_IN_BOTH: Final = b"x-opt-delivery-"
"""Heads and properties without it need not be decoded for a delay."""


class Delay(NamedTuple):
    ms: int
    """Since 1970, or from its arrival on."""
    from_arrival: bool

    def due_ms(self, now_ms: int) -> int:
        return max(0, min(self.ms + now_ms if self.from_arrival else self.ms, TIME_MAX_MS))


def milliseconds_in(value: Any) -> int | None:
    """Read a time or a duration that a client wrote, as a long or a timestamp; None if it is not a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(int(value) * (1000 if isinstance(value, Timestamp091) else 1), TIME_MAX_MS)


def delay_of(head: bytes) -> Delay | None:
    if head[0] != amqp091.MARK:
        annotations = decode_head(head)[1]
        return None if has_own_deaths(annotations) else _delay_in(annotations)
    if head[1] & DEAD_LETTERED:
        return None
    return _delay_in(decode_properties(amqp091.split_head(head)[1]).headers or {})


def _delay_in(annotations: Mapping[Any, Any]) -> Delay | None:
    when = milliseconds_in(annotations.get(X_OPT_DELIVERY_TIME))
    if when is not None:
        return Delay(when, from_arrival=False)
    delay = milliseconds_in(annotations.get(X_OPT_DELIVERY_DELAY))
    return None if delay is None or delay <= 0 else Delay(delay, from_arrival=True)


def is_amqp091(message: Message) -> bool:
    return message[0][0] == amqp091.MARK


def redelivered(message: Message) -> bool:
    head = message[0]
    if head[0] == amqp091.MARK:
        return amqp091.redelivered(head)
    return header_of(head).first_acquirer is False


def acquired(message: Message, *, failed: bool) -> Message:
    head, content = message
    if head[0] == amqp091.MARK:
        return amqp091.acquired_head(head, failed), content
    return acquired_head(head, failed), content


class Traits(NamedTuple):
    durable: bool
    priority: int | None
    ttl_ms: int | None
    delay: Delay | None = None


@remembering
def traits_of(head: bytes) -> Traits:
    if head[0] != amqp091.MARK:
        header = header_of(head)
        delay = delay_of(head) if _IN_BOTH in head else None
        return Traits(bool(header.durable), header.priority, header.ttl, delay)
    given = amqp091.split_head(head)[1]
    flags, _ = read_flags(given)
    delay = delay_of(head) if flags & HEADERS and _IN_BOTH in given else None
    if not flags & (PRIORITY | EXPIRATION):
        return Traits(is_persistent(given), None, None, delay)
    properties = decode_properties(given)
    ttl = None if properties.expiration is None else int(properties.expiration)
    return Traits(properties.delivery_mode == PERSISTENT, properties.priority, ttl, delay)


NAMES: Final = ("traceparent", "tracestate")
LOOKED_THROUGH_BYTES: Final = 4096
"""The bytes of an AMQP 1.0 message that are searched for application-properties."""

_MARK: Final = b"traceparent"
# Between name and value are the value's type and length: two bytes in AMQP 1.0, five in AMQP 0-9-1.
_FLAGS: Final = re.compile(
    rb"traceparent.{2,5}?[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f])", re.DOTALL
)
_SAMPLED: Final = 1


def trace_fields(message: Message) -> dict[str, str] | None:
    """Return the fields by name; None: the trace is not sampled, which is known before they are read."""
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
