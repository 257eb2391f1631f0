"""Endpoints of logins: by a form, counters of attempts, and password hashes for definitions."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, RunEndpoint, route
from amqp10broker.api.endpoints.whoami import user_object
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse
from amqp10broker.api.rights import FORM_TYPE, Tag, form_credentials
from amqp10broker.api.routes import Endpoint, HttpRoute
from amqp10broker.observe.metrics.gather import PROTOCOLS


async def login(call: EndpointCall) -> HttpResponse:
    """Log in by a form; return the user, and the value for HTTP Basic."""
    given = form_credentials(call.request)
    assert not isinstance(given, HttpResponse), "the user has logged in"
    basic = base64.b64encode(given.user + b":" + given.password).decode()
    return call.shown({"user": user_object(call), "token": {"type": "basic", "value": basic}})


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


async def list_attempts_by_source(call: EndpointCall) -> HttpResponse:
    """Return an empty list: attempts are not counted by address and user, as is RabbitMQ's default."""
    _here(call)
    return call.listed([])


async def forget_attempts(call: EndpointCall) -> HttpResponse:
    """Reset the counters of login attempts."""
    _here(call)
    call.broker_api.attempts.forget()
    return NO_CONTENT


async def hash_password(call: EndpointCall) -> HttpResponse:
    """Return a password's hash as `PUT /users` accepts it: salt and SHA-256, in base64."""
    salt = call.broker_api.random(4)
    digest = hashlib.sha256(salt + call.values["password"].encode()).digest()
    return HttpResponse.of_json({"ok": base64.b64encode(salt + digest).decode()})


def _here(call: EndpointCall) -> None:
    if call.values["node"] != call.broker_api.node_name:
        raise not_found()


_O: Final = Tag.MONITORING
_A: Final = Tag.ADMINISTRATOR
_ATTEMPTS: Final = "/auth/attempts/{node}"

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    HttpRoute(
        "/api/login", {"POST": Endpoint(Tag.MANAGEMENT, login, login=form_credentials, forms=(FORM_TYPE,))}
    ),
    route(_ATTEMPTS, _O, get=list_attempts, delete=(_A, forget_attempts)),
    route(f"{_ATTEMPTS}/source", _O, get=list_attempts_by_source, delete=(_A, forget_attempts)),
    route("/auth/hash_password/{password}", _A, get=hash_password),
)
