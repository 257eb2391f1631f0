"""Paths and methods of the management node, with the operation and the status of each.

The status of a refusal depends on its class, with exceptions in `ManagementRoute.statuses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    Inequivalent,
    InUse,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
    NotSupported,
    PreconditionFailed,
    RefusedError,
    ReservedName,
    ResourceLocked,
)
from amqp10broker.operations.amqp_values import binding_map, count_map, plain_table, queue_map
from amqp10broker.operations.arguments import shown
from amqp10broker.operations.names import RESERVED_PREFIX
from amqp10broker.operations.uri import Uri, UriError, decode

OFFER_TOKEN: Final = "offer-token"
"""Used instead of an operation's name, since the connection decides about tokens."""

Statuses = Mapping[type[RefusedError], int]


class UnknownPath(RefusedError):
    """The path does not exist."""


class MethodNotAllowed(RefusedError):
    """The path exists, but not with this method."""


STATUSES: Final[Statuses] = {
    BadRequest: 400,
    UnknownPath: 404,
    MethodNotAllowed: 405,
    NotFound: 404,
    AccessRefused: 403,
    Inequivalent: 409,
    InvalidArgument: 409,
    InUse: 409,
    PreconditionFailed: 400,
    ResourceLocked: 400,
    LimitExceeded: 403,
    NotSupported: 400,
    NotAllowed: 403,
}
"""Status of each refusal; the nearest class counts. `PermissionDenied` has none: it ends the session."""

# A missing end of a binding, and an impossible key or argument, are faults of the request's body.
_BODY_FAULTS: Final[Statuses] = {NotFound: 400, InvalidArgument: 400}


def status_of(error: RefusedError, exceptions: Statuses | None = None) -> int:
    """Return the status of a refusal."""
    for cls in type(error).__mro__:
        for table in (exceptions or {}, STATUSES):
            if cls in table:
                return table[cls]
    return 500


def words_of(error: RefusedError, vhost: str, *, looked_at: bool) -> str:
    """Return the text of a refusal: for some, RabbitMQ's text differs from that in AMQP 0-9-1."""
    if isinstance(error, ReservedName):
        return f"{error.resource} in vhost '{vhost}' starts with reserved prefix '{RESERVED_PREFIX}'"
    if looked_at and isinstance(error, NotFound):
        return f"{error.resource} in vhost '{vhost}' not found"
    return error.description


Taken = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ManagementRoute:
    """One method of one path."""

    take: Callable[[Uri, Any], Taken]
    answer: Callable[[Any], tuple[int, Any]]
    statuses: Statuses


def route_of(method: str, uri: Uri) -> ManagementRoute:
    """Return the route of a request. Raises `UnknownPath` if the path does not exist, and `MethodNotAllowed`
    if it exists, but not with this method.
    """
    match uri.segments:
        case ["queues", _]:
            methods = _QUEUE
        case ["queues", _, "messages"]:
            methods = _MESSAGES
        case ["exchanges", _]:
            methods = _EXCHANGE
        case ["bindings"]:
            methods = _BINDINGS
        case ["bindings", _]:
            methods = _BINDING
        case ["auth", "tokens"]:
            methods = _TOKENS
        case _:
            raise UnknownPath(
                "path",
                f"unknown path '/{'/'.join(uri.segments)}': known are /queues/:queue, "
                "/queues/:queue/messages, /exchanges/:exchange, /bindings, /bindings/:binding, /auth/tokens",
            )
    route = methods.get(method)
    if route is None:
        raise MethodNotAllowed(
            "method",
            f"method '{method}' not allowed for '/{'/'.join(uri.segments)}': use {', '.join(methods)}",
        )
    return route


def _get_queue(uri: Uri, body: Any) -> Taken:
    return "get-queue", {"name": _name(uri.segments[1])}


def _put_queue(uri: Uri, body: Any) -> Taken:
    return "declare-queue", _properties("queue", body, {"name": _name(uri.segments[1])})


