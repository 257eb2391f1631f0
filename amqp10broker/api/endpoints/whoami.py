"""Endpoints of the logged-in user, and of the API's version."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.api.calls import Call, RunEndpoint, route
from amqp10broker.api.messages import Answer
from amqp10broker.api.routes import Route
from amqp10broker.auth.grants import CatalogGrants
from amqp10broker.metadata.definitions_export import RABBIT_VERSION


async def whoami(call: Call) -> Answer:
    """Return the logged-in user and its tags."""
    return call.shown(user_object(call))


def user_object(call: Call) -> dict[str, Any]:
    """Return the object of the logged-in user; that of a token is not internal."""
    internal = isinstance(call.granted, CatalogGrants)
    return {"name": call.who.name, "tags": list(call.who.tags), "is_internal_user": internal}


async def version(call: Call) -> Answer:
    """Return the version of RabbitMQ with this API: clients choose their requests by it."""
    return Answer.of_json(RABBIT_VERSION)


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/whoami", get=whoami),
    route("/version", get=version),
)
