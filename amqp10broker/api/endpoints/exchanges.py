"""Endpoints of exchanges and bindings: declare, list, delete, bind and unbind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, unquote_plus

from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, described, listed, route
from amqp10broker.api.messages import HttpResponse, flag, not_found, table, text
from amqp10broker.api.samples import exchange_stats
from amqp10broker.metadata.queue_arguments import EXCHANGE
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.exchange import Binding, Destination, Exchange
from amqp10broker.routing.topology import DEFAULT_EXCHANGE

DEFAULT_IN_PATHS: Final = "amq.default"
"""The name of the default exchange in paths, where an empty one would be lost."""


@route("GET", "/exchanges", "/exchanges/{vhost}")
async def list_exchanges(call: EndpointCall) -> HttpResponse:
    known = []
    for vhost in call.vhosts():
        exchanges = sorted(vhost.topology, key=lambda each: each.name)
        known += await described(call, exchanges, partial(_object, call, vhost))
    return await listed(call, known)


@route("GET", "/exchanges/{vhost}/{name}")
async def get_exchange(call: EndpointCall) -> HttpResponse:
    shown = _object(call, call.vhost(), exchange_of(call))
    if call.with_stats:
        shown |= {"incoming": [], "outgoing": []}
    return call.shown(shown)


@route("PUT", "/exchanges/{vhost}/{name}")
async def put_exchange(call: EndpointCall) -> HttpResponse:
    body = call.body
    answer = await call.act(
        "declare-exchange",
        call.vhost().name,
        name=exchange_name(call),
        type=text(body, "type", "direct"),
        durable=flag(body, "durable", False),
        auto_delete=flag(body, "auto_delete", False),
        internal=flag(body, "internal", False),
        arguments=table(body, "arguments"),
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


def exchange_of(call: EndpointCall) -> Exchange:
    found = call.vhost().topology.find_exchange(exchange_name(call))
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
    stats = exchange_stats(exchange.counted()) if call.with_stats else {}
    if stats:
        shown["message_stats"] = call.rated("exchange", vhost.name, exchange.name, msg_rates=stats)[
            "msg_rates"
        ]
    return shown


def properties_key(binding: Binding) -> str:
    """Return the key of a binding among those with the same two ends: its routing key, form-encoded, and if
    there are arguments a tilde and a hash of them; a tilde alone stands for neither. Clients take it from a
    list, and encode it once more for a path.
    """
    # Distinguishes a tilde in a routing key from the separator.
    key = quote_plus(binding.routing_key, safe="").replace("~", "%7E")
    if binding.arguments:
        return f"{key}~{binding.arguments_hash}"
    return key or "~"


def location(binding: Binding) -> str:
    return f"{quote(binding.destination.name, safe='')}/{quote(properties_key(binding), safe='')}"


def binding_object(binding: Binding, vhost: str) -> dict[str, Any]:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "properties_key": properties_key(binding),
    }


@route("GET", "/bindings", "/bindings/{vhost}")
async def list_bindings(call: EndpointCall) -> HttpResponse:
    known = []
    for vhost in call.vhosts():
        # Bindings of the default exchange are not stored: there is one for each queue.
        bindings = [*map(_default, _names(vhost)), *vhost.topology.bindings()]
        known += await described(call, bindings, partial(binding_object, vhost=vhost.name))
    return await listed(call, known, paged=False)


@route("GET", "/queues/{vhost}/{name}/bindings")
async def list_bindings_of_queue(call: EndpointCall) -> HttpResponse:
    """List the bindings of a queue, that of the default exchange first; none of a missing queue."""
    destination = Destination("queue", call.values["name"])
    return await _listed(call, call.vhost().topology.bindings(destination=destination))


@route("GET", "/exchanges/{vhost}/{name}/bindings/source")
async def list_bindings_from_exchange(call: EndpointCall) -> HttpResponse:
    vhost, name = call.vhost(), exchange_name(call)
    if name == DEFAULT_EXCHANGE:
        return await _listed(call, map(_default, _names(vhost)))
    return await _listed(call, vhost.topology.bindings(source=name))


@route("GET", "/exchanges/{vhost}/{name}/bindings/destination")
async def list_bindings_to_exchange(call: EndpointCall) -> HttpResponse:
    destination = Destination("exchange", exchange_name(call))
    return await _listed(call, call.vhost().topology.bindings(destination=destination))


@route("GET", "/bindings/{vhost}/e/{source}/q/{queue}", "/bindings/{vhost}/e/{source}/e/{destination}")
async def list_bindings_between(call: EndpointCall) -> HttpResponse:
    return await _listed(call, _between(call))


@route("POST", "/bindings/{vhost}/e/{source}/q/{queue}", "/bindings/{vhost}/e/{source}/e/{destination}")
async def bind(call: EndpointCall) -> HttpResponse:
    """Bind a queue or an exchange to an exchange; an existing equal binding stays."""
    source, destination = _ends(call)
    body = call.body
    routing_key, arguments = text(body, "routing_key", ""), table(body, "arguments")
    await call.act(
        "bind",
        call.vhost().name,
        source=source,
        **{f"destination_{destination.kind}": destination.name},
        binding_key=routing_key,
        arguments=arguments,
    )
    where = location(Binding(source, destination, routing_key, arguments))
    return HttpResponse(HTTPStatus.CREATED, (("location", where),))


@route(
    "GET",
    "/bindings/{vhost}/e/{source}/q/{queue}/{properties}",
    "/bindings/{vhost}/e/{source}/e/{destination}/{properties}",
)
async def get_binding(call: EndpointCall) -> HttpResponse:
    return call.shown(binding_object(_named(call), call.vhost().name))


@route(
    "DELETE",
    "/bindings/{vhost}/e/{source}/q/{queue}/{properties}",
    "/bindings/{vhost}/e/{source}/e/{destination}/{properties}",
)
async def unbind(call: EndpointCall) -> HttpResponse:
    binding = _named(call)
    await call.act(
        "unbind",
        call.vhost().name,
        source=binding.source,
        **{f"destination_{binding.destination.kind}": binding.destination.name},
        binding_key=binding.routing_key,
        arguments=dict(binding.arguments),
    )
    return NO_CONTENT


async def _listed(call: EndpointCall, bindings: Iterable[Binding]) -> HttpResponse:
    known = await described(call, list(bindings), partial(binding_object, vhost=call.vhost().name))
    return await listed(call, known, paged=False)


def _names(vhost: VirtualHost) -> list[str]:
    return sorted(queue.name for queue in vhost)


def _default(name: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination("queue", name), name)


def _ends(call: EndpointCall) -> tuple[str, Destination]:
    kind: Literal["queue", "exchange"] = "queue" if "queue" in call.values else "exchange"
    name = call.values["queue"] if kind == "queue" else exchange_name(call, "destination")
    return exchange_name(call, "source"), Destination(kind, name)


def _between(call: EndpointCall) -> list[Binding]:
    source, destination = _ends(call)
    return call.vhost().topology.bindings(source=source, destination=destination)


def _named(call: EndpointCall) -> Binding:
    wanted = call.values["properties"]
    found = {properties_key(each): each for each in _between(call)}
    if wanted in found:
        return found[wanted]
    # Some clients put the key into the path as they received it in a list.
    for key, binding in found.items():
        if unquote_plus(key) == wanted:
            return binding
    raise not_found()
