"""Errors that several parts of the engine raise, and their conversion to the error type of the wire."""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import Error
from amqp10broker.protocols.amqp10.types import Symbol

DESCRIPTION_BYTES_MAX: Final = 1024
"""Longer descriptions are cut: they repeat data of the peer, and an error has to fit a frame."""


def message_too_large(size: int, limit: int) -> AmqpLinkError:
    """Return the error for a message over a link's max-message-size (2.7.3)."""
    return AmqpLinkError(
        Condition.MESSAGE_SIZE_EXCEEDED, f"message size ({size} bytes) > maximum message size ({limit} bytes)"
    )


def over_limit() -> AmqpLinkError:
    """Return the error for a transfer without credit (2.6.7)."""
    return AmqpLinkError(Condition.TRANSFER_LIMIT_EXCEEDED, "transfer without link credit")


def of_management(fault: AmqpLinkError) -> AmqpSessionError:
    """Return the session's error for a fault of a link with requests of management, as RabbitMQ has it."""
    if fault.condition == Condition.TRANSFER_LIMIT_EXCEEDED:
        text = "insufficient credit (0) for management link from client to RabbitMQ"
        return AmqpSessionError(fault.condition, text)
    return AmqpSessionError(fault.condition, fault.description, fault.info)


def unknown_transaction(txn_id: bytes) -> AmqpLinkError:
    """Return the error for work in a transaction that the session does not have (part 4, 4.3)."""
    return AmqpLinkError(
        Condition.UNKNOWN_TRANSACTION,
        f"no transaction of this session has the id 0x{txn_id.hex()}: declare one",
    )


def to_error(error: AmqpError | None) -> Error | None:
    if error is None:
        return None
    return Error(
        condition=Symbol(error.condition),
        description=_cut(error.description) or None,
        info=None if error.info is None else {Symbol(name): value for name, value in error.info.items()},
    )


def _cut(text: str) -> str:
    if len(text) * 4 <= DESCRIPTION_BYTES_MAX:
        return text
    encoded = text.encode()
    if len(encoded) <= DESCRIPTION_BYTES_MAX:
        return text
    return encoded[: DESCRIPTION_BYTES_MAX - 3].decode(errors="ignore") + "..."
