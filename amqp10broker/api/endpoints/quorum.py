"""Endpoints of quorum queues' members and leaders."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api import fields
from amqp10broker.api.calls import NO_CONTENT, Call, RunEndpoint, route
from amqp10broker.api.endpoints.queues import queue_of
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import Answer, Refused
from amqp10broker.api.nodes import is_node
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import Route
from amqp10broker.errors import NotSupported


async def get_status(call: Call) -> Answer:
    """Return the status of each member of a quorum queue."""
    queue = queue_of(call)
    try:
        rows = await call.administer("quorum-status", queue.vhost, name=queue.name)
    except NotSupported as refusal:
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "service_unavailable", refusal.description) from refusal
    return Answer.of_json(rows)


async def add_member(call: Call) -> Answer:
    """Add a member to a quorum queue, on a node; an existing one stays."""
    queue, node = queue_of(call), _node_of_body(call)
    membership = fields.text(call.body, "membership", "promotable")
    await call.administer("add-member", queue.vhost, name=queue.name, node=node, membership=membership)
    return NO_CONTENT


async def delete_member(call: Call) -> Answer:
    """Remove a member of a quorum queue, with its data."""
    queue, node = queue_of(call), _node_of_body(call)
    await call.administer("delete-member", queue.vhost, name=queue.name, node=node)
    return NO_CONTENT


async def grow(call: Call) -> Answer:
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


async def shrink(call: Call) -> Answer:
    """Remove the members of all quorum queues on a node."""
    await call.administer("shrink", node=_node_of_path(call))
    return Answer(HTTPStatus.ACCEPTED)


async def rebalance(call: Call) -> Answer:
    """Begin to transfer leaderships until no node has more than its share."""
    call.door.begin("rebalance", {"kind": "all"}, user=call.who.name)
    return NO_CONTENT


def _node_of_path(call: Call) -> str:
    if not is_node(call, call.values["node"]):
        raise not_found()
    return call.values["node"]


def _node_of_body(call: Call) -> str:
    body = call.body
    fields.require(body, "node")
    name = fields.text(body, "node", "")
    if not is_node(call, name):
        raise Refused(HTTPStatus.BAD_REQUEST, "bad_request", "Node is not a cluster member")
    return name


_ADMINISTRATOR: Final = Tag.ADMINISTRATOR

ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/queues/quorum/{vhost}/{name}/status", get=get_status),
    route("/queues/quorum/{vhost}/{name}/replicas/add", _ADMINISTRATOR, post=add_member),
    route("/queues/quorum/{vhost}/{name}/replicas/delete", _ADMINISTRATOR, delete=delete_member),
    route("/queues/quorum/replicas/on/{node}/grow", _ADMINISTRATOR, post=grow),
    route("/queues/quorum/replicas/on/{node}/shrink", _ADMINISTRATOR, delete=shrink),
    route("/rebalance/queues", _ADMINISTRATOR, post=rebalance),
)
