"""Endpoints of users, of their permissions, limits and logins, and of virtual hosts and their limits."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from amqp10broker.api.calls import CREATED, NO_CONTENT, EndpointCall, check_here, listed, route
from amqp10broker.api.front import FORM_TYPE, Tag, form_credentials
from amqp10broker.api.messages import (
    HttpResponse,
    RequestRefused,
    bad_request,
    flag,
    integer,
    not_found,
    require,
    table,
    text,
)
from amqp10broker.auth.authorise import CatalogGrants
from amqp10broker.errors import NotFound, PreconditionFailed
from amqp10broker.metadata.entry_codec import permission_entry, topic_permission_entry, user_entry
from amqp10broker.metadata.users import PasswordAlgorithm, User
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.observe.metrics import PROTOCOLS
from amqp10broker.operations.accounts import PROTECTED

_LIMITS: Final = (("max-connections", "max-channels"), "users")


@route("GET", "/users", tag=Tag.ADMINISTRATOR)
async def list_users(call: EndpointCall) -> HttpResponse:
    return await listed(call, [_object(user) for user in _sorted(call.broker_api.catalog.users)])


@route("GET", "/users/without-permissions", tag=Tag.ADMINISTRATOR)
async def list_without_permissions(call: EndpointCall) -> HttpResponse:
    having = {user for user, _, _ in call.broker_api.catalog.users.permissions()}
    users = _sorted(call.broker_api.catalog.users)
    return call.listed([_object(user) for user in users if user.name not in having])


@route("GET", "/users/{user}", tag=Tag.ADMINISTRATOR)
async def get_user(call: EndpointCall) -> HttpResponse:
    return call.shown(_object(_user(call)))


@route("PUT", "/users/{user}", tag=Tag.ADMINISTRATOR)
async def put_user(call: EndpointCall) -> HttpResponse:
    body = call.body
    if "tags" not in body:
        raise bad_request("tags_not_present")
    entry: dict[str, Any] = {"tags": body["tags"], "limits": table(body, "limits")}
    if "password" in body and "password_hash" in body:
        raise bad_request("both_password_and_password_hash_are_provided: give one of them")
    if body.get("password"):
        entry["password"] = text(body, "password", "")
    else:
        entry["password_hash"] = text(body, "password_hash", "")
    if "hashing_algorithm" in body:
        entry["hashing_algorithm"] = text(body, "hashing_algorithm", "")
    answer = await call.administer("put-user", user=call.values["user"], entry=entry)
    return CREATED if answer["created"] else NO_CONTENT


@route("DELETE", "/users/{user}", tag=Tag.ADMINISTRATOR)
async def delete_user(call: EndpointCall) -> HttpResponse:
    await call.administer("delete-user", user=_user(call).name)
    return NO_CONTENT


@route("POST", "/users/bulk-delete", tag=Tag.ADMINISTRATOR)
async def delete_users(call: EndpointCall) -> HttpResponse:
    body = call.body
    require(body, "users")
    names = body["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("'users' must be an array of names")
    for name in names:
        try:
            await call.administer("delete-user", user=name)
        except NotFound:
            continue
    return NO_CONTENT


# --- permissions ----------------------------------------------------------------------------------


@route(
    "GET", "/users/{user}/permissions", "/vhosts/{vhost}/permissions", "/permissions", tag=Tag.ADMINISTRATOR
)
async def list_permissions(call: EndpointCall) -> HttpResponse:
    """List permissions: all, those in one virtual host, or those of one user."""
    wanted = _wanted(call)
    users = call.broker_api.catalog.users
    rows = sorted(users.permissions(), key=lambda row: (row[1], row[0]))
    return call.listed([permission_entry(*row) for row in rows if wanted(row[0], row[1])])


@route("GET", "/permissions/{vhost}/{user}", tag=Tag.ADMINISTRATOR)
async def get_permission(call: EndpointCall) -> HttpResponse:
    user, vhost = call.values["user"], call.vhost().name
    permission = call.broker_api.catalog.users.granted.get((user, vhost))
    if permission is None:
        raise not_found()
    return call.shown(permission_entry(user, vhost, permission))


@route("PUT", "/permissions/{vhost}/{user}", tag=Tag.ADMINISTRATOR)
async def put_permission(call: EndpointCall) -> HttpResponse:
    user, vhost = _both(call)
    body = call.body
    require(body, "configure", "write", "read")
    there = call.broker_api.catalog.users.granted.get((user, vhost))
    patterns = {name: text(body, name, "") for name in ("configure", "write", "read")}
    await call.administer("set-permissions", vhost, user=user, **patterns)
    return CREATED if there is None else NO_CONTENT


@route("DELETE", "/permissions/{vhost}/{user}", tag=Tag.ADMINISTRATOR)
async def delete_permission(call: EndpointCall) -> HttpResponse:
    user, vhost = call.values["user"], call.vhost().name
    if call.broker_api.catalog.users.granted.get((user, vhost)) is None:
        raise not_found()
    await call.administer("clear-permissions", vhost, user=user)
    return NO_CONTENT


@route(
    "GET",
    "/users/{user}/topic-permissions",
    "/vhosts/{vhost}/topic-permissions",
    "/topic-permissions",
    "/topic-permissions/{vhost}/{user}",
    "/topic-permissions/{vhost}/{user}/{exchange}",
    tag=Tag.ADMINISTRATOR,
)
async def list_topic_permissions(call: EndpointCall) -> HttpResponse:
    """List topic permissions: all, in a virtual host, of a user, or at an exchange."""
    wanted = _wanted(call)
    exchange = call.values.get("exchange")
    rows = sorted(call.broker_api.catalog.users.topic_permissions(), key=lambda row: (row[1], row[0], row[2]))
    found = [
        topic_permission_entry(*row) for row in rows if wanted(row[0], row[1]) and exchange in (None, row[2])
    ]
    if exchange is not None:
        if not found:
            raise not_found()
        return call.shown(found[0])
    if not found and "vhost" in call.values and "user" in call.values:
        raise not_found()
    return call.listed(found)


@route("PUT", "/topic-permissions/{vhost}/{user}", tag=Tag.ADMINISTRATOR)
async def put_topic_permission(call: EndpointCall) -> HttpResponse:
    user, vhost = _both(call)
    body = call.body
    require(body, "exchange", "write", "read")
    exchange = text(body, "exchange", "")
    if exchange and call.vhost().topology.find_exchange(exchange) is None:
        raise bad_request(f"no exchange '{exchange}' in vhost '{vhost}': declare it first")
    there = call.broker_api.catalog.users.granted_topics.get((user, vhost, exchange))
    patterns = {name: text(body, name, "") for name in ("write", "read")}
    await call.administer("set-topic-permissions", vhost, user=user, exchange=exchange, **patterns)
    return CREATED if there is None else NO_CONTENT


@route(
    "DELETE",
    "/topic-permissions/{vhost}/{user}",
    "/topic-permissions/{vhost}/{user}/{exchange}",
    tag=Tag.ADMINISTRATOR,
)
async def delete_topic_permission(call: EndpointCall) -> HttpResponse:
    user, vhost = call.values["user"], call.vhost().name
    exchange = call.values.get("exchange")
    there = call.broker_api.catalog.users.topic_permissions()
    if not any(row[:2] == (user, vhost) and exchange in (None, row[2]) for row in there):
        raise not_found()
    await call.administer("clear-topic-permissions", vhost, user=user, exchange=exchange)
    return NO_CONTENT


# --- limits ---------------------------------------------------------------------------------------


@route("GET", "/user-limits", "/user-limits/{user}", tag=Tag.ADMINISTRATOR)
async def list_limits(call: EndpointCall) -> HttpResponse:
    users = [_user(call)] if "user" in call.values else _sorted(call.broker_api.catalog.users)
    known = [{"user": user.name, "value": user.limits.as_dict()} for user in users]
    return call.listed([each for each in known if each["value"]])


@route("PUT", "/user-limits/{user}/{name}", tag=Tag.ADMINISTRATOR)
async def put_limit(call: EndpointCall) -> HttpResponse:
    limits = limit_given(call, *_LIMITS)
    await call.administer("set-user-limits", user=_user(call).name, limits=limits)
    return NO_CONTENT


@route("DELETE", "/user-limits/{user}/{name}", tag=Tag.ADMINISTRATOR)
async def delete_limit(call: EndpointCall) -> HttpResponse:
    await call.administer("set-user-limits", user=_user(call).name, limits={limit_name(call, *_LIMITS): -1})
    return NO_CONTENT


# --- helpers --------------------------------------------------------------------------------------


def limit_name(call: EndpointCall, known: Sequence[str], whose: str) -> str:
    name = call.values["name"]
    if name not in known:
        raise bad_request(f"there is no limit '{name}' of {whose}; known are {', '.join(known)}")
    return name


def limit_given(call: EndpointCall, known: Sequence[str], whose: str) -> dict[str, int]:
    name, body = limit_name(call, known, whose), call.body
    require(body, "value")
    return {name: integer(body, "value", 0)}


def _user(call: EndpointCall) -> User:
    user = call.broker_api.catalog.users.by_name.get(call.values["user"])
    if user is None:
        raise not_found()
    return user


def _both(call: EndpointCall) -> tuple[str, str]:
    user, vhost = call.values["user"], call.values["vhost"]
    if user not in call.broker_api.catalog.users or call.broker_api.catalog.vhosts.get(vhost) is None:
        raise bad_request("vhost_or_user_not_found")
    return user, vhost


def _wanted(call: EndpointCall) -> Callable[[str, str], bool]:
    user, vhost = call.values.get("user"), call.values.get("vhost")
    if user is not None and vhost is None:
        _user(call)
    if vhost is not None:
        call.vhost()
    return lambda of, where: user in (None, of) and vhost in (None, where)


def _object(user: User) -> dict[str, Any]:
    password = user.password
    if password is not None and password.algorithm is PasswordAlgorithm.PLAIN:
        password = None
    entry = user_entry(user, password)
    return {key: value for key, value in entry.items() if key in _SHOWN}


_SHOWN: Final = ("name", "tags", "password_hash", "hashing_algorithm", "limits")


def _sorted(users: Iterable[User]) -> list[User]:
    return sorted(users, key=lambda user: user.name)


@route("GET", "/whoami")
async def whoami(call: EndpointCall) -> HttpResponse:
    return call.shown(user_object(call))


def user_object(call: EndpointCall) -> dict[str, Any]:
    """Return the object of the logged-in user; that of a token is not internal."""
    internal = isinstance(call.granted, CatalogGrants)
    return {"name": call.user.name, "tags": list(call.user.tags), "is_internal_user": internal}


@route("GET", "/version")
async def version(call: EndpointCall) -> HttpResponse:
    """Return the version of RabbitMQ with this API: clients choose their requests by it."""
    return HttpResponse.of_json(call.broker_api.catalog.rules.version)


@route("POST", "/login", login=form_credentials, forms=(FORM_TYPE,))
async def login(call: EndpointCall) -> HttpResponse:
    """Log in by a form; return the user, and the value for HTTP Basic."""
    given = form_credentials(call.request)
    assert not isinstance(given, HttpResponse), "the user has logged in"
    basic = base64.b64encode(given.user + b":" + given.password).decode()
    return call.shown({"user": user_object(call), "token": {"type": "basic", "value": basic}})


@route("GET", "/auth/attempts/{node}", tag=Tag.MONITORING)
async def list_attempts(call: EndpointCall) -> HttpResponse:
    check_here(call)
    return call.listed(
        [
            {
                "protocol": PROTOCOLS.get(protocol, protocol),
                "auth_attempts": tried.succeeded + tried.failed,
                "auth_attempts_failed": tried.failed,
                "auth_attempts_succeeded": tried.succeeded,
            }
            for protocol, tried in sorted(call.broker_api.attempts.items())
        ]
    )


@route("GET", "/auth/attempts/{node}/source", tag=Tag.MONITORING)
async def list_attempts_by_source(call: EndpointCall) -> HttpResponse:
    """Return an empty list: attempts are not counted by address and user, as is RabbitMQ's default."""
    check_here(call)
    return call.listed([])


