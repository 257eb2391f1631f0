"""Which message and which consumer of a quorum queue is next."""

from __future__ import annotations

import pytest

from amqp10broker.queues import commands
from tests.support.queue_bench import Bench, holding, message, only


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "priority_queue_fifo", note="in each level")
@pytest.mark.rabbitmq("rabbit_fifo_q_SUITE", "hi_is_prioritised")
def test_two_high_ones_go_before_each_normal_one(bench: Bench) -> None:
    """High ones go first, then 2:1 as long as both wait."""
    bench.publish("n1", "n2", "n3")
    bench.publish("h1", "h2", "h3", "h4", "h5", priority=5)
    assert bench.get(bench.consumer(), 10) == ["h1", "h2", "n1", "h3", "h4", "n2", "h5", "n3"]


@pytest.mark.rabbitmq("rabbit_fifo_q_SUITE", "hi_is_prioritised")
def test_high_ones_that_were_published_before_go_first_even_in_normals_turn(bench: Bench) -> None:
    bench.publish("h1", "h2", "h3", "h4", priority=5)
    bench.publish("n1", "n2")
    assert bench.get(bench.consumer(), 10) == ["h1", "h2", "h3", "h4", "n1", "n2"]


@pytest.mark.parametrize(("priority", "first"), [(None, "a"), (0, "a"), (4, "a"), (5, "b"), (255, "b")])
def test_a_priority_above_4_is_high(priority: int | None, first: str, bench: Bench) -> None:
    bench.publish("a")
    bench.publish("b", priority=priority)
    assert bench.get(bench.consumer()) == [first]


@pytest.mark.rabbitmq("rabbit_fifo_pq_SUITE", "basics")
@pytest.mark.rabbitmq("rabbit_fifo_q_SUITE", "basics")
def test_one_batch_with_both_priorities_is_lined_up_by_them(bench: Bench) -> None:
    bench.publish_all([message("n"), message("h", priority=5), message("m")])
    assert bench.get(bench.consumer(), 3) == ["h", "n", "m"]


def test_a_high_message_that_is_older_than_a_return_to_the_tail_goes_before_it_in_its_turn() -> None:
    bench, consumer = holding("n", delivery_limit=None)
    bench.publish("h1", "h2", "h3", priority=9)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.publish("h4", priority=9)
    # Two turns of high, then normal's, in which h3 is older than the return, and h4 is not.
    assert bench.get(consumer, 5) == ["h1", "h2", "h3", "n", "h4"]


@pytest.mark.parametrize("overflow", ["max_length", "purge", "expire"])
def test_returns_to_the_tail_may_be_dropped(overflow: str) -> None:
    """Whichever limit drops them, the queue keeps no trace of them."""
    bench = Bench(delivery_limit=None, message_ttl_ms=1000, dead_letter_exchange="dlx")
    bench.publish("a", "b", "c")
    consumer = bench.consumer(2)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.publish("d")
    if overflow == "max_length":
        bench.configure(delivery_limit=None, max_length=1, dead_letter_exchange="dlx")
        assert bench.dead() == [("maxlen", ["c", "a", "b"])]
        left = ["d"]
    elif overflow == "purge":
        bench.do(commands.Purge(bench.request))
        left = []
    else:
        bench.wait(1001)
        left = []
    assert not list(bench.queue.messages.ready.behind.items())
    assert bench.get(consumer, 9) == left


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "sync_get_settled_quorum_queue",
    "sync_get_unsettled_2_quorum_queue",
    "sync_get_unsettled_quorum_queue",
)
@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "async_notify_settled_quorum_queue",
    "async_notify_unsettled_quorum_queue",
    "receive_many_made_available_over_time_quorum_queue",
    "receive_many_auto_flow_quorum_queue",
)
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "credit_enq_enq_checkout_settled_credit_test")
def test_credit_counts_deliveries_and_settlement_gives_none_back(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    consumer = bench.consumer()
    assert bench.get(consumer) == ["a"]
    assert bench.bodies(bench.settle(consumer, commands.DeliveryOutcome.ACCEPT)) == []
    assert bench.get(consumer) == ["b"]


@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "credit_api_v2")
def test_the_reply_to_credit_comes_behind_the_deliveries_it_caused(bench: Bench) -> None:
    bench.publish("a", "b")
    consumer = bench.consumer()
    told = bench.credit(consumer, 1)
    assert [type(each) for each in told] == [commands.Deliver, commands.CreditReply]
    reply = only(told, commands.CreditReply)[0]
    assert (reply.delivery_count, reply.credit, reply.available, reply.drain) == (1, 0, 1, False)


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "credit_and_drain_test", "credit_with_drained_test")
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "credit_api_v2")
def test_a_drain_forfeits_what_cannot_be_used_at_once(bench: Bench) -> None:
    bench.publish("a")
    consumer = bench.consumer()
    told = bench.credit(consumer, 5, drain=True)
    assert bench.bodies(told) == ["a"]
    reply = only(told, commands.CreditReply)[0]
    assert (reply.delivery_count, reply.credit, reply.drain) == (5, 0, True)
    assert bench.bodies(bench.publish("b")) == []


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "cancel_and_consume_with_same_tag",
    "cancel_consumer_gh_12424",
    "cancel_consumer_gh_3729",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "cancelled_checkout_empty_queue_test", "cancelled_checkout_out_test"
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_int_SUITE", "cancel_checkout", "cancel_checkout_with_pending_using_cancel_reason"
)
def test_a_cancelled_consumer_gets_no_more_and_may_settle_what_it_holds(bench: Bench) -> None:
    bench.publish("a")
    consumer = bench.consumer(5)
    bench.cancel(consumer)
    assert bench.bodies(bench.publish("b")) == []
    assert bench.queue.consumers == 0
    assert bench.queue.unsettled == 1
    bench.settle(consumer, commands.DeliveryOutcome.ACCEPT)
    assert bench.queue.unsettled == 0
    assert bench.queue.ready == 1
    bench.do(commands.Credit(consumer, 1, 5, False, 1))
    assert bench.queue.ready == 1, "credit of a cancelled consumer is worth nothing"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_metrics", "queue_declare_passive_consumer_count")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "query_consumers_test", "query_consumers_when_single_active_consumer_is_on_test"
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "checkout_get_empty_test", "enq_enq_deq_deq_settle_test", "enq_enq_deq_test"
)
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "dequeue")
def test_a_fetch_of_one_message_is_no_consumer_in_counts(bench: Bench) -> None:
    bench.publish("a")
    fetcher = bench.consumer(counted=False)
    assert bench.get(fetcher) == ["a"]
    assert only(bench.do(commands.Inspect(bench.request)), commands.Answer)[0].consumers == 0
    bench.consumer()
    assert only(bench.do(commands.Inspect(bench.request)), commands.Answer)[0].consumers == 1


