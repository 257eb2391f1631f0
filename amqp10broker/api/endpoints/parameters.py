"""Endpoints of parameters and policies, of RabbitMQ's plugins that this broker does not have, and of
definitions.

Definitions are all declared objects as one document.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, ListQuery, described, route, written
from amqp10broker.api.endpoints.users import vhost_of
from amqp10broker.api.front import Tag, check_tag
from amqp10broker.api.messages import (
    HttpResponse,
    RequestRefused,
    bad_request,
    integer,
    json_bytes,
    not_found,
    require,
    table,
    text,
)
from amqp10broker.emulation import ADDRESS_V1, GLOBAL_QOS, MASTER_LOCATOR, TRANSIENT
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.definitions import parameter_entries
from amqp10broker.metadata.entry_codec import (
    LIMITS_COMPONENT,
    OPERATOR_COMPONENT,
    global_parameter_entry,
    nearest,
    policy_value,
)
from amqp10broker.metadata.plan import CLUSTER_NAME
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import deprecated_features
from amqp10broker.metadata.vhost import VirtualHost

_FLAGS: Final = {
    "detailed_queues_endpoint": "GET /queues/detailed shows more of queues than GET /queues",
    "drop_unroutable_metric": "messages that go to no queue are counted",
    "implicit_default_bindings": "bindings to the default exchange are there without being stored",
    "maintenance_mode_status": "a node says whether it is in maintenance",
    "message_containers": "messages are converted between the versions of AMQP",
    "quorum_queue": "queues of the type quorum",
    "quorum_queue_non_voters": "a new member of a quorum queue votes when it has caught up",
    "rabbit_exchange_type_local_random": "exchanges of the type x-local-random",
    "rabbitmq_4.0.0": "what clients can ask of RabbitMQ 4.0",
    "rabbitmq_4.1.0": "what clients can ask of RabbitMQ 4.1",
    "rabbitmq_4.2.0": "what clients can ask of RabbitMQ 4.2",
    "rabbitmq_4.3.0": "what clients can ask of RabbitMQ 4.3",
    "restart_streams": "streams can be restarted",
    "stream_filtering": "consumers of streams filter messages",
    "stream_queue": "queues of the type stream",
    "user_limits": "limits of connections and channels of a user",
    "virtual_host_metadata": "description and tags of virtual hosts",
}

_DEPRECATED: Final = {
    ADDRESS_V1: ("bare names of queues as addresses in AMQP 1.0", "denied_by_default"),
    GLOBAL_QOS: ("basic.qos for all consumers of a channel together", "denied_by_default"),
    MASTER_LOCATOR: ("the argument and the policy key queue-master-locator", "denied_by_default"),
    TRANSIENT: ("queues that are neither durable nor exclusive", "permitted_by_default"),
}


def _deprecated(denied: frozenset[str]) -> list[dict[str, Any]]:
    """Return all deprecated features; `denied`: those that are not permitted."""
    return [
        {
            "name": name,
            "desc": told,
            "deprecation_phase": phase,
            "doc_url": "",
            "provided_by": "amqp10broker",
            "state": "denied" if name in denied else "permitted",
        }
        for name, (told, phase) in _DEPRECATED.items()
    ]


@route(
    "GET", "/parameters", "/parameters/{component}", "/parameters/{component}/{vhost}", tag=Tag.POLICYMAKER
)
async def list_parameters(call: EndpointCall) -> HttpResponse:
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


@route("GET", "/parameters/{component}/{vhost}/{name}", tag=Tag.POLICYMAKER)
async def get_parameter(call: EndpointCall) -> HttpResponse:
    call.vhost()
    wanted = [call.values[key] for key in ("vhost", "component", "name")]
    for each in parameter_entries(call.broker_api.catalog):
        if [each["vhost"], each["component"], each["name"]] == wanted:
            return call.shown(each)
    raise not_found()


@route("PUT", "/parameters/{component}/{vhost}/{name}", tag=Tag.POLICYMAKER)
async def put_parameter(call: EndpointCall) -> HttpResponse:
    """Set the limits of a virtual host; refused for plugins, which this broker does not have."""
    vhost, component = call.vhost(), call.values["component"]
    if (component, call.values["name"]) != _LIMITS:
        raise bad_request(
            f"Validation failed: component {component} not found: this broker has no plugins; policies have "
            "paths of their own",
        )
    _administers(call)
    body, there = call.body, vhost.facts.limits.as_dict()
    require(body, "value")
    limits = dict.fromkeys(there, -1) | table(body, "value")
    await call.administer("set-vhost-limits", vhost.name, limits=limits)
    return NO_CONTENT if there else CREATED


@route("DELETE", "/parameters/{component}/{vhost}/{name}", tag=Tag.POLICYMAKER)
async def delete_parameter(call: EndpointCall) -> HttpResponse:
    """Lift limits, or remove a plugin's parameter from definitions; operator policies have their own path."""
    await get_parameter(call)
    vhost, component, name = call.vhost(), call.values["component"], call.values["name"]
    if (component, name) == _LIMITS:
        _administers(call)
        limits = dict.fromkeys(vhost.facts.limits.as_dict(), -1)
        await call.administer("set-vhost-limits", vhost.name, limits=limits)
    elif component == OPERATOR_COMPONENT:
        raise bad_request("operator policies are deleted at /operator-policies")
    else:
        await call.administer("clear-parameter", vhost.name, component=component, name=name)
    return NO_CONTENT


