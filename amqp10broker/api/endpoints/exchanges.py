"""Endpoints of exchanges: declare, list, delete."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqp10broker.api import fields, message_stats
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, described, listed, route
from amqp10broker.api.messages import HttpResponse, not_found
from amqp10broker.metadata.queue_settings import EXCHANGE
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.exchange import Exchange
from amqp10broker.routing.topology import DEFAULT_EXCHANGE

DEFAULT_IN_PATHS: Final = "amq.default"
"""The name of the default exchange in paths, where an empty one would be lost."""


@route("GET", "/exchanges", "/exchanges/{vhost}")
async def list_exchanges(call: EndpointCall) -> HttpResponse:
    """List exchanges of all virtual hosts that the user sees, or of one."""
    known = []
    for vhost in call.vhosts():
        exchanges = sorted(vhost.topology, key=lambda each: each.name)
        known += await described(call, exchanges, partial(_object, call, vhost))
    return await listed(call, known)


@route("GET", "/exchanges/{vhost}/{name}")
async def get_exchange(call: EndpointCall) -> HttpResponse:
    """Return one exchange and its statistics."""
    shown = _object(call, call.vhost(), exchange_of(call))
    if call.with_stats:
        shown |= {"incoming": [], "outgoing": []}
    return call.shown(shown)


@route("PUT", "/exchanges/{vhost}/{name}")
async def put_exchange(call: EndpointCall) -> HttpResponse:
    """Declare an exchange with its arguments."""
    body = call.body
    answer = await call.act(
        "declare-exchange",
        call.vhost().name,
        name=exchange_name(call),
        type=fields.text(body, "type", "direct"),
        durable=fields.flag(body, "durable", False),
        auto_delete=fields.flag(body, "auto_delete", False),
        internal=fields.flag(body, "internal", False),
        arguments=fields.table(body, "arguments"),
    )
    return CREATED if answer["created"] else NO_CONTENT


@route("DELETE", "/exchanges/{vhost}/{name}")
async def delete_exchange(call: EndpointCall) -> HttpResponse:
    """Delete an exchange with its bindings; optionally only if it has none."""
    exchange = exchange_of(call)
    await call.act(
        "delete-exchange",
        call.vhost().name,
        name=exchange.name,
        if_unused=call.request.query.get("if-unused") == "true",
    )
    return NO_CONTENT


def exchange_of(call: EndpointCall, value: str = "name") -> Exchange:
    """Return the exchange that a value of the path names."""
    found = call.vhost().topology.find_exchange(exchange_name(call, value))
    if found is None:
        raise not_found()
    return found


def exchange_name(call: EndpointCall, value: str = "name") -> str:
    """Return the exchange name in the path, with the default exchange's alias replaced."""
    name = call.values[value]
    return DEFAULT_EXCHANGE if name == DEFAULT_IN_PATHS else name


def _object(call: EndpointCall, vhost: VirtualHost, exchange: Exchange) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": dict(exchange.arguments),
    }
    policy = vhost.policies.effective(exchange.name, EXCHANGE) if exchange.name else None
    if policy is not None:
        shown["policy"] = policy.name
    stats = message_stats.of_exchange(exchange.counted()) if call.with_stats else {}
    if stats:
        shown["message_stats"] = call.rated("exchange", vhost.name, exchange.name, msg_rates=stats)[
            "msg_rates"
        ]
    return shown
