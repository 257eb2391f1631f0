"""What a node makes of what other nodes' clocks say."""

from __future__ import annotations

import pytest

from amqp10broker.queues.quorum.durability import AHEAD_MS_MAX, Clocks

HOURS_2 = 7_200_000


@pytest.mark.parametrize(
    ("others", "correction_ms"),
    [
        ([], 0),
        ([0, 0], 0),
        ([-500, 300], 0),
        ([-HOURS_2, -HOURS_2], AHEAD_MS_MAX - HOURS_2),
        ([HOURS_2, HOURS_2], HOURS_2 - AHEAD_MS_MAX),
        ([0, HOURS_2], 0),
        ([-HOURS_2, 0], 0),
        # Of two the one behind is taken for right.
        ([-HOURS_2], AHEAD_MS_MAX - HOURS_2),
        ([HOURS_2], 0),
    ],
)
def test_the_clock_is_corrected_to_what_most_say(others: list[int], correction_ms: int) -> None:
    """Up to what nodes may differ by."""
    clocks = Clocks()
    for number, ahead_ms in enumerate(others, 2):
        clocks.heard(number, ahead_ms)
    assert clocks.correction_ms == correction_ms


def test_what_is_wrong_is_said_with_names_and_seconds() -> None:
    clocks = Clocks()
    clocks.heard(2, -HOURS_2)
    clocks.heard(3, 1_500)
    clocks.heard(4, 999)
    assert clocks.notes({2: "b", 3: "c", 4: "d"}) == {
        "clock of b": "the clock of node b is 7200.0 s behind this node's",
        "clock of c": "the clock of node c is 1.5 s ahead of this node's",
    }
    clocks.heard(3, -HOURS_2)
    clocks.heard(4, -HOURS_2)
    assert clocks.notes({})["clock of this node"].startswith("the clock of this node is 7199.0 s ahead of")


def test_a_difference_counts_as_far_as_it_is_certain_and_the_closest_measurement_counts() -> None:
    """It is known within half a round trip; a long one tells nothing that a short one has not told."""
    clocks = Clocks()
    clocks.heard(2, -20_000, 20_000)
    assert "clock of b" not in clocks.notes({2: "b"})
    clocks.heard(2, -20_000, 15_000)
    assert clocks.notes({2: "b"})["clock of b"].endswith("is 5.0 s behind this node's")
    clocks.heard(2, 3, 2)
    clocks.heard(2, -20_000, 20_010)
    assert "clock of b" not in clocks.notes({2: "b"})
    clocks.heard(2, -20_000, 10)
    clocks.heard(2, -10_000, 10_500)  # as good as nothing is known by this
    assert clocks.notes({2: "b"})["clock of b"].endswith("20.0 s behind this node's")
