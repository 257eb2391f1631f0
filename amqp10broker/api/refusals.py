"""Conversion of the broker's refusals to HTTP answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.api.messages import RequestRefused
from amqp10broker.errors import AccessRefused, NotFound, RefusedError, Unavailable

_STATUSES: Final = (
    (NotFound, HTTPStatus.NOT_FOUND, "not_found"),
    (AccessRefused, HTTPStatus.UNAUTHORIZED, "not_authorised"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
ACCESS_REFUSED: Final = "Access refused."
"""RabbitMQ's reason. The log has the missing permission."""


def refused(refusal: RefusedError) -> RequestRefused:
    """Convert the refusal of an operation; one without a status of its own is a bad request.

    The API has no 403: a user without permission gets the same answer as a client without a login.
    """
    for kind, status, error in _STATUSES:
        if isinstance(refusal, kind):
            reason = ACCESS_REFUSED if kind is AccessRefused else refusal.description
            return RequestRefused(status, error, reason)
    return RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", refusal.description)


def fault(error: Exception) -> RequestRefused:
    """Make the refusal of a request that failed by a fault in the broker."""
    reason = f"a fault in the broker ({type(error).__name__}); its log says more"
    return RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", reason)
