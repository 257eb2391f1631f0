"""Health checks: 200 and ``ok``, or 503 with the failure."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import EndpointCall, RunEndpoint, route
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.rights import Tag
from amqp10broker.api.routes import HttpRoute

_SAME: Final = {"amqp091": "amqp", "amqp10": "amqp", "amqps": "amqp/ssl"}
_DAY_MS: Final = 86_400_000
_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_DIGITS_MAX: Final = 6
_RESOURCES: Final = {"disk": "disk space"}


async def alarms(call: EndpointCall) -> HttpResponse:
    """Check that no alarm is on anywhere."""
    return _no_alarms(await call.administer("list-alarms"))


async def local_alarms(call: EndpointCall) -> HttpResponse:
    """Check that no alarm is on at this node."""
    rows = await call.administer("list-alarms")
    return _no_alarms([row for row in rows if row["node"] == call.broker_api.node_name])


async def port_listener(call: EndpointCall) -> HttpResponse:
    """Check that this node listens on a port."""
    text = call.values["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise _bad("the port must be a number")
    ports = sorted({row["port"] for row in await call.administer("list-listeners")})
    port = int(text)
    if port in ports:
        return _passed(port=port)
    return _failed(f"no listener on port {port}", missing=port, ports=ports)


async def protocol_listener(call: EndpointCall) -> HttpResponse:
    """Check that this node has listeners of some protocols."""
    spoken = sorted({row["protocol"] for row in await call.administer("list-listeners")})
    wanted = [each.strip() for each in call.values["protocols"].split(",") if each.strip()]
    missing = [each for each in wanted if _SAME.get(each.lower(), each.lower()) not in spoken]
    if not missing:
        return _passed(protocols=spoken)
    return _failed(f"no listener for {', '.join(missing)}", missing=missing, protocols=spoken)


async def certificate_expiration(call: EndpointCall) -> HttpResponse:
    """Check that no certificate of this node expires within a time."""
    within, unit = call.values["within"], call.values["unit"]
    if not (within.isascii() and within.isdigit() and len(within) <= _DIGITS_MAX):
        raise _bad("Invalid expiration value.")
    if unit not in _DAYS:
        raise _bad(f"Time unit not recognised. Supported units: {', '.join(_DAYS)}.")
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


async def virtual_hosts(call: EndpointCall) -> HttpResponse:
    """Pass always: virtual hosts run as long as the broker does."""
    return _passed()


async def quorum_critical(call: EndpointCall) -> HttpResponse:
    """Check that no quorum queue, nor the metadata, would lose its majority without this node."""
    return _checked(await call.administer("check-if-node-is-quorum-critical"))


async def leaders_everywhere(call: EndpointCall) -> HttpResponse:
    """Check that the quorum queues of all virtual hosts have leaders."""
    return await _leaders(call, None)


async def leaders_in_vhost(call: EndpointCall) -> HttpResponse:
    """Check that the quorum queues of a virtual host have leaders."""
    return await _leaders(call, call.vhost().name)


async def in_service(call: EndpointCall) -> HttpResponse:
    """Check that the node is not in maintenance."""
    return _passed() if not await _drained(call) else _failed("the node is in maintenance")


async def below_connection_limit(call: EndpointCall) -> HttpResponse:
    """Check that the node accepts more connections."""
    return await _below_limit(call)


async def ready(call: EndpointCall) -> HttpResponse:
    """Check that clients are served: in service, listening, below the limit of connections."""
    if await _drained(call):
        return _failed("the node is in maintenance")
    spoken = {row["protocol"] for row in await call.administer("list-listeners")}
    if not spoken & {"amqp", "amqp/ssl"}:
        return _failed("no listener for amqp")
    return await _below_limit(call)


async def target_size(call: EndpointCall) -> HttpResponse:
    """Check that the target number of cluster nodes runs."""
    found = await call.administer("has-reached-target-cluster-size")
    if found["result"] == "ok":
        return _passed()
    return _failed(found["message"], online=found["online"], target=found["target"])


async def metadata_initialized(call: EndpointCall) -> HttpResponse:
    """Pass always: the metadata is loaded before the API listens."""
    return _passed()


async def _below_limit(call: EndpointCall) -> HttpResponse:
    there, limit = call.broker_api.connections_open()
    return _passed() if there < limit else _failed(f"{there} connections are open, and {limit} may be")


async def _drained(call: EndpointCall) -> bool:
    status = await call.administer("cluster-status")
    state = status["maintenance_status"].get(call.broker_api.node_name, "")
    return bool(state == "under maintenance")


async def _leaders(call: EndpointCall, vhost: str | None) -> HttpResponse:
    found = await call.administer(
        "check-for-quorum-queues-without-an-elected-leader",
        vhost,
        pattern=call.values.get("pattern", ""),
        across_all_vhosts=vhost is None,
    )
    return _checked(found)


def _checked(found: Mapping[str, Any]) -> HttpResponse:
    if found["result"] == "ok":
        return _passed(reason=found["message"])
    return _failed(found["message"], queues=found["queues"])


async def doctor(call: EndpointCall) -> HttpResponse:
    """Evaluate the production checklist on this node, an extension of RabbitMQ's API."""
    return HttpResponse.of_json(await call.administer("doctor", by_itself=False))


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


def _bad(reason: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)


_CHECKS: Final = "/health/checks"
_LEADERS: Final = f"{_CHECKS}/quorum-queues-without-elected-leaders"

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route(f"{_CHECKS}/alarms", get=alarms),
    route(f"{_CHECKS}/local-alarms", get=local_alarms),
    route(f"{_CHECKS}/port-listener/{{port}}", get=port_listener),
    route(f"{_CHECKS}/protocol-listener/{{protocols}}", get=protocol_listener),
    route(f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}", get=certificate_expiration),
    route(f"{_CHECKS}/virtual-hosts", get=virtual_hosts),
    route(f"{_CHECKS}/node-is-quorum-critical", get=quorum_critical),
    route(f"{_LEADERS}/all-vhosts", get=leaders_everywhere),
    route(f"{_LEADERS}/all-vhosts/pattern/{{pattern}}", get=leaders_everywhere),
    route(f"{_LEADERS}/vhost/{{vhost}}", get=leaders_in_vhost),
    route(f"{_LEADERS}/vhost/{{vhost}}/pattern/{{pattern}}", get=leaders_in_vhost),
    route(f"{_CHECKS}/is-in-service", get=in_service),
    route(f"{_CHECKS}/below-node-connection-limit", get=below_connection_limit),
    route(f"{_CHECKS}/ready-to-serve-clients", get=ready),
    route(f"{_CHECKS}/reached-target-cluster-size", get=target_size),
    route(f"{_CHECKS}/metadata-store/initialized", get=metadata_initialized),
    route(f"{_CHECKS}/metadata-store/initialized/with-data", get=metadata_initialized),
    route("/doctor", Tag.ADMINISTRATOR, get=doctor),
    route("/upgrade-check/{version}", Tag.ADMINISTRATOR, get=upgrade_check),
)
