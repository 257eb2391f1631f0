"""Health checks: 200 and ``ok``, or 503 with the failure."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import EndpointCall, is_node, route
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import (
    ACCESS_REFUSED,
    HttpResponse,
    bad_request,
    not_authorised,
    not_found,
)
from amqp10broker.errors import NotAllowed

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
