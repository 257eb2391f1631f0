"""Endpoints of policies and operator policies."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.api import fields
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, RunEndpoint, route
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import HttpRoute
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.entries import nearest, policy_value
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.vhost import VirtualHost


async def list_policies(call: EndpointCall) -> HttpResponse:
    """List policies of all virtual hosts that the user sees, or of one."""
    return call.listed(_listed(call, operator=False))


async def list_operator_policies(call: EndpointCall) -> HttpResponse:
    """List operator policies of all virtual hosts that the user sees, or of one."""
    return call.listed(_listed(call, operator=True))


async def get_policy(call: EndpointCall) -> HttpResponse:
    """Return one policy of a virtual host."""
    return call.shown(_found(call, operator=False))


async def get_operator_policy(call: EndpointCall) -> HttpResponse:
    """Return one operator policy of a virtual host."""
    return call.shown(_found(call, operator=True))


async def put_policy(call: EndpointCall) -> HttpResponse:
    """Set a policy, effective at once."""
    return await _put(call, "set-policy", operator=False)


async def put_operator_policy(call: EndpointCall) -> HttpResponse:
    """Set an operator policy, effective at once."""
    return await _put(call, "set-operator-policy", operator=True)


async def delete_policy(call: EndpointCall) -> HttpResponse:
    """Remove a policy of a virtual host."""
    _found(call, operator=False)
    await call.administer("clear-policy", call.vhost().name, name=call.values["name"])
    return NO_CONTENT


async def delete_operator_policy(call: EndpointCall) -> HttpResponse:
    """Remove an operator policy of a virtual host."""
    _found(call, operator=True)
    await call.administer("clear-operator-policy", call.vhost().name, name=call.values["name"])
    return NO_CONTENT


async def _put(call: EndpointCall, operation: str, *, operator: bool) -> HttpResponse:
    vhost, name, body = call.vhost(), call.values["name"], call.body
    fields.require(body, "pattern", "definition")
    there = vhost.policies.find(name, operator=operator)
    definition = fields.table(body, "definition")
    if not definition:
        raise RequestRefused(400, "bad_request", "Validation failed: a policy must define something")
    try:
        await call.administer(
            operation,
            vhost.name,
            name=name,
            pattern=fields.text(body, "pattern", ""),
            definition=definition,
            priority=fields.integer(body, "priority", 0),
            apply_to=fields.text(body, "apply-to", "all"),
        )
    except RefusedError as refusal:
        raise RequestRefused(400, "bad_request", f"Validation failed: {refusal.description}") from refusal
    return CREATED if there is None else NO_CONTENT


def _listed(call: EndpointCall, *, operator: bool) -> list[dict[str, Any]]:
    return [
        _object(vhost, policy)
        for vhost in call.vhosts()
        for policy in sorted(vhost.policies, key=lambda each: each.name)
        if policy.operator is operator
    ]


def _found(call: EndpointCall, *, operator: bool) -> dict[str, Any]:
    vhost = call.vhost()
    policy = vhost.policies.find(call.values["name"], operator=operator)
    if policy is None:
        raise not_found()
    return _object(vhost, policy)


def _object(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    return {"vhost": vhost.name, "name": policy.name, **policy_value(policy, nearest)}


_P: Final = Tag.POLICYMAKER
_A: Final = Tag.ADMINISTRATOR

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/policies", get=list_policies),
    route("/policies/{vhost}", get=list_policies),
    route("/policies/{vhost}/{name}", get=get_policy, put=(_P, put_policy), delete=(_P, delete_policy)),
    route("/operator-policies", get=list_operator_policies),
    route("/operator-policies/{vhost}", get=list_operator_policies),
    route(
        "/operator-policies/{vhost}/{name}",
        get=get_operator_policy,
        put=(_A, put_operator_policy),
        delete=(_A, delete_operator_policy),
    ),
)
