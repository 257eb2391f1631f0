"""Who asks, and what answers."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.catalog.definitions_export import RABBIT_VERSION
from amqp10broker.http.calls import Call, RunEndpoint, route
from amqp10broker.http.messages import Answer
from amqp10broker.http.routes import Route
from amqp10broker.security.grants import CatalogGrants


async def whoami(call: Call) -> Answer:
    """The user who has logged in."""
    return call.shown(user_object(call))


def user_object(call: Call) -> dict[str, Any]:
    """The user who has logged in, as it hears of itself; that of a token is not one of the broker's own."""
    internal = isinstance(call.granted, CatalogGrants)
    return {"name": call.who.name, "tags": list(call.who.tags), "is_internal_user": internal}


async def version(call: Call) -> Answer:
    """The version of RabbitMQ whose API this is: clients choose by it what they ask for."""
    return Answer.of_json(RABBIT_VERSION)


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/whoami", get=whoami),
    route("/version", get=version),
)
