"""The management node of AMQP 1.0: a request message in, an operation, a response message out.

Requests and responses follow "HTTP over AMQP": see `amqp_message` for their form and `amqp_routes` for paths
and statuses. Nothing here knows links: the session hands over whole messages, and puts questions to queues
where an operation needs their answer.

========================  ==============================  =============================================
``GET``, ``PUT``,         ``/queues/:queue``              what it is; declare; delete
``DELETE``
``DELETE``                ``/queues/:queue/messages``     purge
``PUT``, ``DELETE``       ``/exchanges/:exchange``        declare; delete
``GET``, ``POST``         ``/bindings``                   of a query; bind
``DELETE``                ``/bindings/:binding``          unbind
``PUT``                   ``/auth/tokens``                another token for the connection
========================  ==============================  =============================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, TypeAlias

from amqp10broker.amqp10.errors import EncodeError
from amqp10broker.catalog.proposing import Decided
from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, PermissionDenied, RefusedError
from amqp10broker.management.amqp_message import Request, read_request, response
from amqp10broker.management.amqp_routes import OFFER_TOKEN, Route, route_of, status_of, words_of
from amqp10broker.management.caller import Ask, Caller, Wait
from amqp10broker.management.operations import perform
from amqp10broker.management.uri import Uri, UriError, parse_uri
from amqp10broker.queues.commands import Command, RequestRef
from amqp10broker.queues.effects import Answer

ADDRESS: Final = "/management"
"""The node's address."""


@dataclass(frozen=True, slots=True)
class Responded:
    """The response is ready.

    Attributes:
        payload: the whole encoded message.
    """

    payload: bytes


@dataclass(frozen=True, slots=True)
class Asking:
    """A queue must be asked first.

    Attributes:
        handle: the queue.
        command: makes the question.
        respond: makes the response of the answer.
    """

    handle: QueueHandle
    command: Callable[[RequestRef], Command]
    respond: Callable[[Answer], Outcome]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A change of the catalog is decided later.

    Attributes:
        ref: under which it was proposed.
        respond: makes the response of what was decided, or asks a queue.
    """

    ref: RequestRef
    respond: Callable[[Decided], Outcome]


@dataclass(frozen=True, slots=True)
class TokenOffered:
    """The client wants to go on with another token: the connection decides whether it may.

    Attributes:
        token: as it came; not in the repr.
        accepted: the response for a token that was taken.
    """

    token: bytes = field(repr=False)
    accepted: Responded


Outcome: TypeAlias = "Responded | Asking | Waiting"
"""What a request comes to, at once or after it has waited."""


def handle_request(caller: Caller, payload: bytes) -> Outcome | TokenOffered:
    """Do what a request asks for.

    Args:
        caller: on whose behalf.
        payload: the whole message.

    Raises:
        DecodeError: it is no message.
        PermissionDenied: the session must end with it.
    """
    request = read_request(payload)
    route: Route | None = None
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


# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Later:
    """A response that waits for a queue's answer, or for what is decided."""

    request: Request
    route: Route
    then: Callable[[Any], Any]
    vhost: str

    def respond(self, heard: Answer | Decided) -> Outcome:
        try:
            result = self.then(heard)
        except RefusedError as error:
            return _refuse(self.request, error, self.route, self.vhost)
        return _outcome(self.request, self.route, result, self.vhost)


def _outcome(request: Request, route: Route, result: Any, vhost: str) -> Outcome:
    if isinstance(result, Ask):
        return Asking(result.handle, result.command, _Later(request, route, result.then, vhost).respond)
    if isinstance(result, Wait):
        return Waiting(result.ref, _Later(request, route, result.then, vhost).respond)
    return _respond(request, *route.answer(result))


def _parse(to: str) -> Uri:
    try:
        return parse_uri(to)
    except UriError as error:
        raise BadRequest("uri", f"failed to normalize URI '{to}': {error}") from error


def _respond(request: Request, status: int, body: Any) -> Responded:
    try:
        return Responded(response(status, request.message_id, body))
    except EncodeError as error:
        # Arguments may be nested as deep as AMQP 1.0 allows, or as another protocol does; the response
        # puts them deeper still.
        return Responded(response(500, request.message_id, f"done, but the result cannot be told: {error}"))


def _refuse(request: Request, error: RefusedError, route: Route | None, vhost: str) -> Responded:
    if isinstance(error, PermissionDenied):
        raise error
    words = words_of(error, vhost, looked_at=request.method == "GET")
    return _respond(request, status_of(error, route.statuses if route else None), words)
