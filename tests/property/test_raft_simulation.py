"""S0: random lives of Raft groups, in which eight invariants hold after every step, and which recover.

`tests.support.raft_simulation` says what may happen, `tests.support.raft_group` what must hold. A failure
says the seed; ``Simulation(seed, raft_modules(), trace=True)`` has the trace.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.journal_harness import LONG
from tests.support.raft_group import Group
from tests.support.raft_modules import MUTANTS, Mutant, RaftModules, mutant, raft_modules
from tests.support.raft_script import ScriptRunner
from tests.support.raft_simulation import Failure, Simulation

BLOCKS: Final = 5000 if LONG else 6
SEEDS_IN_A_BLOCK: Final = 100


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_committed_is_lost_and_the_group_gets_on(block: int) -> None:
    """Messages are lost, late, doubled or cut, nodes slow or crashed; after that the group falls silent."""
    room = raft_modules()
    terms = commits = 0
    for seed in range(block * SEEDS_IN_A_BLOCK, (block + 1) * SEEDS_IN_A_BLOCK):
        run = Simulation(seed, room, codec=seed % 8 == 0)
        run.run()
        terms += len(run.group.leaders)
        commits += len(run.group.truth)
    # A simulation in which nothing happens proves nothing.
    assert terms > SEEDS_IN_A_BLOCK
    assert commits > 10 * SEEDS_IN_A_BLOCK


@pytest.mark.parametrize("block", range(500 if LONG else 1))
def test_long_lives(block: int) -> None:
    """They have four times as many steps, with more terms, snapshots and changes of members in one life."""
    room = raft_modules()
    for seed in range(block * 20, block * 20 + 20):
        Simulation(1_000_000 + seed, room, steps=2400).run()


def test_the_same_seed_is_the_same_life() -> None:
    """They agree line by line, so a seed that fails can be examined."""
    room = raft_modules()
    for seed in range(50):
        one, other = (Simulation(seed, room, trace=True, codec=through) for through in (False, True))
        one.run()
        other.run()
        assert one.trace == other.trace
        assert one.trace


@pytest.mark.parametrize(
    ("way_ms", "disk_ms"),
    [(5, 5), (200, 5), (3_000, 50), (10_000, 50), (5, 3_000), (5, 20_000), (5_000, 20_000)],
)
def test_a_leader_is_elected_however_slow_messages_and_disks_are(way_ms: int, disk_ms: int) -> None:
    """A round may take many times the time-out: late answers count, and attempts wait as long as needed."""
    room = raft_modules()
    for seed in range(20):
        group = slow_election(Group(room, range(1, 4), Random(seed).random), way_ms, disk_ms)
        assert group.now <= 20 * (2 * way_ms + disk_ms) + 1_000
        assert max(node.term for node in group.nodes.values()) <= 8


def slow_election(group: Group, way_ms: int, disk_ms: int) -> Group:
    """Delay each message and each durable write so long, until a leader takes proposals."""
    way: deque[tuple[int, Any]] = deque()
    durable: dict[int, deque[int]] = {me: deque() for me in group.nodes}
    while (leader := group.leader()) is None or not leader.raft.status.open:
        way.extend((group.now + way_ms, message) for message in group.network)
        group.network.clear()
        for me, node in group.nodes.items():
            durable[me].extend([group.now + disk_ms] * (len(node.disk.writes) - len(durable[me])))
        dues = [due for node in group.up() if (due := node.raft.deadline) is not None]
        dues += [arriving[0][0] for arriving in (way,) if arriving]
        dues += [writes[0] for writes in durable.values() if writes]
        group.now = max(group.now, min(dues))
        while way and way[0][0] <= group.now:
            group.deliver(way.popleft()[1])
        for me, node in group.nodes.items():
            while durable[me] and durable[me][0] <= group.now:
                durable[me].popleft()
                node.persist()
            if (due := node.raft.deadline) is not None and due <= group.now:
                node.raft.tick(group.now)
                node.turn()
    return group


SCRIPTS: Final = Path(__file__).parents[1] / "scripts" / "raft"
SEEDS: Final = 20_000 if LONG else 600


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda planted: planted.name)
def test_a_script_shows_it(planted: Mutant) -> None:
    """The trace differs from that of the scenario written for its rule."""
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
    """In one of some hundred lives an invariant is broken, or the group does not progress."""
    assert first_failure(mutant(planted.name, planted.patches), planted.seed) is not None


def first_failure(room: RaftModules, first: int) -> int | None:
    for seed in (first, *range(SEEDS)):
        try:
            Simulation(seed, room).run()
        except Failure:
            return seed
    return None
