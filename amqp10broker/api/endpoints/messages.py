"""Endpoints that publish and get messages, one request each, for tests and for people; too slow for
programs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from amqp10broker.api import fields
from amqp10broker.api.calls import EndpointCall, route, written
from amqp10broker.api.endpoints.exchanges import exchange_name
from amqp10broker.api.endpoints.queues import queue_of
from amqp10broker.api.messages import HttpResponse, RequestRefused, bad_request, not_authorised
from amqp10broker.errors import AccessRefused, PreconditionFailed
from amqp10broker.message.message import Message
from amqp10broker.message.plain import plain_message
from amqp10broker.queues.commands import DeliveryOutcome

ACK_MODES: Final = {
    "ack_requeue_true": DeliveryOutcome.REQUEUE,
    "ack_requeue_false": DeliveryOutcome.ACCEPT,
    "reject_requeue_true": DeliveryOutcome.REQUEUE_FAILED,
    "reject_requeue_false": DeliveryOutcome.DISCARD_FAILED,
}
EVERYTHING: Final = 2**31 - 1
_TEXTS: Final = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_Numbered: TypeAlias = tuple[int, Message]


@route("POST", "/exchanges/{vhost}/{name}/publish")
async def publish(call: EndpointCall) -> HttpResponse:
    """Publish a message; the answer comes when its queues have stored it."""
    vhost, exchange = call.vhost(), exchange_name(call)
    body = call.body
    fields.require(body, "routing_key", "payload", "payload_encoding", "properties")
    routing_key = fields.text(body, "routing_key", "")
    properties = _properties(fields.table(body, "properties"))
    try:
        routed = await call.broker_api.publish(
            call.access(vhost.name), exchange, routing_key, properties, _payload(body)
        )
    except AccessRefused as refusal:
        raise bad_request(f"403 ACCESS_REFUSED - {refusal.description}") from refusal
    except PreconditionFailed as refusal:
        raise bad_request(f"406 PRECONDITION_FAILED - {refusal.description}") from refusal
    return HttpResponse.of_json({"routed": routed})


@route("POST", "/queues/{vhost}/{name}/get")
async def get_messages(call: EndpointCall) -> HttpResponse:
    queue = queue_of(call)
    body = call.body
    fields.require(body, "count", "ackmode", "encoding")
    count = fields.integer(body, "count", 0)
    delivery_outcome = ACK_MODES.get(fields.text(body, "ackmode", ""))
    if delivery_outcome is None:
        raise bad_request(
            f"Invalid ackmode value: {body['ackmode']}; it must be one of {', '.join(ACK_MODES)}"
        )
    encoding = fields.text(body, "encoding", "")
    if encoding not in ("auto", "base64"):
        raise bad_request(f"Unsupported encoding: {encoding}; it must be auto or base64")
    size = fields.integer(body, "truncate", 0) if "truncate" in body else None
    if size is not None and size < 0:
        raise bad_request("'truncate' must be 0 or more bytes")
    if count == 0:
        return HttpResponse.of_json([])
    try:
        messages, behind = await call.broker_api.get(
            call.access(queue.vhost), queue.name, EVERYTHING if count < 0 else count, delivery_outcome
        )
    except AccessRefused as refusal:
        text = f"403 ACCESS_REFUSED - {refusal.description}"
        raise not_authorised(text) from refusal
    numbered = list(zip(range(behind + len(messages) - 1, -1, -1), messages, strict=False))
    describe = partial(_object, text_wanted=encoding == "auto", size=size)
    # A message may be large by itself.
    return HttpResponse.of_json_bytes(await written(call, numbered, describe, 1))


def _object(numbered: _Numbered, *, text_wanted: bool, size: int | None) -> dict[str, Any]:
    behind, message = numbered
    plain = plain_message(message)
    payload, encoding = _shown(plain.body[:size], text_wanted)
    return {
        "payload_bytes": len(plain.body),
        "redelivered": plain.redelivered,
        "exchange": plain.exchange,
        "routing_key": plain.routing_key,
        "message_count": behind,
        "properties": plain.properties,
        "payload": payload,
        "payload_encoding": encoding,
    }


def _shown(body: bytes, text_wanted: bool) -> tuple[str, str]:
    if text_wanted:
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass  # then it is sent as base64
    return base64.b64encode(body).decode(), "base64"


def _payload(body: Mapping[str, Any]) -> bytes:
    payload, encoding = fields.text(body, "payload", ""), fields.text(body, "payload_encoding", "")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise bad_request(f"unsupported_encoding: payload_encoding must be string or base64, not {encoding}")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("not_base64: the payload is not what payload_encoding says") from None


def _properties(given: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name in _TEXTS:
        if name in given:
            properties[name] = fields.text(given, name, "")
    for name in _NUMBERS:
        if name in given:
            try:
                properties[name] = fields.integer(given, name, 0)
            except RequestRefused:
                raise bad_request(f"not_int: '{name}' must be a whole number") from None
    if "headers" in given:
        properties["headers"] = fields.table(given, "headers")
        if _holds_null(properties["headers"]):
            raise bad_request("a header is null: leave it out")
    return properties


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list) else value is None