def _administers(call: EndpointCall) -> None:
    # Only administrators, because limits bound what policymakers do.
    check_tag(Tag.ADMINISTRATOR, call.user.tags)


@route("GET", "/global-parameters", tag=Tag.POLICYMAKER)
async def list_global(call: EndpointCall) -> HttpResponse:
    kept = _global(call)
    return call.listed([global_parameter_entry(name, kept[name]) for name in sorted(kept)])


@route("GET", "/global-parameters/{name}", tag=Tag.POLICYMAKER)
async def get_global(call: EndpointCall) -> HttpResponse:
    kept, name = _global(call), call.values["name"]
    if name not in kept:
        raise not_found()
    return call.shown(global_parameter_entry(name, kept[name]))


@route("PUT", "/global-parameters/{name}", tag=Tag.ADMINISTRATOR)
async def put_global(call: EndpointCall) -> HttpResponse:
    body, name = call.body, call.values["name"]
    require(body, "value")
    there = name in _global(call)
    if name == CLUSTER_NAME:
        await call.administer("set-cluster-name", name=text(body, "value", ""))
    else:
        await call.administer("set-global-parameter", name=name, value=body["value"])
    return NO_CONTENT if there else CREATED


@route("DELETE", "/global-parameters/{name}", tag=Tag.ADMINISTRATOR)
async def delete_global(call: EndpointCall) -> HttpResponse:
    name = call.values["name"]
    if name not in call.broker_api.catalog.global_parameters:
        raise not_found()
    await call.administer("clear-global-parameter", name=name)
    return NO_CONTENT


@route(
    "GET",
    "/shovels",
    "/shovels/{vhost}",
    "/federation-links",
    "/federation-links/{vhost}",
    "/stream/connections",
    "/stream/connections/{vhost}",
    "/stream/publishers",
    "/stream/publishers/{vhost}",
    "/stream/publishers/{vhost}/{name}",
    "/stream/consumers",
    "/stream/consumers/{vhost}",
)
async def nothing(call: EndpointCall) -> HttpResponse:
    """Return an empty list for features that do not exist here: shovels, federation, the stream protocol."""
    if "vhost" in call.values:
        call.vhost()
    return call.listed([])


@route("DELETE", "/stream/connections/{vhost}/{name}")
@route(
    "GET",
    "/stream/connections/{vhost}/{name}",
    "/stream/connections/{vhost}/{name}/publishers",
    "/stream/connections/{vhost}/{name}/consumers",
)
async def no_such(call: EndpointCall) -> HttpResponse:
    call.vhost()
    raise not_found()


