"""What only classic queues have: levels of priority, exclusive consumers, work in parts; delayed messages."""

from __future__ import annotations

import pytest

from amqp10broker.message.amqp10 import header_of
from amqp10broker.message.message import Message
from amqp10broker.queues import commands
from amqp10broker.queues.classic.queue import DUE_MAX, ClassicQueue
from amqp10broker.queues.classic.ready import EXPIRED_MAX
from amqp10broker.queues.settings import Overflow
from tests.support.queue_bench import START_MS, Bench, confirmed, message, only, rejected
from tests.support.reply_addresses import new_reply_to

REQUEUE = commands.DeliveryOutcome.REQUEUE
DLX = {"dead_letter_exchange": "dlx"}


def classic(**settings: object) -> Bench:
    return Bench("classic", **settings)


def some(*given: str) -> list[Message]:
    parts = [each.partition(":") for each in given]
    return [message(body, priority=int(priority) if priority else None) for body, _, priority in parts]


def requeue(bench: Bench, consumer: commands.ConsumerRef, *bodies: str) -> list[object]:
    held = dict(zip(bench.got(consumer), bench.held(consumer), strict=True))
    return bench.settle(consumer, REQUEUE, [held[each] for each in bodies])


# --- priorities -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("priority_queue_SUITE", "matching", "simple_order", "straight_through")
@pytest.mark.rabbitmq("amqp_client_SUITE", "priority_classic_queue")
@pytest.mark.parametrize(
    ("most", "published", "order"),
    [
        (9, ("n1", "h1:9", "l1:1", "n2", "h2:9"), ["h1", "h2", "l1", "n1", "n2"]),
        (2, ("a:2", "b:255", "c:1"), ["a", "b", "c"]),
    ],
    ids=["each level is first in, first out", "above the maximum is the maximum"],
)
def test_higher_priorities_go_first(most: int, published: tuple[str, ...], order: list[str]) -> None:
    bench = classic(max_priority=most)
    bench.publish_all(some(*published))
    assert bench.get(bench.consumer(), 9) == order


@pytest.mark.rabbitmq("priority_queue_SUITE", "requeue", "resume")
def test_a_returned_message_keeps_priority_and_place() -> None:
    bench = classic(max_priority=2)
    bench.publish_all(some("a", "b", "c:1"))
    consumer = bench.consumer(2)
    assert bench.got(consumer) == ["c", "a"]
    requeue(bench, consumer, "a")
    bench.publish_all(some("d:1"))
    assert bench.get(consumer, 4) == ["d", "a", "b"]


def test_a_message_without_priority_has_the_queues_default() -> None:
    """It goes before smaller ones; the short paths for plain and passed-on messages obey this too."""
    bench = classic(max_priority=9, default_priority=4)
    bench.publish_all(some("a", "low:0", "high:5", "b:4", "c"))
    bench.publish("d")
    consumer = bench.consumer(10)
    assert bench.got(consumer) == ["high", "a", "b", "c", "d", "low"]
    bench.publish("e")
    requeue(bench, consumer, "e", "a")
    bench.leave(consumer, REQUEUE)
    bench.publish_all(some("top:9", "bottom:1"))
    order = ["top", "high", "a", "b", "c", "d", "e", "bottom", "low"]
    assert bench.get(bench.consumer(), 10) == order


@pytest.mark.rabbitmq("priority_queue_SUITE", "dropwhile_fetchwhile")
def test_messages_of_each_priority_expire_at_the_head_of_theirs() -> None:
    bench = classic(max_priority=5, **DLX)
    bench.publish_all([message("low"), message("high", priority=3, ttl_ms=10)])
    bench.wait(10)
    assert (bench.dead(), bench.queue.ready) == ([("expired", ["high"])], 1)


def test_the_lowest_priority_is_dropped_first() -> None:
    bench = classic(max_length=2, max_priority=5, **DLX)
    bench.publish_all(some("high:5", "low", "mid:2"))
    assert bench.dead() == [("maxlen", ["low"])]


def test_what_is_due_goes_to_the_end_of_its_level() -> None:
    bench = classic(max_priority=5)
    bench.publish_all([message("low", delay_ms=10), message("high", delay_ms=10, priority=4)])
    bench.publish_all(some("first", "high 1:4"))
    bench.wait(10)
    bench.publish("last")
    assert bench.get(bench.consumer(), 9) == ["high 1", "high", "first", "low", "last"]


# --- consumers ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "single_active_consumer_classic_queue", "single_active_consumer_quorum_queue"
)
def test_when_the_active_one_goes_the_next_gets_everything_in_order() -> None:
    """Seed 003: when the active consumer detaches, the next one gets messages in their original order."""
    bench = classic(single_active_consumer=True)
    first, second, third = bench.consumer(2), bench.consumer(9), bench.consumer(9)
    bench.publish("a", "b", "c")
    bench.leave(first, REQUEUE)
    assert (bench.got(second), bench.got(third)) == (["a", "b", "c"], [])
    bench.leave(second, REQUEUE)
    assert bench.got(third) == ["a", "b", "c"]


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE",
    "all_messages_go_to_one_consumer",
    "fallback_to_another_consumer_when_exclusive_consumer_channel_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled",
    "fallback_to_another_consumer_when_first_one_is_cancelled_qos1",
)
def test_when_the_active_one_is_cancelled_the_next_starts_at_once() -> None:
    bench = classic(single_active_consumer=True)
    first, second = bench.consumer(1), bench.consumer(9)
    bench.publish("a", "b")
    bench.cancel(first)
    assert bench.got(second) == ["b"]
    requeue(bench, first, "a")
    assert bench.got(second) == ["b", "a"], "what it held goes to the next, out of order, as in RabbitMQ"


