"""Endpoints of virtual hosts and their limits."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api import fields
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, listed, route
from amqp10broker.api.endpoints.users import limit_given, limit_name
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import HttpResponse, RequestRefused, bad_request, not_found
from amqp10broker.errors import PreconditionFailed
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.accounts import PROTECTED

_LIMITS: Final = (("max-connections", "max-queues"), "virtual hosts")


@route("GET", "/vhosts")
async def list_vhosts(call: EndpointCall) -> HttpResponse:
    known = call.broker_api.catalog.vhosts
    all_of_them = call.has(Tag.MONITORING)
    seen = [known[name] for name in sorted(known) if all_of_them or call.sees(name)]
    return await listed(call, [_object(call, vhost) for vhost in seen])


@route("GET", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def get_vhost(call: EndpointCall) -> HttpResponse:
    return call.shown(_object(call, _vhost(call)))


@route("PUT", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def put_vhost(call: EndpointCall) -> HttpResponse:
    name, body = call.values["vhost"], call.body
    there = call.broker_api.catalog.find_vhost(name)
    metadata: dict[str, Any] = {} if there is None else dict(there.facts.metadata)
    if PROTECTED in body:
        metadata[PROTECTED] = fields.flag(body, PROTECTED, False)
    if "tracing" in body:
        metadata["tracing"] = fields.flag(body, "tracing", False)
    entry: dict[str, Any] = {"metadata": metadata}
    entry["description"] = fields.text(body, "description", "" if there is None else there.facts.description)
    entry["tags"] = body.get("tags", [] if there is None else list(there.facts.tags))
    kind = body.get("default_queue_type", None if there is None else there.facts.default_queue_type)
    if kind is not None:
        if not isinstance(kind, str):
            raise bad_request("'default_queue_type' must be a string")
        entry["default_queue_type"] = kind
    answer = await call.administer("put-vhost", name=name, entry=entry)
    if not answer["created"]:
        return NO_CONTENT
    if call.user.name in call.broker_api.catalog.users:
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        await call.administer("set-permissions", name, user=call.user.name, **every)
    return CREATED


@route("DELETE", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def delete_vhost(call: EndpointCall) -> HttpResponse:
    try:
        await call.administer("delete-vhost", name=_vhost(call).name)
    except PreconditionFailed as refusal:
        raise RequestRefused(
            HTTPStatus.PRECONDITION_FAILED, "precondition_failed", refusal.description
        ) from refusal
    return NO_CONTENT


@route("POST", "/vhosts/{vhost}/deletion/protection", tag=Tag.ADMINISTRATOR)
async def protect(call: EndpointCall) -> HttpResponse:
    return await _protect(call, True)


@route("DELETE", "/vhosts/{vhost}/deletion/protection", tag=Tag.ADMINISTRATOR)
async def unprotect(call: EndpointCall) -> HttpResponse:
    return await _protect(call, False)


@route("POST", "/vhosts/{vhost}/start/{node}", tag=Tag.ADMINISTRATOR)
async def start(call: EndpointCall) -> HttpResponse:
    """Accept the request without effect: virtual hosts always run on all nodes."""
    _vhost(call)
    if call.values["node"] != call.broker_api.node_name:
        raise bad_request(f"there is no node '{call.values['node']}' here")
    return NO_CONTENT


@route("GET", "/vhost-limits", "/vhost-limits/{vhost}")
async def list_limits(call: EndpointCall) -> HttpResponse:
    known = [{"vhost": vhost.name, "value": vhost.facts.limits.as_dict()} for vhost in call.vhosts()]
    return call.listed([each for each in known if each["value"]])


@route("PUT", "/vhost-limits/{vhost}/{name}", tag=Tag.ADMINISTRATOR)
async def put_limit(call: EndpointCall) -> HttpResponse:
    limits = limit_given(call, *_LIMITS)
    await call.administer("set-vhost-limits", _vhost(call).name, limits=limits)
    return NO_CONTENT


@route("DELETE", "/vhost-limits/{vhost}/{name}", tag=Tag.ADMINISTRATOR)
async def delete_limit(call: EndpointCall) -> HttpResponse:
    await call.administer("set-vhost-limits", _vhost(call).name, limits={limit_name(call, *_LIMITS): -1})
    return NO_CONTENT


async def _protect(call: EndpointCall, protected: bool) -> HttpResponse:
    vhost = _vhost(call)
    facts = vhost.facts
    entry: dict[str, Any] = {
        "metadata": {**facts.metadata, PROTECTED: protected},
        "description": facts.description,
        "tags": list(facts.tags),
    }
    if facts.default_queue_type is not None:
        entry["default_queue_type"] = facts.default_queue_type
    await call.administer("put-vhost", name=vhost.name, entry=entry)
    return NO_CONTENT


def _vhost(call: EndpointCall) -> VirtualHost:
    found = call.broker_api.catalog.find_vhost(call.values["vhost"])
    if found is None:
        raise not_found()
    return found


def _object(call: EndpointCall, vhost: VirtualHost) -> dict[str, Any]:
    facts = vhost.facts
    metadata: dict[str, Any] = {"description": facts.description, "tags": list(facts.tags)}
    if facts.default_queue_type is not None:
        metadata["default_queue_type"] = facts.default_queue_type
    if PROTECTED in facts.metadata:
        metadata[PROTECTED] = facts.metadata[PROTECTED]
    return {
        "name": vhost.name,
        "description": facts.description,
        "tags": list(facts.tags),
        "default_queue_type": vhost.facts.default_queue_type
        or str(call.broker_api.catalog.default_queue_type),
        PROTECTED: bool(facts.metadata.get(PROTECTED)),
        "tracing": bool(facts.metadata.get("tracing")),
        "metadata": metadata,
        "cluster_state": {call.broker_api.node_name: "running"},
    }