def test_an_exclusive_consumer_is_one_like_any_other(bench: Bench) -> None:
    """The flag is ignored; single active consumers are for that."""
    first, second = bench.consumer(1, exclusive=True), bench.consumer(1, exclusive=True)
    told = bench.publish("a", "b")
    assert bench.bodies(told, first) == ["a"]
    assert bench.bodies(told, second) == ["b"]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "enq_enq_checkout_get_settled_test")
def test_settled_deliveries_are_gone_when_they_have_arrived(bench: Bench) -> None:
    bench.publish("a", "b")
    consumer = bench.consumer(1, settled=True)
    assert bench.queue.unsettled == 0
    bench.credit(consumer, 1)
    bench.leave(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.queue.ready == 0


@pytest.fixture
def single() -> Bench:
    return Bench(single_active_consumer=True, consumer_timeout_ms=1000)


def active(told: list[object]) -> list[tuple[commands.ConsumerRef, bool]]:
    return [(each.consumer, each.active) for each in only(told, commands.ActiveChanged)]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_test")
def test_the_first_consumer_is_active_and_each_hears_what_it_is(single: Bench) -> None:
    first, second = single.consumer(), single.consumer()
    assert active(single.told) == [(first, True), (second, False)]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_cancel_consumer_when_channel_is_down_test",
    "single_active_consumer_revive_2_test",
    "single_active_consumer_revive_test",
)
def test_the_next_one_is_activated_when_the_active_one_goes(single: Bench) -> None:
    first, second = single.consumer(1), single.consumer(1)
    single.publish("a")
    told = single.leave(first, commands.DeliveryOutcome.REQUEUE)
    assert active(told) == [(second, True)]
    assert single.bodies(told, second) == ["a"]


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "fallback_to_another_consumer_when_first_one_is_cancelled_manual_acks"
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_cancelled_with_unacked_test", "single_active_settle_after_cancel_test"
)
def test_a_cancelled_one_keeps_what_it_holds_and_the_next_is_active_at_once(single: Bench) -> None:
    first, second = single.consumer(1), single.consumer(1)
    single.publish("a", "b")
    told = single.cancel(first)
    assert active(told) == [(second, True)]
    assert single.bodies(told, second) == ["b"]
    single.settle(first, commands.DeliveryOutcome.ACCEPT)
    assert single.queue.unsettled == 1


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_activation_before_delivery_test")
def test_the_activation_is_told_before_the_first_delivery(single: Bench) -> None:
    first = single.consumer()
    single.consumer(1)
    single.publish("a")
    told = single.leave(first, commands.DeliveryOutcome.REQUEUE)
    assert [type(each) for each in told] == [commands.ActiveChanged, commands.Deliver]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "single_active_consumer_priority")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_priority_cancel_active_test")
