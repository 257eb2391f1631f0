"""Who is alive: heard, and hears us; in the present incarnation; with a disk that works."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster.hello import (
    FACTS_BYTES_MAX,
    HEARTBEAT,
    HUNG_MS,
    Liveness,
    News,
    NodeAlive,
    NodeHeartbeat,
    Suspected,
)
from amqp10broker.layout import BadBytes


def beat(*hears: int, incarnation: int = 5, unsynced_ms: int = 0, facts: bytes = b"") -> NodeHeartbeat:
    return NodeHeartbeat(incarnation, unsynced_ms, frozenset(hears), facts)


def knowing(*nodes: int) -> Liveness:
    liveness = Liveness(1, 1_000)
    for node in nodes:
        assert list(liveness.know(node)) == [Suspected(node)]
    assert list(liveness.tick(0)) == []
    return liveness


def ticks(liveness: Liveness, start_ms: int, end_ms: int) -> list[tuple[int, News]]:
    """What it says at each tick, with the time."""
    return [
        (now, notifications)
        for now in range(start_ms, end_ms + 1, liveness.beat_ms)
        for notifications in liveness.tick(now)
    ]


def test_node_is_suspected_until_it_is_heard_and_hears_us() -> None:
    """Being heard by us is not enough."""
    liveness = knowing(2)
    assert list(liveness.received(2, beat(3), 10)) == []
    assert liveness.hears == {2}
    assert list(liveness.alive) == []
    assert list(liveness.received(2, beat(1, 3), 20)) == [NodeAlive(2, 5)]
    assert list(liveness.alive) == [2]
    assert list(liveness.received(2, beat(1), 120)) == []


def test_silence_of_a_second_is_suspicion() -> None:
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    assert ticks(liveness, 200, 3_000) == [(1_000, Suspected(2))]
    assert liveness.hears == frozenset()


@pytest.mark.parametrize(("suspect_ms", "beat_ms"), [(200, 40), (900, 180), (1_000, 200), (60_000, 200)])
def test_five_heartbeats_go_within_the_time_of_suspicion(suspect_ms: int, beat_ms: int) -> None:
    """Or more, so that what nodes tell each other with them is never older than 200 ms."""
    assert Liveness(1, suspect_ms).beat_ms == beat_ms


def test_what_else_comes_of_a_node_is_no_silence() -> None:
    """Heartbeats stand behind what is worked off; one that was lost is not heard by that."""
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    liveness.seen(2, 900)
    assert ticks(liveness, 200, 1_800) == []
    assert ticks(liveness, 2_000, 3_000) == [(2_000, Suspected(2))]
    liveness.seen(2, 3_000)
    assert liveness.hears == frozenset()


def test_node_that_does_not_hear_us_is_suspected() -> None:
    """A cut in one direction: its heartbeats still come."""
    liveness = knowing(2, 3)
    list(liveness.received(2, beat(1, 3), 0))
    assert list(liveness.received(2, beat(3), 100)) == [Suspected(2)]
    assert liveness.hears == {2}
    assert list(liveness.received(2, beat(1, 3), 200)) == [NodeAlive(2, 5)]


def test_new_incarnation_is_suspected_and_then_heard() -> None:
    """Also if nothing else showed that the node was away."""
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    assert list(liveness.received(2, beat(1, incarnation=6), 50)) == [Suspected(2), NodeAlive(2, 6)]


def test_node_whose_disk_hangs_counts_as_silent() -> None:
    """It is suspected at once, and is not among those that are heard; it comes back with its disk."""
    liveness = knowing(2)
    list(liveness.received(2, beat(1, unsynced_ms=HUNG_MS - 1), 0))
    assert list(liveness.alive) == [2]
    assert list(liveness.received(2, beat(1, unsynced_ms=HUNG_MS), 100)) == [Suspected(2)]
    assert liveness.hears == frozenset()
    assert list(liveness.received(2, beat(1), 200)) == [NodeAlive(2, 5)]


def test_heartbeat_read_after_a_stall_is_not_moved_into_the_future() -> None:
    liveness = knowing(2)
    list(liveness.tick(100))
    list(liveness.received(2, beat(1), 5_100))
    assert ticks(liveness, 5_100, 8_000) == [(6_100, Suspected(2))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["beat", "lost", "tick"]), st.booleans(), st.integers(1, 2), st.integers(0, 900)
        ),
        max_size=60,
    )
)
def test_news_alternate(steps: list[tuple[str, bool, int, int]]) -> None:
    """A node is suspected, heard, suspected, ...; and a node is alive exactly after it was heard."""
    liveness = knowing(2)
    now, alive = 0, False
    for what, hears_us, incarnation, wait_ms in steps:
        now += wait_ms
        if what == "beat":
            notifications = list(liveness.received(2, beat(*[1] * hears_us, incarnation=incarnation), now))
        else:
            notifications = list(liveness.lost(2) if what == "lost" else liveness.tick(now))
        for each in notifications:
            assert isinstance(each, Suspected if alive else NodeAlive)
            alive = not alive
        assert alive == (2 in liveness.alive)


def test_heartbeat_with_huge_facts_is_refused() -> None:
    """They are small, or the sender is not well."""
    with pytest.raises(BadBytes, match="bytes of facts"):
        HEARTBEAT.decode(HEARTBEAT.encode(beat(1, facts=bytes(FACTS_BYTES_MAX + 1))))
