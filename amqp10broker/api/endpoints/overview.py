"""Endpoints of the broker as a whole, of its nodes and their health, and of live updates (`api.live`).

A check of health answers 200 and ``ok``, or 503 with the failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, check_here, is_node, route
from amqp10broker.api.endpoints.connections import every_connection
from amqp10broker.api.front import JSON_TYPES, Tag
from amqp10broker.api.live import EVENT_HEADERS, EVENT_TYPES, Following
from amqp10broker.api.messages import (
    ACCESS_REFUSED,
    HttpResponse,
    bad_request,
    not_authorised,
    not_found,
    require,
    text,
)
from amqp10broker.api.samples import KEPT_MS, client_stats
from amqp10broker.emulation import Rules
from amqp10broker.errors import NotAllowed
from amqp10broker.operations.snapshot import NodeView
from amqp10broker.routing.exchange_types import EXCHANGE_TYPES

KEPT_S: Final = KEPT_MS // 1000
_TEXT_TYPES: Final = ("text/plain", "text/*", *JSON_TYPES)
"""Clients that request JSON everywhere get the text, too."""
_PART: Final = 500
"""The number of queues that are counted before other tasks run."""


@route("GET", "/overview")
async def overview(call: EndpointCall) -> HttpResponse:
    node = call.broker_api.node()
    catalog = call.broker_api.catalog
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    queues = exchanges = 0
    for vhost in call.vhosts():
        exchanges += sum(1 for _ in vhost.topology)
        for queue in list(vhost):
            queues += 1
            if not queues % _PART:
                await call.broker_api.pause()
            ready, unsettled = queue.handle.ready, queue.handle.unsettled
            totals["messages_ready"] += ready
            totals["messages_unacknowledged"] += unsettled
            totals["messages"] += ready + unsettled
    seen = await every_connection(call)
    if not call.has(Tag.MONITORING):
        seen = [each for each in seen if each.user == call.user.name]
    shown: dict[str, Any] = {
        **_versions(node, catalog.rules),
        "product_name": "amqp10broker",
        "product_version": node.version,
        "node": call.broker_api.node_name,
        "cluster_name": catalog.cluster_name(call.broker_api.node_name),
        "cluster_tags": catalog.global_parameters.get("cluster_tags", {}),
        "node_tags": {},
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [KEPT_S], "basic": [KEPT_S], "detailed": []},
        "default_queue_type": str(catalog.default_queue_type),
        "disable_stats": call.request.query.get("disable_stats") == "true",
        "enable_queue_totals": call.request.query.get("enable_queue_totals") == "true",
        "is_op_policy_updating_enabled": True,
        "require_definition_json_extension": False,
        "exchange_types": _exchange_types(),
        "object_totals": {
            "connections": len(seen),
            "channels": sum(len(each.channels) for each in seen),
            "exchanges": exchanges,
            "queues": queues,
            "consumers": sum(
                sum(len(channel.consumers) for channel in each.channels)
                + sum(link.role == "receiver" for session in each.sessions for link in session.links)
                for each in seen
            ),
        },
    }
    if not shown["disable_stats"]:
        listeners = await _listeners(call)
        stats = client_stats(_clients(call))
        rated = call.rated("overview", call.user.name, lengths=totals, msg_rates=stats)
        shown |= {
            "message_stats": rated["msg_rates"],
            "queue_totals": rated["lengths"],
            "listeners": listeners,
            "contexts": _contexts(listeners),
            "statistics_db_event_queue": 0,
        }
    elif shown["enable_queue_totals"]:
        shown["queue_totals"] = totals
    return call.shown(shown)


def _clients(call: EndpointCall) -> Counter[str]:
    counted: Counter[str] = Counter()
    for vhost, counters in call.broker_api.clients().items():
        if call.sees(vhost):
            counted.update({name: value or 0 for name, value in counters.items()})
    return counted


@route("GET", "/nodes", tag=Tag.MONITORING)
async def list_nodes(call: EndpointCall) -> HttpResponse:
    """List all nodes; of others than this one only whether they run."""
    return call.listed([await _node(call, name) for name in _names(call)])


@route("GET", "/nodes/{node}", tag=Tag.MONITORING)
async def get_node(call: EndpointCall) -> HttpResponse:
    name = call.values["node"]
    if name not in _names(call):
        raise not_found()
    shown = await _node(call, name)
    if call.request.query.get("memory") == "true" and name == call.broker_api.node_name:
        shown["memory"] = _memory(call.broker_api.node())
    return call.shown(shown)


@route("GET", "/nodes/{node}/memory", tag=Tag.MONITORING)
async def get_memory(call: EndpointCall) -> HttpResponse:
    """Return the memory use in bytes: of this process only its resident size is known."""
    check_here(call)
    return call.shown({"memory": _memory(call.broker_api.node())})


@route("GET", "/nodes/{node}/memory/relative", tag=Tag.MONITORING)
async def get_relative_memory(call: EndpointCall) -> HttpResponse:
    check_here(call)
    shares = dict.fromkeys(_CATEGORIES, 0)
    return call.shown({"memory": {**shares, "other_system": 100, "total": 100}})


@route("GET", "/cluster-name")
async def get_cluster_name(call: EndpointCall) -> HttpResponse:
    return call.shown({"name": call.broker_api.catalog.cluster_name(call.broker_api.node_name)})


@route("PUT", "/cluster-name", tag=Tag.ADMINISTRATOR)
async def put_cluster_name(call: EndpointCall) -> HttpResponse:
    body = call.body
    require(body, "name")
    name = text(body, "name", "")
    if not name:
        raise bad_request("the name is empty: give one")
    await call.administer("set-cluster-name", name=name)
    return NO_CONTENT


@route("GET", "/config/effective", tag=Tag.ADMINISTRATOR, types=_TEXT_TYPES)
async def effective_configuration(call: EndpointCall) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, (("content-type", "text/plain"),), call.broker_api.settings().encode())


@route("GET", "/extensions")
async def extensions(call: EndpointCall) -> HttpResponse:
    """Return an empty list: RabbitMQ's plugins add pages here."""
    return call.listed([])


