"""RabbitMQ's old health checks, which some monitors still use. They only show that the API answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api.calls import EndpointCall, RunEndpoint, route
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.nodes import is_node
from amqp10broker.api.refusals import ACCESS_REFUSED
from amqp10broker.api.routes import HttpRoute
from amqp10broker.errors import NotAllowed

_OK: Final = {"status": "ok"}


async def check_vhost(call: EndpointCall) -> HttpResponse:
    """Check that the user may enter the virtual host."""
    vhost = call.vhost()
    try:
        call.access(vhost.name).enter()
    except NotAllowed as refusal:
        raise RequestRefused(HTTPStatus.UNAUTHORIZED, "not_authorised", ACCESS_REFUSED) from refusal
    return HttpResponse.of_json(_OK)


async def check_node(call: EndpointCall) -> HttpResponse:
    """Check that a node exists; without a name this one, which answers."""
    if "node" in call.values and not is_node(call, call.values["node"]):
        raise not_found()
    return HttpResponse.of_json(_OK)


ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/aliveness-test/{vhost}", get=check_vhost),
    route("/healthchecks/node", get=check_node),
    route("/healthchecks/node/{node}", get=check_node),
)
