"""What a queue tells those who wait for it, when they are many."""

from __future__ import annotations

from collections.abc import Iterator, ValuesView

from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.queue_status import ConsumerStatus, QueueStatus
from tests.support.askers import new_asker


class Looked(dict[ConsumerRef, ConsumerStatus]):
    """Counts how often all consumers are looked at."""

    def __init__(self, parts: Iterator[ConsumerStatus]) -> None:
        super().__init__((part.ref, part) for part in parts)
        self.times = 0

    def values(self) -> ValuesView[ConsumerStatus]:  # type: ignore[override]
        self.times += 1
        return super().values()


def test_all_consumers_are_looked_at_once_however_many_ask() -> None:
    """A status of 6 000 consumers of one queue held everybody up for seconds when each looked at all."""
    reply_to = new_asker("1.1")
    parts = Looked(
        ConsumerStatus(reply_to.consumer(), 1, priority=number % 3, held=number) for number in range(9)
    )
    queue_status = QueueStatus(0, 1, parts)
    asked = list(parts)
    ahead = [queue_status.ahead_of(ref) for ref in asked]
    assert [len(queue_status.holders) for _ in asked] == [8] * 9
    assert parts.times == 1
    first = parts[asked[2]]
    assert ahead == [first, first, None] * 3
    assert [part.held for part in queue_status.holders] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_nobody_is_ahead_without_credit_or_where_one_is_active() -> None:
    """Who takes nothing takes nothing away."""
    low, high = (new_asker("1.1").consumer() for _ in range(2))
    parts = {low: ConsumerStatus(low, 5, priority=1), high: ConsumerStatus(high, 0, priority=9)}
    assert QueueStatus(0, 1, parts).ahead_of(low) is None
    parts[high] = ConsumerStatus(high, 1, priority=9)
    assert QueueStatus(0, 1, parts).ahead_of(low) == parts[high]
    assert QueueStatus(0, 1, parts, single=True).ahead_of(low) is None
    assert QueueStatus(0, 1, parts).ahead_of(high) is None
    assert QueueStatus(0, 1, parts).ahead_of(new_asker("2.1").consumer()) is None
