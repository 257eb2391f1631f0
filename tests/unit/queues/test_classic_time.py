"""Time to live of messages and queues, in a classic queue."""

from __future__ import annotations

import pytest

from amqp10broker.message.message import header_of
from amqp10broker.queues.classic.ready import EXPIRED_MAX
from amqp10broker.queues.commands import TICK, DeliveryOutcome, Touch
from amqp10broker.queues.settings import QueueSettings
from tests.unit.queues.bench_queue import Bench, message

DLX = QueueSettings(dead_letter_exchange="dlx")


def test_a_message_expires_after_its_own_time() -> None:
    bench = Bench(DLX)
    bench.publish(message("a", ttl=100), "b")
    bench.wait(99)
    assert bench.ready() == 2
    bench.wait(1)
    assert (bench.ready(), bench.dead) == (1, [("expired", "a")])
    assert bench.consumer(5).got == ["b"]


def test_a_message_expires_after_the_queues_time() -> None:
    bench = Bench(QueueSettings(message_ttl_ms=100))
    bench.publish("a")
    bench.wait(100)
    assert (bench.ready(), bench.queue.deadline()) == (0, None)


@pytest.mark.parametrize(("own", "queues"), [(50, 100), (100, 50)])
def test_the_smaller_of_both_times_counts(own: int, queues: int) -> None:
    bench = Bench(QueueSettings(message_ttl_ms=queues))
    bench.publish(message("a", ttl=own))
    bench.wait(49)
    assert bench.ready() == 1
    bench.wait(1)
    assert bench.ready() == 0


def test_time_to_live_0_is_for_who_takes_it_at_once() -> None:
    bench = Bench(DLX)
    bench.publish(message("a", ttl=0))
    assert (bench.ready(), bench.dead) == (0, [("expired", "a")])
    consumer = bench.consumer(1)
    bench.publish(message("b", ttl=0), message("c", ttl=0))
    assert (consumer.got, bench.dead[1:]) == (["b"], [("expired", "c")])


def test_a_message_behind_one_that_lives_longer_stays_until_it_is_at_the_head() -> None:
    bench = Bench(DLX)
    bench.publish(message("long", ttl=1000), message("short", ttl=10), "never")
    bench.wait(500)
    assert bench.ready() == 3
    consumer = bench.consumer(1)
    assert consumer.got == ["long"]
    assert bench.dead == [], "it goes when somebody looks at it"
    bench.wait(0)
    assert (bench.dead, bench.ready()) == ([("expired", "short")], 1)


@pytest.mark.rabbitmq("amqp_client_SUITE", "message_ttl")
def test_an_expired_message_is_never_delivered() -> None:
    """The clock may have gone on without the queue being woken."""
    bench = Bench(DLX)
    bench.publish(message("a", ttl=10), message("b", ttl=10), "c")
    bench.now += 50
    consumer = bench.consumer(3)
    assert (consumer.got, bench.dead) == (["c"], [("expired", "a"), ("expired", "b")])


def test_a_requeued_message_keeps_its_expiry() -> None:
    bench = Bench(DLX)
    consumer = bench.consumer(1)
    bench.publish(message("a", ttl=100))
    bench.wait(150)
    assert bench.dead == [], "what a consumer holds does not expire"
    consumer.settle("a", delivery_outcome=DeliveryOutcome.REQUEUE)
    bench.wait(0)
    assert bench.dead == [("expired", "a")]


@pytest.mark.rabbitmq(
    "policy_SUITE", "operator_retroactive_policy_publish_ttl", "operator_retroactive_policy_ttl"
)
def test_a_change_of_time_to_live_is_for_what_is_published_later() -> None:
    bench = Bench(QueueSettings(message_ttl_ms=1000))
    bench.publish("old")
    bench.configure(QueueSettings(message_ttl_ms=10))
    bench.publish("new")
    bench.wait(500)
    assert bench.ready() == 2, "the old one shields the new one"
    bench.wait(500)
    assert bench.ready() == 0


@pytest.mark.rabbitmq("priority_queue_SUITE", "dropwhile_fetchwhile")
def test_messages_of_each_priority_expire_at_the_head_of_theirs() -> None:
    bench = Bench(QueueSettings(max_priority=5, dead_letter_exchange="dlx"))
    bench.publish("low", message("high", priority=3, ttl=10))
    bench.wait(10)
    assert (bench.dead, bench.ready()) == ([("expired", "high")], 1)


def test_a_dead_letter_still_says_its_time_to_live() -> None:
    """Whoever dead-letters it puts that into its record and takes it off."""
    bench = Bench(DLX)
    bench.publish(message("a", ttl=0))
    assert header_of(bench.letters[0].messages[0][0]).ttl == 0


def test_the_clock_set_back_changes_nothing() -> None:
    bench = Bench()
    bench.publish(message("a", ttl=100))
    bench.now -= 500
    bench.publish(message("b", ttl=100))
    bench.now += 500
    bench.wait(100)
    assert bench.ready() == 0


# --- the queue itself ---------------------------------------------------------------------------------


def test_a_queue_goes_when_nobody_uses_it() -> None:
    bench = Bench(QueueSettings(expires_ms=100, dead_letter_exchange="dlx"))
    bench.publish("a")
    bench.wait(99)
    assert not bench.queue.deleted
    bench.wait(1)
    assert bench.queue.deleted
    assert bench.dead == [], "messages of a deleted queue are not dead-lettered"


def test_a_consumer_is_use() -> None:
    bench = Bench(QueueSettings(expires_ms=100))
    consumer = bench.consumer()
    bench.wait(1000)
    assert not bench.queue.deleted
    consumer.leave()
    bench.wait(99)
    assert not bench.queue.deleted
    bench.wait(1)
    assert bench.queue.deleted


def test_publishing_is_no_use() -> None:
    bench = Bench(QueueSettings(expires_ms=100))
    bench.wait(60)
    bench.publish("a")
    bench.wait(40)
    assert bench.queue.deleted


@pytest.mark.parametrize("use", ["declare", "get"])
def test_declaring_and_getting_are_use(use: str) -> None:
    bench = Bench(QueueSettings(expires_ms=100))
    getter = bench.consumer(counted=False)
    bench.wait(60)
    if use == "declare":
        bench.do(Touch())
    else:
        getter.grant(1, drain=True)
    bench.wait(99)
    assert not bench.queue.deleted
    bench.wait(1)
    assert bench.queue.deleted


def test_an_expiry_can_come_and_go_by_policy() -> None:
    bench = Bench()
    bench.configure(QueueSettings(expires_ms=100))
    bench.wait(50)
    bench.configure(QueueSettings())
    bench.wait(1000)
    assert not bench.queue.deleted
    bench.configure(QueueSettings(expires_ms=2000))
    bench.wait(949)
    assert not bench.queue.deleted, "unused since it was made"
    bench.wait(1)
    assert bench.queue.deleted


def test_many_that_expire_together_go_in_parts_and_nobody_gets_one_meanwhile() -> None:
    bench = Bench(DLX)
    count = 3 * EXPIRED_MAX
    bench.publish(*[message(number, ttl=10) for number in range(count)], "lives")
    bench.now += 20
    bench.queue.apply(TICK, bench.now)
    assert bench.ready() == count + 1 - EXPIRED_MAX
    due = bench.queue.deadline()
    assert due is not None
    assert due <= bench.now, "it wants to go on at once"
    consumer = bench.consumer(1)
    assert consumer.got == []
    bench.wait(0)
    assert consumer.got == ["lives"]
    assert len(bench.dead) == count
    assert bench.queue.deadline() is None
