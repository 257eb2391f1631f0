"""Quorum queues by the rules of RabbitMQ 4.3: 32 strict priorities, a limit of failed attempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.emulation import rules_of
from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import Overflow
from tests.support.quorum_bench import Bench, message
from tests.support.selecting import selector
from tests.unit.queues.test_quorum_browsing import Browsed
from tests.unit.queues.test_quorum_selecting import Colours

RULES: dict[str, Any] = dict(rules_of("4.3").quorum)
PRIORITIES = st.none() | st.integers(0, 255)


def level(priority: int | None) -> int:
    return 4 if priority is None else min(priority, 31)


@pytest.mark.rabbitmq("amqp_client_SUITE", "priority_quorum_queue", note="with `emulate` 4.3")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "priority_queue_2_1_ratio", note="with `emulate` 4.3")
@given(st.lists(PRIORITIES, max_size=30), st.integers(1, 10))
def test_the_highest_goes_first_and_each_is_first_in_first_out(
    priorities: list[int | None], some: int
) -> None:
    """Whatever was published in one batch or by itself, and over a snapshot."""
    bench = Bench(**RULES)
    batch = [message(str(number), priority=each) for number, each in enumerate(priorities)]
    for at in range(0, len(batch), some):
        bench.publish_all(batch[at : at + some])
    bench.queue = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    numbers = sorted(range(len(batch)), key=lambda number: (-level(priorities[number]), number))
    assert bench.get(bench.consumer(), 100) == list(map(str, numbers))


@given(st.lists(PRIORITIES, min_size=1, max_size=12), st.data())
def test_what_never_arrived_goes_back_to_its_place_and_what_was_returned_goes_first(
    priorities: list[int | None], data: st.DataObject
) -> None:
    bench = Bench(**RULES)
    bench.publish_all([message(str(number), priority=each) for number, each in enumerate(priorities)])
    waiting = sorted(range(len(priorities)), key=lambda number: (-level(priorities[number]), number))
    count = data.draw(st.integers(1, len(waiting)))
    consumer = bench.consumer()
    got = [int(each) for each in bench.get(consumer, count)]
    assert got == waiting[:count]
    bench.queue = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    returned = data.draw(st.lists(st.sampled_from(got), unique=True))
    if returned:
        bench.settle(consumer, DeliveryOutcome.REQUEUE, returned)
    bench.give_back(consumer, [each for each in got if each not in returned])
    left = [each for each in waiting if each not in returned]
    assert [int(each) for each in bench.get(bench.consumer(), 100)] == [*returned, *left]


def test_the_limit_counts_failed_attempts_alone() -> None:
    bench = Bench(delivery_limit=1, **RULES)
    bench.publish("a")
    consumer = bench.consumer()
    for _ in range(5):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, DeliveryOutcome.REQUEUE)
    for _ in range(2):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, DeliveryOutcome.REQUEUE_FAILED)
    assert bench.get(consumer) == []


def test_a_full_queue_drops_what_would_be_next() -> None:
    bench = Bench(max_length=2, overflow=Overflow.DROP_HEAD, **RULES)
    bench.publish("low", priority=0)
    bench.publish("high", priority=9)
    bench.publish("middle")
    assert bench.get(bench.consumer(), 9) == ["middle", "low"]


def test_a_message_for_later_waits_in_its_level() -> None:
    bench = Bench(**RULES)
    bench.publish_all([message("high", priority=9, delay_ms=5), message("low", priority=0, delay_ms=5)])
    bench.publish_all([message("normal", delay_ms=5)])
    bench.publish("now", priority=1)
    bench.now += 10
    assert bench.get(bench.consumer(), 9) == ["high", "normal", "now", "low"]


def test_a_browser_sees_the_levels_in_order_and_what_comes_later() -> None:
    bench = Browsed(**RULES)
    bench.publish("low", priority=0)
    bench.publish("high", priority=31)
    ref, shown = bench.browser(9)
    assert shown == ["high", "low"]
    assert bench.bodies(bench.publish("higher", priority=20), ref) == ["higher"]


def test_a_consumer_that_selects_gets_the_highest_first_and_followers_agree() -> None:
    queue = Colours(**RULES)
    queue.put("blue", "red", priority=1)
    queue.put("blue", "red", priority=30)
    queue.put("blue")
    consumer = queue.selects(selector("colour = 'blue'"), 2)
    queue.turns()
    assert queue.held(consumer) == [2, 4]
    queue.put("blue", priority=31)
    queue.credit(consumer, 2)
    queue.turns()
    assert queue.held(consumer) == [2, 4, 5, 0]


@pytest.mark.parametrize("version", ["3.13", "4.0", "4.2", "4.3"])
def test_a_snapshot_keeps_the_rules(version: str) -> None:
    bench = Bench(**rules_of(version).quorum)
    bench.publish("a", priority=9)
    again = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    assert again.settings == bench.settings
    assert encode_snapshot(again) == encode_snapshot(bench.queue)
