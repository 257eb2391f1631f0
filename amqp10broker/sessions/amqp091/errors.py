"""Conversion of protocol-neutral refusals to AMQP 0-9-1: the reply code, and whether channel or connection
ends.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    LimitExceeded,
    NotAllowed,
    NotFound,
    NotSupported,
    PreconditionFailed,
    RefusedError,
    ResourceLocked,
)
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpChannelError, AmqpHardError, ReplyCode

# The first entry that matches counts. 404, 403, 405 and 406 end the channel, 530, 540 and 541 the connection.
_CODES: Final[tuple[tuple[type[RefusedError], ReplyCode], ...]] = (
    (NotFound, ReplyCode.NOT_FOUND),
    (AccessRefused, ReplyCode.ACCESS_REFUSED),
    (ResourceLocked, ReplyCode.RESOURCE_LOCKED),
    (PreconditionFailed, ReplyCode.PRECONDITION_FAILED),
    (LimitExceeded, ReplyCode.PRECONDITION_FAILED),
    (BadRequest, ReplyCode.PRECONDITION_FAILED),
    (NotSupported, ReplyCode.NOT_IMPLEMENTED),
    (NotAllowed, ReplyCode.NOT_ALLOWED),
)
_HARD: Final = (ReplyCode.NOT_IMPLEMENTED, ReplyCode.NOT_ALLOWED, ReplyCode.INTERNAL_ERROR)


def to_amqp091(refusal: RefusedError) -> Amqp091Error:
    code = next((code for kind, code in _CODES if isinstance(refusal, kind)), ReplyCode.INTERNAL_ERROR)
    kind = AmqpHardError if code in _HARD else AmqpChannelError
    return kind(code, refusal.description)
