"""The traits of a message that a queue uses, read from its head: durable, priority, time to live, delay."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import header_of, remembering
from amqp10broker.message.delay import Delay, delay_of, may_be_delayed
from amqp10broker.protocols.amqp091.properties import (
    EXPIRATION,
    HEADERS,
    PERSISTENT,
    PRIORITY,
    decode_properties,
    is_persistent,
    read_flags,
)


class Traits(NamedTuple):
    durable: bool
    priority: int | None
    """0 to 255; None: the publisher gave none."""
    ttl_ms: int | None
    """None: no limit of its own."""
    delay: Delay | None = None
    """None: it may be delivered at once."""


@remembering
def traits_of(head: bytes) -> Traits:
    if head[0] != amqp091.MARK:
        header = header_of(head)
        delay = delay_of(head) if may_be_delayed(head) else None
        return Traits(bool(header.durable), header.priority, header.ttl, delay)
    given = amqp091.split_head(head)[1]
    flags, _ = read_flags(given)
    delay = delay_of(head) if flags & HEADERS and may_be_delayed(given) else None
    if not flags & (PRIORITY | EXPIRATION):
        return Traits(is_persistent(given), None, None, delay)
    properties = decode_properties(given)
    ttl = None if properties.expiration is None else int(properties.expiration)
    return Traits(properties.delivery_mode == PERSISTENT, properties.priority, ttl, delay)
