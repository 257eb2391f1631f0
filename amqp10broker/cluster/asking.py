"""Bytes of questions between nodes, and of their answers: JSON in UTF-8.

A refusal travels with its class, so that the door at which the client stands answers as if it had decided
itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    BrokerError,
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
    Unavailable,
)
from amqp10broker.layout import BadBytes

Document = dict[str, Any]

_REFUSALS: Final[dict[str, type[RefusedError]]] = {
    each.__name__: each
    for each in (
        AccessRefused, BadRequest, Inequivalent, InUse, InvalidArgument, LimitExceeded, NotAllowed, NotFound,
        NotSupported, PermissionDenied, PreconditionFailed, RefusedError, ReservedName, ResourceLocked,
        Unavailable,
    )
}  # fmt: skip


def encode_document(document: Document) -> bytes:
    """A question, or an answer, as bytes."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_document(body: bytes) -> Document:
    """Read what `encode_document` wrote. Raises `BadBytes` if it is not valid."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBytes("a question or an answer that is not JSON") from error
    if not isinstance(document, dict):
        raise BadBytes("a question or an answer that is no object")
    return document


def encode_answer(answer: Document) -> bytes:
    """Encode the response to a request of another node."""
    return encode_document({"answer": answer})


def encode_refusal(error: BrokerError) -> bytes:
    """Why it does not do it."""
    if isinstance(error, RefusedError):
        refused = {
            "kind": type(error).__name__,
            "resource": error.resource,
            "description": error.description,
        }
    else:
        refused = {"kind": RefusedError.__name__, "resource": "node", "description": str(error)}
    return encode_document({"refused": refused})


def read_answer(body: bytes) -> Document:
    """Read the response of another node.

    Raises:
        RefusedError: of the class that was raised there.
        BadBytes: it is neither an answer nor a refusal.
    """
    document = read_document(body)
    answer, refused = document.get("answer"), document.get("refused")
    if isinstance(answer, dict):
        return answer
    if isinstance(refused, dict):
        kind = _REFUSALS.get(str(refused.get("kind")), RefusedError)
        raise kind(str(refused.get("resource")), str(refused.get("description")))
    raise BadBytes("an answer that says nothing")
