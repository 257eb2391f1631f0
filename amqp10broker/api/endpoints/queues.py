"""Endpoints of queues, made of rows of the operation ``list-queues``, and of quorum queues' members.

Those that publish and get messages take one request each: for tests and for people, too slow for programs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from amqp10broker.api.calls import (
    CREATED,
    NO_CONTENT,
    EndpointCall,
    Item,
    ListQuery,
    described,
    is_node,
    listed,
    route,
    written,
)
from amqp10broker.api.endpoints.connections import consumers_of, every_connection, peer_details
from amqp10broker.api.endpoints.exchanges import exchange_name
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import (
    HttpResponse,
    RequestRefused,
    bad_request,
    flag,
    integer,
    not_authorised,
    not_found,
    require,
    table,
    text,
)
from amqp10broker.api.samples import queue_stats
from amqp10broker.errors import AccessRefused, NotSupported, PreconditionFailed
from amqp10broker.message.convert import plain_message
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue, Owner
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.queues.commands import DeliveryOutcome

DECLARED: Final = ("name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments")
"""Columns that are known without querying other nodes or queues."""
STATIC: Final = frozenset(
    {
        *DECLARED,
        *("node", "state", "policy", "operator_policy", "effective_policy_definition"),
        *("internal", "internal_owner", "leader", "members", "online"),
    }
)
TOTALS: Final = frozenset({*DECLARED, "node", "state"})
"""Columns besides the counts, for queues without statistics but with totals."""
COUNTS: Final = ("messages", "messages_ready", "messages_unacknowledged")
MESSAGE_MEMORY_BYTES: Final = 100
"""The approximate memory of a message besides its content."""

Row = Mapping[str, Any]


def static(row: Row) -> dict[str, Any]:
    shown = {key: row[key] for key in DECLARED}
    shown |= {
        "node": row["leader"],
        "state": row["state"],
        "policy": row["policy"],
        "operator_policy": row["operator_policy"],
        "effective_policy_definition": row["effective_policy_definition"],
        "internal": False,
        "internal_owner": False,
    }
    if row["type"] != "classic":
        shown |= {"leader": row["leader"], "members": row["members"], "online": row["online"]}
    return shown


def counts(row: Row) -> dict[str, int]:
    """Return the message counts; nothing if the leader has not answered."""
    ready, unacknowledged = row["message_count"], row["messages_unsettled"]
    if ready is None:
        return {}
    # A stream stores delivered messages, too: they are among the ready ones.
    every = ready if row["type"] == "stream" else ready + unacknowledged + (row["messages_dlx"] or 0)
    return dict(zip(COUNTS, (every, ready, unacknowledged), strict=True))


def figures(row: Row) -> dict[str, Any]:
    """Return all counters and gauges; nothing if the leader has not answered."""
    if row["message_count"] is None:
        return {}
    shown: dict[str, Any] = {**counts(row), "consumers": row["consumer_count"], **_bytes(row)}
    if row["type"] == "quorum":
        shown |= {
            key: row[key]
            for key in ("delivery_limit", "messages_dlx", "messages_delayed", "publishers")
            if row[key] is not None
        }
    elif row["type"] == "classic":
        shown["messages_delayed"] = row["messages_delayed"]
    elif row["segments"] is not None:
        shown["segments"] = row["segments"]
    stats = queue_stats(row["counters"])
    return {**shown, "message_stats": stats} if stats else shown


def _bytes(row: Row) -> dict[str, int]:
    weight = row.get("weight")  # a node of another version may not send it
    if weight is None:
        return {}
    known = counts(row)
    ready, unacknowledged = weight["ready"], weight["unsettled"]
    every = None if ready is None or unacknowledged is None else ready + unacknowledged
    shown = {
        "message_bytes": every,
        "message_bytes_ready": ready,
        "message_bytes_unacknowledged": unacknowledged,
    }
    if row["type"] == "quorum":
        shown |= {"messages_persistent": known["messages"], "message_bytes_persistent": every}
    elif not row["durable"]:
        shown |= {"messages_persistent": 0, "message_bytes_persistent": 0}
    here, here_bytes = weight["ready_in_memory"], weight["ready_bytes_in_memory"]
    if here is not None:
        messages = here + known["messages_unacknowledged"]
        size = None if unacknowledged is None else here_bytes + unacknowledged
        shown |= {
            "messages_ready_ram": here,
            "messages_unacknowledged_ram": known["messages_unacknowledged"],
            "messages_ram": messages,
            "message_bytes_ram": size,
            "memory": None if size is None else size + messages * MESSAGE_MEMORY_BYTES,
        }
    return {key: value for key, value in shown.items() if value is not None}


@route("GET", "/queues", "/queues/{vhost}")
async def list_queues(call: EndpointCall) -> HttpResponse:
    return await _listed(call, detailed=False)


@route("GET", "/queues/detailed")
async def list_queues_in_detail(call: EndpointCall) -> HttpResponse:
    return await _listed(call, detailed=True)


async def _listed(call: EndpointCall, *, detailed: bool) -> HttpResponse:
    known = []
    for vhost in call.vhosts():
        known += await described(call, sorted(vhost, key=lambda each: each.name), _known)
    return await listed(call, known, partial(_objects, call, detailed=detailed))


@route("GET", "/queues/{vhost}/{name}")
async def get_queue(call: EndpointCall) -> HttpResponse:
    queue = queue_of(call)
    listing = ListQuery.read(call.request.query, paged=False)
    found = await _objects(call, [_known(queue)], None, detailed=True)
    if not found:
        raise not_found()
    shown = {**found[0]}
    if call.with_stats:
        shown |= {"incoming": [], "deliveries": [], **await _users_of(call, queue)}
    return HttpResponse.of_json(listing.pick(shown))


@route("PUT", "/queues/{vhost}/{name}")
async def put_queue(call: EndpointCall) -> HttpResponse:
    vhost, name = call.vhost(), call.values["name"]
    body = call.body
    answer = await call.act(
        "declare-queue",
        vhost.name,
        name=name,
        durable=flag(body, "durable", False),
        auto_delete=flag(body, "auto_delete", False),
        arguments=table(body, "arguments"),
    )
    return CREATED if answer["created"] else NO_CONTENT


@route("DELETE", "/queues/{vhost}/{name}")
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


@route("DELETE", "/queues/{vhost}/{name}/contents")
async def purge_queue(call: EndpointCall) -> HttpResponse:
    queue = queue_of(call)
    await call.act("purge-queue", queue.vhost, name=queue.name)
    return NO_CONTENT


@route("POST", "/queues/{vhost}/{name}/actions")
async def act_on_queue(call: EndpointCall) -> HttpResponse:
    """Refuse every action: RabbitMQ has removed all that it had here."""
    queue_of(call)
    raise bad_request("unknown")


@route("GET", "/users/{user}/queues")
async def list_queues_of_user(call: EndpointCall) -> HttpResponse:
    """List the exclusive queues of a user's connections; the declaring user of others is not stored."""
    user = call.values["user"]
    if user != call.user.name and not call.has(Tag.ADMINISTRATOR):
        raise not_authorised("User not authorised to access object")
    if call.broker_api.catalog.users.by_name.get(user) is None:
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


