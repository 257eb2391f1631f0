"""The proofs of a quorum queue's losses are proved: each fault that is planted into its room is caught.

A mutant is loaded beside the room (`tests.support.quorum_room`), so nothing is changed for the other tests.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.support.journals import LONG
from tests.support.quorum_failover import Life
from tests.support.quorum_mutants import QUORUM_MUTANTS, QuorumMutant
from tests.support.quorum_room import quorum_mutant, the_quorum_room
from tests.support.quorum_scenarios import SCENARIOS
from tests.support.raft_room import Room

SEEDS: Final = 2000 if LONG else 60


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_queue_keeps_its_rules(name: str) -> None:
    """Every scenario, with the room as it is."""
    SCENARIOS[name](the_quorum_room())


@pytest.mark.parametrize("planted", QUORUM_MUTANTS, ids=lambda planted: planted.name)
def test_a_scenario_shows_it(planted: QuorumMutant) -> None:
    """The one of its rule fails."""
    with pytest.raises((AssertionError, KeyError, ValueError)):
        SCENARIOS[planted.scenario](quorum_mutant(planted.name, planted.patches))


@pytest.mark.parametrize(
    "planted", [each for each in QUORUM_MUTANTS if not each.rare], ids=lambda planted: planted.name
)
def test_lives_at_random_find_it(planted: QuorumMutant) -> None:
    """A session hears something else than it should, or members part."""
    assert first_failure(quorum_mutant(planted.name, planted.patches)) is not None


def first_failure(room: Room) -> int | None:
    """The first seed that fails."""
    for seed in range(SEEDS):
        try:
            Life(room, Random(seed)).run(200)
        except (AssertionError, KeyError, ValueError):
            return seed
    return None


def test_each_number_of_the_table_is_planted() -> None:
    """Those of the queue's own state: 27 to 29, 31 to 41, 53 and 54; 30 is its clients' half."""
    numbers = {int(each.name[:2]) for each in QUORUM_MUTANTS if each.name[:2].isdigit()}
    assert numbers == {*range(27, 42), 53, 54} - {30}
