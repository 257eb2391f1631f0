"""Errors that several parts of the engine raise, and their conversion to the error type of the wire."""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.performatives import Error
from amqp10broker.protocols.amqp10.types import Symbol

DESCRIPTION_BYTES_MAX: Final = 1024
"""Longer descriptions are cut: they repeat data of the peer, and an error has to fit a frame."""


def message_too_large(size: int, limit: int) -> AmqpLinkError:
    return AmqpLinkError(
        Condition.MESSAGE_SIZE_EXCEEDED, f"message size ({size} bytes) > maximum message size ({limit} bytes)"
    )


def over_limit() -> AmqpLinkError:
    return AmqpLinkError(Condition.TRANSFER_LIMIT_EXCEEDED, "transfer without link credit")


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