def queue_of(call: EndpointCall) -> DeclaredQueue:
    queue = call.vhost().queues.get(call.values["name"])
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
    return {**{key: getattr(queue, key) for key in DECLARED}, "arguments": dict(queue.arguments)}


async def _objects(
    call: EndpointCall, items: Sequence[Item], wanted: Collection[str] | None, *, detailed: bool = False
) -> list[dict[str, Any]]:
    query = call.request.query
    totals = query.get("disable_stats") == "true" and query.get("enable_queue_totals") == "true"
    without = query.get("disable_stats") == "true" and not totals
    asked = not without and (wanted is None or not STATIC.issuperset(wanted))
    rows: dict[tuple[str, str], Row] = {}
    for vhost in dict.fromkeys(item["vhost"] for item in items):
        if call.broker_api.catalog.vhosts.get(vhost) is None:
            continue
        names = [item["name"] for item in items if item["vhost"] == vhost]
        for row in await call.administer("list-queues", vhost, names=names, counts=asked):
            rows[vhost, row["name"]] = row
    found = [row for item in items if (row := rows.get((item["vhost"], item["name"]))) is not None]
    if without:
        return [static(row) for row in found]
    if totals:
        return [_totals(row) for row in found]
    more = ("single_active_consumer_tag",) if detailed else ()
    return [static(row) | _rated(call, row) | {key: row[key] for key in more} for row in found]


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


