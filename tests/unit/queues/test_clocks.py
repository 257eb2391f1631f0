"""What a node makes of what other nodes' clocks say."""

from __future__ import annotations

import pytest

from amqp10broker.queues.quorum.clocks import AHEAD_MS_MAX, Clocks

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
