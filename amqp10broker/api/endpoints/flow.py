"""Endpoints of waits, and of timelines of links: how credit flows, an extension of RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, route
from amqp10broker.api.endpoints.connections import found_connection, name_of
from amqp10broker.api.fields import flag, integer, require
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import HttpResponse, not_authorised
from amqp10broker.errors import BadRequest

_CHOICES: Final = ("queue", "link", "reason", "node")
_NUMBERS: Final = ("connection", "longer", "limit")
_COUNTS: Final = (
    *("connections", "links", "consumers", "channels"),
    *("waiting", "links_waiting", "consumers_waiting", "channels_waiting", "reasons", "idle_reasons"),
)
STEPS: Final = 1_000
STEPS_MAX: Final = 5_000
"""The default and the maximum number of steps of an answer."""


@route("GET", "/waiting")
async def get_waiting(call: EndpointCall) -> HttpResponse:
    """List the waits at all nodes, the longest first: cause, start, and remedy."""
    query = call.request.query
    chosen: dict[str, Any] = {name: query.get(name) for name in _CHOICES}
    chosen |= {name: integer(query, name, 0) if name in query else None for name in _NUMBERS}
    chosen |= {"idle": flag(query, "idle", False), "user": _whose(call, query.get("user")), "queues": False}
    found = await call.administer("waiting", **chosen)
    counted = found["summary"]
    return HttpResponse.of_json(
        {
            "summary": {name: counted[name] for name in _COUNTS},
            "waiting": list(map(_waiting, found["waiting"])),
            "unreached": found["unreached"],
        }
    )


def _whose(call: EndpointCall, user: str | None) -> str | None:
    if call.has(Tag.MONITORING):
        return user
    if user not in (None, call.user.name):
        raise not_authorised("Not monitor user")
    return call.user.name


def _waiting(waiting: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in waiting.items() if name != "local"}
    return {**shown, "connection_name": name_of(waiting["peer"], waiting["local"])}


# --- timelines ------------------------------------------------------------------------------------


@route("GET", "/timelines")
async def list_timelines(call: EndpointCall) -> HttpResponse:
    """List recorded links and channels: all for monitoring users, else those of the user's connections."""
    user = _only(call)
    found = await call.administer("watches", node=call.request.query.get("node"))
    return call.listed([each for each in found if user in (None, each["user"])])


@route("POST", "/timelines")
async def post_timeline(call: EndpointCall) -> HttpResponse:
    given = call.body
    require(given, "connection")
    name = given["connection"]
    if not isinstance(name, str):
        raise BadRequest("connection", "'connection' must be the name of a connection, see /connections")
    found = await found_connection(call, name)
    channel = integer(given, "channel", 0) if given.get("channel") is not None else None
    link, role = given.get("link"), given.get("role")
    begun = await call.administer(
        "watch-link",
        connection=found.id,
        link=link,
        channel=channel,
        role=role,
        node=found.node or None,
    )
    answer = HttpResponse.of_json(begun, status=HTTPStatus.CREATED)
    where = f"timelines/{begun['watch']}"
    if found.node:
        where += f"?node={quote(found.node, safe='')}"
    return answer.with_headers(("location", where))


@route("GET", "/timelines/{watch}", onward=("next", "since"))
async def get_timeline(call: EndpointCall) -> HttpResponse:
    query = call.request.query
    frames = flag(query, "frames", True)
    since = integer(query, "since", 0) if "since" in query else None
    limit = integer(query, "limit", STEPS)
    if not 1 <= limit <= STEPS_MAX:
        raise BadRequest("limit", f"limit must be 1 to {STEPS_MAX} steps, not {limit}")
    found = await call.administer("timeline", **_which(call), since=since, limit=limit, frames=frames)
    user = found["watched"]["user"]
    if since is not None:
        del found["watched"]
    if frames and not (user == call.user.name or call.has(Tag.ADMINISTRATOR)):
        found["steps"] = [
            {**step, "frame": step["frame"].partition(" ")[0], "bytes": ""} for step in found["steps"]
        ]
    return HttpResponse.of_json(found)


@route("DELETE", "/timelines/{watch}")
async def delete_timeline(call: EndpointCall) -> HttpResponse:
    """Stop watching; recording ends with the last watcher."""
    await call.administer("unwatch-link", **_which(call))
    return NO_CONTENT


def _only(call: EndpointCall) -> str | None:
    return None if call.has(Tag.MONITORING) else call.user.name


def _which(call: EndpointCall) -> dict[str, Any]:
    watch = integer(call.values, "watch", 0)
    return {"watch": watch, "node": call.request.query.get("node"), "user": _only(call)}
