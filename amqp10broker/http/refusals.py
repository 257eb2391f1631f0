"""What a refused operation is called over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from amqp10broker.errors import AccessRefused, NotFound, RefusedError, Unavailable
from amqp10broker.http.messages import Refused

_STATUSES: Final = (
    (NotFound, HTTPStatus.NOT_FOUND, "not_found"),
    (AccessRefused, HTTPStatus.UNAUTHORIZED, "not_authorised"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
ACCESS_REFUSED: Final = "Access refused."
"""RabbitMQ's reason. Which permission is missing, the log says."""


def refused(refusal: RefusedError) -> Refused:
    """The refusal of an operation as the API answers it; whatever has no status of its own is a bad request.

    The API has no 403: a client whose user may not is answered as one who is not logged in.
    """
    for kind, status, error in _STATUSES:
        if isinstance(refusal, kind):
            reason = ACCESS_REFUSED if kind is AccessRefused else refusal.description
            return Refused(status, error, reason)
    return Refused(HTTPStatus.BAD_REQUEST, "bad_request", refusal.description)


def fault(error: Exception) -> Refused:
    """The refusal of a request that a fault in the broker has stopped."""
    reason = f"a fault in the broker ({type(error).__name__}); its log says more"
    return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", reason)
