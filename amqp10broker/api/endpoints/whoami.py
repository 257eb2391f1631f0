"""Endpoints of the logged-in user, and of the API's version."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.api.calls import EndpointCall, RunEndpoint, route
from amqp10broker.api.messages import HttpResponse
from amqp10broker.api.routes import HttpRoute
from amqp10broker.auth.grants import CatalogGrants


async def whoami(call: EndpointCall) -> HttpResponse:
    """Return the logged-in user and its tags."""
    return call.shown(user_object(call))


def user_object(call: EndpointCall) -> dict[str, Any]:
    """Return the object of the logged-in user; that of a token is not internal."""
    internal = isinstance(call.granted, CatalogGrants)
    return {"name": call.user.name, "tags": list(call.user.tags), "is_internal_user": internal}


async def version(call: EndpointCall) -> HttpResponse:
    """Return the version of RabbitMQ with this API: clients choose their requests by it."""
    return HttpResponse.of_json(call.broker_api.catalog.rules.version)


ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/whoami", get=whoami),
    route("/version", get=version),
)
