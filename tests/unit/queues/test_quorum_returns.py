"""What comes back to a quorum queue: counts, delivery limit, annotations, delayed retries, time-outs."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message.amqp10 import decode_head
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp
from amqp10broker.queues import commands
from amqp10broker.queues.quorum.commands import NodeGone, SessionGone
from amqp10broker.queues.settings import RetryType
from tests.support.queue_bench import Bench, holding, message, only

RETRIES: dict[str, Any] = {"retry_type": RetryType.ALL, "retry_min_ms": 1000}


def counts_of(message: Message) -> tuple[int | None, int | None, int | None, bool | None]:
    header, annotations = decode_head(message[0])
    acquired, failures = annotations.get("x-acquired-count"), annotations.get("x-delivery-count")
    return acquired, failures, header.delivery_count, header.first_acquirer


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "detach_requeues_one_session_quorum_queue",
    "detach_requeues_two_connections_quorum_queue",
)
@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_two_channels_quorum_queue")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "down_noproc_returns_checked_out_in_order_test",
    "down_with_noproc_consumer_returns_unsettled_test",
    "removed_consumer_returns_unsettled_test",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_int_SUITE",
    "cancel_checkout_with_pending_using_remove_reason",
    "cancel_checkout_with_remove",
    "returns_after_down",
)
@pytest.mark.parametrize(
    ("delivery_outcome", "failures"),
    [(commands.DeliveryOutcome.REQUEUE, 0), (commands.DeliveryOutcome.REQUEUE_FAILED, 1)],
)
def test_a_link_that_goes_returns_what_it_held_in_order(
    delivery_outcome: commands.DeliveryOutcome, failures: int, bench: Bench
) -> None:
    bench.publish("a", "b", "c")
    consumer = bench.consumer(3)
    bench.leave(consumer, delivery_outcome)
    messages = bench.delivered(bench.credit(bench.consumer(), 3))
    assert [each[1] for each in messages] == [b"a", b"b", b"c"]
    assert {counts_of(each) for each in messages} == {(1, failures, failures, False)}


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_limit_with_dead_letter")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "subscribe_redelivery_limit",
    "subscribe_redelivery_limit_many",
    "subscribe_redelivery_policy",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "return_checked_out_limit_test", "return_dequeue_delivery_limit_test"
)
def test_the_twenty_first_return_is_above_the_limit_of_twenty(bench: Bench) -> None:
    bench.publish("a")
    consumer = bench.consumer()
    for _ in range(21):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE_FAILED)
    assert bench.get(consumer) == []
    assert bench.queue.ready == bench.queue.unsettled == 0


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "at_most_once_dead_letter_order_delivery_limit_channel_closed",
    "at_most_once_dead_letter_order_delivery_limit_modified_outcome",
)
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "down_checked_out_limit_test")
def test_a_lost_connection_counts_against_the_limit() -> None:
    bench = Bench(delivery_limit=0, dead_letter_exchange="dlx")
    bench.publish("a", "b", "c")
    bench.leave(bench.consumer(3), commands.DeliveryOutcome.REQUEUE_FAILED)
    assert bench.dead() == [("delivery_limit", ["a", "b", "c"])]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_limit_disable")
def test_without_a_limit_a_message_comes_back_for_ever() -> None:
    bench, consumer = holding("a", delivery_limit=None)
    for times in range(1, 40):
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE_FAILED)
        found = bench.delivered(bench.credit(consumer, 1))[0]
        assert counts_of(found) == (times, times, times, False)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delivery_limit_policy_update")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "update_config_delivery_limit_test")
def test_another_limit_acts_at_the_next_return() -> None:
    bench, consumer = holding("a", delivery_limit=5, dead_letter_exchange="dlx")
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.credit(consumer, 1)
    bench.configure(delivery_limit=1, dead_letter_exchange="dlx")
    assert bench.dead() == []
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.dead() == [("delivery_limit", ["a"])]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "modify_test")
def test_annotations_of_modified_are_merged_and_stay() -> None:
    bench, consumer = holding("a")
    bench.settle(
        consumer,
        commands.DeliveryOutcome.REQUEUE,
        annotations=encode({Symbol("x-one"): "1", Symbol("x-two"): "2"}),
    )
    bench.credit(consumer, 1)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE, annotations=encode({Symbol("x-two"): "zwei"}))
    annotations = decode_head(bench.delivered(bench.credit(consumer, 1))[0][0])[1]
    assert (annotations["x-one"], annotations["x-two"], annotations["x-routing-key"]) == ("1", "zwei", "q")


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_dead_letter_headers_exchange")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "discarded_message_with_dead_letter_handler_emits_log_effect_test")
@pytest.mark.rabbitmq("rabbit_fifo_dlx_SUITE", "handler_at_most_once")
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "discard")
def test_a_rejected_message_dies_with_annotations_and_counts() -> None:
    bench, consumer = holding("a", "b", dead_letter_exchange="dlx", dead_letter_routing_key="k")
    bench.settle(
        consumer, commands.DeliveryOutcome.DISCARD_FAILED, annotations=encode({Symbol("x-why"): "bad"})
    )
    letters = bench.dead_letters()[0]
    assert (letters.reason, letters.exchange, letters.routing_key) == ("rejected", "dlx", "k")
    assert [each[1] for each in letters.messages] == [b"a", b"b"]
    assert counts_of(letters.messages[0]) == (1, 1, 1, False)
    assert decode_head(letters.messages[0][0])[1]["x-why"] == "bad"


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "discard_after_cancel_test")
def test_a_cancelled_consumer_may_still_reject() -> None:
    bench, consumer = holding("a", dead_letter_exchange="dlx")
    bench.cancel(consumer)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    assert bench.dead() == [("rejected", ["a"])]


# --- delayed retries ------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "delayed_retry_all",
    "delayed_retry_disabled",
    "delayed_retry_failed",
    "delayed_retry_returned",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "delayed_retry_all_test",
    "delayed_retry_becomes_ready_test",
    "delayed_retry_consumer_down_returned_mode_test",
    "delayed_retry_consumer_down_test",
    "delayed_retry_disabled_test",
    "delayed_retry_failed_only_test",
    "delayed_retry_modify_failed_test",
    "delayed_retry_returned_test",
    "delayed_retry_returned_with_failure_test",
    "delayed_retry_timer_effect_test",
)
@pytest.mark.parametrize(
    ("kind", "delivery_outcome", "waits"),
    [
        (RetryType.DISABLED, commands.DeliveryOutcome.REQUEUE_FAILED, False),
        (RetryType.ALL, commands.DeliveryOutcome.REQUEUE, True),
        (RetryType.ALL, commands.DeliveryOutcome.REQUEUE_FAILED, True),
        (RetryType.FAILED, commands.DeliveryOutcome.REQUEUE, False),
        (RetryType.FAILED, commands.DeliveryOutcome.REQUEUE_FAILED, True),
        (RetryType.RETURNED, commands.DeliveryOutcome.REQUEUE, True),
        (RetryType.RETURNED, commands.DeliveryOutcome.REQUEUE_FAILED, False),
    ],
)
@pytest.mark.parametrize("lost", [False, True], ids=["settled", "consumer lost"])
def test_which_returns_wait(
    lost: bool, kind: RetryType, delivery_outcome: commands.DeliveryOutcome, waits: bool
) -> None:
    bench, consumer = holding("a", retry_type=kind, retry_min_ms=1000)
    (bench.leave if lost else bench.settle)(consumer, delivery_outcome)
    assert (bench.queue.delayed, bench.queue.ready) == ((1, 0) if waits else (0, 1))
    if waits:
        assert bench.queue.deadline() == bench.now + 1000
        bench.wait(999)
        assert bench.queue.ready == 0
        bench.wait(1)
        assert (bench.queue.delayed, bench.queue.ready) == (0, 1)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delayed_retry_backoff")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "delayed_retry_backoff_test")
def test_the_wait_grows_with_failures_up_to_the_longest() -> None:
    bench, consumer = holding("a", **RETRIES, retry_max_ms=2500)
    for wait in (1000, 2000, 2500, 2500):
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE_FAILED)
        assert bench.queue.deadline() == bench.now + wait
        bench.wait(wait)
        assert bench.get(consumer) == ["a"]


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_quorum_queue_delivery_time")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "delayed_retry_explicit_delivery_time")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "delayed_retry_explicit_delivery_time_test",
    "delayed_retry_explicit_overrides_config_test",
)
def test_a_delivery_time_in_annotations_goes_before_the_settings() -> None:
    bench, consumer = holding("a")
    later = encode({Symbol("x-opt-delivery-time"): Timestamp(bench.now + 5000)})
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE, annotations=later)
    assert bench.queue.deadline() == bench.now + 5000
    assert bench.bodies(bench.wait(5000)) == []
    assert bench.get(consumer) == ["a"]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "delayed_retry_explicit_delivery_time_past_test")
def test_a_delivery_time_of_the_past_is_now() -> None:
    bench, consumer = holding("a", **RETRIES)
    past = encode({Symbol("x-opt-delivery-time"): Timestamp(5)})
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE, annotations=past)
    assert bench.get(consumer) == ["a"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delayed_retry_counts_towards_limit")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "delayed_retry_counts_towards_limit_test", "delayed_retry_purge_test"
)
def test_delayed_messages_are_purged_and_counted() -> None:
    bench, consumer = holding("a", **RETRIES, max_length=1, consumer_timeout_ms=None)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.publish("b")
    assert (bench.queue.ready, bench.queue.delayed) == (0, 1)
    told = bench.do(commands.Purge(bench.request))
    assert only(told, commands.Answer)[0].ready == 1
    assert bench.queue.deadline() is None


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "delayed_retry_monotonic_timestamp_test")
def test_the_clock_set_back_delays_and_loses_nothing() -> None:
    """The queue's time stands still until the clock has caught up."""
    bench = Bench(**RETRIES)
    bench.publish("a", "b")
    consumer = bench.consumer(1)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.now -= 600
    assert bench.get(consumer) == ["b"]
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.queue.delayed == 2
    bench.wait(1599)
    assert bench.queue.delayed == 2
    bench.wait(1)
    assert bench.get(consumer) == ["a"]
    bench.settle(consumer, commands.DeliveryOutcome.ACCEPT)
    assert bench.get(consumer) == ["b"]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "delayed_retry_delivery_limit_takes_precedence_test")
