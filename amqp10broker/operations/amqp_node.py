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

from typing import Final

from amqp10broker.errors import BadRequest, PermissionDenied, RefusedError
from amqp10broker.operations.amqp_message import read_request, response
from amqp10broker.operations.amqp_routes import ManagementRoute, route_of, status_of, words_of
from amqp10broker.operations.caller import Caller, Steps
from amqp10broker.operations.uri import Uri, UriError, parse_uri
from amqp10broker.protocols.amqp10.errors import EncodeError

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
        # Arguments may be nested as deep as AMQP 1.0 allows, or as another protocol does; the response nests
        # them deeper still.
        return response(500, request.message_id, f"done, but the result cannot be told: {error}")


def _parse(to: str) -> Uri:
    try:
        return parse_uri(to)
    except UriError as error:
        raise BadRequest("uri", f"failed to normalize URI '{to}': {error}") from error
