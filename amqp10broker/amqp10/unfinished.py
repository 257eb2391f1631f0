"""Deliveries of several transfers that are not whole, and frames that are held: their bytes are bounded.

Credit counts deliveries and the window counts frames, and neither counts bytes: without this a client could
have begun a message of the largest size on each of its links.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.amqp10.errors import AmqpSessionError, Condition

FRAME_BYTES: Final = 64
"""What keeping one frame costs beside its payload, so that empty ones are not kept for nothing."""

NO_LIMIT: Final = 2**63


class Unfinished:
    """One connection's, shared by its sessions.

    Attributes:
        held_bytes: payloads kept, and `FRAME_BYTES` for each.
        bytes_max: not more.
    """

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int = NO_LIMIT) -> None:
        self.held_bytes = 0
        self.bytes_max = bytes_max

    def keep(self, payload_bytes: int) -> int:
        """Count one more frame that is kept.

        Returns:
            What to give to `free` when it is not kept any more.

        Raises:
            AmqpSessionError: it is too much; the session must be ended, and frees what its links hold.
        """
        held = payload_bytes + FRAME_BYTES
        if self.held_bytes + held > self.bytes_max:
            raise AmqpSessionError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "deliveries that are not whole, and frames for links that are not attached yet, hold more "
                f"than {self.bytes_max} bytes on this connection: finish or abort some before you begin "
                "others",
            )
        self.held_bytes += held
        return held

    def free(self, held_bytes: int) -> None:
        """A delivery is whole, aborted, or gone with its link; or a frame is handled."""
        self.held_bytes -= held_bytes