@route("DELETE", "/reset", "/reset/{node}", tag=Tag.ADMINISTRATOR)
async def reset(call: EndpointCall) -> HttpResponse:
    """Forget all samples: rates and histories start anew."""
    if "node" in call.values:
        check_here(call)
    call.broker_api.samples.forget()
    return NO_CONTENT


# --- nodes ----------------------------------------------------------------------------------------


def _names(call: EndpointCall) -> list[str]:
    return sorted(call.broker_api.catalog.nodes) or [call.broker_api.node_name]


async def _node(call: EndpointCall, name: str) -> dict[str, Any]:
    facts = call.broker_api.catalog.nodes.get(name)
    draining = facts is not None and facts.draining
    shown: dict[str, Any] = {"name": name, "type": "disc", "being_drained": draining}
    if name != call.broker_api.node_name:
        status = await call.administer("cluster-status")
        return {**shown, "running": name in status["running_nodes"]}
    node = call.broker_api.node()
    memory, disk = node.resources.memory, node.resources.disk
    there, limit = call.broker_api.connections_open()
    listeners = await _listeners(call)
    return {
        **shown,
        **_versions(node, call.broker_api.catalog.rules),
        "running": True,
        "uptime": int(node.uptime_s * 1000),
        "os_pid": str(node.pid),
        **call.broker_api.process(),
        "mem_used": node.rss_bytes,
        "mem_limit": memory.resource.limit_bytes or 0,
        "mem_alarm": memory.resource.alarm,
        "mem_calculation_strategy": "rss",
        "disk_free": disk.free_bytes or 0,
        "disk_free_limit": disk.resource.limit_bytes or 0,
        "disk_free_alarm": disk.resource.alarm,
        "sockets_used": there,
        "sockets_total": limit,
        "rates_mode": "basic",
        "db_dir": node.data_dir or "",
        "config_files": [],
        "log_files": [],
        "enabled_plugins": _PLUGINS,
        "partitions": [],
        "cluster_links": [],
        "applications": [{"name": "amqp10broker", "description": "AMQP broker", "version": node.version}],
        "exchange_types": _exchange_types(),
        "contexts": _contexts(listeners),
    }


_PLUGINS: Final = ["rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_prometheus"]
"""RabbitMQ's plugins with an equivalent in this broker: tools check for them."""
_CATEGORIES: Final = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs"),
    *("quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs"),
    *("stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins", "metadata_store"),
    *("metadata_store_ets", "other_proc", "metrics", "mgmt_db", "mnesia", "quorum_ets", "other_ets"),
    *("binary", "msg_index", "code", "atom", "other_system", "allocated_unused", "reserved_unallocated"),
)
"""RabbitMQ's categories, all of which clients require. A Python process cannot distinguish them."""


def _memory(node: NodeView) -> dict[str, Any]:
    rss = node.rss_bytes
    return {
        **dict.fromkeys(_CATEGORIES, 0),
        "other_system": rss,
        "strategy": "rss",
        "total": {"erlang": rss, "rss": rss, "allocated": rss},
    }