@route("GET", "/queues/quorum/{vhost}/{name}/status")
async def get_status(call: EndpointCall) -> HttpResponse:
    queue = queue_of(call)
    try:
        rows = await call.administer("quorum-status", queue.vhost, name=queue.name)
    except NotSupported as refusal:
        raise RequestRefused(
            HTTPStatus.SERVICE_UNAVAILABLE, "service_unavailable", refusal.description
        ) from refusal
    return HttpResponse.of_json(rows)


@route("POST", "/queues/quorum/{vhost}/{name}/replicas/add", tag=Tag.ADMINISTRATOR)
async def add_member(call: EndpointCall) -> HttpResponse:
    queue, node = queue_of(call), _node_of_body(call)
    membership = text(call.body, "membership", "promotable")
    await call.administer("add-member", queue.vhost, name=queue.name, node=node, membership=membership)
    return NO_CONTENT


@route("DELETE", "/queues/quorum/{vhost}/{name}/replicas/delete", tag=Tag.ADMINISTRATOR)
async def delete_member(call: EndpointCall) -> HttpResponse:
    queue, node = queue_of(call), _node_of_body(call)
    await call.administer("delete-member", queue.vhost, name=queue.name, node=node)
    return NO_CONTENT


@route("POST", "/queues/quorum/replicas/on/{node}/grow", tag=Tag.ADMINISTRATOR)
async def grow(call: EndpointCall) -> HttpResponse:
    body = call.body
    await call.administer(
        "grow",
        node=_node_of_path(call),
        strategy=text(body, "strategy", "all"),
        vhost_pattern=text(body, "vhost_pattern", ".*"),
        queue_pattern=text(body, "queue_pattern", ".*"),
        membership=text(body, "membership", "promotable"),
    )
    return NO_CONTENT


@route("DELETE", "/queues/quorum/replicas/on/{node}/shrink", tag=Tag.ADMINISTRATOR)
async def shrink(call: EndpointCall) -> HttpResponse:
    await call.administer("shrink", node=_node_of_path(call))
    return HttpResponse(HTTPStatus.ACCEPTED)


@route("POST", "/rebalance/queues", tag=Tag.ADMINISTRATOR)
async def rebalance(call: EndpointCall) -> HttpResponse:
    call.broker_api.begin("rebalance", {"kind": "all"}, user=call.user.name)
    return NO_CONTENT


def _node_of_path(call: EndpointCall) -> str:
    if not is_node(call, call.values["node"]):
        raise not_found()
    return call.values["node"]


def _node_of_body(call: EndpointCall) -> str:
    body = call.body
    require(body, "node")
    name = text(body, "node", "")
    if not is_node(call, name):
        raise bad_request("Node is not a cluster member")
    return name


ACK_MODES: Final = {
    "ack_requeue_true": DeliveryOutcome.REQUEUE,
    "ack_requeue_false": DeliveryOutcome.ACCEPT,
    "reject_requeue_true": DeliveryOutcome.REQUEUE_FAILED,
    "reject_requeue_false": DeliveryOutcome.DISCARD_FAILED,
}
EVERYTHING: Final = 2**31 - 1
_TEXTS: Final = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_Numbered: TypeAlias = tuple[int, Message]


