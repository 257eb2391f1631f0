"""Endpoints of logins: the user, a form, counters of attempts, and password hashes for definitions."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, route
from amqp10broker.api.front import FORM_TYPE, Tag, form_credentials
from amqp10broker.api.messages import HttpResponse, not_found
from amqp10broker.auth.grants import CatalogGrants
from amqp10broker.observe.metrics.gather import PROTOCOLS


@route("GET", "/whoami")
async def whoami(call: EndpointCall) -> HttpResponse:
    """Return the logged-in user and its tags."""
    return call.shown(user_object(call))


def user_object(call: EndpointCall) -> dict[str, Any]:
    """Return the object of the logged-in user; that of a token is not internal."""
    internal = isinstance(call.granted, CatalogGrants)
    return {"name": call.user.name, "tags": list(call.user.tags), "is_internal_user": internal}


@route("GET", "/version")
async def version(call: EndpointCall) -> HttpResponse:
    """Return the version of RabbitMQ with this API: clients choose their requests by it."""
    return HttpResponse.of_json(call.broker_api.catalog.rules.version)


@route("POST", "/login", login=form_credentials, forms=(FORM_TYPE,))
async def login(call: EndpointCall) -> HttpResponse:
    """Log in by a form; return the user, and the value for HTTP Basic."""
    given = form_credentials(call.request)
    assert not isinstance(given, HttpResponse), "the user has logged in"
    basic = base64.b64encode(given.user + b":" + given.password).decode()
    return call.shown({"user": user_object(call), "token": {"type": "basic", "value": basic}})


@route("GET", "/auth/attempts/{node}", tag=Tag.MONITORING)
async def list_attempts(call: EndpointCall) -> HttpResponse:
    """List the counters of login attempts at this node, by protocol."""
    _here(call)
    return call.listed(
        [
            {
                "protocol": PROTOCOLS.get(protocol, protocol),
                "auth_attempts": tried.succeeded + tried.failed,
                "auth_attempts_failed": tried.failed,
                "auth_attempts_succeeded": tried.succeeded,
            }
            for protocol, tried in sorted(call.broker_api.attempts.all().items())
        ]
    )


@route("GET", "/auth/attempts/{node}/source", tag=Tag.MONITORING)
async def list_attempts_by_source(call: EndpointCall) -> HttpResponse:
    """Return an empty list: attempts are not counted by address and user, as is RabbitMQ's default."""
    _here(call)
    return call.listed([])


@route("DELETE", "/auth/attempts/{node}", "/auth/attempts/{node}/source", tag=Tag.ADMINISTRATOR)
async def forget_attempts(call: EndpointCall) -> HttpResponse:
    """Reset the counters of login attempts."""
    _here(call)
    call.broker_api.attempts.forget()
    return NO_CONTENT


@route("GET", "/auth/hash_password/{password}", tag=Tag.ADMINISTRATOR)
async def hash_password(call: EndpointCall) -> HttpResponse:
    """Return a password's hash as `PUT /users` accepts it: salt and SHA-256, in base64."""
    salt = call.broker_api.random(4)
    digest = hashlib.sha256(salt + call.values["password"].encode()).digest()
    return HttpResponse.of_json({"ok": base64.b64encode(salt + digest).decode()})


def _here(call: EndpointCall) -> None:
    if call.values["node"] != call.broker_api.node_name:
        raise not_found()
