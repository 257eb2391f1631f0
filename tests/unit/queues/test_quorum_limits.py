"""Limits of a quorum queue: length, times to live, its own life; and what dies by them."""

from __future__ import annotations

import pytest

from amqp10broker.queues import commands
from amqp10broker.queues.quorum.commands import DlxSettle, NodeGone
from amqp10broker.queues.quorum.queue import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow
from tests.support.queue_bench import Bench, confirmed, holding, message, only, rejected

AT_LEAST_ONCE = {
    "dead_letter_exchange": "dlx",
    "dead_letter_strategy": DeadLetterStrategy.AT_LEAST_ONCE,
    "overflow": Overflow.REJECT_PUBLISH,
}


# --- length ---------------------------------------------------------------------------------------


def test_drop_head_takes_returns_first_then_low_priority() -> None:
    bench, consumer = holding("r", max_length=3, dead_letter_exchange="dlx")
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.publish("h", priority=9)
    bench.publish("n")
    assert bench.dead() == []
    bench.publish("m", "o")
    assert [bodies for _, bodies in bench.dead()] == [["r", "n"]]


@pytest.mark.rabbitmq("queue_length_limits_SUITE", "max_length_drop_publish_requeue")
def test_what_comes_back_to_a_full_queue_stays() -> None:
    bench, consumer = holding("a", max_length=1, dead_letter_exchange="dlx")
    bench.publish("b")
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.queue.ready == 2
    assert bench.dead() == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "reject_publish_applied_after_limit_test")
def test_once_full_it_takes_again_at_80_percent() -> None:
    bench = Bench(max_length=10, overflow=Overflow.REJECT_PUBLISH)
    bench.publish(*"abcdefghijk")
    consumer = bench.consumer()
    bench.get(consumer)
    assert rejected(bench.publish("x")) == [0], "90 % is still too much"
    bench.get(consumer)
    assert confirmed(bench.publish("x", "y")) == [0, 1]
    assert rejected(bench.publish("z")) == [0]


def test_what_a_consumer_takes_at_once_needs_no_room() -> None:
    bench = Bench(max_length=0, overflow=Overflow.REJECT_PUBLISH)
    consumer = bench.consumer(1)
    told = bench.publish("a", "b")
    assert (confirmed(told), rejected(told)) == ([0], [1])
    assert bench.bodies(told, consumer) == ["a"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "queue_length_limit_policy_cleared")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "queue_length_limit_reject_publish",
    differs="exact: RabbitMQ takes at least one more",
)
@pytest.mark.parametrize("settings", [{}, {"max_length": 9, "overflow": Overflow.REJECT_PUBLISH}])
def test_a_full_queue_hears_of_a_limit_that_is_gone(settings: dict[str, object]) -> None:
    bench = Bench(max_length=1, overflow=Overflow.REJECT_PUBLISH)
    bench.publish("a", "b")
    bench.configure(**settings)
    assert confirmed(bench.publish("b")) == [0]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "reject_publish_purge_test")
def test_a_purge_makes_room() -> None:
    bench = Bench(max_length=1, overflow=Overflow.REJECT_PUBLISH)
    bench.publish("a", "b")
    bench.do(commands.Purge(bench.request))
    assert confirmed(bench.publish("b")) == [0]


def test_reject_publish_dlx_is_drop_head() -> None:
    bench = Bench(max_length=1, overflow=Overflow.REJECT_PUBLISH_DLX, dead_letter_exchange="dlx")
    bench.publish("a", "b")
    assert bench.dead() == [("maxlen", ["a"])]


# --- times to live --------------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "priorities_expire_test")
def test_each_line_has_its_own_head() -> None:
    bench = Bench(dead_letter_exchange="dlx")
    bench.publish("h", priority=9)
    bench.publish("n", ttl_ms=10)
    bench.wait(10)
    assert bench.dead() == [("expired", ["n"])]


# --- the queue's own life -------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "queue_ttl")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "queue_ttl_test")
def test_an_unused_queue_goes_after_its_time() -> None:
    bench = Bench(expires_ms=1000)
    bench.publish("a")
    bench.wait(900)
    bench.do(commands.Touch())
    assert bench.queue.deadline() == bench.now + 100
    bench.wait(100)
    assert bench.queue.deleted


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "queue_ttl_with_single_active_consumer_test")
def test_a_cancelled_consumer_does_not_use_it() -> None:
    bench = Bench(expires_ms=1000, single_active_consumer=True)
    bench.publish("a")
    first, second = bench.consumer(1), bench.consumer()
    bench.cancel(first)
    bench.leave(second, commands.DeliveryOutcome.REQUEUE)
    bench.wait(1000)
    assert bench.queue.deleted


def test_fetching_a_message_uses_it() -> None:
    bench = Bench(expires_ms=1000)
    bench.wait(900)
    bench.leave(bench.consumer(counted=False), commands.DeliveryOutcome.REQUEUE)
    assert bench.queue.deadline() == bench.now + 1000


def test_a_restart_and_another_time_begin_anew() -> None:
    bench = Bench(expires_ms=1000)
    bench.wait(900)
    bench.do(NodeGone(0, 0))
    assert bench.queue.deadline() == bench.now + 1000
    bench.wait(900)
    bench.configure(expires_ms=2000)
    assert bench.queue.deadline() == bench.now + 2000