def test_the_delivery_limit_goes_before_the_delay() -> None:
    bench, consumer = holding(
        "a", retry_type=RetryType.ALL, retry_min_ms=9, delivery_limit=0, dead_letter_exchange="dlx"
    )
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.dead() == [("delivery_limit", ["a"])]
    assert bench.queue.delayed == 0


# --- who is gone ---------------------------------------------------------------------------------


def test_what_the_consumers_of_a_node_held_comes_back_once_however_long_it_was_away() -> None:
    """It comes back as from a lost connection, and not because of a consumer time-out."""
    bench, consumer = holding("a", "b", consumer_timeout_ms=1000)
    bench.now += 5000
    assert bench.do(NodeGone(0, 0)) == []
    assert bench.held(consumer) == []
    assert [counts[:2] for counts in bench.queue.parts()[0].counts.values()] == [(1, 1), (1, 1)]


def test_the_next_consumer_becomes_active_when_the_session_of_the_active_one_is_gone() -> None:
    bench = Bench(single_active_consumer=True)
    bench.publish("a")
    active = bench.consumer(1)
    other = commands.ReplyTo(commands.PeerId(1, 5, 1), "elsewhere")
    waits = other.consumer()
    bench.do(commands.Subscribe(waits, False))
    bench.do(commands.Credit(waits, 0, 1, False, 0))
    assert (bench.held(active), bench.held(waits)) == ([0], [])
    bench.queue.apply(SessionGone(active.reply_to), bench.now)
    told = bench.queue.take_effects()[other.id]
    assert only(told, commands.ActiveChanged) == [commands.ActiveChanged(waits, True)]
    assert (bench.held(active), bench.held(waits)) == ([], [0])


