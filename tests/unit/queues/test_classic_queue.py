"""A classic queue: consumers, expiry, limits, delayed messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqp10broker.message.amqp10 import header_of
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.backlog import Store
from amqp10broker.queues.classic.queue import DUE_MAX, ClassicQueue
from amqp10broker.queues.classic.ready import EXPIRED_MAX, SOON_BYTES_MAX, SOON_MESSAGES_MAX, DelayedMessages
from amqp10broker.queues.commands import (
    TICK,
    Answer,
    DeadLetterReason,
    DeliveryOutcome,
    Inspect,
    Publish,
    Purge,
    SubscribeRefused,
    Touch,
)
from amqp10broker.queues.settings import Overflow, QueueSettings
from tests.support.askers import new_asker
from tests.unit.queues.bench_queue import START_MS, Bench, message


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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_consumer_of_the_highest_priority_gets_all_it_has_credit_for(bench: Bench) -> None:
    low = bench.consumer(5, priority=-1)
    high = bench.consumer(2, priority=10)
    middle = bench.consumer(1)
    bench.publish("a", "b", "c", "d")
    assert (high.got, middle.got, low.got) == (["a", "b"], ["c"], ["d"])


def test_equal_priorities_take_turns(bench: Bench) -> None:
    one = bench.consumer(5, priority=3)
    two = bench.consumer(5, priority=3)
    bench.publish("a", "b", "c", "d")
    assert (len(one.got), len(two.got)) == (2, 2)


def test_credit_brings_the_higher_one_back(bench: Bench) -> None:
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


def test_an_exclusive_consumer_is_alone(bench: Bench) -> None:
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


def test_the_clock_set_back_changes_nothing(bench: Bench) -> None:
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


def test_an_expiry_can_come_and_go_by_policy(bench: Bench) -> None:
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
    assert due <= bench.now, "it wants to go on at once"
    consumer = bench.consumer(1)
    assert consumer.got == []
    bench.wait(0)
    assert consumer.got == ["lives"]
    assert len(bench.dead) == count
    assert bench.queue.deadline() is None


DROP, REJECT, REJECT_DLX = Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE",
    "max_length_bytes_default",
    "max_length_bytes_drop_head",
    "max_length_default",
    "max_length_drop_head",
)
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_drop_head")
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


def test_a_limit_that_is_lowered_drops_from_the_head(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    bench.configure(QueueSettings(max_length=1, dead_letter_exchange="dlx"))
    assert bench.dead == [("maxlen", "a"), ("maxlen", "b")]
    bench.configure(QueueSettings(max_length_bytes=0, dead_letter_exchange="dlx"))
    assert bench.ready() == 0


@pytest.mark.parametrize("held", [False, True])
def test_bytes_are_counted_right_whatever_happened_before(held: bool, bench: Bench) -> None:
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


def later(text: object, ms: int, *, priority: int | None = None, ttl: int | None = None) -> Message:
    """A message that is due so long after the bench's start."""
    return message(text, due=START_MS + ms, priority=priority, ttl=ttl)


def counts(bench: Bench) -> tuple[int, int | None]:
    figures = bench.queue.figures()
    return figures.messages_ready, figures.messages_delayed


def test_a_message_is_delivered_at_its_time_and_not_before(bench: Bench) -> None:
    consumer = bench.consumer(5)
    bench.publish(later("b", 100), later("a", 50), "now")
    assert (consumer.got, counts(bench)) == (["now"], (0, 2))
    assert bench.confirmed == [0, 1, 2], "it is in the queue"
    bench.wait(49)
    bench.do(TICK)
    assert (consumer.got, bench.queue.deadline()) == (["now"], START_MS + 50)
    bench.wait(1)
    assert consumer.got == ["now", "a"]
    bench.wait(50)
    assert (consumer.got, counts(bench)) == (["now", "a", "b"], (0, 0))
    assert bench.queue.deadline() is None


def test_a_time_that_has_passed_delays_nothing(bench: Bench) -> None:
    bench.publish(later("a", 0), later("b", -1000), message("c", due=-1))
    assert (bench.consumer(3).got, counts(bench)) == (["a", "b", "c"], (0, 0))


def test_what_is_due_goes_to_the_end_of_its_level() -> None:
    bench = Bench(QueueSettings(max_priority=5))
    bench.publish(later("low", 10), later("high", 10, priority=4), "first", message("high 1", priority=4))
    bench.wait(10)
    bench.publish("last")
    assert bench.consumer(9).got == ["high 1", "high", "first", "low", "last"]


def test_of_what_is_due_the_earlier_time_is_first_and_then_the_earlier_publish(bench: Bench) -> None:
    bench.publish(later("c", 20), later("a", 10), later("b", 10), later("d", 20))
    bench.now += 100
    bench.wait(0)
    assert bench.consumer(9).got == ["a", "b", "c", "d"]


def test_a_message_that_expires_before_its_time_is_given_up_then() -> None:
    bench = Bench(DLX)
    bench.publish(later("a", 100, ttl=60), later("b", 100, ttl=100), later("c", 100, ttl=101))
    bench.wait(59)
    assert (bench.dead, counts(bench)) == ([], (0, 3))
    bench.wait(1)
    assert (bench.dead, counts(bench)) == ([("expired", "a")], (0, 2))
    bench.wait(40)
    assert (bench.dead[1:], counts(bench)) == ([("expired", "b")], (1, 0))
    bench.wait(1)
    assert (bench.dead[2:], counts(bench)) == ([("expired", "c")], (0, 0))
    assert bench.queue.counters.document()["expired"] == 3


