"""Endpoints of queues: declare, list, delete, purge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api import fields
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, RunEndpoint, route
from amqp10broker.api.endpoints.connections import consumers_of, every_connection, peer_details
from amqp10broker.api.front import not_found
from amqp10broker.api.lists import Item, ListQuery
from amqp10broker.api.long_lists import described, listed
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.queue_objects import COUNTS, STATIC, TOTALS, Row, counts, details, figures, static
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import HttpRoute
from amqp10broker.metadata.queue import DeclaredQueue, Owner
from amqp10broker.operations.snapshot import ConnectionView


async def list_queues(call: EndpointCall) -> HttpResponse:
    """List the queues of all virtual hosts that the user sees, or of one."""
    return await _listed(call)


async def list_queues_in_detail(call: EndpointCall) -> HttpResponse:
    """List queues with all details."""
    return await _listed(call, detailed=True)


async def _listed(call: EndpointCall, *, detailed: bool = False) -> HttpResponse:
    known = []
    for vhost in call.vhosts():
        known += await described(call, sorted(vhost, key=lambda each: each.name), _known)
    return await listed(call, known, partial(_objects, call, detailed=detailed))


async def get_queue(call: EndpointCall) -> HttpResponse:
    """Return one queue with all details."""
    queue = queue_of(call)
    listing = ListQuery.read(call.request.query, paged=False)
    found = await _objects(call, [_known(queue)], None, detailed=True)
    if not found:
        raise not_found()
    shown = {**found[0]}
    if call.with_stats:
        shown |= {"incoming": [], "deliveries": [], **await _users_of(call, queue)}
    return HttpResponse.of_json(listing.pick(shown))


async def put_queue(call: EndpointCall) -> HttpResponse:
    """Declare a queue with its arguments."""
    vhost, name = call.vhost(), call.values["name"]
    body = call.body
    answer = await call.act(
        "declare-queue",
        vhost.name,
        name=name,
        durable=fields.flag(body, "durable", False),
        auto_delete=fields.flag(body, "auto_delete", False),
        arguments=fields.table(body, "arguments"),
    )
    return CREATED if answer["created"] else NO_CONTENT


async def delete_queue(call: EndpointCall) -> HttpResponse:
    """Delete a queue with its messages; optionally only if it is empty, or unused."""
    queue = queue_of(call)
    query = call.request.query
    await call.act(
        "delete-queue",
        queue.vhost,
        name=queue.name,
        if_unused=query.get("if-unused") == "true",
        if_empty=query.get("if-empty") == "true",
    )
    return NO_CONTENT


async def purge_queue(call: EndpointCall) -> HttpResponse:
    """Drop the ready messages of a queue."""
    queue = queue_of(call)
    await call.act("purge-queue", queue.vhost, name=queue.name)
    return NO_CONTENT


async def act_on_queue(call: EndpointCall) -> HttpResponse:
    """Refuse every action: RabbitMQ has removed all that it had here."""
    queue_of(call)
    raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", "unknown")


async def list_queues_of_user(call: EndpointCall) -> HttpResponse:
    """List the exclusive queues of a user's connections; the declaring user of other queues is not stored."""
    user = call.values["user"]
    if user != call.user.name and not call.has(Tag.ADMINISTRATOR):
        raise RequestRefused(
            HTTPStatus.UNAUTHORIZED, "not_authorised", "User not authorised to access object"
        )
    if call.broker_api.catalog.users.find(user) is None:
        raise not_found()
    owners = {name for name, each in (await _owners(call)).items() if each.user == user}
    known = [
        _known(queue)
        for queue in call.broker_api.catalog
        if isinstance(queue.owner, Owner) and (queue.owner.node, queue.owner.connection) in owners
    ]
    known.sort(key=lambda item: (item["vhost"], item["name"]))

    return await listed(call, known, partial(_objects, call))


async def _users_of(call: EndpointCall, queue: DeclaredQueue) -> dict[str, Any]:
    owners = await _owners(call)
    connections = [each for each in owners.values() if each.vhost == queue.vhost]
    mine = {"name": queue.name, "vhost": queue.vhost}
    consumers = [each for each in consumers_of(call, connections) if each["queue"] == mine]
    exclusive = [each["consumer_tag"] for each in consumers if each["exclusive"]]
    shown: dict[str, Any] = {
        "consumer_details": consumers,
        "exclusive_consumer_tag": exclusive[0] if exclusive else None,
    }
    owner = queue.owner
    if isinstance(owner, Owner) and (owner.node, owner.connection) in owners:
        shown["owner_pid_details"] = peer_details(owners[owner.node, owner.connection])
    return shown


def queue_of(call: EndpointCall, value: str = "name") -> DeclaredQueue:
    """Return the queue that a value of the path names."""
    queue = call.vhost().queues.get(call.values[value])
    if queue is None or queue.kind.volatile:
        raise not_found()
    return queue


async def _owners(call: EndpointCall) -> dict[tuple[int, int], ConnectionView]:
    numbers = {node.name: node.number for node in call.broker_api.catalog.nodes.values()}
    return {
        (numbers.get(each.node or call.broker_api.node_name, 0), each.id): each
        for each in await every_connection(call)
    }


def _known(queue: DeclaredQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": dict(queue.arguments),
    }


async def _objects(
    call: EndpointCall, items: Sequence[Item], wanted: Collection[str] | None, *, detailed: bool = False
) -> list[dict[str, Any]]:
    query = call.request.query
    totals = query.get("disable_stats") == "true" and query.get("enable_queue_totals") == "true"
    without = query.get("disable_stats") == "true" and not totals
    asked = not without and (wanted is None or not STATIC.issuperset(wanted))
    rows: dict[tuple[str, str], Row] = {}
    for vhost in dict.fromkeys(item["vhost"] for item in items):
        if call.broker_api.catalog.find_vhost(vhost) is None:
            continue
        names = [item["name"] for item in items if item["vhost"] == vhost]
        for row in await call.administer("list-queues", vhost, names=names, counts=asked):
            rows[vhost, row["name"]] = row
    found = [row for item in items if (row := rows.get((item["vhost"], item["name"]))) is not None]
    if without:
        return [static(row) for row in found]
    if totals:
        return [_totals(row) for row in found]
    return [static(row) | _rated(call, row) | (details(row) if detailed else {}) for row in found]


def _rated(call: EndpointCall, row: Row) -> dict[str, Any]:
    shown = figures(row)
    if not shown:
        return shown
    lengths, stats = {name: shown[name] for name in COUNTS}, shown.get("message_stats", {})
    found = call.rated("queue", row["vhost"], row["name"], lengths=lengths, msg_rates=stats)
    shown |= found["lengths"]
    if stats:
        shown["message_stats"] = found["msg_rates"]
    return shown | call.idle("queue", row["vhost"], row["name"], seen={**lengths, **stats})


def _totals(row: Row) -> dict[str, Any]:
    return {key: value for key, value in static(row).items() if key in TOTALS} | counts(row)


ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/queues", get=list_queues),
    route("/queues/detailed", get=list_queues_in_detail),
    route("/queues/{vhost}", get=list_queues),
    route("/queues/{vhost}/{name}", get=get_queue, put=put_queue, delete=delete_queue),
    route("/queues/{vhost}/{name}/contents", delete=purge_queue),
    route("/queues/{vhost}/{name}/actions", post=act_on_queue),
    route("/users/{user}/queues", get=list_queues_of_user),
)