def test_the_highest_priority_is_next(single: Bench) -> None:
    first = single.consumer(priority=3)
    single.consumer(9)
    third = single.consumer(priority=1)
    assert active(single.leave(first, commands.DeliveryOutcome.REQUEUE)) == [(third, True)]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_credited_favour_with_credit_test",
    "single_active_with_credited_test",
)
def test_of_equal_priorities_more_credit_is_next_and_then_the_oldest(single: Bench) -> None:
    first = single.consumer(priority=3)
    second, third, fourth = single.consumer(1), single.consumer(2), single.consumer(2)
    assert active(single.leave(first, commands.DeliveryOutcome.REQUEUE)) == [(third, True)]
    assert active(single.leave(third, commands.DeliveryOutcome.REQUEUE)) == [(fourth, True)]
    assert active(single.leave(fourth, commands.DeliveryOutcome.REQUEUE)) == [(second, True)]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "single_active_consumer_priority_take_over")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_consumer_priority_test", "single_active_consumer_update_priority_test"
)
def test_a_higher_priority_takes_over_at_once_from_one_that_holds_nothing(single: Bench) -> None:
    first = single.consumer(1)
    single.told.clear()
    second = single.consumer(1, priority=1)
    assert active(single.told) == [(first, False), (second, True)]
    assert single.bodies(single.publish("a"), second) == ["a"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_consumer_quiescing_receives_no_further_messages_test"
)
def test_a_quiescing_one_gets_nothing_and_hands_over_when_it_has_settled(single: Bench) -> None:
    first = single.consumer(5)
    single.publish("a", "b")
    single.told.clear()
    second = single.consumer(5, priority=1)
    assert active(single.told) == [(first, False), (second, False)]
    assert single.bodies(single.publish("c")) == []
    one, two = single.held(first)
    assert active(single.settle(first, commands.DeliveryOutcome.ACCEPT, [one])) == []
    told = single.settle(first, commands.DeliveryOutcome.ACCEPT, [two])
    assert active(told) == [(second, True)]
    assert single.bodies(told, second) == ["c"]


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "single_active_consumer_priority_take_over_requeue",
    "single_active_consumer_priority_take_over_return",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_higher_waiting_requeue_test",
    "single_active_consumer_higher_waiting_return_test",
)
@pytest.mark.parametrize(
    "delivery_outcome", [commands.DeliveryOutcome.REQUEUE, commands.DeliveryOutcome.REQUEUE_FAILED]
)
def test_what_a_quiescing_one_returns_goes_first_to_its_successor(
    single: Bench, delivery_outcome: commands.DeliveryOutcome
) -> None:
    first = single.consumer(1)
    single.publish("a", "b")
    second = single.consumer(5, priority=1)
    told = single.settle(first, delivery_outcome)
    assert single.bodies(told, second) == ["a", "b"]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_quiescing_resumes_after_cancel_test")
def test_a_quiescing_one_goes_on_when_the_other_is_gone(single: Bench) -> None:
    first = single.consumer(5)
    single.publish("a")
    second = single.consumer(5, priority=1)
    single.publish("b")
    told = single.cancel(second)
    assert active(told) == [(first, True)]
    assert single.bodies(told, first) == ["b"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_quiescing_cancelled_test",
    "single_active_consumer_quiescing_disconnected_test",
)
@pytest.mark.parametrize("ends", ["cancel", "leave"])
def test_a_quiescing_one_that_ends_makes_way(single: Bench, ends: str) -> None:
    first = single.consumer(5)
    single.publish("a")
    second = single.consumer(5, priority=1)
    told = (
        single.cancel(first)
        if ends == "cancel"
        else single.leave(first, commands.DeliveryOutcome.REQUEUE_FAILED)
    )
    assert active(told) == [(second, True)]
    assert single.bodies(told, second) == ([] if ends == "cancel" else ["a"])


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "sac_consumer_timeout_3_test", "sac_consumer_timeout_test")
def test_a_time_out_activates_the_next_and_who_is_heard_of_again_waits(single: Bench) -> None:
    first, second = single.consumer(1), single.consumer(1)
    single.publish("a")
    told = single.wait(1000)
    assert active(told) == [(first, False), (second, True)]
    assert single.bodies(told, second) == ["a"]
    assert active(single.credit(first, 5)) == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "sac_consumer_timeout_2_test")
def test_the_only_one_is_active_again_when_it_is_heard_of(single: Bench) -> None:
    first = single.consumer(1)
    single.publish("a")
    assert active(single.wait(1000)) == [(first, False)]
    told = single.credit(first, 1)
    assert active(told) == [(first, True)]
    assert single.bodies(told, first) == ["a"]


def test_what_it_was_given_before_is_told_before_it_stops_being_active(single: Bench) -> None:
    first = single.consumer(1)
    single.queue.apply(commands.Publish(single.publisher, [0], [message("a")], False), single.now)
    single.told.clear()
    single.consumer(priority=1)
    kinds = [
        type(each) for each in single.told if isinstance(each, commands.Deliver | commands.ActiveChanged)
    ]
    assert kinds == [commands.Deliver, commands.ActiveChanged, commands.ActiveChanged]
    assert single.held(first)


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_basic_get_test")
def test_a_fetch_gets_nothing_beside_a_single_active_consumer(single: Bench) -> None:
    single.publish("a")
    fetcher = single.consumer(counted=False)
    assert single.bodies(single.credit(fetcher, 1, drain=True)) == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_competing_strategy_test")
def test_without_the_setting_all_are_served_and_nobody_hears_of_activity(bench: Bench) -> None:
    bench.consumer(1)
    bench.consumer(1)
    assert len(bench.bodies(bench.publish("a", "b"))) == 2
    assert active(bench.told) == []