def test_an_exclusive_consumer_is_alone() -> None:
    bench = classic()
    first = bench.consumer(1, exclusive=True)
    assert only(bench.told, commands.SubscribeRefused) == []
    bench.consumer()
    assert len(only(bench.told, commands.SubscribeRefused)) == 1
    bench.leave(first, REQUEUE)
    bench.consumer(exclusive=True)
    assert len(only(bench.told, commands.SubscribeRefused)) == 1


# --- time -----------------------------------------------------------------------------------------


def test_a_dead_letter_still_says_its_time_to_live() -> None:
    """The dead-lettering code copies it to the death record and removes it."""
    bench = classic(**DLX)
    bench.publish("a", ttl_ms=0)
    (letters,) = bench.dead_letters()
    assert header_of(letters.messages[0][0]).ttl == 0


def test_the_clock_set_back_changes_nothing() -> None:
    bench = classic()
    bench.publish("a", ttl_ms=100)
    bench.now -= 500
    bench.publish("b", ttl_ms=100)
    bench.now += 500
    bench.wait(100)
    assert bench.queue.ready == 0


def test_declaring_is_use() -> None:
    bench = classic(expires_ms=100)
    bench.wait(60)
    bench.do(commands.Touch())
    bench.wait(99)
    assert not bench.queue.deleted
    bench.wait(1)
    assert bench.queue.deleted


def test_an_expiry_can_come_and_go_by_policy() -> None:
    bench = classic()
    bench.configure(expires_ms=100)
    bench.wait(50)
    bench.configure()
    bench.wait(1000)
    assert not bench.queue.deleted
    bench.configure(expires_ms=2000)
    bench.wait(949)
    assert not bench.queue.deleted, "unused since it was made"
    bench.wait(1)
    assert bench.queue.deleted


def test_many_that_expire_together_go_in_parts_and_nobody_gets_one_meanwhile() -> None:
    bench = classic(**DLX)
    count = 3 * EXPIRED_MAX
    bench.publish_all([*(message(str(number), ttl_ms=10) for number in range(count)), message("lives")])
    bench.now += 20
    bench.do(commands.TICK)
    assert bench.queue.ready == count + 1 - EXPIRED_MAX
    assert bench.queue.deadline() <= bench.now, "it wants to go on at once"
    consumer = bench.consumer(1)
    assert bench.got(consumer) == []
    while bench.queue.deadline() is not None:
        bench.do(commands.TICK)
    assert bench.got(consumer) == ["lives"]
    assert sum(len(bodies) for _, bodies in bench.dead()) == count


# --- limits and dead letters ----------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "detach_requeues_drop_head_classic_queue")
def test_a_requeue_into_a_full_queue_drops_the_head() -> None:
    bench = classic(max_length=1, **DLX)
    consumer = bench.consumer(1)
    bench.publish("a", "b")
    bench.settle(consumer, REQUEUE)
    assert (bench.dead(), bench.queue.ready) == ([("maxlen", ["a"])], 1)


def test_a_full_queue_takes_a_message_as_soon_as_there_is_room_for_one() -> None:
    """Length 0 refuses all, as in RabbitMQ: ready messages count before a consumer can take the new one."""
    bench = classic(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    bench.publish("a", "b", "c")
    bench.consumer(1)
    assert confirmed(bench.publish("d")) == [0]
    empty = classic(max_length=0, overflow=Overflow.REJECT_PUBLISH)
    empty.consumer(1)
    assert rejected(empty.publish("a")) == [0]


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_reject_publish_dlx")
def test_a_refused_publish_is_dead_lettered_if_asked_for() -> None:
    bench = classic(max_length=1, overflow=Overflow.REJECT_PUBLISH_DLX, **DLX)
    assert rejected(bench.publish("a", "b")) == [1]
    assert bench.dead() == [("maxlen", ["b"])]


@pytest.mark.parametrize("held", [False, True])
def test_bytes_are_counted_right_whatever_happened_before(held: bool) -> None:
    bench = classic()
    consumer = bench.consumer(2)
    bench.publish("aaaa", "bbbb", "cccc")
    if not held:
        bench.settle(consumer, REQUEUE)
    bench.configure(max_length_bytes=100)
    assert bench.queue.waiting.size == (4 if held else 12)
    bench.consumer(9)
    assert bench.queue.waiting.size == 0


def test_a_link_that_goes_with_that_outcome_dead_letters() -> None:
    bench = classic(**DLX)
    consumer = bench.consumer(2)
    bench.publish("a", "b")
    bench.leave(consumer, commands.DeliveryOutcome.DISCARD)
    assert bench.dead() == [("rejected", ["a", "b"])]


# --- many at once ---------------------------------------------------------------------------------


def test_many_that_are_due_at_once_go_in_parts() -> None:
    """Other tasks run between the parts: a million of them delay no other queue."""
    queue = ClassicQueue("q", durable=False, now_ms=START_MS)
    messages = [message(str(number), due_ms=START_MS + 5) for number in range(2 * DUE_MAX + 1)]
    queue.apply(
        commands.Publish(new_reply_to("p").publisher(), range(len(messages)), messages, True), START_MS
    )
    for ready in (DUE_MAX, 2 * DUE_MAX, 2 * DUE_MAX + 1):
        assert queue.deadline() == START_MS + 5
        queue.apply(commands.TICK, START_MS + 5)
        assert queue.ready == ready
    assert queue.deadline() is None
