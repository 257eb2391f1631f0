"""Logging in: by a form, what was tried, and passwords as definitions have them."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from amqp10broker.http.calls import NO_CONTENT, Call, RunEndpoint, route
from amqp10broker.http.endpoints.whoami import user_object
from amqp10broker.http.front import not_found
from amqp10broker.http.messages import Answer
from amqp10broker.http.rights import FORM_TYPE, Tag, form_credentials
from amqp10broker.http.routes import Endpoint, Route
from amqp10broker.metrics.gather import PROTOCOLS


async def login(call: Call) -> Answer:
    """Log in by a form: the user, and what to send as HTTP Basic from now on."""
    given = form_credentials(call.request)
    assert not isinstance(given, Answer), "the user has logged in"
    basic = base64.b64encode(given.user + b":" + given.password).decode()
    return call.shown({"user": user_object(call), "token": {"type": "basic", "value": basic}})


async def list_attempts(call: Call) -> Answer:
    """How many tried to log in at this node, by protocol."""
    _here(call)
    return call.listed(
        [
            {
                "protocol": PROTOCOLS.get(protocol, protocol),
                "auth_attempts": tried.succeeded + tried.failed,
                "auth_attempts_failed": tried.failed,
                "auth_attempts_succeeded": tried.succeeded,
            }
            for protocol, tried in sorted(call.door.attempts.all().items())
        ]
    )


async def list_attempts_by_source(call: Call) -> Answer:
    """The same by address and user: that is not counted, as RabbitMQ does not by default."""
    _here(call)
    return call.listed([])


async def forget_attempts(call: Call) -> Answer:
    """Begin to count anew."""
    _here(call)
    call.door.attempts.forget()
    return NO_CONTENT


async def hash_password(call: Call) -> Answer:
    """A password as `PUT /users` takes it: salt and SHA-256, in base64."""
    salt = call.door.random(4)
    digest = hashlib.sha256(salt + call.values["password"].encode()).digest()
    return Answer.of_json({"ok": base64.b64encode(salt + digest).decode()})


def _here(call: Call) -> None:
    if call.values["node"] != call.door.node_name:
        raise not_found()


_O: Final = Tag.MONITORING
_A: Final = Tag.ADMINISTRATOR
_ATTEMPTS: Final = "/auth/attempts/{node}"

ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    Route(
        "/api/login", {"POST": Endpoint(Tag.MANAGEMENT, login, login=form_credentials, forms=(FORM_TYPE,))}
    ),
    route(_ATTEMPTS, _O, get=list_attempts, delete=(_A, forget_attempts)),
    route(f"{_ATTEMPTS}/source", _O, get=list_attempts_by_source, delete=(_A, forget_attempts)),
    route("/auth/hash_password/{password}", _A, get=hash_password),
)
