"""Endpoints of parameters, and of RabbitMQ's plugins that have no equivalent here."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api import features
from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, RunEndpoint, route
from amqp10broker.api.fields import require, table, text
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse, RequestRefused
from amqp10broker.api.rights import Tag, check_tag
from amqp10broker.api.routes import HttpRoute
from amqp10broker.metadata.definition_entries import LIMITS_COMPONENT, OPERATOR_COMPONENT
from amqp10broker.metadata.definitions_export import parameter_entries
from amqp10broker.metadata.entries import global_parameter_entry
from amqp10broker.metadata.plan import CLUSTER_NAME


async def list_parameters(call: EndpointCall) -> HttpResponse:
    """List runtime parameters, including limits of virtual hosts and operator policies."""
    component, vhost = call.values.get("component"), call.values.get("vhost")
    if vhost is not None:
        call.vhost()
    return call.listed(
        [
            each
            for each in parameter_entries(call.broker_api.catalog)
            if component in (None, each["component"])
            and vhost in (None, each["vhost"])
            and call.sees(each["vhost"])
        ]
    )


async def get_parameter(call: EndpointCall) -> HttpResponse:
    """Return one runtime parameter and its value."""
    call.vhost()
    wanted = [call.values[key] for key in ("vhost", "component", "name")]
    for each in parameter_entries(call.broker_api.catalog):
        if [each["vhost"], each["component"], each["name"]] == wanted:
            return call.shown(each)
    raise not_found()


async def put_parameter(call: EndpointCall) -> HttpResponse:
    """Set the limits of a virtual host; refused for plugins, which this broker does not have."""
    vhost, component = call.vhost(), call.values["component"]
    if (component, call.values["name"]) != _LIMITS:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST,
            "bad_request",
            f"Validation failed: component {component} not found: this broker has no plugins; policies have "
            "paths of their own",
        )
    _administers(call)
    body, there = call.body, vhost.limits.as_dict()
    require(body, "value")
    limits = dict.fromkeys(there, -1) | table(body, "value")
    await call.administer("set-vhost-limits", vhost.name, limits=limits)
    return NO_CONTENT if there else CREATED


async def delete_parameter(call: EndpointCall) -> HttpResponse:
    """Lift limits, or remove a plugin's parameter from definitions; operator policies have their own path."""
    await get_parameter(call)
    vhost, component, name = call.vhost(), call.values["component"], call.values["name"]
    if (component, name) == _LIMITS:
        _administers(call)
        limits = dict.fromkeys(vhost.limits.as_dict(), -1)
        await call.administer("set-vhost-limits", vhost.name, limits=limits)
    elif component == OPERATOR_COMPONENT:
        reason = "operator policies are deleted at /operator-policies"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)
    else:
        await call.administer("clear-parameter", vhost.name, component=component, name=name)
    return NO_CONTENT


def _administers(call: EndpointCall) -> None:
    # Only administrators, because limits bound what policymakers do.
    check_tag(Tag.ADMINISTRATOR, call.user.tags)


async def list_global(call: EndpointCall) -> HttpResponse:
    """List the parameters of the whole broker."""
    kept = _global(call)
    return call.listed([global_parameter_entry(name, kept[name]) for name in sorted(kept)])


async def get_global(call: EndpointCall) -> HttpResponse:
    """Return one parameter of the whole broker."""
    kept, name = _global(call), call.values["name"]
    if name not in kept:
        raise not_found()
    return call.shown(global_parameter_entry(name, kept[name]))


async def put_global(call: EndpointCall) -> HttpResponse:
    """Set a parameter of the whole broker."""
    body, name = call.body, call.values["name"]
    require(body, "value")
    there = name in _global(call)
    if name == CLUSTER_NAME:
        await call.administer("set-cluster-name", name=text(body, "value", ""))
    else:
        await call.administer("set-global-parameter", name=name, value=body["value"])
    return NO_CONTENT if there else CREATED


