"""What became of a queue's messages, in numbers that only grow while the broker runs."""

from __future__ import annotations

from typing import Final

from amqp10broker.queues.effects import Reason

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