# --- time-outs ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_timeout")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "consumer_timeout_test")
def test_what_is_held_for_too_long_comes_back_without_counting_as_failed() -> None:
    bench = Bench(consumer_timeout_ms=1000)
    bench.publish("a", "b")
    consumer = bench.consumer(1)
    bench.wait(600)
    bench.credit(consumer, 1)
    told = bench.wait(400)
    timed_out = only(told, commands.TimedOut)[0]
    assert (timed_out.consumer, len(timed_out.keys)) == (consumer, 1)
    assert bench.queue.deadline() == bench.now + 600
    found = bench.delivered(bench.credit(bench.consumer(), 1))[0]
    assert counts_of(found) == (1, 0, 0, False)


def test_who_let_a_delivery_time_out_gets_nothing_until_it_is_heard_of_again() -> None:
    bench = Bench(consumer_timeout_ms=1000)
    bench.publish("a", "b")
    consumer = bench.consumer(1)
    bench.credit(consumer, 0)
    consumer_with_credit = bench.consumer(2)
    bench.settle(consumer_with_credit, commands.DeliveryOutcome.ACCEPT)
    told = bench.wait(1000)
    assert bench.bodies(told, consumer) == []
    assert bench.get(consumer) == []


@pytest.mark.parametrize(("own", "at"), [(None, 1000), (300, 300), (5000, 5000)])
def test_a_consumers_own_time_goes_before_the_queues(own: int | None, at: int) -> None:
    bench = Bench(consumer_timeout_ms=1000)
    bench.publish("a")
    bench.consumer(1, timeout_ms=own)
    assert bench.queue.deadline() == bench.now + at


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "consumer_timeout_cancelled_test")
def test_a_cancelled_consumer_times_out_too_and_is_forgotten() -> None:
    bench, consumer = holding("a", consumer_timeout_ms=1000)
    bench.cancel(consumer)
    bench.wait(1000)
    assert bench.queue.ready == 1
    assert consumer not in bench.queue.parts()[1].by_ref


def test_a_time_out_comes_behind_the_delivery_it_is_about() -> None:
    bench = Bench(consumer_timeout_ms=1000)
    consumer = bench.consumer(1)
    bench.publish("a")
    bench.queue.apply(commands.Publish(bench.publisher, [1], [message("b")], False), bench.now)
    bench.queue.apply(commands.Credit(consumer, 1, 1, False, 1), bench.now)
    told = bench.wait(1000)
    kinds = [type(each) for each in told if isinstance(each, commands.Deliver | commands.TimedOut)]
    assert kinds == [commands.Deliver, commands.TimedOut]
