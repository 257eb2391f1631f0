"""Endpoints of quorum queues' members and leaders."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api import fields
from amqp10broker.api.calls import NO_CONTENT, EndpointCall, RunEndpoint, route
from amqp10broker.api.endpoints.queues import queue_of
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.nodes import is_node
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import HttpRoute
from amqp10broker.errors import NotSupported


async def get_status(call: EndpointCall) -> HttpResponse:
    """Return the status of each member of a quorum queue."""
    queue = queue_of(call)
    try:
        rows = await call.administer("quorum-status", queue.vhost, name=queue.name)
    except NotSupported as refusal:
        raise RequestRefused(
            HTTPStatus.SERVICE_UNAVAILABLE, "service_unavailable", refusal.description
        ) from refusal
    return HttpResponse.of_json(rows)


async def add_member(call: EndpointCall) -> HttpResponse:
    """Add a member to a quorum queue, on a node; an existing one stays."""
    queue, node = queue_of(call), _node_of_body(call)
    membership = fields.text(call.body, "membership", "promotable")
    await call.administer("add-member", queue.vhost, name=queue.name, node=node, membership=membership)
    return NO_CONTENT


async def delete_member(call: EndpointCall) -> HttpResponse:
    """Remove a member of a quorum queue, with its data."""
    queue, node = queue_of(call), _node_of_body(call)
    await call.administer("delete-member", queue.vhost, name=queue.name, node=node)
    return NO_CONTENT


async def grow(call: EndpointCall) -> HttpResponse:
    """Add a member on a node to all quorum queues that have none there, or to those that match."""
    body = call.body
    await call.administer(
        "grow",
        node=_node_of_path(call),
        strategy=fields.text(body, "strategy", "all"),
        vhost_pattern=fields.text(body, "vhost_pattern", ".*"),
        queue_pattern=fields.text(body, "queue_pattern", ".*"),
        membership=fields.text(body, "membership", "promotable"),
    )
    return NO_CONTENT


async def shrink(call: EndpointCall) -> HttpResponse:
    """Remove the members of all quorum queues on a node."""
    await call.administer("shrink", node=_node_of_path(call))
    return HttpResponse(HTTPStatus.ACCEPTED)


async def rebalance(call: EndpointCall) -> HttpResponse:
    """Begin to transfer leaderships until no node has more than its share."""
    call.broker_api.begin("rebalance", {"kind": "all"}, user=call.user.name)
    return NO_CONTENT


def _node_of_path(call: EndpointCall) -> str:
    if not is_node(call, call.values["node"]):
        raise not_found()
    return call.values["node"]


def _node_of_body(call: EndpointCall) -> str:
    body = call.body
    fields.require(body, "node")
    name = fields.text(body, "node", "")
    if not is_node(call, name):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", "Node is not a cluster member")
    return name


_ADMINISTRATOR: Final = Tag.ADMINISTRATOR

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/queues/quorum/{vhost}/{name}/status", get=get_status),
    route("/queues/quorum/{vhost}/{name}/replicas/add", _ADMINISTRATOR, post=add_member),
    route("/queues/quorum/{vhost}/{name}/replicas/delete", _ADMINISTRATOR, delete=delete_member),
    route("/queues/quorum/replicas/on/{node}/grow", _ADMINISTRATOR, post=grow),
    route("/queues/quorum/replicas/on/{node}/shrink", _ADMINISTRATOR, delete=shrink),
    route("/rebalance/queues", _ADMINISTRATOR, post=rebalance),
)