def test_the_queues_time_to_live_counts_from_the_arrival() -> None:
    bench = Bench(replace(DLX, message_ttl_ms=50))
    bench.publish(later("a", 100), later("b", 10))
    bench.wait(10)
    assert counts(bench) == (1, 1)
    bench.wait(40)
    assert sorted(bench.dead) == [("expired", "a"), ("expired", "b")]


def test_limits_of_length_count_them_and_they_are_dropped_last_the_first_due_first() -> None:
    bench = Bench(replace(DLX, max_length=3))
    bench.publish(later("x", 90), later("y", 50), "a", "b")
    assert (bench.dead, counts(bench)) == ([("maxlen", "a")], (1, 2))
    bench.publish(later("z", 70))
    assert (bench.dead[1:], counts(bench)) == ([("maxlen", "b")], (0, 3))
    bench.publish(later("w", 80))
    assert (bench.dead[2:], counts(bench)) == ([("maxlen", "y")], (0, 3))
    bench.wait(100)
    assert bench.consumer(9).got == ["z", "w", "x"]


def test_a_full_queue_rejects_them_and_is_full_of_them() -> None:
    bench = Bench(QueueSettings(max_length=2, overflow=Overflow.REJECT_PUBLISH))
    bench.publish(later("a", 50), later("b", 60), later("c", 70), "d")
    assert (bench.confirmed, bench.rejected) == ([0, 1], [2, 3])
    assert bench.queue.figures().full
    assert not bench.queue.has_room_for([message("e")])


def test_a_purge_takes_them_along_and_counts_them(bench: Bench) -> None:
    asker = new_asker("manager")
    bench.publish(later("a", 50), "b")
    bench.queue.apply(Inspect(asker.request()), bench.now)
    bench.queue.apply(Purge(asker.request()), bench.now)
    answers = [each for each in bench.queue.take_effects()[asker.id] if isinstance(each, Answer)]
    assert [answer.ready for answer in answers] == [1, 2], "not ready, and purged"
    assert (counts(bench), bench.queue.deadline()) == ((0, 0), None)


def test_somebody_who_waits_hears_of_them(bench: Bench) -> None:
    bench.publish(later("a", 50), later("b", 40))
    queue_status = bench.queue.queue_status()
    assert (queue_status.delayed, queue_status.delayed_until_ms) == (2, START_MS + 40)


def test_many_that_are_due_at_once_go_in_parts() -> None:
    """Others run between them: a queue with a million of them holds nobody up."""
    queue = ClassicQueue("q", durable=False, now_ms=START_MS)
    messages = [later(number, 5) for number in range(2 * DUE_MAX + 1)]
    queue.apply(Publish(new_asker("p").publisher(), range(len(messages)), messages, True), START_MS)
    for ready in (DUE_MAX, 2 * DUE_MAX, 2 * DUE_MAX + 1):
        assert queue.deadline() == START_MS + 5
        queue.apply(TICK, START_MS + 5)
        assert queue.ready == ready
    assert queue.deadline() is None


class CountingStore(Store):
    """Says how many messages are in pages."""

    def __init__(self) -> None:
        self.packed = 0

    def pack(self, level: int, messages: object, expiries: object) -> object:
        self.packed += len(messages)  # type: ignore[arg-type]
        return super().pack(level, messages, expiries)  # type: ignore[arg-type]

    def page_in(self, handle: object) -> object:  # type: ignore[override]
        found = super().page_in(handle)
        self.packed -= len(found[0])
        return found


@pytest.mark.parametrize("step", [7919, 1, 0, -1], ids=["at random", "growing", "all at once", "falling"])
def test_memory_holds_some_thousands_of_them_in_whatever_order_they_come(step: int) -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    count = 3 * SOON_MESSAGES_MAX
    times = [number * step % 10_007 + 1 for number in range(count)]
    for start in range(0, count, 64):
        part = range(start, start + 64)
        line.add([(b"h", b"%d" % number) for number in part], times[start : start + 64], None)
        assert line.count - store.packed <= SOON_MESSAGES_MAX
    found = []
    while line.count:
        found += [(each.when_ms, int(each.message[1])) for each in line.take_due(10**9, 100)]
        assert line.count - store.packed <= SOON_MESSAGES_MAX
    assert found == sorted((when, number) for number, when in enumerate(times))


def test_memory_holds_so_many_bytes_of_them_and_one_message() -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    large = bytes(SOON_BYTES_MAX // 3)
    for number in range(20):
        line.add([(b"h", large)], [100 - number], None)
        assert line.count - store.packed <= 4
    line.add([(b"h", bytes(2 * SOON_BYTES_MAX))], [1], None)
    assert line.count - store.packed <= 4
    assert line.size == 20 * len(large) + 2 * SOON_BYTES_MAX
    assert [each.when_ms for each in line.take_due(200, 50)] == [1, *range(81, 101)]
    assert (line.size, line.count, store.packed) == (0, 0, 0)