@route("POST", "/exchanges/{vhost}/{name}/publish")
async def publish(call: EndpointCall) -> HttpResponse:
    """Publish a message; the answer comes when its queues have stored it."""
    vhost, exchange = call.vhost(), exchange_name(call)
    body = call.body
    require(body, "routing_key", "payload", "payload_encoding", "properties")
    routing_key = text(body, "routing_key", "")
    properties = _properties(table(body, "properties"))
    try:
        routed = await call.broker_api.publish(
            call.access(vhost.name), exchange, routing_key, properties, _payload(body)
        )
    except AccessRefused as refusal:
        raise bad_request(f"403 ACCESS_REFUSED - {refusal.description}") from refusal
    except PreconditionFailed as refusal:
        raise bad_request(f"406 PRECONDITION_FAILED - {refusal.description}") from refusal
    return HttpResponse.of_json({"routed": routed})


@route("POST", "/queues/{vhost}/{name}/get")
async def get_messages(call: EndpointCall) -> HttpResponse:
    queue = queue_of(call)
    body = call.body
    require(body, "count", "ackmode", "encoding")
    count = integer(body, "count", 0)
    delivery_outcome = ACK_MODES.get(text(body, "ackmode", ""))
    if delivery_outcome is None:
        raise bad_request(
            f"Invalid ackmode value: {body['ackmode']}; it must be one of {', '.join(ACK_MODES)}"
        )
    encoding = text(body, "encoding", "")
    if encoding not in ("auto", "base64"):
        raise bad_request(f"Unsupported encoding: {encoding}; it must be auto or base64")
    size = integer(body, "truncate", 0) if "truncate" in body else None
    if size is not None and size < 0:
        raise bad_request("'truncate' must be 0 or more bytes")
    if count == 0:
        return HttpResponse.of_json([])
    try:
        messages, behind = await call.broker_api.get(
            call.access(queue.vhost), queue.name, EVERYTHING if count < 0 else count, delivery_outcome
        )
    except AccessRefused as refusal:
        raise not_authorised(f"403 ACCESS_REFUSED - {refusal.description}") from refusal
    numbered = list(zip(range(behind + len(messages) - 1, -1, -1), messages, strict=False))
    describe = partial(_object, text_wanted=encoding == "auto", size=size)
    # A single message may be large.
    return HttpResponse.of_json_bytes(await written(call, numbered, describe, 1))


def _object(numbered: _Numbered, *, text_wanted: bool, size: int | None) -> dict[str, Any]:
    behind, message = numbered
    plain = plain_message(message)
    payload, encoding = _shown(plain.body[:size], text_wanted)
    return {
        "payload_bytes": len(plain.body),
        "redelivered": plain.redelivered,
        "exchange": plain.exchange,
        "routing_key": plain.routing_key,
        "message_count": behind,
        "properties": plain.properties,
        "payload": payload,
        "payload_encoding": encoding,
    }


def _shown(body: bytes, text_wanted: bool) -> tuple[str, str]:
    if text_wanted:
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass  # then it is sent as base64
    return base64.b64encode(body).decode(), "base64"


def _payload(body: Mapping[str, Any]) -> bytes:
    payload, encoding = text(body, "payload", ""), text(body, "payload_encoding", "")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise bad_request(f"unsupported_encoding: payload_encoding must be string or base64, not {encoding}")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("not_base64: the payload is not what payload_encoding says") from None


def _properties(given: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name in _TEXTS:
        if name in given:
            properties[name] = text(given, name, "")
    for name in _NUMBERS:
        if name in given:
            try:
                properties[name] = integer(given, name, 0)
            except RequestRefused:
                raise bad_request(f"not_int: '{name}' must be a whole number") from None
    if "headers" in given:
        properties["headers"] = table(given, "headers")
        if _holds_null(properties["headers"]):
            raise bad_request("a header is null: leave it out")
    return properties


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list) else value is None
