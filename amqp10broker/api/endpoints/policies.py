"""Endpoints of policies and operator policies."""

from __future__ import annotations

from functools import partial
from typing import Any

from amqp10broker.api import fields
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, route
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import HttpResponse, bad_request, not_found
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.entries import nearest, policy_value
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.vhost import VirtualHost


async def list_policies(operator: bool, call: EndpointCall) -> HttpResponse:
    """List policies, or operator policies, of all virtual hosts that the user sees, or of one."""
    return call.listed(
        [
            _object(vhost, policy)
            for vhost in call.vhosts()
            for policy in sorted(vhost.policies, key=lambda each: each.name)
            if policy.operator is operator
        ]
    )


async def get_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    """Return one policy of a virtual host."""
    return call.shown(_found(call, operator=operator))


async def put_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    """Set a policy, effective at once."""
    vhost, name, body = call.vhost(), call.values["name"], call.body
    fields.require(body, "pattern", "definition")
    there = vhost.policies.find(name, operator=operator)
    definition = fields.table(body, "definition")
    if not definition:
        raise bad_request("Validation failed: a policy must define something")
    try:
        await call.administer(
            "set-operator-policy" if operator else "set-policy",
            vhost.name,
            name=name,
            pattern=fields.text(body, "pattern", ""),
            definition=definition,
            priority=fields.integer(body, "priority", 0),
            apply_to=fields.text(body, "apply-to", "all"),
        )
    except RefusedError as refusal:
        raise bad_request(f"Validation failed: {refusal.description}") from refusal
    return CREATED if there is None else NO_CONTENT


async def delete_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    """Remove a policy of a virtual host."""
    _found(call, operator=operator)
    operation = "clear-operator-policy" if operator else "clear-policy"
    await call.administer(operation, call.vhost().name, name=call.values["name"])
    return NO_CONTENT


for _path, _operator, _tag in (
    ("/policies", False, Tag.POLICYMAKER),
    ("/operator-policies", True, Tag.ADMINISTRATOR),
):
    _one = f"{_path}/{{vhost}}/{{name}}"
    route("GET", _path, f"{_path}/{{vhost}}")(partial(list_policies, _operator))
    route("GET", _one)(partial(get_policy, _operator))
    route("PUT", _one, tag=_tag)(partial(put_policy, _operator))
    route("DELETE", _one, tag=_tag)(partial(delete_policy, _operator))


def _found(call: EndpointCall, *, operator: bool) -> dict[str, Any]:
    vhost = call.vhost()
    policy = vhost.policies.find(call.values["name"], operator=operator)
    if policy is None:
        raise not_found()
    return _object(vhost, policy)


def _object(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    return {"vhost": vhost.name, "name": policy.name, **policy_value(policy, nearest)}
