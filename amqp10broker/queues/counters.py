"""What became of a queue's messages, in numbers that only grow while the broker runs."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.queues.effects import Reason
from amqp10broker.queues.settings import QueueSettings

_LOST_AS: Final = {
    Reason.MAXLEN: "dropped",
    Reason.EXPIRED: "expired",
    Reason.REJECTED: "discarded",
    Reason.DELIVERY_LIMIT: "delivery_limit",
}


class QueueCounters:
    """Counted once a batch.

    Attributes:
        published: messages that the queue took.
        rejected: publishes that it refused because it was full.
        lost: messages that it gave up, by reason, whether or not they were dead-lettered.
    """

    __slots__ = ("lost", "published", "rejected")

    def __init__(self) -> None:
        self.published = 0
        self.rejected = 0
        self.lost: dict[Reason, int] = dict.fromkeys(Reason, 0)

    def document(self) -> dict[str, int]:
        """As `status` has it."""
        lost = {name: self.lost[reason] for reason, name in _LOST_AS.items()}
        return {"published": self.published, "rejected": self.rejected, **lost}


def limits_document(settings: QueueSettings, messages: int, size_bytes: int) -> dict[str, Any]:
    """Limits of length, and whether they are reached: no further message has room.

    Args:
        settings: of the queue.
        messages: that count against the limit.
        size_bytes: their bytes; of no meaning without a limit of bytes.
    """
    most, most_bytes = settings.max_length, settings.max_length_bytes
    if most is None and most_bytes is None:
        return {"full": False, "limits": None}
    full = (most is not None and messages >= most) or (most_bytes is not None and size_bytes >= most_bytes)
    return {
        "full": full,
        "limits": {"messages": most, "bytes": most_bytes, "overflow": str(settings.overflow.value)},
    }
