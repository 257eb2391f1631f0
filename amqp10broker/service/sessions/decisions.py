"""A client's decisions on deliveries that are not over when it has made them.

It may not have settled what it decided on, and waits to hear that a quorum queue has made the decision
durable. And it may decide on what the queue has taken back meanwhile, after too long a time: that counts for
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from amqp10broker.amqp10.disposition import Outcome


class Decisions:
    """Of one consuming link."""

    __slots__ = ("_expired", "_undurable")

    def __init__(self) -> None:
        # Both are made when they are needed: few links ever have any, and empty ones take 800 bytes.
        # In the order in which the queue was told, which is that of its answers.
        self._undurable: deque[tuple[Sequence[int], Outcome | None]] | None = None
        self._expired: set[int] | None = None

    def wait(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        """The client waits to hear of these deliveries."""
        if self._undurable is None:
            self._undurable = deque()
        self._undurable.append((ids, outcome))

    @property
    def undurable(self) -> int:
        """Answers of the queue that are still to come."""
        return len(self._undurable or ())

    def take_durable(self) -> tuple[Sequence[int], Outcome | None]:
        """The first of them that waits is durable."""
        assert self._undurable is not None
        return self._undurable.popleft()

    def expire(self, ids: Iterable[int]) -> None:
        """The queue has taken these deliveries back."""
        self._expired = (self._expired or set()) | set(ids)

    def without_expired(self, keys: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Part deliveries on which the client decides now.

        The key of a delivery that went back to the queue may be that of another one by now.

        Returns:
            Keys and ids of those that still count, and ids of the others, which are forgotten here.
        """
        if not self._expired:
            return keys, ids, []
        valid = [(key, number) for key, number in zip(keys, ids, strict=True) if number not in self._expired]
        expired = [number for number in ids if number in self._expired]
        self._expired.difference_update(expired)
        return [key for key, _ in valid], [number for _, number in valid], expired
