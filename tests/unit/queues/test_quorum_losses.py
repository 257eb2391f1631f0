"""What becomes of a quorum queue's consumers and publishers when a leader or a node is lost.

The scenarios (`tests.support.quorum_scenarios`) are told of faults too: `property/test_quorum_mutants.py`.
"""

from __future__ import annotations

import pytest

from amqp10broker.queues.queue_status import ConsumerStatus, QueueStatus
from tests.support.askers import new_asker
from tests.support.quorum_room import the_quorum_room
from tests.support.quorum_scenarios import SCENARIOS


def check(*names: str) -> None:
    for name in names:
        SCENARIOS[name](the_quorum_room())


def test_letters_are_carried_out_once() -> None:
    check(
        "letters_are_known_after_a_start",
        "letters_that_come_twice_do_nothing",
        "letters_behind_a_gap_do_nothing",
        "a_refused_publish_stays_refused",
    )


@pytest.mark.rabbitmq("amqp_client_SUITE", "lost_deliveries_quorum_queue")
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "detects_lost_delivery", "lost_delivery")
def test_deliveries_on_their_way_are_sent_again_as_they_were() -> None:
    check(
        "what_was_seen_is_not_sent_again",
        "what_went_out_settled_is_sent_again",
        "what_is_sent_again_is_marked_as_it_was",
        "what_was_given_back_before_is_of_another_epoch",
    )


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "leader_transfer_quorum_queue_credit_batches",
    "leader_transfer_quorum_queue_credit_single",
)
def test_credit_survives_a_leader() -> None:
    check("credit_counts_once")


def test_counts_and_the_limit_survive_leaders() -> None:
    check("counts_survive")


def test_what_comes_back_has_one_order_at_all_members() -> None:
    check("what_comes_back_has_one_order")


def test_time_is_the_logs_and_never_runs_back() -> None:
    check("time_never_runs_back", "time_passes_by_the_log_alone")


def test_a_time_out_reaches_the_node_over_a_change_of_leaders() -> None:
    check("a_time_out_is_kept")


def test_dead_letters_are_the_leaders() -> None:
    check("dead_letters_at_most_once_are_the_leaders")


def test_dead_letters_at_least_once_are_offered_anew() -> None:
    check("dead_letters_are_offered_anew")


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "consumer_disconnected_timeout_test")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "consumer_disconnected_timeout_queue_arg", "consumer_disconnected_timeout_policy"
)
def test_what_a_lost_node_held_comes_back_when_its_time_is_over() -> None:
    check(
        "a_node_that_is_not_heard_of_keeps_what_it_holds",
        "the_wait_for_a_node_is_the_queues_own",
        "what_a_suspect_got_settled_stays_its_own",
    )


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "delayed_retry_consumer_disconnect_all_mode_test",
    "delayed_retry_consumer_disconnect_timeout_test",
)
def test_what_a_lost_node_held_is_delayed_as_returns_are() -> None:
    check("what_comes_back_after_long_waits_as_returns_do")


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "down_with_noconnection_marks_suspect_and_node_is_monitored_test",
    "active_flag_updated_when_consumer_suspected_unsuspected_test",
    note="who is suspected gets nothing; `queue_status` says so",
)
def test_a_node_that_is_back_goes_on() -> None:
    check("a_node_that_is_back_goes_on")


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "cancelled_consumer_comes_back_after_noconnection_test",
    "cancelled_down_with_noconnection_comes_back_test",
    "single_active_consumer_cancelled_with_pending_disconnected_test",
)
def test_a_cancelled_consumer_settles_when_its_node_is_back() -> None:
    check("a_cancelled_consumer_that_is_away_settles_when_back")


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "consumer_timeout_disconnected_test", "sac_consumer_timeout_noconnection_test"
)
def test_deliveries_of_a_lost_node_time_out() -> None:
    check("a_delivery_times_out_though_its_node_is_away")


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "active_flag_not_updated_when_consumer_suspected_unsuspected_and_single_active_consumer_is_on_test",
    "single_active_consumer_replaces_consumer_when_down_noconnection_test",
    "single_active_returns_messages_on_noconnection_test",
    note="when the node's time is over",
)
def test_the_next_consumer_is_active_when_the_lost_ones_messages_come_back() -> None:
    check("the_active_consumer_stays_until_it_is_given_up")


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_higher_waiting_disconnected_test")
def test_a_newcomer_of_higher_priority_takes_over_when_its_node_is_back() -> None:
    check("one_that_is_not_heard_of_does_not_become_the_active_one")


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_all_disconnected_test")
def test_one_of_many_that_were_lost_is_active_when_back() -> None:
    check("one_of_many_that_are_away_is_active_when_back")


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "purge_nodes_test")
def test_an_older_start_takes_nothing_from_a_newer_one() -> None:
    check("an_older_start_takes_nothing_from_a_newer_one", "who_is_gone_comes_no_more")


def test_who_is_away_is_ahead_of_nobody() -> None:
    session = new_asker("s")
    one, two = session.consumer(), session.consumer()
    parts = {one: ConsumerStatus(one, 5), two: ConsumerStatus(two, 5, 3)}
    assert QueueStatus(0, 0, parts).ahead_of(one) == parts[two]
    parts[two] = ConsumerStatus(two, 5, 3, away=True)
    assert QueueStatus(0, 0, parts).ahead_of(one) is None
