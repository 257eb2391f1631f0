"""Length limits and dead letters of a classic queue."""

from __future__ import annotations

import pytest

from amqp10broker.message.message import header_of
from amqp10broker.queues.commands import DeadLetterReason, DeliveryOutcome
from amqp10broker.queues.settings import Overflow, QueueSettings
from tests.unit.queues.bench_queue import Bench, message

DROP, REJECT, REJECT_DLX = Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE",
    "max_length_bytes_default",
    "max_length_bytes_drop_head",
    "max_length_default",
    "max_length_drop_head",
)
def test_the_head_is_dropped_beyond_the_length() -> None:
    bench = Bench(QueueSettings(max_length=2, dead_letter_exchange="dlx"))
    bench.publish("a", "b", "c", "d")
    assert bench.dead == [("maxlen", "a"), ("maxlen", "b")]
    assert bench.confirmed == [0, 1, 2, 3]
    assert bench.consumer(5).got == ["c", "d"]


def test_the_head_is_dropped_beyond_the_bytes() -> None:
    bench = Bench(QueueSettings(max_length_bytes=6, dead_letter_exchange="dlx"))
    bench.publish("aaa", "bbb", "c")
    assert bench.dead == [("maxlen", "aaa")]


def test_what_consumers_hold_is_not_counted() -> None:
    bench = Bench(QueueSettings(max_length=1))
    consumer = bench.consumer(2)
    bench.publish("a", "b", "c")
    assert (consumer.got, bench.ready()) == (["a", "b"], 1)


def test_length_0_is_for_who_takes_it_at_once() -> None:
    bench = Bench(QueueSettings(max_length=0))
    bench.publish("a")
    consumer = bench.consumer(1)
    bench.publish("b", "c")
    assert (consumer.got, bench.ready()) == (["b"], 0)


def test_the_lowest_priority_is_dropped_first() -> None:
    bench = Bench(QueueSettings(max_length=2, max_priority=5, dead_letter_exchange="dlx"))
    bench.publish(message("high", priority=5), "low", message("mid", priority=2))
    assert bench.dead == [("maxlen", "low")]


@pytest.mark.rabbitmq("amqp_client_SUITE", "detach_requeues_drop_head_classic_queue")
def test_a_requeue_into_a_full_queue_drops_the_head() -> None:
    bench = Bench(QueueSettings(max_length=1, dead_letter_exchange="dlx"))
    consumer = bench.consumer(1)
    bench.publish("a", "b")
    consumer.settle("a", delivery_outcome=DeliveryOutcome.REQUEUE)
    assert (bench.dead, bench.ready()) == ([("maxlen", "a")], 1)


@pytest.mark.rabbitmq("priority_queue_SUITE", "reject")
def test_a_publish_that_would_exceed_is_refused() -> None:
    bench = Bench(QueueSettings(max_length=2, overflow=REJECT, dead_letter_exchange="dlx"))
    bench.publish("a", "b", "c", "d")
    assert (bench.confirmed, bench.rejected, bench.dead) == ([0, 1], [2, 3], [])
    consumer = bench.consumer(1)
    bench.publish("e")
    assert (bench.confirmed, bench.rejected) == ([0, 1, 4], [2, 3])
    assert consumer.got == ["a"]


def test_consumers_make_room_within_one_batch() -> None:
    bench = Bench(QueueSettings(max_length=1, overflow=REJECT))
    consumer = bench.consumer(3)
    bench.publish("a", "b", "c", "d", "e")
    assert (consumer.got, bench.rejected) == (["a", "b", "c"], [4])


def test_length_0_refuses_everything_that_is_published() -> None:
    """As RabbitMQ: by what is ready before, even if a consumer would take it."""
    bench = Bench(QueueSettings(max_length=0, overflow=REJECT))
    bench.consumer(1)
    bench.publish("a")
    assert bench.rejected == [0]


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_reject_publish_dlx")
def test_a_refused_publish_is_dead_lettered_if_asked_for() -> None:
    bench = Bench(QueueSettings(max_length=1, overflow=REJECT_DLX, dead_letter_exchange="dlx"))
    bench.publish("a", "b")
    assert (bench.rejected, bench.dead) == ([1], [("maxlen", "b")])


def test_a_limit_that_is_lowered_drops_from_the_head() -> None:
    bench = Bench()
    bench.publish("a", "b", "c")
    bench.configure(QueueSettings(max_length=1, dead_letter_exchange="dlx"))
    assert bench.dead == [("maxlen", "a"), ("maxlen", "b")]
    bench.configure(QueueSettings(max_length_bytes=0, dead_letter_exchange="dlx"))
    assert bench.ready() == 0


@pytest.mark.parametrize("held", [False, True])
def test_bytes_are_counted_right_whatever_happened_before(held: bool) -> None:
    bench = Bench()
    consumer = bench.consumer(2)
    bench.publish("aaaa", "bbbb", "cccc")
    if not held:
        consumer.settle("aaaa", "bbbb", delivery_outcome=DeliveryOutcome.REQUEUE)
    bench.configure(QueueSettings(max_length_bytes=100))
    assert bench.queue.waiting.size == (4 if held else 12)
    bench.consumer(9).settle()
    assert bench.queue.waiting.size == 0


# --- dead letters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery_outcome", "failed"), [(DeliveryOutcome.DISCARD, 0), (DeliveryOutcome.DISCARD_FAILED, 1)]
)
def test_a_rejected_message_is_dead_lettered(delivery_outcome: DeliveryOutcome, failed: int) -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx", dead_letter_routing_key="k"))
    consumer = bench.consumer(3)
    bench.publish("a", "b", "c")
    consumer.settle("a", "c", delivery_outcome=delivery_outcome)
    (letters,) = bench.letters
    assert (letters.reason, letters.exchange, letters.routing_key) == (DeadLetterReason.REJECTED, "dlx", "k")
    assert bench.dead == [("rejected", "a"), ("rejected", "c")]
    assert header_of(letters.messages[0][0]).delivery_count == failed
    assert bench.queue.unsettled == 1


def test_a_link_that_goes_with_that_outcome_dead_letters() -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx"))
    consumer = bench.consumer(2)
    bench.publish("a", "b")
    consumer.leave(DeliveryOutcome.DISCARD)
    assert bench.dead == [("rejected", "a"), ("rejected", "b")]
