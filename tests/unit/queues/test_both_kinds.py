"""What holds for classic and quorum queues alike: order, priorities, time, limits, delays, dead letters."""

from __future__ import annotations

import pytest

from amqp10broker.message.amqp10 import header_of
from amqp10broker.queues import commands
from amqp10broker.queues.settings import Overflow
from tests.support.queue_bench import BOTH, START_MS, Bench, confirmed, message, only, rejected

pytestmark = BOTH


@pytest.fixture
def bench(kind: str) -> Bench:
    return Bench(kind)


def deleted_after(bench: Bench, ms: int) -> bool:
    """Return whether the queue is deleted after this time, and not a millisecond before."""
    bench.wait(ms - 1)
    before = bench.queue.deleted
    bench.wait(1)
    return bool(bench.queue.deleted and not before)


DLX = {"dead_letter_exchange": "dlx"}

# --- consumers ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "amqpl_headers", "subscribe_from_each", "validate_messages_on_queue"
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "checkout_enq_settle_test", "checkout_metadata_test", "enq_enq_checkout_test"
)
@pytest.mark.rabbitmq("rabbit_fifo_q_SUITE", "single_priority_behaves_like_queue")
def test_messages_come_in_the_order_in_which_they_were_published(bench: Bench) -> None:
    assert confirmed(bench.publish("a", "b")) == [0, 1]
    bench.publish("c")
    assert bench.get(bench.consumer(), 10) == ["a", "b", "c"]


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "consumer_priority_classic_queue", "consumer_priority_quorum_queue"
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_priorities")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "checkout_priority_test")
def test_the_consumer_of_the_highest_priority_gets_all_it_has_credit_for(bench: Bench) -> None:
    low, high, middle = bench.consumer(5, priority=-1), bench.consumer(2, priority=10), bench.consumer(1)
    bench.publish("a", "b", "c", "d")
    assert [bench.got(each) for each in (high, middle, low)] == [["a", "b"], ["c"], ["d"]]
    bench.credit(high, 1)
    bench.publish("e")
    assert bench.got(high) == ["a", "b", "e"], "credit brings it back"


def test_equal_priorities_take_turns(bench: Bench) -> None:
    one, two = bench.consumer(5, priority=3), bench.consumer(5, priority=3)
    bench.publish("a", "b", "c", "d")
    assert (len(bench.got(one)), len(bench.got(two))) == (2, 2)


# --- single active consumer -----------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_test")
def test_only_the_first_gets_messages(kind: str) -> None:
    bench = Bench(kind, single_active_consumer=True)
    first, second = bench.consumer(1), bench.consumer(5)
    bench.publish("a", "b")
    assert (bench.got(first), bench.got(second), bench.queue.ready) == (["a"], [], 1)


def test_listings_have_the_tag_of_the_active_one(kind: str) -> None:
    """I2: a consumer that quiesces keeps the tag; without a single active consumer there is none."""
    bench = Bench(kind, single_active_consumer=True)
    assert bench.queue.figures().single_active_consumer_tag is None
    first, _ = (
        bench.consumer(1, name=bench.reply_to.name_of(what)) for what in ("consumer 'it's'", "link 'second'")
    )
    assert bench.queue.figures().single_active_consumer_tag == "it's"
    bench.leave(first, commands.DeliveryOutcome.REQUEUE)
    assert bench.queue.figures().single_active_consumer_tag == "second"
    many = Bench(kind)
    many.consumer(1, name="link 'x'")
    assert many.queue.figures().single_active_consumer_tag is None


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "single_active_consumer_drain_classic_queue",
    "single_active_consumer_drain_quorum_queue",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "credit_and_drain_single_active_consumer_test",
    "credit_inactive_consumer_drain_persisted_test",
)
def test_nothing_is_available_to_one_that_waits_and_a_drain_is_answered_at_once(kind: str) -> None:
    """Seed 003: available is 0 for all inactive (waiting) consumers."""
    bench = Bench(kind, single_active_consumer=True)
    first, second, third = (bench.consumer() for _ in range(3))
    bench.publish("a", "b")

    def available(ref: commands.ConsumerRef, credit: int) -> int:
        return only(bench.credit(ref, credit), commands.CreditReply)[0].available

    told = bench.credit(third, 5, drain=True)
    assert [type(each) for each in told] == [commands.CreditReply]
    assert only(told, commands.CreditReply)[0].credit == 0
    assert (available(first, 1), available(second, 9)) == (1, 0)
    bench.leave(first, commands.DeliveryOutcome.REQUEUE)
    assert available(second, 0) == 0, "it has had both"
    bench.publish("c")
    assert available(second, 0) == 1