async def delete_global(call: EndpointCall) -> HttpResponse:
    """Remove a parameter of the whole broker."""
    name = call.values["name"]
    if name not in call.broker_api.catalog.global_parameters:
        raise not_found()
    await call.administer("clear-global-parameter", name=name)
    return NO_CONTENT


async def nothing(call: EndpointCall) -> HttpResponse:
    """Return an empty list for features that do not exist here: shovels, federation, the stream protocol."""
    if "vhost" in call.values:
        call.vhost()
    return call.listed([])


async def no_such(call: EndpointCall) -> HttpResponse:
    """Answer 404 for an object of such a feature."""
    call.vhost()
    raise not_found()


async def list_features(call: EndpointCall) -> HttpResponse:
    """List RabbitMQ's feature flags that have an equivalent here."""
    return call.listed(features.flags())


async def enable_feature(call: EndpointCall) -> HttpResponse:
    """Accept the request without effect: all features are enabled."""
    name = call.values["name"]
    if features.is_flag(name):
        return NO_CONTENT
    reason = f"unsupported: there is no feature flag '{name}'; all features are enabled"
    raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)


async def list_deprecated(call: EndpointCall) -> HttpResponse:
    """List RabbitMQ's deprecated features, and whether they are permitted here."""
    return call.listed(_deprecated(call))


async def list_deprecated_in_use(call: EndpointCall) -> HttpResponse:
    """List the deprecated features that declared objects use."""
    used = features.used(call.broker_api.catalog)
    return call.listed([each for each in _deprecated(call) if each["name"] in used])


def _deprecated(call: EndpointCall) -> list[dict[str, Any]]:
    return features.deprecated(call.broker_api.catalog.rules.denied)


def _global(call: EndpointCall) -> dict[str, Any]:
    catalog = call.broker_api.catalog
    cluster = catalog.cluster
    always: dict[str, Any] = {
        "internal_cluster_id": call.broker_api.node_name if cluster is None else cluster.id,
    }
    if cluster is not None:
        always[CLUSTER_NAME] = cluster.name
    return {**catalog.global_parameters, **always}


_LIMITS: Final = (LIMITS_COMPONENT, "limits")
"""The parameter with the limits of a virtual host."""
_P: Final = Tag.POLICYMAKER
_A: Final = Tag.ADMINISTRATOR
_PARAMETER: Final = "/parameters/{component}/{vhost}/{name}"

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    route("/parameters", _P, get=list_parameters),
    route("/parameters/{component}", _P, get=list_parameters),
    route("/parameters/{component}/{vhost}", _P, get=list_parameters),
    route(_PARAMETER, _P, get=get_parameter, put=put_parameter, delete=delete_parameter),
    route("/global-parameters", _P, get=list_global),
    route("/global-parameters/{name}", _P, get=get_global, put=(_A, put_global), delete=(_A, delete_global)),
    route("/shovels", get=nothing),
    route("/shovels/{vhost}", get=nothing),
    route("/federation-links", get=nothing),
    route("/federation-links/{vhost}", get=nothing),
    route("/feature-flags", get=list_features),
    route("/feature-flags/{name}/enable", _A, put=enable_feature),
    route("/deprecated-features", get=list_deprecated),
    route("/deprecated-features/used", get=list_deprecated_in_use),
    route("/stream/connections", get=nothing),
    route("/stream/connections/{vhost}", get=nothing),
    route("/stream/connections/{vhost}/{name}", get=no_such, delete=no_such),
    route("/stream/publishers", get=nothing),
    route("/stream/connections/{vhost}/{name}/publishers", get=no_such),
    route("/stream/connections/{vhost}/{name}/consumers", get=no_such),
    route("/stream/publishers/{vhost}", get=nothing),
    route("/stream/publishers/{vhost}/{name}", get=nothing),
    route("/stream/consumers", get=nothing),
    route("/stream/consumers/{vhost}", get=nothing),
)
