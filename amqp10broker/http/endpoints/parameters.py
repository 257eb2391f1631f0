"""Parameters, and what RabbitMQ's plugins would show: there are none of them here."""

from __future__ import annotations

import base64
import hashlib
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.catalog.definitions_export import parameter_entries
from amqp10broker.catalog.entries import global_parameter_entry
from amqp10broker.http.calls import CREATED, NO_CONTENT, Call, RunEndpoint, route
from amqp10broker.http.fields import require
from amqp10broker.http.front import not_found
from amqp10broker.http.messages import Answer, Refused
from amqp10broker.http.rights import Tag
from amqp10broker.http.routes import Route


async def list_parameters(call: Call) -> Answer:
    """Runtime parameters, limits of virtual hosts and operator policies among them."""
    component, vhost = call.values.get("component"), call.values.get("vhost")
    if vhost is not None:
        call.vhost()
    return call.listed(
        [
            each
            for each in parameter_entries(call.door.catalog)
            if component in (None, each["component"])
            and vhost in (None, each["vhost"])
            and call.sees(each["vhost"])
        ]
    )


async def get_parameter(call: Call) -> Answer:
    """One runtime parameter."""
    call.vhost()
    wanted = [call.values[key] for key in ("vhost", "component", "name")]
    for each in parameter_entries(call.door.catalog):
        if [each["vhost"], each["component"], each["name"]] == wanted:
            return call.shown(each)
    raise not_found()


async def put_parameter(call: Call) -> Answer:
    """Refused: parameters are of plugins, which this broker does not have."""
    raise Refused(
        HTTPStatus.BAD_REQUEST,
        "bad_request",
        f"Validation failed: component {call.values['component']} not found: this broker has no plugins; "
        "limits and operator policies have paths of their own",
    )


async def delete_parameter(call: Call) -> Answer:
    """Refused for limits and operator policies, which have paths of their own; others are not there."""
    await get_parameter(call)
    raise Refused(
        HTTPStatus.BAD_REQUEST,
        "bad_request",
        f"component {call.values['component']} is not deleted here: limits and operator policies have paths "
        "of their own",
    )


async def list_global(call: Call) -> Answer:
    """Parameters of the whole broker."""
    kept = _global(call)
    return call.listed([global_parameter_entry(name, kept[name]) for name in sorted(kept)])


async def get_global(call: Call) -> Answer:
    """One parameter of the whole broker."""
    kept, name = _global(call), call.values["name"]
    if name not in kept:
        raise not_found()
    return call.shown(global_parameter_entry(name, kept[name]))


async def put_global(call: Call) -> Answer:
    """Keep a value of the whole broker."""
    body, name = call.body, call.values["name"]
    require(body, "value")
    there = name in call.door.catalog.global_parameters
    await call.administer("set-global-parameter", name=name, value=body["value"])
    return NO_CONTENT if there else CREATED


async def delete_global(call: Call) -> Answer:
    """Forget a value of the whole broker."""
    name = call.values["name"]
    if name not in call.door.catalog.global_parameters:
        raise not_found()
    await call.administer("clear-global-parameter", name=name)
    return NO_CONTENT


async def nothing(call: Call) -> Answer:
    """What is not here: shovels, federation, the stream protocol, feature flags."""
    if "vhost" in call.values:
        call.vhost()
    return call.listed([])


async def no_such(call: Call) -> Answer:
    """One of what is not here."""
    call.vhost()
    raise not_found()


async def enable_feature(call: Call) -> Answer:
    """Refused: no feature waits to be enabled."""
    raise Refused(
        HTTPStatus.BAD_REQUEST,
        "bad_request",
        f"unsupported: there is no feature flag '{call.values['name']}'; all features are enabled",
    )


async def hash_password(call: Call) -> Answer:
    """A password as `PUT /users` takes it: salt and SHA-256, in base64."""
    salt = call.door.random(4)
    digest = hashlib.sha256(salt + call.values["password"].encode()).digest()
    return Answer.of_json({"ok": base64.b64encode(salt + digest).decode()})


def _global(call: Call) -> dict[str, Any]:
    catalog = call.door.catalog
    cluster = catalog.cluster
    always: dict[str, Any] = {
        "internal_cluster_id": call.door.node_name if cluster is None else cluster.id,
        "cluster_tags": {},
    }
    if cluster is not None:
        always["cluster_name"] = catalog.cluster_name(call.door.node_name)
    return {**always, **catalog.global_parameters}


_P: Final = Tag.POLICYMAKER
_A: Final = Tag.ADMINISTRATOR
_PARAMETER: Final = "/parameters/{component}/{vhost}/{name}"

ROUTES: Final[tuple[Route[RunEndpoint], ...]] = (
    route("/parameters", _P, get=list_parameters),
    route("/parameters/{component}", _P, get=list_parameters),
    route("/parameters/{component}/{vhost}", _P, get=list_parameters),
    route(_PARAMETER, _P, get=get_parameter, put=put_parameter, delete=delete_parameter),
    route("/global-parameters", _P, get=list_global),
    route("/global-parameters/{name}", _P, get=get_global, put=(_A, put_global), delete=(_A, delete_global)),
    route("/auth/hash_password/{password}", _A, get=hash_password),
    route("/shovels", get=nothing),
    route("/shovels/{vhost}", get=nothing),
    route("/federation-links", get=nothing),
    route("/federation-links/{vhost}", get=nothing),
    route("/feature-flags", get=nothing),
    route("/feature-flags/{name}/enable", _A, put=enable_feature),
    route("/deprecated-features", get=nothing),
    route("/deprecated-features/used", get=nothing),
    route("/stream/connections", get=nothing),
    route("/stream/connections/{vhost}", get=nothing),
    route("/stream/connections/{vhost}/{name}", get=no_such, delete=no_such),
    route("/stream/publishers", get=nothing),
    route("/stream/publishers/{vhost}", get=nothing),
    route("/stream/consumers", get=nothing),
    route("/stream/consumers/{vhost}", get=nothing),
)
