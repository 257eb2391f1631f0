"""Priorities of messages and consumers, and the single active consumer."""

from __future__ import annotations

import pytest

from amqp10broker.queues.commands import DeliveryOutcome, SubscribeRefused
from amqp10broker.queues.settings import QueueSettings
from tests.unit.queues.bench_queue import Bench, message


@pytest.mark.rabbitmq("priority_queue_SUITE", "simple_order")
@pytest.mark.rabbitmq("priority_queue_SUITE", "straight_through")
@pytest.mark.rabbitmq("amqp_client_SUITE", "priority_classic_queue")
def test_higher_priorities_go_first_and_each_is_first_in_first_out() -> None:
    bench = Bench(QueueSettings(max_priority=9))
    bench.publish("n1", message("h1", priority=9), message("l1", priority=1), "n2", message("h2", priority=9))
    assert bench.consumer(9).got == ["h1", "h2", "l1", "n1", "n2"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "matching")
def test_a_priority_above_the_maximum_is_the_maximum() -> None:
    bench = Bench(QueueSettings(max_priority=2))
    bench.publish(message("a", priority=2), message("b", priority=255), message("c", priority=1))
    assert bench.consumer(9).got == ["a", "b", "c"]


@pytest.mark.rabbitmq("priority_queue_SUITE", "requeue", "resume")
def test_a_returned_message_keeps_priority_and_place() -> None:
    bench = Bench(QueueSettings(max_priority=2))
    bench.publish("a", "b", message("c", priority=1))
    consumer = bench.consumer(2)
    assert consumer.got == ["c", "a"]
    consumer.settle("a", delivery_outcome=DeliveryOutcome.REQUEUE)
    bench.publish(message("d", priority=1))
    assert consumer.grant(4) == ["d", "a", "b"]


# --- consumer priorities ------------------------------------------------------------------------------


def test_the_consumer_of_the_highest_priority_gets_all_it_has_credit_for() -> None:
    bench = Bench()
    low = bench.consumer(5, priority=-1)
    high = bench.consumer(2, priority=10)
    middle = bench.consumer(1)
    bench.publish("a", "b", "c", "d")
    assert (high.got, middle.got, low.got) == (["a", "b"], ["c"], ["d"])


def test_equal_priorities_take_turns() -> None:
    bench = Bench()
    one = bench.consumer(5, priority=3)
    two = bench.consumer(5, priority=3)
    bench.publish("a", "b", "c", "d")
    assert (len(one.got), len(two.got)) == (2, 2)


def test_credit_brings_the_higher_one_back() -> None:
    bench = Bench()
    high = bench.consumer(1, priority=1)
    low = bench.consumer(9)
    bench.publish("a", "b")
    high.grant(1)
    bench.publish("c")
    assert (high.got, low.got) == (["a", "c"], ["b"])


# --- single active consumer ---------------------------------------------------------------------------

SINGLE = QueueSettings(single_active_consumer=True)


def test_only_the_first_gets_messages() -> None:
    bench = Bench(SINGLE)
    first, second = bench.consumer(1), bench.consumer(9)
    bench.publish("a", "b")
    assert (first.got, second.got, bench.ready()) == (["a"], [], 1)


def test_listings_have_its_tag() -> None:
    bench = Bench(SINGLE)
    assert bench.queue.figures().single_active_consumer_tag is None
    first, _ = (bench.consumer(1, name=f"connection 1, channel 1, consumer '{tag}'") for tag in "ab")
    assert bench.queue.figures().single_active_consumer_tag == "a"
    first.leave()
    assert bench.queue.figures().single_active_consumer_tag == "b"
    many = Bench()
    many.consumer(1, name="connection 1, channel 1, consumer 'a'")
    assert many.queue.figures().single_active_consumer_tag is None


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "single_active_consumer_classic_queue", "single_active_consumer_quorum_queue"
)
def test_when_it_goes_the_next_gets_everything_in_order() -> None:
    """Seed 003: detaching leads to the next consumer, which gets messages in their original order."""
    bench = Bench(SINGLE)
    first, second, third = bench.consumer(2), bench.consumer(9), bench.consumer(9)
    bench.publish("a", "b", "c")
    first.leave()
    assert (second.got, third.got) == (["a", "b", "c"], [])


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE",
    "all_messages_go_to_one_consumer",
    "fallback_to_another_consumer_when_exclusive_consumer_channel_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled_qos1",
)
def test_when_it_is_cancelled_the_next_starts_at_once() -> None:
    bench = Bench(SINGLE)
    first, second = bench.consumer(1), bench.consumer(9)
    bench.publish("a", "b")
    first.cancel()
    assert second.got == ["b"]
    first.settle("a", delivery_outcome=DeliveryOutcome.REQUEUE)
    assert second.got == ["b", "a"], "what it held goes to the next, out of order, as in RabbitMQ"


def test_who_waits_hears_that_nothing_is_available() -> None:
    bench = Bench(SINGLE)
    first, second = bench.consumer(), bench.consumer()
    bench.publish("a")
    assert second.grant(1, drain=True) == []
    assert (second.replies[0].available, second.replies[0].credit) == (0, 0)
    first.leave()
    assert second.grant(1) == ["a"]


def test_the_next_in_order_of_arrival_follows() -> None:
    bench = Bench(SINGLE)
    first, second, third = bench.consumer(9), bench.consumer(9), bench.consumer(9)
    second.leave()
    first.leave()
    bench.publish("a")
    assert third.got == ["a"]


# --- exclusive ----------------------------------------------------------------------------------------


def test_an_exclusive_consumer_is_alone() -> None:
    bench = Bench()
    first = bench.consumer(1, exclusive=True)
    second = bench.consumer(1)
    assert [type(each) for each in second.told] == [SubscribeRefused]
    first.leave()
    assert bench.consumer(exclusive=True).told == []


def test_a_message_without_priority_has_the_queues_default() -> None:
    """Above those that give a smaller one; also on the short ways: what is plain, and what is passed on."""
    bench = Bench(QueueSettings(max_priority=9, default_priority=4))
    bench.publish("a", message("low", priority=0), message("high", priority=5), message("b", priority=4), "c")
    bench.publish("d")
    consumer = bench.consumer(10)
    assert consumer.got == ["high", "a", "b", "c", "d", "low"]
    bench.publish("e")
    consumer.settle("e", "a", delivery_outcome=DeliveryOutcome.REQUEUE)
    consumer.leave()
    bench.publish(message("top", priority=9), message("bottom", priority=1))
    assert bench.consumer(10).got == ["top", "high", "a", "b", "c", "d", "e", "bottom", "low"]
