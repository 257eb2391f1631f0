"""The parts of a message's head that a queue reads: durability, priority, time to live, delay; and the head
of a message that a classic queue delivers again.

The earliest delivery time is an annotation of AMQP 1.0 or a header of AMQP 0-9-1: `x-opt-delivery-time`, in
ms since 1970, which JMS clients write, or `x-opt-delivery-delay`, in ms from the arrival at the queue, as in
Artemis. If both are present the first one counts. The delay of a dead letter applied to its first queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    acquired_head,
    decode_head,
    has_own_deaths,
    header_of,
    remembering,
)
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
"""Heads and properties without this text need not be decoded for a delay."""


class Delay(NamedTuple):
    ms: int
    """The time since 1970, or from the message's arrival."""
    from_arrival: bool

    def due_ms(self, now_ms: int) -> int:
        return max(0, min(self.ms + now_ms if self.from_arrival else self.ms, TIME_MAX_MS))


def milliseconds_in(value: Any) -> int | None:
    """Return a time or a duration from a client, a long or a timestamp; None if it is not a number."""
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
