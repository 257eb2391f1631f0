"""The endpoint of live updates as server-sent events (`api.live`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api.calls import EndpointCall, RunEndpoint
from amqp10broker.api.live import EVENT_HEADERS, EVENT_TYPES, Following
from amqp10broker.api.messages import HttpResponse
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import Endpoint, HttpRoute


async def get_live(call: EndpointCall) -> HttpResponse:
    """Stream the answers of paths, and then their changes; each path requires its usual rights."""
    following = Following.read(call.request, call.broker_api.interval_ms)
    if call.request.method == "HEAD":
        return HttpResponse(HTTPStatus.OK, EVENT_HEADERS)
    return HttpResponse(HTTPStatus.OK, EVENT_HEADERS, feed=call.broker_api.follow(following, call.granted))


ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    HttpRoute("/api/live", {"GET": Endpoint(Tag.MANAGEMENT, get_live, EVENT_TYPES)}),
)
