"""Messages for APIs without AMQP: properties by their names of AMQP 0-9-1, and a body."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest
from amqp10broker.message.amqp091 import split_head
from amqp10broker.message.convert import to_amqp091, valid_text
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091.codec import decode_shortstr
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.numbers import EncodeError

NAMES: Final = tuple(field.name for field in fields(BasicProperties))


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message with decoded properties. `body`: encoded, if it is one of AMQP 1.0 that is not data."""

    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    redelivered: bool
    body: bytes


def plain_message(message: Message) -> PlainMessage:
    head, body = to_amqp091(message)
    names, given, redelivered = split_head(head)
    exchange, pos = decode_shortstr(names, 0)
    routing_key, _ = decode_shortstr(names, pos)
    properties = decode_properties(given)
    shown = {name: _shown(value) for name in NAMES if (value := getattr(properties, name)) is not None}
    return PlainMessage(valid_text(exchange), valid_text(routing_key), shown, redelivered, body)


def encoded_properties(given: Mapping[str, Any]) -> bytes:
    """Encode properties as a content header has them. Raises `BadRequest`."""
    try:
        return encode_properties(BasicProperties(**{name: given[name] for name in NAMES if name in given}))
    except EncodeError as error:
        raise BadRequest("message", f"a property cannot be encoded: {error}") from error


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {valid_text(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Decimal):
        return str(value)
    return bytes(value).decode("utf-8", "replace")