@route("GET", "/feature-flags")
async def list_features(call: EndpointCall) -> HttpResponse:
    """List RabbitMQ's feature flags that have an equivalent here."""
    flags = [
        {
            "name": name,
            "desc": told,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "require_level": "none",
            "experiment_level": "supported",
            "callbacks": [],
            "provided_by": "amqp10broker",
        }
        for name, told in _FLAGS.items()
    ]
    return call.listed(flags)


@route("PUT", "/feature-flags/{name}/enable", tag=Tag.ADMINISTRATOR)
async def enable_feature(call: EndpointCall) -> HttpResponse:
    """Accept the request without effect: all features are enabled."""
    name = call.values["name"]
    if name in _FLAGS:
        return NO_CONTENT
    raise bad_request(f"unsupported: there is no feature flag '{name}'; all features are enabled")


@route("GET", "/deprecated-features")
async def list_deprecated(call: EndpointCall) -> HttpResponse:
    """List RabbitMQ's deprecated features, and whether they are permitted here."""
    return call.listed(_deprecated(call.broker_api.catalog.rules.denied))


@route("GET", "/deprecated-features/used")
async def list_deprecated_in_use(call: EndpointCall) -> HttpResponse:
    catalog = call.broker_api.catalog
    used = {name for queue in catalog if not queue.kind.volatile for name in deprecated_features(queue)}
    return call.listed([each for each in _deprecated(catalog.rules.denied) if each["name"] in used])


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


async def list_policies(operator: bool, call: EndpointCall) -> HttpResponse:
    return call.listed(
        [
            _object(vhost, policy)
            for vhost in call.vhosts()
            for policy in sorted(vhost.policies, key=lambda each: each.name)
            if policy.operator is operator
        ]
    )


async def get_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    return call.shown(_found(call, operator=operator))


async def put_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    vhost, name, body = call.vhost(), call.values["name"], call.body
    require(body, "pattern", "definition")
    there = vhost.policies.find(name, operator=operator)
    definition = table(body, "definition")
    if not definition:
        raise bad_request("Validation failed: a policy must define something")
    try:
        await call.administer(
            "set-operator-policy" if operator else "set-policy",
            vhost.name,
            name=name,
            pattern=text(body, "pattern", ""),
            definition=definition,
            priority=integer(body, "priority", 0),
            apply_to=text(body, "apply-to", "all"),
        )
    except RefusedError as refusal:
        raise bad_request(f"Validation failed: {refusal.description}") from refusal
    return CREATED if there is None else NO_CONTENT


async def delete_policy(operator: bool, call: EndpointCall) -> HttpResponse:
    _found(call, operator=operator)
    operation = "clear-operator-policy" if operator else "clear-policy"
    await call.administer(operation, call.vhost().name, name=call.values["name"])
    return NO_CONTENT


for _path, _operator, _tag in (
    ("/policies", False, Tag.POLICYMAKER),
    ("/operator-policies", True, Tag.ADMINISTRATOR),
):
    _one = f"{_path}/{{vhost}}/{{name}}"
    route("GET", _path, f"{_path}/{{vhost}}")(partial(list_policies, _operator))
    route("GET", _one)(partial(get_policy, _operator))
    route("PUT", _one, tag=_tag)(partial(put_policy, _operator))
    route("DELETE", _one, tag=_tag)(partial(delete_policy, _operator))


def _found(call: EndpointCall, *, operator: bool) -> dict[str, Any]:
    vhost = call.vhost()
    policy = vhost.policies.find(call.values["name"], operator=operator)
    if policy is None:
        raise not_found()
    return _object(vhost, policy)


