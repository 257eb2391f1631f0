"""Who asks, and what answers."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.catalog.definitions_export import RABBIT_VERSION
from amqp10broker.catalog.users import User
from amqp10broker.http.calls import Call, RunEndpoint, route
from amqp10broker.http.messages import Answer
from amqp10broker.http.routes import Route


async def whoami(call: Call) -> Answer:
    """The user who has logged in."""
    return call.shown(user_object(call.who))


def user_object(user: User) -> dict[str, Any]:
    """A user, as it hears of itself."""
    return {"name": user.name, "tags": list(user.tags), "is_internal_user": True}


async def version(call: Call) -> Answer:
    """The version of RabbitMQ whose API this is: clients choose by it what they ask for."""
    return Answer.of_json(RABBIT_VERSION)


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/whoami", get=whoami),
    route("/version", get=version),
)
