"""S0: random lives of Raft groups, in which eight invariants hold after every step, and which recover.

`tests.support.raft_simulation` says what may happen, `tests.support.raft_group` what must hold. A failure
says the seed; ``Simulation(seed, the_room(), trace=True)`` has the trace.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.journals import LONG
from tests.support.raft_room import the_room
from tests.support.raft_simulation import Simulation

BLOCKS: Final = 5000 if LONG else 6
SEEDS_IN_A_BLOCK: Final = 100


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_committed_is_lost_and_the_group_gets_on(block: int) -> None:
    """Whatever is lost, late, doubled, cut, slow, or crashes; and when that ends, the group falls silent."""
    room = the_room()
    terms = commits = reads = 0
    for seed in range(block * SEEDS_IN_A_BLOCK, (block + 1) * SEEDS_IN_A_BLOCK):
        run = Simulation(seed, room, codec=seed % 8 == 0)
        run.run()
        terms += len(run.group.leaders)
        commits += len(run.group.truth)
        reads += len(run.group.answered)
    # A simulation in which nothing happens proves nothing.
    assert terms > SEEDS_IN_A_BLOCK
    assert commits > 10 * SEEDS_IN_A_BLOCK
    assert reads > SEEDS_IN_A_BLOCK // 4


@pytest.mark.parametrize("block", range(500 if LONG else 1))
def test_long_lives(block: int) -> None:
    """Four times as many steps: more terms, more snapshots, more changes of members in one life."""
    room = the_room()
    for seed in range(block * 20, block * 20 + 20):
        Simulation(1_000_000 + seed, room, steps=2400).run()


def test_the_same_seed_is_the_same_life() -> None:
    """Line by line; so a seed that fails can be looked at."""
    room = the_room()
    for seed in range(50):
        one, other = (Simulation(seed, room, trace=True, codec=through) for through in (False, True))
        one.run()
        other.run()
        assert one.trace == other.trace
        assert one.trace
