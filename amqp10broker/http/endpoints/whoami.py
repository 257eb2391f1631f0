"""Who asks, and what answers."""

from __future__ import annotations

from typing import Final

from amqp10broker.catalog.definitions_export import RABBIT_VERSION
from amqp10broker.http.calls import Call, RunEndpoint, route
from amqp10broker.http.messages import Answer
from amqp10broker.http.routes import Route


async def whoami(call: Call) -> Answer:
    """The user who has logged in."""
    user = call.who
    return call.shown({"name": user.name, "tags": sorted(user.tags), "is_internal_user": True})


async def version(call: Call) -> Answer:
    """The version of RabbitMQ whose API this is: clients choose by it what they ask for."""
    return Answer.of_json(RABBIT_VERSION)


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/whoami", get=whoami),
    route("/version", get=version),
)
