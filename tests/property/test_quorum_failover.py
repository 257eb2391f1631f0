"""Sessions hear of a quorum queue the same whether or not leaders, nodes and what is on its way are lost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.journals import LONG
from tests.support.quorum_failover import Life
from tests.support.quorum_room import the_quorum_room


@pytest.mark.parametrize("seed", range(2000 if LONG else 60))
def test_long_lives(seed: int) -> None:
    Life(the_quorum_room(), Random(seed)).run(200)


@pytest.mark.parametrize("seed", range(2000 if LONG else 15))
def test_lives_with_consumers_that_select(seed: int) -> None:
    """What the leader has found for them is lost with it, or carried out by the next one."""
    Life(the_quorum_room(), Random(seed), selects=True).run(200)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.large_base_example])
@given(dice=st.randoms(use_true_random=False), steps=st.integers(5, 60))
def test_short_lives(dice: Random, steps: int) -> None:
    """Hypothesis chooses, and makes what fails short."""
    Life(the_quorum_room(), dice).run(steps)
