"""The management node of AMQP 1.0, which executes an operation for each request message.

In "HTTP over AMQP" ``to`` is the URI, ``subject`` the method or the status code, the body an amqp-value. This
module is independent of links: the session passes whole messages, and sends requests to queues where an
operation needs their answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

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
    PermissionDenied,
    PreconditionFailed,
    RefusedError,
    ReservedName,
    ResourceLocked,
)
from amqp10broker.operations import bindings, queues
from amqp10broker.operations.bindings import Uri, UriError, parse_uri, percent_decoded
from amqp10broker.operations.node import Caller, Steps, Wait
from amqp10broker.operations.operation import RESERVED_PREFIX, Operation, shown
from amqp10broker.protocols.amqp10.codec import array_of, decode, encode
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    SECTION_CODES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Array, Described, Map, Symbol, Timestamp, UInt, ULong

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


def to_plain(value: object) -> Any:
    """Convert a decoded value: integers of all widths become int, symbols str. Raises `BadRequest` if the
    type has no counterpart in AMQP 0-9-1's tables, by which all queues are declared.
    """
    match value:
        case None | bool():
            return value
        case int() if not isinstance(value, Timestamp):
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes():
            return value
        case list() | tuple() | Array():
            return [to_plain(item) for item in value]
        case dict() | Map():
            return plain_table(value)
        case _:
            raise BadRequest(
                "argument",
                f"bad argument value {shown(value)} of type {type(value).__name__.lower()}: give a string, "
                "an integer, a boolean, a floating point number, binary, a list, an array or a map",
            )


def plain_table(value: object) -> dict[str, Any]:
    """Convert a decoded map. Raises `BadRequest` if it is not a map, or has other keys than strings, or
    values as for `to_plain`.
    """
    if not isinstance(value, dict | Map):
        raise BadRequest("map", f"{shown(value)} is no map")
    table: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise BadRequest("map", f"bad key {shown(key)} in a map: keys must be strings")
        table[str(key)] = to_plain(item)
    return table


def from_plain(value: object) -> Any:
    """Convert a table's value for encoding: text becomes utf8, integers long."""
    match value:
        case None | bool() | bytes():
            return value
        case int():
            number = int(value)
            return number if _INT64_MIN <= number <= _INT64_MAX else float(number)
        case Decimal() | float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {str(key): from_plain(item) for key, item in value.items()}
        case Sequence():
            return [from_plain(item) for item in value]
        case _:
            return str(value)


def queue_map(queue: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **queue,
        "arguments": from_plain(queue["arguments"]),
        "message_count": ULong(queue["message_count"]),
        "consumer_count": UInt(queue["consumer_count"]),
        "replicas": array_of(queue["replicas"]),
        **{
            name: ULong(queue[name])
            for name in ("first_offset", "next_offset")
            if queue.get(name) is not None
        },
    }


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
"""The nearest class counts. `PermissionDenied` has none: it ends the session."""

# A missing end of a binding, and an impossible key or argument, are errors of the request's body.
_BODY_FAULTS: Final[Statuses] = {NotFound: 400, InvalidArgument: 400}


def status_of(error: RefusedError, exceptions: Statuses | None = None) -> int:
    for cls in type(error).__mro__:
        for table in (exceptions or {}, STATUSES):
            if cls in table:
                return table[cls]
    return 500


def words_of(error: RefusedError, vhost: str, *, looked_at: bool) -> str:
    """Return the text of a refusal. RabbitMQ's text sometimes differs from that in AMQP 0-9-1."""
    if isinstance(error, ReservedName):
        return f"{error.resource} in vhost '{vhost}' starts with reserved prefix '{RESERVED_PREFIX}'"
    if looked_at and isinstance(error, NotFound):
        return f"{error.resource} in vhost '{vhost}' not found"
    return error.description


@dataclass(frozen=True, slots=True)
class ManagementRoute:
    """One method of one path.

    Attributes:
        path: its segments; one that begins with a colon matches any.
        operation: None: the request offers a token.
        take: makes arguments of the operation from the URI and the body.
        answer: makes status and body of the response from the result.
        statuses: exceptions from `STATUSES`.
    """

    method: str
    path: str
    operation: Operation | None
    take: Callable[[Uri, Any], dict[str, Any]]
    answer: Callable[[Any], tuple[int, Any]] = lambda result: (204, None)
    statuses: Statuses = field(default_factory=dict)

    def run(self, caller: Caller, uri: Uri, body: Any) -> Steps[Any]:
        """Execute a request. Raises `RefusedError`."""
        arguments = self.take(uri, body)
        return caller.perform(self.operation, arguments) if self.operation else _offer(caller, **arguments)


def _offer(caller: Caller, token: bytes) -> Steps[None]:
    # The connection decides; a token that it refuses ends it.
    if caller.offer_token is not None:
        ref = caller.new_request()
        caller.offer_token(token, ref)
        yield Wait(ref)


def route_of(method: str, uri: Uri) -> ManagementRoute:
    """Return the route. Raises `UnknownPath`, or `MethodNotAllowed` if the path has other methods."""
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


