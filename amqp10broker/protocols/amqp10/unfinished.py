"""The bound on bytes of incomplete deliveries of several transfers, and of held frames.

Credit counts deliveries and the window counts frames, and neither counts bytes: without this a client could
have begun a message of the largest size on each of its links.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.errors import AmqpSessionError, Condition
from amqp10broker.protocols.budget import Budget

FRAME_BYTES: Final = 64
"""The overhead of a stored frame beside its payload, so that empty ones are counted, too."""

NO_LIMIT: Final = 2**63


class Unfinished(Budget):
    """The bound of one connection, shared by its sessions: stored payloads, and `FRAME_BYTES` for each."""

    __slots__ = ()

    def __init__(self, bytes_max: int = NO_LIMIT) -> None:
        super().__init__(bytes_max, "on this connection")

    def keep(self, payload_bytes: int) -> int:
        """Count one more frame that is stored. Returns the size to release when it is not stored any more.
        Raises `AmqpSessionError` if it is too much; the session must be ended, which frees the parts of its
        links.
        """
        held = payload_bytes + FRAME_BYTES
        if (short := self.take(held)) is not None:
            raise AmqpSessionError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "deliveries that are not whole, and frames for links that are not attached yet, hold more "
                f"than {short.bytes_max} bytes {short.whose}: finish or abort some before you begin others",
            )
        return held
