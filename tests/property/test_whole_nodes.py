"""Whole nodes on disks that lose power and a network that cuts (`tests.support.sim_nodes`).

Set AMQP10BROKER_LONG for some hundred lives.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.journals import LONG
from tests.support.sim_nodes import Simulation

SEEDS: Final = range(400 if LONG else 8)
STEPS: Final = 150 if LONG else 80
TWICE: Final = range(1000, 1050 if LONG else 1002)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_whatever_fails(seed: int) -> None:
    """What was confirmed is there once and in order, members agree, and all asked is answered in the end."""
    life = Simulation(seed, steps=STEPS)
    life.run()
    assert sum(len(queue.history.published) for queue in life.queues.values()) > 0, "no run: nothing happened"


@pytest.mark.parametrize("seed", TWICE)
def test_a_seed_gives_the_same_life_byte_for_byte(seed: int) -> None:
    """Whatever fails can be looked at again."""
    lives = [Simulation(seed, steps=STEPS) for _ in range(2)]
    for life in lives:
        life.run()
    assert lives[0].trace == lives[1].trace
    assert len(lives[0].trace) > 500
