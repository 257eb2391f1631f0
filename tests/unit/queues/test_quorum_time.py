"""The time of a log, whatever the clocks of its leaders say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.queues.quorum.durability import AHEAD_MS_MAX, Clocks, LogTime
from amqp10broker.queues.settings import QueueSettings
from tests.support.quorum_nodes import World

HOURS_2 = 7_200_000
TTL_MS = 10_000


def time_of(correction_ms: int = 0, time_ms: int = 0, clock_ms: int = 0) -> LogTime:
    node = Clocks()
    node.correction_ms = correction_ms
    return LogTime(node, time_ms, clock_ms)


def test_time_that_is_ahead_goes_on_a_tenth_slower_until_the_clock_is_there() -> None:
    time = time_of(0, 10_000, 0)
    assert [time.at(clock_ms) for clock_ms in (0, 1_000, 50_000, 99_999)] == [10_000, 10_900, 55_000, 99_999]
    assert time.at(100_000) == 100_000
    assert time.at(100_001) == 100_001


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    time = time_of()
    assert time.at(50_000) == 50_000
    assert time.at(20_000) == 50_000
    assert time.at(60_000) == 60_000


@given(
    st.integers(-HOURS_2, HOURS_2),
    st.integers(0, HOURS_2),
    st.lists(st.integers(0, 100_000), min_size=1),
    st.integers(0, HOURS_2),
)
def test_it_never_runs_back_and_what_is_due_is_due_when_it_says_so(
    correction_ms: int, ahead_ms: int, steps: list[int], wait_ms: int
) -> None:
    time = time_of(correction_ms, ahead_ms, 0)
    clock_ms, last = 0, ahead_ms
    for step in steps:
        clock_ms += step
        now = time.at(clock_ms)
        assert last <= now
        last = now
    due = last + wait_ms
    when = time.when(due)
    if wait_ms:
        assert time_of(correction_ms, last, clock_ms).at(when - 1) < due
    assert time.at(max(when, clock_ms)) >= due


def led(world: World) -> int:
    """Number of the node that leads, when all have heard of it."""
    world.settle_down(lambda: world.leader() is not None and world.even())
    leader = world.leader()
    assert leader is not None
    return leader.number


def waiting(world: World) -> int:
    leader = world.leader()
    assert leader is not None
    return leader.backend.queue.ready


@pytest.mark.parametrize("after", ["wrong", "right"])
def test_messages_expire_when_a_leader_whose_clock_was_hours_ahead_is_gone(after: str) -> None:
    """Time goes on, and what expires after ten seconds does so after eleven; also at the wrong one again."""
    world = World(3, settings=QueueSettings(message_ttl_ms=TTL_MS))
    first = led(world)
    world.skew_ms[first] = HOURS_2
    world.publish(world.nodes[first])
    world.settle_down(lambda: len(world.confirmed) == 1 and world.even())
    world.crash(first)
    second = led(world)
    assert second != first
    if after == "wrong":
        world.start(first)
        world.settle_down(world.even)
    assert world.nodes[second].backend.ahead_ms(world.now) > HOURS_2 - 60_000
    world.publish(world.nodes[second])
    world.settle_down(lambda: len(world.confirmed) == 2 and world.even())
    begun = world.now
    assert waiting(world) > 0
    world.settle_down(lambda: waiting(world) == 0)
    assert TTL_MS - 100 <= world.now - begun <= TTL_MS * 10 / 9 + 100


def test_a_leader_is_not_further_ahead_of_the_others_than_the_bound() -> None:
    """What was published before with ten seconds to live has them when a node leads that is hours ahead."""
    world = World(4, settings=QueueSettings(message_ttl_ms=TTL_MS))
    first = led(world)
    world.publish(world.nodes[first])
    world.settle_down(lambda: len(world.confirmed) == 1 and world.even())
    others = [number for number in world.nodes if number != first]
    for number in others:
        world.skew_ms[number] = HOURS_2
        world.clocks[number].heard(first, -HOURS_2)
    begun = world.now
    world.part(first)
    world.settle_down(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    world.publish(leader)
    world.settle_down(lambda: len(world.confirmed) == 2)
    assert leader.store.now_ms <= world.now + AHEAD_MS_MAX
    assert waiting(world) == 2
    world.settle_down(lambda: waiting(world) == 0)
    assert TTL_MS - AHEAD_MS_MAX <= world.now - begun <= TTL_MS + 2_000
