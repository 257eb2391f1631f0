"""A quorum queue with a single active consumer: who it is, and how it hands over."""

from __future__ import annotations

import pytest

from amqp10broker.queues.commands import (
    ActiveChanged,
    ConsumerRef,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    Publish,
)
from tests.support.quorum_bench import Bench, message, only


@pytest.fixture
def bench() -> Bench:
    return Bench(single_active_consumer=True, consumer_timeout_ms=1000)


def active(told: list[object]) -> list[tuple[ConsumerRef, bool]]:
    return [(each.consumer, each.active) for each in only(told, ActiveChanged)]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_test")
def test_the_first_consumer_is_active_and_each_hears_what_it_is(bench: Bench) -> None:
    first, second = bench.consumer(), bench.consumer()
    assert active(bench.told) == [(first, True), (second, False)]


def test_listings_have_the_tag_of_the_active_one(bench: Bench) -> None:
    """I2: of the one that quiesces, too; without a single active consumer there is none."""
    assert bench.queue.figures().single_active_consumer_tag is None
    names = (bench.reply_to.name_of(what) for what in ("consumer 'it's'", "link 'second'"))
    first = bench.consumer(1, name=next(names))
    bench.consumer(1, name=next(names))
    assert bench.queue.figures().single_active_consumer_tag == "it's"
    bench.leave(first, DeliveryOutcome.REQUEUE)
    assert bench.queue.figures().single_active_consumer_tag == "second"
    many = Bench()
    many.consumer(1, name="link 'x'")
    assert many.queue.figures().single_active_consumer_tag is None


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_test")
def test_only_the_active_one_gets_messages(bench: Bench) -> None:
    first, second = bench.consumer(1), bench.consumer(5)
    told = bench.publish("a", "b")
    assert bench.bodies(told, first) == ["a"]
    assert bench.bodies(told, second) == []


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
def test_an_inactive_consumer_that_drains_is_answered_at_once(bench: Bench) -> None:
    bench.consumer()
    second = bench.consumer()
    bench.publish("a")
    told = bench.credit(second, 5, drain=True)
    assert [type(each) for each in told] == [CreditReply]
    assert only(told, CreditReply)[0].credit == 0


def test_nothing_is_available_to_one_that_waits(bench: Bench) -> None:
    """Seed 003: available is 0 for all inactive (waiting) consumers."""
    first, second = bench.consumer(), bench.consumer()
    bench.publish("a", "b")

    def available(ref: ConsumerRef, credit: int) -> int:
        return only(bench.credit(ref, credit), CreditReply)[0].available

    assert (available(first, 1), available(second, 9)) == (1, 0)
    bench.leave(first, DeliveryOutcome.REQUEUE)
    assert available(second, 0) == 0, "it has had both"
    bench.publish("c")
    assert available(second, 0) == 1


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_cancel_consumer_when_channel_is_down_test",
    "single_active_consumer_revive_2_test",
    "single_active_consumer_revive_test",
)
def test_the_next_one_is_activated_when_the_active_one_goes(bench: Bench) -> None:
    first, second = bench.consumer(1), bench.consumer(1)
    bench.publish("a")
    told = bench.leave(first, DeliveryOutcome.REQUEUE)
    assert active(told) == [(second, True)]
    assert bench.bodies(told, second) == ["a"]


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "fallback_to_another_consumer_when_first_one_is_cancelled_manual_acks"
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_cancelled_with_unacked_test", "single_active_settle_after_cancel_test"
)
def test_a_cancelled_one_keeps_what_it_holds_and_the_next_is_active_at_once(bench: Bench) -> None:
    first, second = bench.consumer(1), bench.consumer(1)
    bench.publish("a", "b")
    told = bench.cancel(first)
    assert active(told) == [(second, True)]
    assert bench.bodies(told, second) == ["b"]
    bench.settle(first, DeliveryOutcome.ACCEPT)
    assert bench.queue.unsettled == 1


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_activation_before_delivery_test")
def test_the_activation_is_told_before_the_first_delivery(bench: Bench) -> None:
    first = bench.consumer()
    bench.consumer(1)
    bench.publish("a")
    told = bench.leave(first, DeliveryOutcome.REQUEUE)
    assert [type(each) for each in told] == [ActiveChanged, Deliver]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "single_active_consumer_priority")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_priority_cancel_active_test")