def _delete_queue(uri: Uri, body: Any) -> Taken:
    return "delete-queue", {"name": _name(uri.segments[1])}


def _purge_queue(uri: Uri, body: Any) -> Taken:
    return "purge-queue", {"name": _name(uri.segments[1])}


def _put_exchange(uri: Uri, body: Any) -> Taken:
    return "declare-exchange", _properties("exchange", body, {"name": _name(uri.segments[1])})


def _delete_exchange(uri: Uri, body: Any) -> Taken:
    return "delete-exchange", {"name": _name(uri.segments[1])}


def _post_binding(uri: Uri, body: Any) -> Taken:
    return "bind", _properties("binding", body, {})


def _delete_binding(uri: Uri, body: Any) -> Taken:
    return "unbind-by-segment", {"segment": uri.segments[1]}


def _get_bindings(uri: Uri, body: Any) -> Taken:
    query = uri.query
    for name in query:
        if name not in _QUERY:
            raise BadRequest("query", f"unknown '{name}' in query: known are {', '.join(_QUERY)}")
    if "src" not in query:
        raise BadRequest("query", f"missing 'src' in query: {shown(dict(query))}")
    if "dstq" not in query and "dste" not in query:
        raise BadRequest("query", f"missing 'dste' or 'dstq' in query: {shown(dict(query))}")
    return "get-bindings", {argument: query[name] for name, argument in _QUERY.items() if name in query}


_QUERY: Final = {
    "src": "source",
    "dstq": "destination_queue",
    "dste": "destination_exchange",
    "key": "binding_key",
}


def _put_token(uri: Uri, body: Any) -> Taken:
    if not isinstance(body, bytes):
        raise BadRequest("token", "the body of PUT /auth/tokens must be the token as binary")
    return OFFER_TOKEN, {"token": body}


def _declared(result: dict[str, Any]) -> tuple[int, Any]:
    return (201 if result["created"] else 200), queue_map(result["queue"])


def _nothing(result: Any) -> tuple[int, Any]:
    return 204, None


def _shown_bindings(result: list[dict[str, Any]]) -> tuple[int, Any]:
    return 200, [binding_map(binding) for binding in result]


_QUEUE: Final = {
    "GET": ManagementRoute(_get_queue, lambda result: (200, queue_map(result)), {}),
    "PUT": ManagementRoute(_put_queue, _declared, {}),
    "DELETE": ManagementRoute(_delete_queue, lambda result: (200, count_map(result)), {}),
}
_MESSAGES: Final = {"DELETE": ManagementRoute(_purge_queue, lambda result: (200, count_map(result)), {})}
_EXCHANGE: Final = {
    "PUT": ManagementRoute(_put_exchange, _nothing, {InvalidArgument: 400}),
    "DELETE": ManagementRoute(_delete_exchange, _nothing, {}),
}
_BINDINGS: Final = {
    "GET": ManagementRoute(_get_bindings, _shown_bindings, _BODY_FAULTS),
    "POST": ManagementRoute(_post_binding, _nothing, _BODY_FAULTS),
}
_BINDING: Final = {"DELETE": ManagementRoute(_delete_binding, _nothing, _BODY_FAULTS)}
_TOKENS: Final = {"PUT": ManagementRoute(_put_token, _nothing, {})}


def _name(segment: str) -> str:
    try:
        return decode(segment)
    except UriError as error:
        raise BadRequest("uri", f"failed to normalize URI: {error}") from error


def _properties(noun: str, body: Any, rest: dict[str, Any]) -> dict[str, Any]:
    if body is None:
        raise BadRequest(noun, f"bad {noun} properties: the request has no body; it must be a map")
    try:
        given = plain_table(body)
    except BadRequest as error:
        raise BadRequest(noun, f"bad {noun} property: {error}") from error
    for name in rest:
        if name in given:
            raise BadRequest(
                noun, f"bad {noun} property {{'{name}',{shown(given[name])}}}: it is in the path"
            )
    return {**given, **rest}