@route("DELETE", "/auth/attempts/{node}", "/auth/attempts/{node}/source", tag=Tag.ADMINISTRATOR)
async def forget_attempts(call: EndpointCall) -> HttpResponse:
    check_here(call)
    call.broker_api.attempts.clear()
    return NO_CONTENT


@route("GET", "/auth/hash_password/{password}", tag=Tag.ADMINISTRATOR)
async def hash_password(call: EndpointCall) -> HttpResponse:
    """Return a password's hash as `PUT /users` accepts it: salt and SHA-256, in base64."""
    salt = call.broker_api.random(4)
    digest = hashlib.sha256(salt + call.values["password"].encode()).digest()
    return HttpResponse.of_json({"ok": base64.b64encode(salt + digest).decode()})


_VHOST_LIMITS: Final = (("max-connections", "max-queues"), "virtual hosts")


@route("GET", "/vhosts")
async def list_vhosts(call: EndpointCall) -> HttpResponse:
    known = call.broker_api.catalog.vhosts
    all_of_them = call.has(Tag.MONITORING)
    seen = [known[name] for name in sorted(known) if all_of_them or call.sees(name)]
    return await listed(call, [_vhost_object(call, vhost) for vhost in seen])


@route("GET", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def get_vhost(call: EndpointCall) -> HttpResponse:
    return call.shown(_vhost_object(call, vhost_of(call)))


@route("PUT", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def put_vhost(call: EndpointCall) -> HttpResponse:
    name, body = call.values["vhost"], call.body
    there = call.broker_api.catalog.vhosts.get(name)
    metadata: dict[str, Any] = {} if there is None else dict(there.facts.metadata)
    if PROTECTED in body:
        metadata[PROTECTED] = flag(body, PROTECTED, False)
    if "tracing" in body:
        metadata["tracing"] = flag(body, "tracing", False)
    entry: dict[str, Any] = {"metadata": metadata}
    entry["description"] = text(body, "description", "" if there is None else there.facts.description)
    entry["tags"] = body.get("tags", [] if there is None else list(there.facts.tags))
    kind = body.get("default_queue_type", None if there is None else there.facts.default_queue_type)
    if kind is not None:
        if not isinstance(kind, str):
            raise bad_request("'default_queue_type' must be a string")
        entry["default_queue_type"] = kind
    answer = await call.administer("put-vhost", name=name, entry=entry)
    if not answer["created"]:
        return NO_CONTENT
    if call.user.name in call.broker_api.catalog.users:
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        await call.administer("set-permissions", name, user=call.user.name, **every)
    return CREATED


@route("DELETE", "/vhosts/{vhost}", tag=Tag.ADMINISTRATOR)
async def delete_vhost(call: EndpointCall) -> HttpResponse:
    try:
        await call.administer("delete-vhost", name=vhost_of(call).name)
    except PreconditionFailed as refusal:
        raise RequestRefused(
            HTTPStatus.PRECONDITION_FAILED, "precondition_failed", refusal.description
        ) from refusal
    return NO_CONTENT


async def protect(protected: bool, call: EndpointCall) -> HttpResponse:
    vhost = vhost_of(call)
    facts = vhost.facts
    entry: dict[str, Any] = {
        "metadata": {**facts.metadata, PROTECTED: protected},
        "description": facts.description,
        "tags": list(facts.tags),
    }
    if facts.default_queue_type is not None:
        entry["default_queue_type"] = facts.default_queue_type
    await call.administer("put-vhost", name=vhost.name, entry=entry)
    return NO_CONTENT


for _method, _protected in (("POST", True), ("DELETE", False)):
    route(_method, "/vhosts/{vhost}/deletion/protection", tag=Tag.ADMINISTRATOR)(partial(protect, _protected))


@route("POST", "/vhosts/{vhost}/start/{node}", tag=Tag.ADMINISTRATOR)
async def start(call: EndpointCall) -> HttpResponse:
    """Accept the request without effect: virtual hosts always run on all nodes."""
    vhost_of(call)
    if call.values["node"] != call.broker_api.node_name:
        raise bad_request(f"there is no node '{call.values['node']}' here")
    return NO_CONTENT


@route("GET", "/vhost-limits", "/vhost-limits/{vhost}")
async def list_vhost_limits(call: EndpointCall) -> HttpResponse:
    known = [{"vhost": vhost.name, "value": vhost.facts.limits.as_dict()} for vhost in call.vhosts()]
    return call.listed([each for each in known if each["value"]])


@route("PUT", "/vhost-limits/{vhost}/{name}", tag=Tag.ADMINISTRATOR)
async def put_vhost_limit(call: EndpointCall) -> HttpResponse:
    limits = limit_given(call, *_VHOST_LIMITS)
    await call.administer("set-vhost-limits", vhost_of(call).name, limits=limits)
    return NO_CONTENT


@route("DELETE", "/vhost-limits/{vhost}/{name}", tag=Tag.ADMINISTRATOR)
async def delete_vhost_limit(call: EndpointCall) -> HttpResponse:
    await call.administer(
        "set-vhost-limits", vhost_of(call).name, limits={limit_name(call, *_VHOST_LIMITS): -1}
    )
    return NO_CONTENT


def vhost_of(call: EndpointCall) -> VirtualHost:
    """Return the virtual host that the path names, whether or not the user sees it."""
    found = call.broker_api.catalog.vhosts.get(call.values["vhost"])
    if found is None:
        raise not_found()
    return found


def _vhost_object(call: EndpointCall, vhost: VirtualHost) -> dict[str, Any]:
    facts = vhost.facts
    metadata: dict[str, Any] = {"description": facts.description, "tags": list(facts.tags)}
    if facts.default_queue_type is not None:
        metadata["default_queue_type"] = facts.default_queue_type
    if PROTECTED in facts.metadata:
        metadata[PROTECTED] = facts.metadata[PROTECTED]
    return {
        "name": vhost.name,
        "description": facts.description,
        "tags": list(facts.tags),
        "default_queue_type": vhost.facts.default_queue_type
        or str(call.broker_api.catalog.default_queue_type),
        PROTECTED: bool(facts.metadata.get(PROTECTED)),
        "tracing": bool(facts.metadata.get("tracing")),
        "metadata": metadata,
        "cluster_state": {call.broker_api.node_name: "running"},
    }