def _versions(node: NodeView, rules: Rules) -> dict[str, str]:
    return {
        "management_version": rules.version,
        "rabbitmq_version": rules.version,
        "erlang_version": rules.platform.rpartition("/OTP ")[2] or "none",
        "erlang_full_version": f"none: amqp10broker {node.version}",
        "crypto_lib_version": "",
    }


def _exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": "", "enabled": True} for name in EXCHANGE_TYPES]


async def _listeners(call: EndpointCall) -> list[dict[str, Any]]:
    return [
        {
            "node": row["node"],
            "protocol": row["protocol"],
            "ip_address": row["interface"],
            "port": row["port"],
            "tls": row["protocol"].startswith(("amqp/ssl", "https")),
            "socket_opts": {},
        }
        for row in await call.administer("list-listeners")
    ]


def _contexts(listeners: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "description": "HTTP API",
            "node": each["node"],
            "path": "/",
            "ip": each["ip_address"],
            "port": str(each["port"]),
            "ssl_opts": [],
        }
        for each in listeners
        if each["protocol"] in ("http", "https")
    ]


@route("GET", "/live", types=EVENT_TYPES)
async def get_live(call: EndpointCall) -> HttpResponse:
    """Stream the answers of paths, and then their changes; each path requires its usual rights."""
    following = Following.read(call.request, call.broker_api.interval_ms)
    if call.request.method == "HEAD":
        return HttpResponse(HTTPStatus.OK, EVENT_HEADERS)
    return HttpResponse(HTTPStatus.OK, EVENT_HEADERS, feed=call.broker_api.follow(following, call.granted))


_SAME: Final = {"amqp091": "amqp", "amqp10": "amqp", "amqps": "amqp/ssl"}
_DAY_MS: Final = 86_400_000
_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_DIGITS_MAX: Final = 6
_RESOURCES: Final = {"disk": "disk space"}


@route("GET", "/health/checks/alarms")
async def alarms(call: EndpointCall) -> HttpResponse:
    return _no_alarms(await call.administer("list-alarms"))


@route("GET", "/health/checks/local-alarms")
async def local_alarms(call: EndpointCall) -> HttpResponse:
    rows = await call.administer("list-alarms")
    return _no_alarms([row for row in rows if row["node"] == call.broker_api.node_name])


@route("GET", "/health/checks/port-listener/{port}")
async def port_listener(call: EndpointCall) -> HttpResponse:
    text = call.values["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise bad_request("the port must be a number")
    ports = sorted({row["port"] for row in await call.administer("list-listeners")})
    port = int(text)
    if port in ports:
        return _passed(port=port)
    return _failed(f"no listener on port {port}", missing=port, ports=ports)


@route("GET", "/health/checks/protocol-listener/{protocols}")
async def protocol_listener(call: EndpointCall) -> HttpResponse:
    spoken = sorted({row["protocol"] for row in await call.administer("list-listeners")})
    wanted = [each.strip() for each in call.values["protocols"].split(",") if each.strip()]
    missing = [each for each in wanted if _SAME.get(each.lower(), each.lower()) not in spoken]
    if not missing:
        return _passed(protocols=spoken)
    return _failed(f"no listener for {', '.join(missing)}", missing=missing, protocols=spoken)


@route("GET", "/health/checks/certificate-expiration/{within}/{unit}")
async def certificate_expiration(call: EndpointCall) -> HttpResponse:
    within, unit = call.values["within"], call.values["unit"]
    if not (within.isascii() and within.isdigit() and len(within) <= _DIGITS_MAX):
        raise bad_request("Invalid expiration value.")
    if unit not in _DAYS:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(_DAYS)}.")
    until_ms = call.broker_api.now_ms() + int(within) * _DAYS[unit] * _DAY_MS
    expired = [
        {
            "node": call.broker_api.node_name,
            "setting": each.setting,
            "file": each.path,
            "ends_at": each.ends_at_ms,
        }
        for each in await call.broker_api.certificates()
        if each.ends_at_ms is not None and each.ends_at_ms <= until_ms
    ]
    if not expired:
        return _passed()
    files = ", ".join(f"{each['file']} ({each['setting']})" for each in expired)
    return _failed(f"certificates end within {within} {unit}: {files}", expired=expired)


@route("GET", "/health/checks/node-is-quorum-critical")
async def quorum_critical(call: EndpointCall) -> HttpResponse:
    return _checked(await call.administer("check-if-node-is-quorum-critical"))


