"""Dead messages of a quorum queue.

At most once: they leave the queue at once, as `DeadLetters`. At least once: they stay in the queue, count
against its limits, and an internal consumer takes them, `QuorumQueue.dead_letter_prefetch` at a time, until
all target queues have confirmed them (docs/queue-features.md, section 6).
"""

from __future__ import annotations

from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.effects import DeadLetterReason
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings

PREFETCH: Final = 32
"""Dead messages that the internal consumer holds at a time if no setting says, as in RabbitMQ."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead message for the internal consumer."""

    key: int
    message: Message
    reason: DeadLetterReason


def at_least_once(settings: QueueSettings) -> bool:
    """Return whether dead messages stay until they have arrived; with drop-head they do not."""
    return (
        settings.dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
        and settings.overflow is Overflow.REJECT_PUBLISH
        and settings.dead_letter_exchange is not None
    )


class PendingDeadLetters:
    """Dead messages that have not arrived, oldest first."""

    __slots__ = ("_handed_out", "entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: dict[int, tuple[DeadLetterReason, int]] = {}
        self.size_bytes = 0
        # Not part of the state: another member's internal consumer begins anew.
        self._handed_out: set[int] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, index: int, reason: DeadLetterReason, size: int) -> None:
        self.entries[index] = reason, size
        self.size_bytes += size

    def next(self, prefetch: int) -> list[tuple[int, DeadLetterReason]]:
        """Return the next messages for the internal consumer, up to its prefetch."""
        room = prefetch - len(self._handed_out)
        if room <= 0 or len(self.entries) == len(self._handed_out):
            return []
        found: list[tuple[int, DeadLetterReason]] = []
        for index, (reason, _) in self.entries.items():
            if index not in self._handed_out:
                found.append((index, reason))
                if len(found) == room:
                    break
        self._handed_out.update(index for index, _ in found)
        return found

    def settle(self, index: int) -> bool:
        """Remove a message that has arrived or is given up; return False if it is not present."""
        entry = self.entries.pop(index, None)
        if entry is None:
            return False
        self.size_bytes -= entry[1]
        self._handed_out.discard(index)
        return True

    def begin_anew(self) -> None:
        """Offer all messages again to a new internal consumer."""
        self._handed_out.clear()

    def clear(self) -> list[int]:
        indexes = list(self.entries)
        self.entries.clear()
        self._handed_out.clear()
        self.size_bytes = 0
        return indexes