# --- purge and deletion ---------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "purge")
@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "purge_test", "purge_with_checkout_test")
def test_a_purge_leaves_what_consumers_hold() -> None:
    bench = Bench()
    bench.publish("a", "b", "c")
    consumer = bench.consumer(1)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    bench.credit(consumer, 1)
    assert only(bench.do(commands.Purge(bench.request)), commands.Answer)[0].ready == 2
    assert (bench.queue.ready, bench.queue.unsettled) == (0, 1)
    bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    assert bench.get(consumer) == ["a"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_while_publishing")
@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "link_target_quorum_queue_deleted",
    "server_closes_link_quorum_queue",
    "server_closes_link_stream",
)
def test_a_deleted_queue_tells_all_and_takes_nothing() -> None:
    bench, consumer = holding("a", dead_letter_exchange="dlx")
    told = bench.do(commands.Delete(bench.request))
    assert [each.ref for each in only(told, commands.QueueDeleted)] == [consumer]
    assert bench.dead() == [], "messages of a deleted queue are not dead letters"
    told = bench.do(commands.Publish(bench.publisher, [7], [message("b")], False))
    assert only(told, commands.Unconfirmed)[0].ids == [7]
    assert (
        only(bench.do(commands.Inspect(bench.request)), commands.Answer)[0].refused is commands.Refusal.GONE
    )


# --- dead letters, at least once ------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "stats", note="counted as messages of the queue")
def test_dead_messages_stay_until_they_arrived() -> None:
    bench, consumer = holding("a", **AT_LEAST_ONCE)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD_FAILED)
    assert bench.dead() == []
    assert bench.queue.dlx == 1
    dead = bench.queue.take_dlx()
    assert [(each.message[1], each.reason) for each in dead] == [(b"a", "rejected")]
    bench.do(DlxSettle([dead[0].key]))
    assert bench.queue.dlx == 0


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "single_dlx_worker")
def test_the_internal_consumer_has_at_most_32() -> None:
    bench = Bench(**AT_LEAST_ONCE, message_ttl_ms=1)
    bench.publish(*(str(number) for number in range(40)))
    bench.wait(1)
    first = bench.queue.take_dlx()
    assert len(first) == 32
    assert bench.queue.take_dlx() == []
    bench.do(DlxSettle([each.key for each in first[:3]]))
    assert [each.message[1] for each in bench.queue.take_dlx()] == [b"32", b"33", b"34"]
    bench.queue.dead_letter_prefetch = 34
    assert [each.message[1] for each in bench.queue.take_dlx()] == [b"35", b"36"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE",
    "reject_publish_source_queue_max_length",
    "reject_publish_source_queue_max_length_bytes",
)
def test_dead_messages_count_against_the_limits() -> None:
    bench, consumer = holding("a", **AT_LEAST_ONCE, max_length=1)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    assert rejected(bench.publish("b")) == [0]
    bench.do(DlxSettle([each.key for each in bench.queue.take_dlx()]))
    assert confirmed(bench.publish("b")) == [0]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "purge_dlx_test")
def test_dead_messages_are_purged() -> None:
    bench = Bench(**AT_LEAST_ONCE)
    bench.publish("a", "b")
    bench.settle(bench.consumer(1), commands.DeliveryOutcome.DISCARD)
    assert only(bench.do(commands.Purge(bench.request)), commands.Answer)[0].ready == 2
    assert bench.queue.dlx == 0


@pytest.mark.rabbitmq("rabbit_fifo_dlx_SUITE", "switch_strategies")
@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "switch_strategy")
@pytest.mark.parametrize(
    "settings",
    [
        {"dead_letter_exchange": "dlx", "overflow": Overflow.REJECT_PUBLISH},
        {**AT_LEAST_ONCE, "overflow": Overflow.DROP_HEAD},
        {**AT_LEAST_ONCE, "dead_letter_exchange": None},
    ],
)
def test_switching_away_deletes_what_has_not_arrived(settings: dict[str, object]) -> None:
    bench, consumer = holding("a", **AT_LEAST_ONCE)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    bench.configure(**settings)
    assert bench.queue.dlx == 0
    assert bench.dead() == []
    bench.configure(**AT_LEAST_ONCE)
    assert bench.queue.take_dlx() == []


@pytest.mark.rabbitmq("rabbit_fifo_dlx_SUITE", "switch_strategies")
@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "switch_strategy")
def test_switching_to_at_least_once_keeps_what_dies_from_then_on() -> None:
    bench, consumer = holding("a", "b", dead_letter_exchange="dlx")
    first, second = bench.held(consumer)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD, [first])
    bench.configure(**AT_LEAST_ONCE)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD, [second])
    assert bench.dead() == [("rejected", ["a"])]
    assert bench.queue.dlx == 1


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "drop_head_falls_back_to_at_most_once")
def test_drop_head_falls_back_to_at_most_once() -> None:
    bench, consumer = holding(
        "a", dead_letter_exchange="dlx", dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE
    )
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    assert (bench.queue.dlx, bench.dead()) == (0, [("rejected", ["a"])])


@pytest.mark.rabbitmq("rabbit_fifo_dlx_SUITE", "discard_dlx_consumer", "last_consumer_wins")
def test_a_new_internal_consumer_gets_everything_again() -> None:
    """It belongs to another member, which has the same state, and to no session."""
    bench, consumer = holding("a", **AT_LEAST_ONCE)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    assert len(bench.queue.take_dlx()) == 1
    bench.do(NodeGone(0, 0))
    assert bench.queue.take_dlx() == []
    other = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.parts()[0].bodies)
    assert len(other.take_dlx()) == 1
