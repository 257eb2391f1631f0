"""Reply codes of AMQP 0-9-1 and the exceptions that carry them (specification, section 1.6; 4.10).

The class of an exception determines its scope. Raise the narrowest one::

    Amqp091Error
    |-- AmqpChannelError       soft: the channel is closed (channel.close)
    `-- AmqpHardError          hard: the connection is closed (connection.close)
        `-- DecodeError        502: bytes that are not arguments, a field table or properties

A reply text is sent as ``<NAME> - <text>``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

REPLY_TEXT_BYTES_MAX: Final = 255
"""The limit of a short string."""


class ReplyCode(IntEnum):
    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class Amqp091Error(Exception):
    """A fault; the fields are sent to the peer. `queue`: for the log, if the method does not name it."""

    def __init__(
        self, code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0, *, queue: str | None = None
    ) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id
        self.queue = queue

    @property
    def reply_text(self) -> str:
        """Name and text, cut to 255 bytes."""
        return cut_reply_text(f"{self.code.name} - {self.text}")


class AmqpChannelError(Amqp091Error):
    """A fault that closes the channel."""


class AmqpHardError(Amqp091Error):
    """A fault that closes the connection."""


class DecodeError(AmqpHardError):
    def __init__(self, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(ReplyCode.SYNTAX_ERROR, text, class_id, method_id)


def cut_reply_text(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= REPLY_TEXT_BYTES_MAX:
        return text
    return encoded[: REPLY_TEXT_BYTES_MAX - 3].decode(errors="ignore") + "..."