def _name(segment: str) -> str:
    try:
        return percent_decoded(segment)
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


def _counted(result: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"message_count": ULong(result["message_count"])}


ROUTES: Final = (
    ManagementRoute(
        "GET", "/queues/:queue", queues.get_queue, _named, lambda result: (200, queue_map(result))
    ),
    ManagementRoute(
        *("PUT", "/queues/:queue", queues.declare_queue, partial(_declaration, "queue")),
        lambda result: (201 if result["created"] else 200, queue_map(result["queue"])),
    ),
    ManagementRoute("DELETE", "/queues/:queue", queues.delete_queue, _named, _counted),
    ManagementRoute("DELETE", "/queues/:queue/messages", queues.purge_queue, _named, _counted),
    ManagementRoute(
        *("PUT", "/exchanges/:exchange", bindings.declare_exchange, partial(_declaration, "exchange")),
        statuses={InvalidArgument: 400},
    ),
    ManagementRoute("DELETE", "/exchanges/:exchange", bindings.delete_exchange, _named),
    ManagementRoute(
        *("GET", "/bindings", bindings.get_bindings, _search),
        lambda result: (200, [{**each, "arguments": from_plain(each["arguments"])} for each in result]),
        _BODY_FAULTS,
    ),
    ManagementRoute(
        *("POST", "/bindings", bindings.bind, lambda uri, body: _properties("binding", body, {})),
        statuses=_BODY_FAULTS,
    ),
    ManagementRoute(
        *("DELETE", "/bindings/:binding", bindings.unbind_by_segment),
        lambda uri, body: {"segment": uri.segments[1]},
        statuses=_BODY_FAULTS,
    ),
    ManagementRoute("PUT", "/auth/tokens", None, _token),
)
"""The routes, in the order in which errors list their paths and methods."""


MessageId = int | UUID | bytes | str | None

_SECTIONS: Final[Mapping[str | int, int]] = {
    key: code for name, code in SECTION_CODES.items() for key in (name, code)
}

_HTTP_RESPONSE: Final = encode(Described(ULong(APPLICATION_PROPERTIES), {"http:response": "1.1"}))


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """A decoded request. `to`: empty if it is missing or not a string. `body`: the value of an amqp-value, or
    the bytes of data sections.
    """

    method: str
    to: str
    message_id: MessageId
    body: Any


def read_request(payload: bytes) -> ManagementRequest:
    """Decode a request. Missing fields, and those of a wrong type, are empty or None, and refused later.

    Sections may be in any order: proton writes a null body before the properties. Raises `DecodeError` if it
    is not a message.
    """
    properties = Properties()
    chunks: list[bytes] = []
    body: Any = None
    pos = 0
    while pos < len(payload):
        start = pos
        section, pos = decode(payload, pos)
        descriptor = section.descriptor if isinstance(section, Described) else None
        code = _SECTIONS.get(descriptor) if isinstance(descriptor, ULong | Symbol) else None
        if code is None:
            raise DecodeError(f"failed to parse message: no section begins at byte {start}")
        if code == PROPERTIES:
            decoded, _ = decode_composite(payload, start)
            assert isinstance(decoded, Properties)
            properties = decoded
        elif code == AMQP_VALUE:
            body = section.value
        elif code == DATA:
            if not isinstance(section.value, bytes):
                raise DecodeError("failed to parse message: a data section is no binary")
            chunks.append(section.value)
    if not pos:
        raise DecodeError("failed to parse message: it is empty")
    return ManagementRequest(
        method=properties.subject or "",
        to=properties.to if isinstance(properties.to, str) else "",
        message_id=properties.message_id,
        body=b"".join(chunks) if chunks else body,
    )


def response(status: int, correlation_id: MessageId, body: Any) -> bytes:
    properties = Properties(subject=str(status), correlation_id=correlation_id)
    return properties.encode() + _HTTP_RESPONSE + encode(Described(ULong(AMQP_VALUE), body))


ADDRESS: Final = "/management"


def handle_request(caller: Caller, payload: bytes) -> Steps[bytes]:
    """Execute a request, and return the response. Raises `DecodeError` if it is not a message, and
    `PermissionDenied` if the session must end with it.
    """
    request = read_request(payload)
    route: ManagementRoute | None = None
    try:
        if request.message_id is None:
            raise BadRequest("request", "properties.message-id is not set: responses are correlated by it")
        uri = _parse(request.to)
        route = route_of(request.method, uri)
        status, body = route.answer((yield from route.run(caller, uri, request.body)))
    except PermissionDenied:
        raise
    except RefusedError as error:
        status = status_of(error, route.statuses if route else None)
        body = words_of(error, caller.vhost.name, looked_at=request.method == "GET")
    try:
        return response(status, request.message_id, body)
    except EncodeError as error:
        # Arguments may be nested as deeply as their protocol allows; the response nests them deeper.
        return response(500, request.message_id, f"done, but the result cannot be told: {error}")


def _parse(to: str) -> Uri:
    try:
        return parse_uri(to)
    except UriError as error:
        raise BadRequest("uri", f"failed to normalize URI '{to}': {error}") from error
