"""The proofs of consensus are proved: each fault that is planted into the room `raft` is caught.

A mutant is loaded beside the room (`tests.support.raft_room`), so nothing is changed for the other tests. The
seeds are the first of the simulation's own; AMQP10BROKER_LONG looks for the rare ones at random as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.journals import LONG
from tests.support.raft_mutants import MUTANTS, Mutant
from tests.support.raft_room import Room, mutant
from tests.support.raft_script import ScriptRunner
from tests.support.raft_simulation import Failure, Simulation

SCRIPTS: Final = Path(__file__).parents[1] / "scripts" / "raft"
SEEDS: Final = 20_000 if LONG else 600


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda planted: planted.name)
def test_a_script_shows_it(planted: Mutant) -> None:
    """Another trace than that of the scenario written for its rule."""
    text = (SCRIPTS / f"{planted.script}.txt").read_text(encoding="utf-8")
    try:
        trace = ScriptRunner(mutant(planted.name, planted.patches)).run(text)
    except (KeyError, TypeError):
        return  # it has broken more than the rule
    assert trace != text


@pytest.mark.parametrize(
    "planted", [each for each in MUTANTS if LONG or not each.rare], ids=lambda planted: planted.name
)
def test_the_simulation_finds_it(planted: Mutant) -> None:
    """An invariant is broken, or the group does not get on, in one of some hundred lives."""
    assert first_failure(mutant(planted.name, planted.patches)) is not None


def first_failure(room: Room) -> int | None:
    for seed in range(SEEDS):
        try:
            Simulation(seed, room).run()
        except Failure:
            return seed
    return None
