"""What queues count: messages taken, refused, dropped, expired, discarded; and whether they are full."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.queues.queue_status import LengthLimits
from amqp10broker.queues.settings import Overflow, QueueSettings
from tests.support.quorum_bench import Bench as QuorumBench
from tests.support.streams import Bench as StreamBench
from tests.unit.queues.bench_queue import Bench, message

REJECT = Overflow.REJECT_PUBLISH


def counted(queue: Any) -> dict[str, int]:
    return {name: count for name, count in queue.counters.document().items() if count}


# --- classic --------------------------------------------------------------------------------------


def test_a_classic_queue_counts_what_it_takes_and_drops() -> None:
    bench = Bench(QueueSettings(max_length=2))
    bench.publish("a")
    bench.publish("b", "c", "d")
    assert counted(bench.queue) == {"published": 4, "dropped": 2}


@pytest.mark.parametrize("overflow", [REJECT, Overflow.REJECT_PUBLISH_DLX])
def test_a_classic_queue_counts_what_it_refuses(overflow: Overflow) -> None:
    """It is neither taken nor dropped, even if it is dead-lettered."""
    bench = Bench(QueueSettings(max_length=1, overflow=overflow, dead_letter_exchange="dlx"))
    bench.publish("a", "b", "c")
    bench.publish("d")
    dead_lettered = {"dead_lettered": 3} if overflow is Overflow.REJECT_PUBLISH_DLX else {}
    assert counted(bench.queue) == {"published": 1, "rejected": 3, **dead_lettered}


def test_a_classic_queue_counts_what_expires_with_or_without_a_dead_letter_exchange() -> None:
    """At its head, and in front of a consumer."""
    bench = Bench(QueueSettings(message_ttl_ms=100))
    bench.publish("a", "b")
    bench.wait(200)
    bench.publish(message("c", ttl=1))
    bench.now += 300
    bench.consumer(5)
    assert counted(bench.queue) == {"published": 3, "expired": 3}


def test_a_classic_queue_counts_what_consumers_discard() -> None:
    """What they return, or accept, is another thing."""
    bench = Bench()
    bench.publish("a", "b", "c", "d")
    consumer = bench.consumer(4)
    consumer.settle("a", delivery_outcome=DeliveryOutcome.DISCARD)
    consumer.settle("b", delivery_outcome=DeliveryOutcome.DISCARD_FAILED)
    consumer.settle("c")
    consumer.settle("d", delivery_outcome=DeliveryOutcome.REQUEUE)
    assert counted(bench.queue) == {"published": 4, "discarded": 2}


def test_a_classic_queue_is_full_at_its_limit() -> None:
    """One below it is not, and what consumers hold does not count."""
    bench = Bench(QueueSettings(max_length=2, overflow=REJECT))
    bench.publish("a")
    assert bench.queue.figures().limits == LengthLimits(2, None, "reject-publish")
    assert not bench.queue.figures().full
    bench.publish("b")
    assert bench.queue.figures().full
    bench.consumer(1)
    assert not bench.queue.figures().full


# --- quorum ---------------------------------------------------------------------------------------


def test_a_quorum_queue_counts_what_it_takes_and_drops() -> None:
    bench = QuorumBench(max_length=2)
    bench.publish("a", "b", "c")
    assert counted(bench.queue) == {"published": 3, "dropped": 1}


def test_a_quorum_queue_counts_what_it_refuses_and_is_full_until_there_is_room_again() -> None:
    """It takes publishes again when it is down to 80 %, not before."""
    bench = QuorumBench(max_length=5, overflow=REJECT)
    bench.publish("a", "b", "c", "d")
    assert not bench.queue.figures().full
    bench.publish("e", "f")
    bench.publish("g")
    assert counted(bench.queue) == {"published": 5, "rejected": 2}
    assert bench.queue.figures().full
    consumer = bench.consumer(1)
    bench.settle(consumer, DeliveryOutcome.ACCEPT)
    assert bench.queue.ready == 4
    assert not bench.queue.figures().full


def test_a_quorum_queue_counts_what_dies() -> None:
    """By time, by a consumer, and by too many attempts."""
    bench = QuorumBench(delivery_limit=1)
    bench.publish("a", ttl_ms=10)
    bench.wait(20)
    bench.publish("b", "c")
    consumer = bench.consumer(1)
    bench.settle(consumer, DeliveryOutcome.DISCARD)
    for _ in range(2):
        bench.credit(consumer, 1)
        bench.settle(consumer, DeliveryOutcome.REQUEUE_FAILED)
    assert counted(bench.queue) == {"published": 3, "expired": 1, "discarded": 1, "delivery_limit": 1}


def test_replaying_the_log_counts_nothing() -> None:
    """It happened before the broker was started."""
    bench = QuorumBench(max_length=1)
    bench.queue.follow()
    bench.publish("a", "b")
    bench.configure(max_length=1, overflow=REJECT)
    bench.publish("c")
    bench.queue.lead()
    assert counted(bench.queue) == {}
    bench.publish("d")
    assert counted(bench.queue) == {"rejected": 1}


# --- stream ---------------------------------------------------------------------------------------


def test_a_stream_counts_what_it_takes_and_what_retention_drops() -> None:
    bench = StreamBench(QueueSettings(segment_bytes=1, max_length_bytes=300))
    for _ in range(8):
        bench.publish(2)
    dropped = bench.queue.log.first_offset
    assert dropped > 0
    assert counted(bench.queue) == {"published": 16, "dropped": dropped}
