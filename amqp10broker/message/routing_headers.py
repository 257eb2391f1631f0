"""The values that a headers exchange compares, the same for the same message in either protocol."""

from __future__ import annotations

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import X_EXCHANGE, X_ROUTING_KEY, decode_head
from amqp10broker.message.bare import body_start, read_properties
from amqp10broker.message.message import Message
from amqp10broker.message.values import DROPPED, name_of, simple_to_amqp091, to_amqp091
from amqp10broker.protocols.amqp091.codec import plain
from amqp10broker.protocols.amqp091.properties import read_headers


def routing_headers(message: Message) -> dict[str, object]:
    """Return an AMQP 0-9-1 message's headers, or an AMQP 1.0 message's application-properties and x-
    annotations.

    Values are plain Python ones: numbers int or float whatever their width, timestamps int in seconds,
    texts str, binaries bytes. An annotation takes precedence over an application-property of the same
    name.
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
        converted = to_amqp091(value)
        if key not in (X_EXCHANGE, X_ROUTING_KEY) and converted is not DROPPED:
            headers[str(key)] = plain(converted)
    return headers
