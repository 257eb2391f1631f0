"""Paths and methods of the management node, with the operation and the status of each.

The status of a refusal depends on its class, with exceptions in `ManagementRoute.statuses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    FeatureDenied,
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
from amqp10broker.operations.caller import Caller, Steps, Wait
from amqp10broker.operations.names import RESERVED_PREFIX
from amqp10broker.operations.registry import perform
from amqp10broker.operations.uri import Uri, UriError, decode

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
    FeatureDenied: 400,
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


@dataclass(frozen=True, slots=True)
class ManagementRoute:
    """One method of one path.

    Attributes:
        path: its segments; one that begins with a colon may be any.
        operation: its name; empty: the request offers a token.
        take: makes arguments of the operation from the URI and the body.
        answer: makes status and body of the response from the result.
        statuses: exceptions from `STATUSES`.
    """

    method: str
    path: str
    operation: str
    take: Callable[[Uri, Any], dict[str, Any]]
    answer: Callable[[Any], tuple[int, Any]] = lambda result: (204, None)
    statuses: Statuses = field(default_factory=dict)

    def run(self, caller: Caller, uri: Uri, body: Any) -> Steps[Any]:
        """Execute a request, and return the result. Raises `RefusedError`."""
        arguments = self.take(uri, body)
        return perform(caller, self.operation, arguments) if self.operation else _offer(caller, **arguments)


def _offer(caller: Caller, token: bytes) -> Steps[None]:
    # The connection decides; a token that it refuses ends it.
    if caller.offer_token is not None:
        ref = caller.new_request()
        caller.offer_token(token, ref)
        yield Wait(ref)


def route_of(method: str, uri: Uri) -> ManagementRoute:
    """Return the route of a request. Raises `UnknownPath` if the path does not exist, and `MethodNotAllowed`
    if it exists, but not with this method.
    """
    path = f"/{'/'.join(uri.segments)}"
    methods = {each.method: each for each in ROUTES if _matches(each.path.split("/")[1:], uri.segments)}
    if not methods:
        known = dict.fromkeys(each.path for each in ROUTES)
        raise UnknownPath("path", f"unknown path '{path}': known are {', '.join(known)}")
    if method not in methods:
        raise MethodNotAllowed(
            "method", f"method '{method}' not allowed for '{path}': use {', '.join(methods)}"
        )
    return methods[method]


def _matches(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    return len(pattern) == len(segments) and all(
        part == segment or part.startswith(":") for part, segment in zip(pattern, segments, strict=True)
    )


def _named(uri: Uri, body: Any) -> dict[str, Any]:
    return {"name": _name(uri.segments[1])}


def _declaration(noun: str, uri: Uri, body: Any) -> dict[str, Any]:
    return _properties(noun, body, {"name": _name(uri.segments[1])})


def _search(uri: Uri, body: Any) -> dict[str, Any]:
    query = uri.query
    for name in query:
        if name not in _QUERY:
            raise BadRequest("query", f"unknown '{name}' in query: known are {', '.join(_QUERY)}")
    if "src" not in query:
        raise BadRequest("query", f"missing 'src' in query: {shown(dict(query))}")
    if "dstq" not in query and "dste" not in query:
        raise BadRequest("query", f"missing 'dste' or 'dstq' in query: {shown(dict(query))}")
    return {argument: query[name] for name, argument in _QUERY.items() if name in query}


_QUERY: Final = {
    "src": "source",
    "dstq": "destination_queue",
    "dste": "destination_exchange",
    "key": "binding_key",
}


def _token(uri: Uri, body: Any) -> dict[str, Any]:
    if not isinstance(body, bytes):
        raise BadRequest("token", "the body of PUT /auth/tokens must be the token as binary")
    return {"token": body}


def _declared(result: dict[str, Any]) -> tuple[int, Any]:
    return (201 if result["created"] else 200), queue_map(result["queue"])


def _counted(result: dict[str, Any]) -> tuple[int, Any]:
    return 200, count_map(result)


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


ROUTES: Final = (
    ManagementRoute("GET", "/queues/:queue", "get-queue", _named, lambda result: (200, queue_map(result))),
    ManagementRoute("PUT", "/queues/:queue", "declare-queue", partial(_declaration, "queue"), _declared),
    ManagementRoute("DELETE", "/queues/:queue", "delete-queue", _named, _counted),
    ManagementRoute("DELETE", "/queues/:queue/messages", "purge-queue", _named, _counted),
    ManagementRoute(
        *("PUT", "/exchanges/:exchange", "declare-exchange", partial(_declaration, "exchange")),
        statuses={InvalidArgument: 400},
    ),
    ManagementRoute("DELETE", "/exchanges/:exchange", "delete-exchange", _named),
    ManagementRoute(
        *("GET", "/bindings", "get-bindings", _search),
        lambda result: (200, [binding_map(binding) for binding in result]),
        _BODY_FAULTS,
    ),
    ManagementRoute(
        *("POST", "/bindings", "bind", lambda uri, body: _properties("binding", body, {})),
        statuses=_BODY_FAULTS,
    ),
    ManagementRoute(
        *("DELETE", "/bindings/:binding", "unbind-by-segment"),
        lambda uri, body: {"segment": uri.segments[1]},
        statuses=_BODY_FAULTS,
    ),
    ManagementRoute("PUT", "/auth/tokens", "", _token),
)
"""The routes, in the order in which errors name their paths and methods."""