# --- times to live --------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "message_ttl")
@pytest.mark.parametrize(
    ("own", "queue", "ttl"), [(50, None, 50), (None, 60, 60), (50, 60, 50), (70, 60, 60)]
)
def test_the_smaller_time_to_live_counts(kind: str, own: int | None, queue: int | None, ttl: int) -> None:
    bench = Bench(kind, message_ttl_ms=queue, **DLX)
    bench.publish("a", "b", ttl_ms=own)
    assert bench.queue.deadline() == bench.now + ttl
    bench.wait(ttl - 1)
    assert (bench.queue.ready, bench.dead()) == (2, [])
    bench.wait(1)
    assert (bench.queue.ready, bench.dead()) == (0, [("expired", ["a", "b"])])
    assert bench.queue.deadline() is None


@pytest.mark.rabbitmq("quorum_queue_SUITE", "per_message_ttl", "per_message_ttl_mixed_expiry")
def test_a_message_expires_at_the_head_only(kind: str) -> None:
    bench = Bench(kind, **DLX)
    bench.publish("a", ttl_ms=100)
    bench.publish("b", ttl_ms=10)
    bench.publish("never")
    bench.wait(50)
    assert bench.queue.ready == 3
    bench.wait(50)
    assert (bench.dead(), bench.queue.ready) == ([("expired", ["a", "b"])], 1)


@pytest.mark.rabbitmq("amqp_client_SUITE", "message_ttl")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_expired")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "enq_expire_deq_enq_enq_deq_deq_test",
    "enq_expire_deq_test",
    "enq_expire_enq_deq_test",
)
def test_an_expired_message_is_never_delivered(kind: str) -> None:
    bench = Bench(kind, **DLX)
    for body, ttl_ms in (("a", 10), ("b", None), ("c", 10), ("d", None)):
        bench.publish(body, ttl_ms=ttl_ms)
    bench.now += 20
    assert bench.get(bench.consumer(), 3) == ["b", "d"]
    assert [body for _, bodies in bench.dead() for body in bodies] == ["a", "c"]


def test_a_time_to_live_of_0_is_for_who_takes_it_at_once(kind: str) -> None:
    bench = Bench(kind, **DLX)
    bench.publish("a", ttl_ms=0)
    bench.wait(0)
    assert (bench.queue.ready, bench.dead()) == (0, [("expired", ["a"])])
    consumer = bench.consumer(1)
    assert bench.bodies(bench.publish("b", "c", ttl_ms=0), consumer) == ["b"]
    bench.wait(0)
    assert bench.dead() == [("expired", ["c"])]


@pytest.mark.parametrize("held", [60, 150])
def test_a_return_keeps_its_time_and_what_a_consumer_holds_does_not_expire(kind: str, held: int) -> None:
    bench = Bench(kind, **DLX)
    bench.publish("a", ttl_ms=100)
    consumer = bench.consumer(1)
    bench.wait(held)
    assert bench.dead() == []
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    if held < 100:
        bench.wait(99 - held)
        assert bench.queue.ready == 1
    bench.wait(1)
    assert bench.dead() == [("expired", ["a"])]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "message_ttl_policy")