def _object(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    return {"vhost": vhost.name, "name": policy.name, **policy_value(policy, nearest)}


_OF_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
"""Lists in the document with entries that name a virtual host, except permissions."""


@route("GET", "/definitions", "/all-configuration", tag=Tag.ADMINISTRATOR)
async def get_definitions(call: EndpointCall) -> HttpResponse:
    document = await call.administer("export-definitions")
    name = call.broker_api.catalog.cluster_name(call.broker_api.node_name)
    return await _offered(call, {**document, "original_cluster_name": name})


@route("GET", "/definitions/{vhost}", tag=Tag.ADMINISTRATOR)
async def get_definitions_of_vhost(call: EndpointCall) -> HttpResponse:
    """Return the document of one virtual host; it can be imported into another one."""
    vhost = vhost_of(call)
    document = await call.administer("export-definitions")
    facts = next(each for each in document["vhosts"] if each["name"] == vhost.name)
    header = {key: value for key, value in document.items() if isinstance(value, str)}
    header.pop("explanation", None)  # those of users, which belong to no virtual host
    parts = {
        part: await described(
            call,
            [entry for entry in document[part] if entry["vhost"] == vhost.name],
            lambda entry: {key: value for key, value in entry.items() if key != "vhost"},
        )
        for part in _OF_VHOST
    }
    return await _offered(
        call,
        {
            **header,
            "rabbitmq_definition_format": "single_virtual_host",
            "original_vhost_name": vhost.name,
            "description": facts["description"],
            "metadata": facts["metadata"],
            "limits": facts["limits"],
            **parts,
        },
    )


@route("POST", "/definitions", "/all-configuration", tag=Tag.ADMINISTRATOR, forms=("multipart/form-data",))
async def post_definitions(call: EndpointCall) -> HttpResponse:
    """Import a document; the answer lists the parts that were left out."""
    return _imported(await call.administer("import-definitions", document=_document(call)))


@route("POST", "/definitions/{vhost}", tag=Tag.ADMINISTRATOR, forms=("multipart/form-data",))
async def post_definitions_of_vhost(call: EndpointCall) -> HttpResponse:
    vhost = vhost_of(call)
    document = _document(call)
    within: dict[str, Any] = {
        part: [
            {**entry, "vhost": vhost.name} if isinstance(entry, dict) else entry for entry in document[part]
        ]
        for part in _OF_VHOST
        if isinstance(document.get(part), list)
    }
    return _imported(await call.administer("import-definitions", vhost.name, document=within))


def _imported(report: dict[str, Any]) -> HttpResponse:
    return HttpResponse.of_json(report) if report["skipped"] else NO_CONTENT


async def _offered(call: EndpointCall, document: dict[str, Any]) -> HttpResponse:
    shown = ListQuery.read(call.request.query, paged=False).pick(document)
    members = []
    for part, value in shown.items():
        as_json = (
            await written(call, value, lambda entry: entry) if isinstance(value, list) else json_bytes(value)
        )
        members.append(json_bytes(part) + b":" + as_json)
    answer = HttpResponse.of_json_bytes(b"{" + b",".join(members) + b"}")
    name = call.request.query.get("download")
    if name is None:
        return answer
    safe = "".join(each for each in name if each.isascii() and (each.isalnum() or each in "._-"))
    return answer.with_headers(("content-disposition", f"attachment; filename={safe}"))


def _document(call: EndpointCall) -> dict[str, Any]:
    request = call.request
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        body = _file_of(request.headers["content-type"], request.body)
    elif kind == "application/json":
        body = request.body
    else:
        raise RequestRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send application/json, or multipart/form-data with a field 'file'",
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise bad_request("failed_to_parse_json") from None
    if not isinstance(document, dict):
        raise bad_request("the document must be a JSON object")
    return document


def _file_of(content_type: str, body: bytes) -> bytes:
    # This import takes megabytes of memory, which few brokers need.
    from email.parser import BytesParser
    from email.policy import HTTP

    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    for part in form.iter_parts() if form.is_multipart() else ():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                return content
    raise bad_request("the form has no field 'file'")
