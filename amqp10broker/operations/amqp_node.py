"""The management node of AMQP 1.0, which executes an operation for each request message.

Requests and responses follow "HTTP over AMQP": `amqp_message` has their form, `amqp_routes` paths and
statuses. This module is independent of links: the session passes whole messages, and sends requests to
queues where an operation needs their answer.

========================  ==============================  =============================================
``GET``, ``PUT``,         ``/queues/:queue``              describe; declare; delete
``DELETE``
``DELETE``                ``/queues/:queue/messages``     purge
``PUT``, ``DELETE``       ``/exchanges/:exchange``        declare; delete
``GET``, ``POST``         ``/bindings``                   find; bind
``DELETE``                ``/bindings/:binding``          unbind
``PUT``                   ``/auth/tokens``                renew the connection's token
========================  ==============================  =============================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, PermissionDenied, RefusedError
from amqp10broker.metadata.proposing import Decided
from amqp10broker.metadata.queue import QueueHandle
from amqp10broker.operations.amqp_message import ManagementRequest, read_request, response
from amqp10broker.operations.amqp_routes import OFFER_TOKEN, ManagementRoute, route_of, status_of, words_of
from amqp10broker.operations.caller import Caller, QueueQuestion, WaitForDecision
from amqp10broker.operations.operations import perform
from amqp10broker.operations.uri import Uri, UriError, parse_uri
from amqp10broker.protocols.amqp10.errors import EncodeError
from amqp10broker.queues.commands import Command, RequestRef
from amqp10broker.queues.effects import Answer

ADDRESS: Final = "/management"


@dataclass(frozen=True, slots=True)
class Responded:
    """A response that is ready."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Asking:
    """A request to a queue that is needed for the response."""

    handle: QueueHandle
    command: Callable[[RequestRef], Command]
    respond: Callable[[Answer], Outcome]


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """A change of the catalog that is decided later. `respond`: makes the response from the decision, or a
    request to a queue.
    """

    ref: RequestRef
    respond: Callable[[Decided], Outcome]


@dataclass(frozen=True, slots=True)
class TokenOffered:
    """Another token of the client, which the connection has to check."""

    token: bytes = field(repr=False)
    accepted: Responded


Outcome: TypeAlias = "Responded | Asking | WaitingChange"
"""The result of a request, at once or after it has waited."""


def handle_request(caller: Caller, payload: bytes) -> Outcome | TokenOffered:
    """Execute a request. Raises `DecodeError` if it is not a message, and `PermissionDenied` if the session
    must end with it.
    """
    request = read_request(payload)
    route: ManagementRoute | None = None
    try:
        if request.message_id is None:
            raise BadRequest("request", "properties.message-id is not set: responses are correlated by it")
        uri = _parse(request.to)
        route = route_of(request.method, uri)
        name, arguments = route.take(uri, request.body)
        if name == OFFER_TOKEN:
            return TokenOffered(arguments["token"], _respond(request, 204, None))
        result = perform(caller, name, arguments)
    except RefusedError as error:
        return _refuse(request, error, route, caller.vhost.name)
    return _outcome(request, route, result, caller.vhost.name)


@dataclass(frozen=True, slots=True)
class _LateResponse:
    """A response that waits for a queue's answer or a decision."""

    request: ManagementRequest
    route: ManagementRoute
    then: Callable[[Any], Any]
    vhost: str

    def respond(self, heard: Answer | Decided) -> Outcome:
        try:
            result = self.then(heard)
        except RefusedError as error:
            return _refuse(self.request, error, self.route, self.vhost)
        return _outcome(self.request, self.route, result, self.vhost)


def _outcome(request: ManagementRequest, route: ManagementRoute, result: Any, vhost: str) -> Outcome:
    if isinstance(result, QueueQuestion):
        return Asking(
            result.handle, result.command, _LateResponse(request, route, result.then, vhost).respond
        )
    if isinstance(result, WaitForDecision):
        return WaitingChange(result.ref, _LateResponse(request, route, result.then, vhost).respond)
    return _respond(request, *route.answer(result))


def _parse(to: str) -> Uri:
    try:
        return parse_uri(to)
    except UriError as error:
        raise BadRequest("uri", f"failed to normalize URI '{to}': {error}") from error


def _respond(request: ManagementRequest, status: int, body: Any) -> Responded:
    try:
        return Responded(response(status, request.message_id, body))
    except EncodeError as error:
        # Arguments may be nested as deep as AMQP 1.0 allows, or as another protocol does; the response nests
        # them deeper still.
        return Responded(response(500, request.message_id, f"done, but the result cannot be told: {error}"))


def _refuse(
    request: ManagementRequest, error: RefusedError, route: ManagementRoute | None, vhost: str
) -> Responded:
    if isinstance(error, PermissionDenied):
        raise error
    words = words_of(error, vhost, looked_at=request.method == "GET")
    return _respond(request, status_of(error, route.statuses if route else None), words)