@pytest.mark.rabbitmq(
    "policy_SUITE", "operator_retroactive_policy_publish_ttl", "operator_retroactive_policy_ttl"
)
def test_another_time_of_the_queue_is_for_what_is_published_later(kind: str) -> None:
    bench = Bench(kind, message_ttl_ms=1000)
    bench.publish("old")
    bench.configure(message_ttl_ms=10)
    bench.publish("new")
    bench.wait(500)
    assert bench.queue.ready == 2, "the old one shields the new one"
    bench.wait(500)
    assert bench.queue.ready == 0


# --- the queue's own life -------------------------------------------------------------------------


def test_a_queue_goes_when_nobody_uses_it_and_publishing_is_no_use(kind: str) -> None:
    bench = Bench(kind, expires_ms=100, **DLX)
    bench.wait(60)
    bench.publish("a")
    assert deleted_after(bench, 40)
    assert bench.dead() == [], "messages of a deleted queue are not dead letters"


def test_a_consumer_is_use(kind: str) -> None:
    bench = Bench(kind, expires_ms=100)
    consumer = bench.consumer()
    bench.wait(1000)
    assert not bench.queue.deleted
    bench.leave(consumer, commands.DeliveryOutcome.REQUEUE)
    assert deleted_after(bench, 100)


def test_each_fetch_of_one_channel_is_use(kind: str) -> None:
    bench = Bench(kind, expires_ms=1000)
    bench.publish("a")
    fetcher = bench.consumer(counted=False)
    bench.wait(900)
    bench.credit(fetcher, 1, drain=True)
    bench.wait(900)
    assert not bench.queue.deleted
    bench.wait(100)
    assert bench.queue.deleted


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE",
    "max_length_bytes_default",
    "max_length_bytes_drop_head",
    "max_length_default",
    "max_length_drop_head",
)
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "at_most_once_dead_letter_order_maxlen", "queue_length_limit_drop_head"
)
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_max_length_drop_head")
def test_a_full_queue_drops_from_its_head(kind: str) -> None:
    bench = Bench(kind, max_length=2, **DLX)
    assert confirmed(bench.publish("a", "b", "c", "d")) == [0, 1, 2, 3]
    assert bench.dead() == [("maxlen", ["a", "b"])]
    assert bench.get(bench.consumer(), 9) == ["c", "d"]


def test_bytes_of_bodies_are_limited_likewise(kind: str) -> None:
    bench = Bench(kind, max_length_bytes=5, **DLX)
    bench.publish("aaa", "bb", "c")
    assert bench.dead() == [("maxlen", ["aaa"])]


def test_what_consumers_hold_does_not_count(kind: str) -> None:
    bench = Bench(kind, max_length=1)
    consumer = bench.consumer(2)
    bench.publish("a", "b", "c")
    assert (bench.got(consumer), bench.queue.ready, bench.queue.unsettled) == (["a", "b"], 1, 2)


def test_with_a_length_of_0_a_message_passes_only_to_who_takes_it_at_once(kind: str) -> None:
    bench = Bench(kind, max_length=0, **DLX)
    bench.publish("a")
    assert bench.dead() == [("maxlen", ["a"])]
    consumer = bench.consumer(1)
    assert bench.bodies(bench.publish("b", "c"), consumer) == ["b"]
    assert bench.dead() == [("maxlen", ["c"])]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "update_config_max_length_test")
def test_a_lower_limit_acts_at_once_on_what_is_there(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    bench.configure(max_length=1, **DLX)
    assert bench.dead() == [("maxlen", ["a", "b"])]
    bench.configure(max_length_bytes=0, **DLX)
    assert bench.dead() == [("maxlen", ["c"])]


@pytest.mark.rabbitmq("priority_queue_SUITE", "reject")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "queue_length_limit_reject_publish")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "reject_publish_applied_after_limit_test")
def test_a_queue_that_rejects_takes_exactly_what_it_may_hold(kind: str) -> None:
    """This is queue_length_limit_reject_publish; RabbitMQ's quorum queues take at least one message more."""
    bench = Bench(kind, max_length=2, overflow=Overflow.REJECT_PUBLISH, **DLX)
    told = bench.publish("a", "b", "c", "d")
    assert (confirmed(told), rejected(told)) == ([0, 1], [2, 3])
    assert (bench.queue.ready, bench.dead()) == (2, [])


