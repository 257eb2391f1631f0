"""AMQP 0-9-1 bytes: what the load generator's frames have of their own; all else is the broker's codec.

Frames that are written millions of times are made by `blocks`, frames that are read millions of times are
read by `scan091`, which shares nothing with the broker.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp091.content import body_pieces, content_header_frame
from amqp10broker.protocols.amqp091.errors import Amqp091Error
from amqp10broker.protocols.amqp091.methods import (
    ChannelClose,
    ConnectionClose,
    ConnectionStartOk,
    Method,
    decode_method,
)
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from benchmarks.errors import WireError

PLAIN: Final = encode_properties(BasicProperties())
"""No properties at all."""
_CAPABILITIES: Final = (
    *("publisher_confirms", "basic.nack", "connection.blocked", "consumer_cancel_notify"),
    "authentication_failure_close",
)


def start_ok(user: str, password: str) -> ConnectionStartOk:
    """Answer connection.start by SASL PLAIN."""
    client = {"product": "benchmark", "capabilities": dict.fromkeys(_CAPABILITIES, True)}
    return ConnectionStartOk(client, "PLAIN", f"\0{user}\0{password}".encode(), "en_US")


def properties(*, content_type: str = "", durable: bool = False, sections: bool = False) -> bytes:
    """Return flags and values of a message's properties (§4.2.6.1).

    Args:
        content_type: the property of this name, if set.
        durable: delivery-mode 2.
        sections: what a client library would add: the same things as `wire.data_message`.
    """
    known = BasicProperties(content_type=content_type or None, delivery_mode=2 if durable else None)
    if sections:
        known.content_type = content_type or "application/octet-stream"
        known.headers = {"tenant": "blue", "attempt": 1, "urgent": False}
        known.message_id, known.timestamp = "3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10", 1_700_000_000
    return encode_properties(known)


def content(channel: int, body: bytes, properties: bytes, frame_max: int) -> bytes:
    """Return header and body frames of one message; none is larger than `frame_max`, all of it counted."""
    return content_header_frame(channel, properties, len(body)) + b"".join(
        body_pieces(channel, body, frame_max)
    )


def read_method(payload: bytes) -> Method:
    """Return the method of a frame.

    Raises:
        WireError: it cannot be read.
    """
    try:
        return decode_method(payload)
    except Amqp091Error as error:
        raise WireError(str(error)) from error


def reason(close: ConnectionClose | ChannelClose) -> str:
    """Say why it came."""
    where = f" (method {close.class_id}.{close.method_id})" if close.class_id else ""
    return f"{close.reply_code} {close.reply_text}{where}"
