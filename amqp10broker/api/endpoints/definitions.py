"""Endpoints of definitions: all declared objects as one document."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, described, route, written
from amqp10broker.api.front import Tag
from amqp10broker.api.lists import ListQuery
from amqp10broker.api.messages import HttpResponse, RequestRefused, bad_request, json_bytes, not_found
from amqp10broker.metadata.vhost import VirtualHost

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
    vhost = _vhost(call)
    document = await call.administer("export-definitions")
    facts = next(each for each in document["vhosts"] if each["name"] == vhost.name)
    header = {key: value for key, value in document.items() if isinstance(value, str)}
    header.pop("explanation", None)  # of users, which belong to no virtual host
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
    vhost = _vhost(call)
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


def _vhost(call: EndpointCall) -> VirtualHost:
    found = call.broker_api.catalog.find_vhost(call.values["vhost"])
    if found is None:
        raise not_found()
    return found


async def _offered(call: EndpointCall, document: dict[str, Any]) -> HttpResponse:
    shown = ListQuery.read(call.request.query, paged=False).pick(document)
    members = []
    for part, value in shown.items():
        text = (
            await written(call, value, lambda entry: entry) if isinstance(value, list) else json_bytes(value)
        )
        members.append(json_bytes(part) + b":" + text)
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
    # Megabytes of memory, which few brokers need.
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
