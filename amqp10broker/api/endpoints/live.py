"""The endpoint of live updates as server-sent events (`api.live`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api.calls import Call, RunEndpoint
from amqp10broker.api.live import EVENT_HEADERS, EVENT_TYPES, Following
from amqp10broker.api.messages import Answer
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import Endpoint, Route


async def get_live(call: Call) -> Answer:
    """Stream the answers of paths, and then their changes; each path requires its usual rights."""
    following = Following.read(call.request, call.door.interval_ms)
    if call.request.method == "HEAD":
        return Answer(HTTPStatus.OK, EVENT_HEADERS)
    return Answer(HTTPStatus.OK, EVENT_HEADERS, feed=call.door.follow(following, call.granted))


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    Route("/api/live", {"GET": Endpoint(Tag.MANAGEMENT, get_live, EVENT_TYPES)}),
)