def test_consumers_make_room_within_one_batch(kind: str) -> None:
    bench = Bench(kind, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    consumer = bench.consumer(3)
    told = bench.publish("a", "b", "c", "d", "e")
    assert (bench.bodies(told, consumer), rejected(told)) == (["a", "b", "c"], [4])


# --- dead letters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery_outcome", "failed"),
    [(commands.DeliveryOutcome.DISCARD, 0), (commands.DeliveryOutcome.DISCARD_FAILED, 1)],
)
def test_a_rejected_message_is_dead_lettered(
    kind: str, delivery_outcome: commands.DeliveryOutcome, failed: int
) -> None:
    bench = Bench(kind, dead_letter_routing_key="k", **DLX)
    bench.publish("a", "b", "c")
    consumer = bench.consumer(3)
    first, _, last = bench.held(consumer)
    bench.settle(consumer, delivery_outcome, [first, last])
    (letters,) = bench.dead_letters()
    assert (letters.reason, letters.exchange, letters.routing_key) == ("rejected", "dlx", "k")
    assert [body for _, body in letters.messages] == [b"a", b"c"]
    assert header_of(letters.messages[0][0]).delivery_count == failed
    assert bench.queue.unsettled == 1


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "discarded_message_without_dead_letter_handler_is_removed_test")
@pytest.mark.rabbitmq("rabbit_fifo_dlx_SUITE", "handler_undefined")
def test_without_a_dead_letter_exchange_a_rejected_message_is_gone(bench: Bench) -> None:
    bench.publish("a")
    bench.settle(bench.consumer(1), commands.DeliveryOutcome.DISCARD)
    assert bench.dead() == []
    assert bench.queue.ready == bench.queue.unsettled == 0


# --- delayed messages -----------------------------------------------------------------------------


def test_a_message_is_delivered_at_its_time_and_not_before(bench: Bench) -> None:
    ref = bench.consumer(5)
    told = bench.publish_all([message("b", delay_ms=100), message("a", delay_ms=50), message("now")])
    assert confirmed(told) == [0, 1, 2], "it is in the queue"
    assert (bench.bodies(told), bench.counts) == (["now"], (0, 2))
    assert bench.bodies(bench.wait(49)) == []
    assert bench.queue.deadline() == bench.now + 1
    queue_status = bench.queue.queue_status()
    assert (queue_status.delayed, queue_status.delayed_until_ms) == (2, bench.now + 1)
    assert bench.bodies(bench.wait(1)) == ["a"]
    assert bench.bodies(bench.wait(50), ref) == ["b"]
    assert (bench.counts, bench.queue.queue_status().delayed_until_ms) == ((0, 0), None)


def test_a_time_that_has_passed_delays_nothing(bench: Bench) -> None:
    bench.publish_all([message(str(ms), due_ms=START_MS + ms) for ms in (0, -1000, -START_MS - 1)])
    assert bench.counts == (3, 0)


def test_of_what_is_due_the_earlier_time_is_first_and_then_the_earlier_publish(bench: Bench) -> None:
    bench.publish_all(
        [message(body, delay_ms=ms) for body, ms in (("c", 20), ("a", 10), ("b", 10), ("d", 20))]
    )
    bench.now += 100
    bench.wait(0)
    assert bench.get(bench.consumer(), 9) == ["a", "b", "c", "d"]


def test_a_message_that_expires_before_its_time_is_given_up_then(kind: str) -> None:
    """The message's own time to live, or the queue's, counts from its arrival."""
    bench = Bench(kind, message_ttl_ms=1_000, **DLX)
    bench.publish_all(
        [
            message("a", delay_ms=100, ttl_ms=60),
            message("b", delay_ms=100, ttl_ms=101),
            message("c", delay_ms=5_000),
        ]
    )
    bench.wait(59)
    assert (bench.dead(), bench.counts) == ([], (0, 3))
    bench.wait(1)
    assert (bench.dead(), bench.counts) == ([("expired", ["a"])], (0, 2))
    bench.wait(40)
    assert bench.counts == (1, 1)
    bench.wait(1)
    assert (bench.dead(), bench.counts) == ([("expired", ["b"])], (0, 1))
    bench.wait(899)
    assert (bench.dead(), bench.counts) == ([("expired", ["c"])], (0, 0))
    assert bench.counters["expired"] == 3


