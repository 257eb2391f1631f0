"""A client's decisions on deliveries that are still pending after it has made them.

The client may not have settled, and waits until a quorum queue has made the decision durable. And it may
decide on deliveries that the queue has taken back after a timeout: such decisions are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from amqp10broker.protocols.amqp10.disposition import Outcome


class Decisions:
    """The pending decisions of one consuming link."""

    __slots__ = ("_expired", "_undurable")

    def __init__(self) -> None:
        # Both are made on demand: few links ever have any, and empty ones take 800 bytes. In the order in
        # which the queue received them, which is that of its answers.
        self._undurable: deque[tuple[Sequence[int], Outcome | None]] | None = None
        self._expired: set[int] | None = None

    def wait(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        """Add deliveries with a decision that the queue has to confirm."""
        if self._undurable is None:
            self._undurable = deque()
        self._undurable.append((ids, outcome))

    @property
    def undurable(self) -> int:
        """The number of answers of the queue that are still to come."""
        return len(self._undurable or ())

    def take_durable(self) -> tuple[Sequence[int], Outcome | None]:
        assert self._undurable is not None
        return self._undurable.popleft()

    def expire(self, ids: Iterable[int]) -> None:
        self._expired = (self._expired or set()) | set(ids)

    def without_expired(self, keys: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Separate expired deliveries from those on which the client decides.

        The key of a delivery that went back to the queue may be reused by another one. Returns keys and ids
        of those that still count, and ids of the others, which are removed here.
        """
        if not self._expired:
            return keys, ids, []
        valid = [(key, number) for key, number in zip(keys, ids, strict=True) if number not in self._expired]
        expired = [number for number in ids if number in self._expired]
        self._expired.difference_update(expired)
        return [key for key, _ in valid], [number for _, number in valid], expired
