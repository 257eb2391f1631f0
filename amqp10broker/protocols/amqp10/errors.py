"""Error conditions of AMQP 1.0 and the exceptions that carry them (part 2, section 2.8.14-18).

The class of an exception determines its scope. Raise the narrowest one::

    AmqpError
    |-- AmqpConnectionError        the connection is closed with the condition (close.error)
    |   `-- DecodeError            bytes that are not AMQP 1.0
    |-- AmqpSessionError           one session is ended (end.error)
    |-- AmqpLinkError              one link is detached (detach.error)
    `-- AmqpDeliveryError          one delivery is rejected (rejected.error)
    EncodeError                    a fault of ours: a value that the wire cannot carry
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.protocols.serial import EncodeError as EncodeError


class Condition:
    INTERNAL_ERROR: Final = "amqp:internal-error"
    NOT_FOUND: Final = "amqp:not-found"
    UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
    DECODE_ERROR: Final = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
    NOT_ALLOWED: Final = "amqp:not-allowed"
    INVALID_FIELD: Final = "amqp:invalid-field"
    NOT_IMPLEMENTED: Final = "amqp:not-implemented"
    RESOURCE_LOCKED: Final = "amqp:resource-locked"
    PRECONDITION_FAILED: Final = "amqp:precondition-failed"
    RESOURCE_DELETED: Final = "amqp:resource-deleted"
    ILLEGAL_STATE: Final = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
    CONNECTION_FORCED: Final = "amqp:connection:forced"
    FRAMING_ERROR: Final = "amqp:connection:framing-error"
    CONNECTION_REDIRECT: Final = "amqp:connection:redirect"
    WINDOW_VIOLATION: Final = "amqp:session:window-violation"
    ERRANT_LINK: Final = "amqp:session:errant-link"
    HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
    DETACH_FORCED: Final = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
    LINK_REDIRECT: Final = "amqp:link:redirect"
    STOLEN: Final = "amqp:link:stolen"
    UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT: Final = "amqp:transaction:timeout"


class AmqpError(Exception):
    """A fault; the fields are sent to the peer."""

    def __init__(self, condition: str, description: str = "", info: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition
        self.description = description
        self.info = info


class AmqpConnectionError(AmqpError):
    """A fault that ends the connection."""


class DecodeError(AmqpConnectionError):
    def __init__(self, description: str, condition: str = Condition.DECODE_ERROR) -> None:
        super().__init__(condition, description)


class AmqpSessionError(AmqpError):
    """A fault that ends the session."""


class AmqpLinkError(AmqpError):
    """A fault that detaches (closes) the link."""


class AmqpDeliveryError(AmqpError):
    """A fault that rejects one delivery; the link stays."""
