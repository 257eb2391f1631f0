"""Deliveries of several transfers that are not whole, and frames that are held: their bytes are bounded.

Credit counts deliveries and the window counts frames, and neither counts bytes: without this a client could
have begun a message of the largest size on each of its links.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.amqp10.errors import AmqpSessionError, Condition
from amqp10broker.budget import Budget

FRAME_BYTES: Final = 64
"""What keeping one frame costs beside its payload, so that empty ones are not kept for nothing."""

NO_LIMIT: Final = 2**63


class Unfinished(Budget):
    """One connection's, shared by its sessions: payloads kept, and `FRAME_BYTES` for each."""

    __slots__ = ()

    def __init__(self, bytes_max: int = NO_LIMIT) -> None:
        super().__init__(bytes_max, "on this connection")

    def keep(self, payload_bytes: int) -> int:
        """Count one more frame that is kept.

        Returns:
            What to give back when it is not kept any more.

        Raises:
            AmqpSessionError: it is too much; the session must be ended, and frees what its links hold.
        """
        held = payload_bytes + FRAME_BYTES
        if (short := self.take(held)) is not None:
            raise AmqpSessionError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "deliveries that are not whole, and frames for links that are not attached yet, hold more "
                f"than {short.bytes_max} bytes {short.whose}: finish or abort some before you begin others",
            )
        return held