def test_the_highest_priority_is_next(bench: Bench) -> None:
    first = bench.consumer(priority=3)
    bench.consumer(9)
    third = bench.consumer(priority=1)
    assert active(bench.leave(first, DeliveryOutcome.REQUEUE)) == [(third, True)]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_credited_favour_with_credit_test",
    "single_active_with_credited_test",
)
def test_of_equal_priorities_more_credit_is_next_and_then_the_oldest(bench: Bench) -> None:
    first = bench.consumer(priority=3)
    second, third, fourth = bench.consumer(1), bench.consumer(2), bench.consumer(2)
    assert active(bench.leave(first, DeliveryOutcome.REQUEUE)) == [(third, True)]
    assert active(bench.leave(third, DeliveryOutcome.REQUEUE)) == [(fourth, True)]
    assert active(bench.leave(fourth, DeliveryOutcome.REQUEUE)) == [(second, True)]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "single_active_consumer_priority_take_over")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_consumer_priority_test", "single_active_consumer_update_priority_test"
)
def test_a_higher_priority_takes_over_at_once_from_one_that_holds_nothing(bench: Bench) -> None:
    first = bench.consumer(1)
    bench.told.clear()
    second = bench.consumer(1, priority=1)
    assert active(bench.told) == [(first, False), (second, True)]
    assert bench.bodies(bench.publish("a"), second) == ["a"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "single_active_consumer_quiescing_receives_no_further_messages_test"
)
def test_a_quiescing_one_gets_nothing_and_hands_over_when_it_has_settled(bench: Bench) -> None:
    first = bench.consumer(5)
    bench.publish("a", "b")
    bench.told.clear()
    second = bench.consumer(5, priority=1)
    assert active(bench.told) == [(first, False), (second, False)]
    assert bench.bodies(bench.publish("c")) == []
    one, two = bench.held(first)
    assert active(bench.settle(first, DeliveryOutcome.ACCEPT, [one])) == []
    told = bench.settle(first, DeliveryOutcome.ACCEPT, [two])
    assert active(told) == [(second, True)]
    assert bench.bodies(told, second) == ["c"]


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
@pytest.mark.parametrize("delivery_outcome", [DeliveryOutcome.REQUEUE, DeliveryOutcome.REQUEUE_FAILED])
def test_what_a_quiescing_one_returns_goes_first_to_its_successor(
    bench: Bench, delivery_outcome: DeliveryOutcome
) -> None:
    first = bench.consumer(1)
    bench.publish("a", "b")
    second = bench.consumer(5, priority=1)
    told = bench.settle(first, delivery_outcome)
    assert bench.bodies(told, second) == ["a", "b"]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_quiescing_resumes_after_cancel_test")
def test_a_quiescing_one_goes_on_when_the_other_is_gone(bench: Bench) -> None:
    first = bench.consumer(5)
    bench.publish("a")
    second = bench.consumer(5, priority=1)
    bench.publish("b")
    told = bench.cancel(second)
    assert active(told) == [(first, True)]
    assert bench.bodies(told, first) == ["b"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "single_active_consumer_quiescing_cancelled_test",
    "single_active_consumer_quiescing_disconnected_test",
)
@pytest.mark.parametrize("ends", ["cancel", "leave"])
def test_a_quiescing_one_that_ends_makes_way(bench: Bench, ends: str) -> None:
    first = bench.consumer(5)
    bench.publish("a")
    second = bench.consumer(5, priority=1)
    told = bench.cancel(first) if ends == "cancel" else bench.leave(first, DeliveryOutcome.REQUEUE_FAILED)
    assert active(told) == [(second, True)]
    assert bench.bodies(told, second) == ([] if ends == "cancel" else ["a"])


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "sac_consumer_timeout_3_test", "sac_consumer_timeout_test")
def test_a_time_out_activates_the_next_and_who_is_heard_of_again_waits(bench: Bench) -> None:
    first, second = bench.consumer(1), bench.consumer(1)
    bench.publish("a")
    told = bench.wait(1000)
    assert active(told) == [(first, False), (second, True)]
    assert bench.bodies(told, second) == ["a"]
    assert active(bench.credit(first, 5)) == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "sac_consumer_timeout_2_test")
def test_the_only_one_is_active_again_when_it_is_heard_of(bench: Bench) -> None:
    first = bench.consumer(1)
    bench.publish("a")
    assert active(bench.wait(1000)) == [(first, False)]
    told = bench.credit(first, 1)
    assert active(told) == [(first, True)]
    assert bench.bodies(told, first) == ["a"]


def test_what_it_was_given_before_is_told_before_it_stops_being_active(bench: Bench) -> None:
    first = bench.consumer(1)
    bench.queue.apply(Publish(bench.publisher, [0], [message("a")], False), bench.now)
    bench.told.clear()
    bench.consumer(priority=1)
    kinds = [type(each) for each in bench.told if isinstance(each, Deliver | ActiveChanged)]
    assert kinds == [Deliver, ActiveChanged, ActiveChanged]
    assert bench.held(first)


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_basic_get_test")
def test_a_fetch_gets_nothing_beside_a_single_active_consumer(bench: Bench) -> None:
    bench.publish("a")
    fetcher = bench.consumer(counted=False)
    assert bench.bodies(bench.credit(fetcher, 1, drain=True)) == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_competing_strategy_test")
def test_without_the_setting_all_are_served_and_nobody_hears_of_activity() -> None:
    bench = Bench()
    bench.consumer(1)
    bench.consumer(1)
    assert len(bench.bodies(bench.publish("a", "b"))) == 2
    assert active(bench.told) == []