def test_drop_head_drops_what_is_ready_first_and_then_the_first_due(kind: str) -> None:
    bench = Bench(kind, max_length=3, **DLX)
    bench.publish_all([message("x", delay_ms=90), message("y", delay_ms=50), message("a"), message("b")])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["a"])], (1, 2))
    bench.publish_all([message("z", delay_ms=70)])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["b"])], (0, 3))
    bench.publish_all([message("w", delay_ms=80)])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["y"])], (0, 3))
    bench.configure(max_length_bytes=2, **DLX)
    assert (bench.dead(), bench.counts) == ([("maxlen", ["z"])], (0, 2))
    bench.wait(100)
    assert bench.get(bench.consumer(), 9) == ["w", "x"]


def test_reject_publish_counts_them_and_a_waiting_consumer_is_no_room_for_them(kind: str) -> None:
    bench = Bench(kind, max_length=2, overflow=Overflow.REJECT_PUBLISH)
    bench.consumer(10)
    told = bench.publish_all(
        [message("now"), *(message(str(n), delay_ms=10) for n in range(4)), message("no")]
    )
    assert (confirmed(told), rejected(told)) == ([0, 1, 2], [3, 4, 5])
    assert (bench.bodies(told), bench.counts, bench.queue.figures().full) == (["now"], (0, 2), True)
    assert not bench.queue.has_room_for([message("a", delay_ms=10)])
    assert len(bench.bodies(bench.wait(10))) == 2
    assert confirmed(bench.publish_all([message("a", delay_ms=10)])) == [0]


def test_purge_takes_them_along_and_a_queue_with_nothing_else_is_not_empty(bench: Bench) -> None:
    bench.publish_all([message("a", delay_ms=50), message("b")])
    (counted,) = only(bench.do(commands.Inspect(bench.request)), commands.Answer)
    assert counted.ready == 1
    (answer,) = only(bench.do(commands.Purge(bench.request)), commands.Answer)
    assert (answer.ready, bench.counts, bench.queue.deadline()) == (2, (0, 0), None)
    bench.publish_all([message("c", delay_ms=50)])
    (answer,) = only(bench.do(commands.Delete(bench.request, if_empty=True)), commands.Answer)
    assert (answer.refused, bench.queue.deleted) == (commands.Refusal.NOT_EMPTY, False)
    (answer,) = only(bench.do(commands.Delete(bench.request)), commands.Answer)
    assert (answer.ready, bench.queue.deleted) == (1, True)


# --- counters -------------------------------------------------------------------------------------


def test_a_queue_counts_what_it_takes_and_drops(kind: str) -> None:
    bench = Bench(kind, max_length=2)
    bench.publish("a")
    bench.publish("b", "c", "d")
    assert bench.counters == {"published": 4, "dropped": 2}


def test_a_queue_counts_what_expires_and_what_consumers_discard(bench: Bench) -> None:
    """This holds with and without a dead-letter exchange. Returns and accepts are counted separately."""
    bench.publish("a", "b", ttl_ms=10)
    bench.wait(20)
    bench.publish("c", ttl_ms=1)
    bench.publish("d", "e", "f", "g")
    bench.now += 300
    consumer = bench.consumer(4)
    outcomes = (
        *(commands.DeliveryOutcome.DISCARD, commands.DeliveryOutcome.DISCARD_FAILED),
        *(commands.DeliveryOutcome.ACCEPT, commands.DeliveryOutcome.REQUEUE),
    )
    for key, outcome in zip(bench.held(consumer), outcomes, strict=True):
        bench.settle(consumer, outcome, [key])
    assert bench.counters == {"published": 7, "expired": 3, "discarded": 2}
