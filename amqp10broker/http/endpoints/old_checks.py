"""Checks of the first days, which old monitors still ask for. They say that the API answers, and no more."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.errors import NotAllowed
from amqp10broker.http.calls import Call, RunEndpoint, route
from amqp10broker.http.front import not_found
from amqp10broker.http.messages import Answer, Refused
from amqp10broker.http.nodes import is_node
from amqp10broker.http.refusals import ACCESS_REFUSED
from amqp10broker.http.routes import Route

_OK: Final = {"status": "ok"}


async def check_vhost(call: Call) -> Answer:
    """Whether the user may be in a virtual host."""
    vhost = call.vhost()
    try:
        call.access(vhost.name).enter()
    except NotAllowed as refusal:
        raise Refused(HTTPStatus.UNAUTHORIZED, "not_authorised", ACCESS_REFUSED) from refusal
    return Answer.of_json(_OK)


async def check_node(call: Call) -> Answer:
    """Whether there is a node; without a name this one, which answers."""
    if "node" in call.values and not is_node(call, call.values["node"]):
        raise not_found()
    return Answer.of_json(_OK)


ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/aliveness-test/{vhost}", get=check_vhost),
    route("/healthchecks/node", get=check_node),
    route("/healthchecks/node/{node}", get=check_node),
)