@route(
    "GET",
    "/health/checks/quorum-queues-without-elected-leaders/all-vhosts",
    "/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
    "/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}",
    "/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}",
)
async def leaders(call: EndpointCall) -> HttpResponse:
    vhost = call.vhost().name if "vhost" in call.values else None
    found = await call.administer(
        "check-for-quorum-queues-without-an-elected-leader",
        vhost,
        pattern=call.values.get("pattern", ""),
        across_all_vhosts=vhost is None,
    )
    return _checked(found)


@route("GET", "/health/checks/is-in-service")
async def in_service(call: EndpointCall) -> HttpResponse:
    return _passed() if not await _drained(call) else _failed("the node is in maintenance")


@route("GET", "/health/checks/below-node-connection-limit")
async def below_connection_limit(call: EndpointCall) -> HttpResponse:
    there, limit = call.broker_api.connections_open()
    return _passed() if there < limit else _failed(f"{there} connections are open, and {limit} may be")


@route("GET", "/health/checks/ready-to-serve-clients")
async def ready(call: EndpointCall) -> HttpResponse:
    """Check that clients are served: in service, listening, below the limit of connections."""
    if await _drained(call):
        return _failed("the node is in maintenance")
    spoken = {row["protocol"] for row in await call.administer("list-listeners")}
    if not spoken & {"amqp", "amqp/ssl"}:
        return _failed("no listener for amqp")
    return await below_connection_limit(call)


@route("GET", "/health/checks/reached-target-cluster-size")
async def target_size(call: EndpointCall) -> HttpResponse:
    found = await call.administer("has-reached-target-cluster-size")
    if found["result"] == "ok":
        return _passed()
    return _failed(found["message"], online=found["online"], target=found["target"])


@route(
    "GET",
    "/health/checks/virtual-hosts",
    "/health/checks/metadata-store/initialized",
    "/health/checks/metadata-store/initialized/with-data",
)
async def always(call: EndpointCall) -> HttpResponse:
    """Pass always: virtual hosts run as long as the broker, and the metadata is loaded before it listens."""
    return _passed()


async def _drained(call: EndpointCall) -> bool:
    status = await call.administer("cluster-status")
    state = status["maintenance_status"].get(call.broker_api.node_name, "")
    return bool(state == "under maintenance")


def _checked(found: Mapping[str, Any]) -> HttpResponse:
    if found["result"] == "ok":
        return _passed(reason=found["message"])
    return _failed(found["message"], queues=found["queues"])


@route("GET", "/doctor", tag=Tag.ADMINISTRATOR)
async def doctor(call: EndpointCall) -> HttpResponse:
    """Evaluate the production checklist on this node, an extension of RabbitMQ's API."""
    return HttpResponse.of_json(await call.administer("doctor", by_itself=False))


@route("GET", "/upgrade-check/{version}", tag=Tag.ADMINISTRATOR)
async def upgrade_check(call: EndpointCall) -> HttpResponse:
    """Say what a version of RabbitMQ refuses or does otherwise, an extension of RabbitMQ's API."""
    return HttpResponse.of_json(await call.administer("upgrade-check", to=call.values["version"]))


def _no_alarms(rows: list[dict[str, Any]]) -> HttpResponse:
    if not rows:
        return _passed()
    told = [{"node": row["node"], "resource": _RESOURCES.get(row["alarm"], row["alarm"])} for row in rows]
    reason = ", ".join(f"{each['resource']} at node {each['node']}" for each in told)
    return _failed(f"alarms are on: {reason}", alarms=told)


def _passed(**more: Any) -> HttpResponse:
    return HttpResponse.of_json({"status": "ok", **more})


def _failed(reason: str, **more: Any) -> HttpResponse:
    return HttpResponse.of_json(
        {"status": "failed", "reason": reason, **more}, status=HTTPStatus.SERVICE_UNAVAILABLE
    )


@route("GET", "/aliveness-test/{vhost}")
async def check_vhost(call: EndpointCall) -> HttpResponse:
    vhost = call.vhost()
    try:
        call.access(vhost.name).enter()
    except NotAllowed as refusal:
        raise not_authorised(ACCESS_REFUSED) from refusal
    return _passed()


@route("GET", "/healthchecks/node", "/healthchecks/node/{node}")
async def check_node(call: EndpointCall) -> HttpResponse:
    """Check that a node exists; without a name this one, which answers."""
    if "node" in call.values and not is_node(call, call.values["node"]):
        raise not_found()
    return _passed()
